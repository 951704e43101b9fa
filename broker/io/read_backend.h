// Shared parts of the two readers, and their makers for MakeStorageReader.
// Private to penstock_io, its test and its benchmark.
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
#include <vector>

#include "broker/io/read.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kDepthMax = 4096;
// Initial size of a ticket's buffer: most JPEGs of training sets are smaller.
inline constexpr size_t kBufferBytesMin = size_t{256} << 10;
// Release frees larger buffers, so that a few huge files do not leave depth
// huge buffers behind.
inline constexpr size_t kBufferBytesKept = size_t{4} << 20;
// If the buffers of a reader together exceed this, those larger than
// kBufferBytesMin are also freed.
inline constexpr size_t kBuffersBytesKept = size_t{64} << 20;

// Called first and last with a ring's memory mapped. The memory may reuse the
// address of another thread's ring: the kernel orders the two, but liburing
// maps with its own system calls, which ThreadSanitizer does not see.
inline void OrderRingMemory() {
  static std::atomic<uint32_t> rings = 0;
  rings.fetch_add(1, std::memory_order_acq_rel);
}

// Memory of one ticket, uninitialized; grows and is reused.
class ReadBuffer {
 public:
  // Makes room for at least `bytes`; discards the contents.
  void Reserve(size_t bytes);
  // Frees the buffer if it is larger than kept.
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

// Where a range is read to: directly to its destination, or, if a direct read
// needs alignment, to a buffer together with the bytes around it.
class RangeTarget {
 public:
  RangeTarget() = default;
  RangeTarget(const ReadPart& request, std::span<std::byte> into,
              ReadBuffer* buffer);

  // What remains to be read when done bytes have arrived.
  std::span<std::byte> Rest(uint64_t done) const { return out_.subspan(done); }
  uint64_t Offset(uint64_t done) const { return offset_ + done; }
  bool Holds(uint64_t done) const { return done >= lead_ + bytes_; }
  // How many bytes of the range itself have arrived.
  uint64_t Found(uint64_t done) const { return done - std::min(done, lead_); }
  // Returns the range at its destination.
  std::span<const std::byte> Deliver() const;

 private:
  std::span<std::byte> out_;
  std::span<std::byte> into_;  // empty: no destination but the buffer
  uint64_t offset_ = 0;        // of out_
  uint64_t lead_ = 0;          // bytes of out_ before the range
  uint64_t bytes_ = 0;
};

// The parts of a request that has several, gathered in one buffer.
class GatheredParts {
 public:
  void Begin(const ReadRequest& request);
  // Since Begin, until End.
  bool several() const { return !parts_.empty(); }
  void End() { parts_.clear(); }

  // The destination of part, which is next; empty if its size is not known
  // yet, or is 0. DataLoss: all parts together are too large.
  StatusOr<std::span<std::byte>> Room(const ReadPart& part);
  // Adds the part that was read, to where Room said or elsewhere. True: *next
  // is the part after it, else it was the last one.
  StatusOr<bool> Add(std::span<const std::byte> bytes, ReadPart* next);
  // status, an error of the part that is next, with its number.
  Status Named(const Status& status) const;

  std::span<const std::byte> bytes() { return buffer_.first(bytes_); }
  std::span<const uint64_t> ends() const { return ends_; }
  ReadBuffer& buffer() { return buffer_; }

 private:
  Status MakeRoom(uint64_t more);

  std::vector<ReadPart> parts_;  // after the first
  std::vector<uint64_t> ends_;   // of the parts added
  uint64_t bytes_ = 0;
  ReadBuffer buffer_;
};

// Reads the whole regular file at path with plain system calls. Errors as in
// Done; never waits for the writer of a FIFO.
StatusOr<std::span<const std::byte>> ReadFile(const ReadPart& part,
                                              ReadBuffer* buffer);

// DataLoss for a file of more than kRecordBytesMax bytes.
Status FileTooLargeError(const std::string& path, uint64_t bytes);
// The same, or that of a file that is not regular; else OK. As of stat(2).
Status CheckFile(const std::string& path, unsigned mode, uint64_t bytes);
// DataLoss for a range beyond the file's end; found of its bytes exist.
Status ShortRangeError(const ReadPart& request, uint64_t found);

// The io_uring reader on one rung (kDeferTaskrun, kCoopTaskrun or kPlain),
// returned after a file and a range were read through it. Errors:
// PermissionDenied or Unimplemented (this kernel or container has no io_uring),
// FailedPrecondition (this rung does not work).
StatusOr<std::unique_ptr<StorageReader>> MakeUringReader(ReadBackend rung,
                                                         uint32_t depth);

// backend() is "pread", or "pread (reason)" with a reason.
std::unique_ptr<StorageReader> MakePreadReader(uint32_t depth,
                                               const std::string& reason);

}  // namespace penstock
#endif  // BROKER_IO_READ_BACKEND_H_
