// Stage 2 of the flow, "read": keeps many reads in flight for one worker.
//
// Runs on the worker's own thread (the io_uring is SINGLE_ISSUER), shares
// nothing. Every read has a ticket, the caller's number for it; completions
// come in any order. Bounds: depth reads in flight, each at most
// kRecordBytesMax.
#ifndef BROKER_IO_READ_H_
#define BROKER_IO_READ_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "broker/io/read_request.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint64_t kRecordBytesMax = uint64_t{256} << 20;
inline constexpr uint32_t kNotPinned = UINT32_MAX;
inline constexpr uint64_t kPinBytesMax = uint64_t{1} << 30;  // io_uring's
// Of the memory that reads go to, unless to `into`.
inline constexpr uint32_t kReadBufferAlign = 4096;

// Whether a range is read straight into `into`, not by way of a buffer.
bool ReadsStraight(const ReadRequest& request, std::span<const std::byte> into);

class StorageReader {
 public:
  // A finished read. bytes point into the reader's buffer of that ticket, valid
  // until Release(ticket), or are the `into` that Start was given.
  struct Done {
    uint32_t ticket = 0;
    Status status;  // NotFound, PermissionDenied, DataLoss (short range), ...
    std::span<const std::byte> bytes;
    bool cached = false;  // seen to be in the page cache
  };

  virtual ~StorageReader() = default;

  // "io_uring (defer_taskrun)", "pread", for status.
  virtual std::string backend() const = 0;
  virtual uint32_t depth() const = 0;
  // Next makes the reads itself, one after the other. More than one ticket then
  // hides no latency, it only keeps reads waiting behind one that hangs.
  virtual bool blocking() const = 0;

  // Starts a read of kind kFile or kRange. ticket < depth() and free. into, if
  // not empty, is where a kRange read lands (exactly request.bytes long): a row
  // of a slot, so that nothing is copied. True: it has been read already, from
  // the page cache, and is in this processor's: rather to be used before
  // another is started.
  virtual bool Start(uint32_t ticket, const ReadRequest& request,
                     std::span<std::byte> into, uint32_t pinned) = 0;
  // Memory that direct reads land in again and again, kPinBytesMax at most:
  // its pages are looked up and pinned once, instead of for each read. A number
  // for Start, whose `into` lies in it; kNotPinned where the kernel or
  // RLIMIT_MEMLOCK does not allow it, which costs time and nothing else. The
  // pages stay, whatever becomes of the mapping, until Unpin; a read in flight
  // keeps them for itself.
  virtual uint32_t Pin(std::span<std::byte> /*memory*/) { return kNotPinned; }
  virtual void Unpin(uint32_t /*pinned*/) {}
  // Sends what Start queued to the kernel.
  virtual void Submit() = 0;
  // The next finished read, after sleeping for it for wait_ns at most; false:
  // none. A blocking reader, and plain system calls (below), know no limit.
  virtual bool Next(uint64_t wait_ns, Done* done) = 0;
  // Whether the read of this ticket, which has not been handed out, is over.
  virtual bool Arrived(uint32_t ticket) = 0;
  virtual void Release(uint32_t ticket) = 0;
  // Started and not handed out. They cannot be called back: the kernel may
  // still write a buffer whose read was cancelled (measured), so a ticket is
  // occupied until its read ends, and the destructor waits for all, for ever if
  // the storage hangs.
  virtual uint32_t in_flight() const = 0;

  // From now on *entry is first + the ticket whose plain system calls this
  // thread is in, and what it was before while it is in none. They hang with
  // the storage; another thread can see it here.
  void ReportBlocking(std::atomic<uint32_t>* entry, uint32_t first) {
    blocked_entry_ = entry;
    first_entry_ = first;
  }

 protected:
  // While it lives, the thread is in plain system calls for ticket.
  class Blocking {
   public:
    Blocking(const StorageReader& reader, uint32_t ticket)
        : entry_(reader.blocked_entry_) {
      if (entry_ == nullptr) return;
      // Relaxed, all three: this thread alone writes it, who reads it looks
      // again later.
      before_ = entry_->load(std::memory_order_relaxed);
      entry_->store(reader.first_entry_ + ticket, std::memory_order_relaxed);
    }
    ~Blocking() {
      if (entry_ != nullptr) entry_->store(before_, std::memory_order_relaxed);
    }
    Blocking(const Blocking&) = delete;
    Blocking& operator=(const Blocking&) = delete;

   private:
    std::atomic<uint32_t>* const entry_;
    uint32_t before_ = 0;
  };

 private:
  std::atomic<uint32_t>* blocked_entry_ = nullptr;
  uint32_t first_entry_ = 0;
};

// What Next takes: look and go on, or sleep as long as it takes.
inline constexpr uint64_t kNoWait = 0;
inline constexpr uint64_t kWaitForever = UINT64_MAX;

// How reads are made, best first. An io_uring is set up in one of three ways
// (io_uring_setup(2)).
enum class ReadBackend {
  kAuto,          // the first of these that is there
  kDeferTaskrun,  // 6.1: completions are handled when this thread asks
  kCoopTaskrun,   // 5.19: ... at its next system call, without an interrupt
  kPlain,
  kPread,  // no io_uring: one read after the other
};
inline constexpr std::array<const char*, 5> kReadBackendNames = {
    "auto", "defer_taskrun", "coop_taskrun", "plain", "pread"};

// kAuto takes what a probe read works through, and pread in containers that
// forbid io_uring; another takes that or fails. Call on the thread that will
// use it.
StatusOr<std::unique_ptr<StorageReader>> MakeStorageReader(ReadBackend backend,
                                                           uint32_t depth);

}  // namespace penstock
#endif  // BROKER_IO_READ_H_
