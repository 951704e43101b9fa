// Stage 2 of the flow, "read": keeps many reads in flight for one worker.
//
// Runs on the worker's own thread (the io_uring is SINGLE_ISSUER) and shares
// nothing. The caller numbers each read with a ticket; completions come in any
// order. Bounds: depth reads in flight, each of at most kRecordBytesMax, all
// parts together.
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
// Alignment of a reader's own buffers.
inline constexpr uint32_t kReadBufferAlign = 4096;

// Whether a range is read directly into `into`, without a buffer.
bool ReadsStraight(const ReadPart& request, std::span<const std::byte> into);

class StorageReader {
 public:
  // A finished read. bytes are the `into` given to Start, or point into the
  // reader's buffer of this ticket and are valid until Release(ticket).
  struct Done {
    uint32_t ticket = 0;
    Status status;  // NotFound, PermissionDenied, DataLoss (short range), ...
    std::span<const std::byte> bytes;
    std::span<const uint64_t> ends;  // as in ReadBytes
    bool cached = false;             // known to come from the page cache

    ReadBytes read() const { return {bytes, ends}; }
  };

  virtual ~StorageReader() = default;

  // "io_uring (defer_taskrun)" or "pread", for status.
  virtual std::string backend() const = 0;
  virtual uint32_t depth() const = 0;
  // True if Next does the reads itself, one after the other. More than one
  // ticket then hides no latency; it only queues reads behind one that hangs.
  virtual bool blocking() const = 0;

  // Starts a read of kind kFile or kRange. ticket is free and < depth(). A
  // non-empty `into` receives a kRange read of one part without a copy (a row
  // of a slot, exactly request.bytes long). The parts of a request of several
  // are read one after the other, and the first error ends it. True: the bytes
  // came from the page cache and are in this processor's cache: use them before
  // starting another read.
  virtual bool Start(uint32_t ticket, const ReadRequest& request,
                     std::span<std::byte> into, uint32_t pinned) = 0;
  // Registers memory that direct reads use repeatedly, at most kPinBytesMax:
  // its pages are looked up and pinned once instead of per read. Returns a
  // number for Start, whose `into` lies in this memory; kNotPinned if the
  // kernel or RLIMIT_MEMLOCK forbids it, which only costs time. The pages stay
  // pinned until Unpin, whatever happens to the mapping; a read in flight keeps
  // its own reference.
  virtual uint32_t Pin(std::span<std::byte> /*memory*/) { return kNotPinned; }
  virtual void Unpin(uint32_t /*pinned*/) {}
  // Submits the queued reads to the kernel.
  virtual void Submit() = 0;
  // Returns the next finished read, after sleeping at most wait_ns; false:
  // none. A blocking reader and plain system calls (below) ignore the limit.
  virtual bool Next(uint64_t wait_ns, Done* done) = 0;
  // Whether the read of this ticket, not yet returned by Next, has ended.
  virtual bool Arrived(uint32_t ticket) = 0;
  // It waits for a network, whose deadlines are the fetcher's.
  virtual bool Fetches(uint32_t /*ticket*/) const { return false; }
  virtual void Release(uint32_t ticket) = 0;
  // Reads started and not yet returned by Next. They cannot be withdrawn: the
  // kernel may still write the buffer of a cancelled read (measured). A ticket
  // is therefore occupied until its read ends, and the destructor waits for all
  // reads, forever if the storage hangs.
  virtual uint32_t in_flight() const = 0;

  // While this thread is in plain system calls for a ticket, *entry is first +
  // ticket, and its previous value otherwise. Such calls hang with the storage;
  // another thread can see it here.
  virtual void ReportBlocking(std::atomic<uint32_t>* entry, uint32_t first) {
    blocked_entry_ = entry;
    first_entry_ = first;
  }

 protected:
  // While alive, marks this thread as in plain system calls for ticket.
  class Blocking {
   public:
    Blocking(const StorageReader& reader, uint32_t ticket)
        : entry_(reader.blocked_entry_) {
      if (entry_ == nullptr) return;
      // Relaxed, all three: only this thread writes it, and readers check again
      // later.
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

// Values of wait_ns: only poll, or sleep without a limit.
inline constexpr uint64_t kNoWait = 0;
inline constexpr uint64_t kWaitForever = UINT64_MAX;

// The ways to read, best first. An io_uring is set up in one of three ways
// (io_uring_setup(2)).
enum class ReadBackend {
  kAuto,          // the first of these that works
  kDeferTaskrun,  // 6.1: completions are handled when this thread asks
  kCoopTaskrun,   // 5.19: ... at its next system call, without an interrupt
  kPlain,
  kPread,  // no io_uring: one read at a time
};
inline constexpr std::array<const char*, 5> kReadBackendNames = {
    "auto", "defer_taskrun", "coop_taskrun", "plain", "pread"};

// kAuto takes the first backend through which a probe read works, and pread in
// containers that forbid io_uring; any other value takes that backend or fails.
// Call on the thread that will use the reader.
StatusOr<std::unique_ptr<StorageReader>> MakeStorageReader(ReadBackend backend,
                                                           uint32_t depth);

}  // namespace penstock
#endif  // BROKER_IO_READ_H_
