// What the two readers share, and how MakeReader reaches each. Private to
// penstock_read and its test.
#ifndef BROKER_READ_BACKEND_H_
#define BROKER_READ_BACKEND_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "broker/read.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kDepthMax = 4096;
// What a ticket's buffer starts with: most JPEGs of training sets are smaller.
inline constexpr size_t kBufferBytesMin = size_t{256} << 10;
// A larger buffer goes back at Release, so that a few huge files do not leave
// depth huge buffers behind.
inline constexpr size_t kBufferBytesKept = size_t{4} << 20;

// Memory of one ticket, not set to zero, grown and reused.
class ReadBuffer {
 public:
  // At least bytes; what was in it is lost.
  void Reserve(size_t bytes);
  // Gives back what is more than kBufferBytesKept.
  void Trim();
  std::byte* data() { return data_.get(); }
  size_t capacity() const { return capacity_; }
  std::span<std::byte> first(size_t bytes) { return {data_.get(), bytes}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t capacity_ = 0;
};

// The whole regular file at path with plain system calls. Errors as Done states
// them; never waits for the writer of a FIFO.
StatusOr<std::span<const std::byte>> ReadFile(const std::string& path,
                                              ReadBuffer* buffer);

// DataLoss of a file of more than kRecordBytesMax bytes.
Status FileTooLargeError(const std::string& path, uint64_t bytes);
// DataLoss of a range the file ends in; found of its bytes are there.
Status ShortRangeError(const ReadRequest& request, uint64_t found);

// How an io_uring is set up, best first (io_uring_setup(2)). The names are what
// backend() shows.
enum class UringRung {
  kDeferTaskrun,  // 6.1: completions are handled when this thread asks
  kCoopTaskrun,   // 5.19: ... at its next system call, without an interrupt
  kPlain,
};

// The io_uring reader on one rung, after a file and a range were read through
// it. Errors: PermissionDenied or Unimplemented (this kernel or container has
// no io_uring at all), FailedPrecondition (not this rung).
StatusOr<std::unique_ptr<Reader>> MakeUringReader(UringRung rung,
                                                  uint32_t depth);

// backend() is "pread", and "pread (reason)" if a reason is given.
std::unique_ptr<Reader> MakePreadReader(uint32_t depth,
                                        const std::string& reason);

}  // namespace penstock
#endif  // BROKER_READ_BACKEND_H_
