// Stage 2 of the flow, "read": keeps many reads in flight for one worker.
//
// Runs on the worker's own thread (the io_uring is SINGLE_ISSUER), shares
// nothing. Every read has a ticket, the caller's number for it; completions
// come in any order. Bounds: depth reads in flight, each at most
// kRecordBytesMax.
#ifndef BROKER_READ_H_
#define BROKER_READ_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint64_t kRecordBytesMax = uint64_t{256} << 20;

class Reader {
 public:
  // A finished read. bytes point into the reader's buffer of that ticket, valid
  // until Release(ticket), or are the `into` that Start was given.
  struct Done {
    uint32_t ticket = 0;
    Status status;  // NotFound, PermissionDenied, DataLoss (short range), ...
    std::span<const std::byte> bytes;
  };

  virtual ~Reader() = default;

  // "io_uring (defer_taskrun)", "pread", for status.
  virtual std::string backend() const = 0;
  virtual uint32_t depth() const = 0;

  // Starts a read of kind kFile or kRange. ticket < depth() and free. into, if
  // not empty, is where a kRange read lands (exactly request.bytes long): a row
  // of a slot, so that nothing is copied.
  virtual void Start(uint32_t ticket, const ReadRequest& request,
                     std::span<std::byte> into) = 0;
  // Sends what Start queued to the kernel.
  virtual void Submit() = 0;
  // The next finished read, if wait (and some are in flight) after sleeping for
  // it; false: none.
  virtual bool Next(bool wait, Done* done) = 0;
  virtual void Release(uint32_t ticket) = 0;
  virtual uint32_t in_flight() const = 0;
};

enum class ReadBackend { kAuto, kIoUring, kPread };

// kAuto takes io_uring when a probe read through it works, else pread (as in
// containers that forbid io_uring). Call on the thread that will use it.
StatusOr<std::unique_ptr<Reader>> MakeReader(ReadBackend backend,
                                             uint32_t depth);

}  // namespace penstock
#endif  // BROKER_READ_H_
