// What the two readers share, and how MakeStorageReader reaches each. Private
// to penstock_io, its test and its benchmark.
#ifndef BROKER_IO_READ_BACKEND_H_
#define BROKER_IO_READ_BACKEND_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "broker/io/read.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kDepthMax = 4096;
// What a ticket's buffer starts with: most JPEGs of training sets are smaller.
inline constexpr size_t kBufferBytesMin = size_t{256} << 10;
// A larger buffer goes back at Release, so that a few huge files do not leave
// depth huge buffers behind.
inline constexpr size_t kBufferBytesKept = size_t{4} << 20;
// And so do those that are larger than kBufferBytesMin, when all of a reader's
// are more than this.
inline constexpr size_t kBuffersBytesKept = size_t{64} << 20;

// Called with a ring's memory mapped, first and last. It may lie where another
// thread's lay: the kernel orders the two, but liburing maps with system calls
// of its own, which ThreadSanitizer does not see.
inline void OrderRingMemory() {
  static std::atomic<uint32_t> rings = 0;
  rings.fetch_add(1, std::memory_order_acq_rel);
}

// Memory of one ticket, not set to zero, grown and reused.
class ReadBuffer {
 public:
  // At least bytes; what was in it is lost.
  void Reserve(size_t bytes);
  // Gives back what is more than kept.
  void Trim(size_t kept = kBufferBytesKept);
  std::byte* data() { return data_.get(); }
  size_t capacity() const { return capacity_; }
  std::span<std::byte> first(size_t bytes) { return {data_.get(), bytes}; }

 private:
  struct Free {
    void operator()(std::byte* data) const {
      ::operator delete[](data, std::align_val_t(kReadBufferAlign));
    }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t capacity_ = 0;  // a multiple of kReadBufferAlign
};

// Where a range is read to: straight to its place if it has one, or, when a
// direct read wants it otherwise, to a buffer with what is around it.
class RangeTarget {
 public:
  RangeTarget() = default;
  RangeTarget(const ReadRequest& request, std::span<std::byte> into,
              ReadBuffer* buffer);

  // What is still to read when done bytes are there.
  std::span<std::byte> Rest(uint64_t done) const { return out_.subspan(done); }
  uint64_t Offset(uint64_t done) const { return offset_ + done; }
  bool Holds(uint64_t done) const { return done >= lead_ + bytes_; }
  // Of the range itself.
  uint64_t Found(uint64_t done) const { return done - std::min(done, lead_); }
  // The range, in its place.
  std::span<const std::byte> Deliver() const;

 private:
  std::span<std::byte> out_;
  std::span<std::byte> into_;  // empty: nowhere else
  uint64_t offset_ = 0;        // of out_
  uint64_t lead_ = 0;          // bytes of out_ before the range
  uint64_t bytes_ = 0;
};

// The whole regular file at path with plain system calls. Errors as Done states
// them; never waits for the writer of a FIFO.
StatusOr<std::span<const std::byte>> ReadFile(const std::string& path,
                                              ReadBuffer* buffer);

// DataLoss of a file of more than kRecordBytesMax bytes.
Status FileTooLargeError(const std::string& path, uint64_t bytes);
// DataLoss of a range the file ends in; found of its bytes are there.
Status ShortRangeError(const ReadRequest& request, uint64_t found);

// The io_uring reader on one rung (kDeferTaskrun, kCoopTaskrun or kPlain),
// after a file and a range were read through it. Errors: PermissionDenied or
// Unimplemented (this kernel or container has no io_uring at all),
// FailedPrecondition (not this rung).
StatusOr<std::unique_ptr<StorageReader>> MakeUringReader(ReadBackend rung,
                                                         uint32_t depth);

// backend() is "pread", and "pread (reason)" if a reason is given.
std::unique_ptr<StorageReader> MakePreadReader(uint32_t depth,
                                               const std::string& reason);

}  // namespace penstock
#endif  // BROKER_IO_READ_BACKEND_H_
