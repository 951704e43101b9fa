#include "broker/read.h"

#include <algorithm>

#include "broker/read_backend.h"

namespace penstock {
namespace {

StatusOr<std::unique_ptr<Reader>> MakeBestUringReader(uint32_t depth) {
  Status last;
  for (const UringRung rung :
       {UringRung::kDeferTaskrun, UringRung::kCoopTaskrun, UringRung::kPlain}) {
    StatusOr<std::unique_ptr<Reader>> reader = MakeUringReader(rung, depth);
    // Only "not this rung" is a reason to try the next one.
    if (reader.ok() ||
        reader.status().code() != StatusCode::kFailedPrecondition) {
      return reader;
    }
    last = reader.status();
  }
  return last;
}

}  // namespace

void ReadBuffer::Reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  // The old memory first: both at once may be 512 MiB.
  data_.reset();
  data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  capacity_ = bytes;
}

void ReadBuffer::Trim() {
  if (capacity_ <= kBufferBytesKept) return;
  data_.reset();
  capacity_ = 0;
}

StatusOr<std::unique_ptr<Reader>> MakeReader(ReadBackend backend,
                                             uint32_t depth) {
  if (depth == 0 || depth > kDepthMax) {
    return InvalidArgumentError("read depth {}: wanted 1 to {}", depth,
                                kDepthMax);
  }
  if (backend == ReadBackend::kPread) return MakePreadReader(depth, "");
  StatusOr<std::unique_ptr<Reader>> uring = MakeBestUringReader(depth);
  if (uring.ok() || backend == ReadBackend::kIoUring) return uring;
  return MakePreadReader(depth, uring.status().message());
}

}  // namespace penstock
