#include "broker/io/read.h"

#include <algorithm>
#include <cstring>

#include "broker/io/fetching_reader.h"
#include "broker/io/read_backend.h"

namespace penstock {
namespace {

StatusOr<std::unique_ptr<StorageReader>> MakeBestUringReader(uint32_t depth) {
  Status last;
  for (const ReadBackend rung :
       {ReadBackend::kDeferTaskrun, ReadBackend::kCoopTaskrun,
        ReadBackend::kPlain}) {
    StatusOr<std::unique_ptr<StorageReader>> reader =
        MakeUringReader(rung, depth);
    // Only "not this rung" justifies trying the next one.
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
  // Free the old memory first: both together may be 512 MiB.
  data_.reset();
  capacity_ = 0;
  bytes = (bytes + kReadBufferAlign - 1) / kReadBufferAlign * kReadBufferAlign;
  data_.reset(static_cast<std::byte*>(
      ::operator new[](bytes, std::align_val_t(kReadBufferAlign))));
  capacity_ = bytes;
}

void ReadBuffer::Trim(size_t kept) {
  if (capacity_ <= kept) return;
  data_.reset();
  capacity_ = 0;
}

bool ReadsStraight(const ReadPart& request, std::span<const std::byte> into) {
  if (into.empty()) return false;
  const uint32_t align = std::max(request.align, 1u);
  return request.offset % align == 0 && request.bytes % align == 0 &&
         reinterpret_cast<uintptr_t>(into.data()) % align == 0;
}

RangeTarget::RangeTarget(const ReadPart& request, std::span<std::byte> into,
                         ReadBuffer* buffer)
    : offset_(request.offset), bytes_(request.bytes) {
  uint64_t end = offset_ + bytes_;
  if (request.align > 0) {
    lead_ = offset_ % request.align;
    offset_ -= lead_;
    end = (end + request.align - 1) / request.align * request.align;
  }
  const uint64_t out_bytes = end - offset_;
  if (ReadsStraight(request, into)) {
    out_ = into;
    return;
  }
  buffer->Reserve(out_bytes);
  out_ = buffer->first(out_bytes);
  into_ = into;
}

std::span<const std::byte> RangeTarget::Deliver() const {
  const std::span<const std::byte> range = out_.subspan(lead_, bytes_);
  if (into_.empty()) return range;
  std::memcpy(into_.data(), range.data(), range.size());
  return into_;
}

void GatheredParts::Begin(const ReadRequest& request) {
  parts_ = request.more;
  ends_.clear();
  bytes_ = 0;
  // The ranges at once, so that nothing is moved later. What is too much is an
  // error of its part.
  uint64_t ranges = std::min(request.bytes, kRecordBytesMax);
  for (const ReadPart& part : parts_) {
    ranges += std::min(part.bytes, kRecordBytesMax - ranges);
  }
  buffer_.Reserve(std::max<uint64_t>(ranges, kBufferBytesMin));
}

Status GatheredParts::MakeRoom(uint64_t more) {
  if (more > kRecordBytesMax - bytes_) {
    return DataLossError(
        "{} bytes, after {} in the parts before it; a record has at most {} "
        "({} MiB)",
        more, bytes_, kRecordBytesMax, kRecordBytesMax >> 20);
  }
  if (bytes_ + more <= buffer_.capacity()) return OkStatus();
  ReadBuffer larger;
  larger.Reserve(std::max(bytes_ + more, 2 * bytes_));
  if (bytes_ > 0) std::memcpy(larger.data(), buffer_.data(), bytes_);
  buffer_ = std::move(larger);
  return OkStatus();
}

StatusOr<std::span<std::byte>> GatheredParts::Room(const ReadPart& part) {
  if (part.kind == ReadPart::Kind::kFile) return std::span<std::byte>();
  PENSTOCK_RETURN_IF_ERROR(MakeRoom(part.bytes));
  return std::span(buffer_.data() + bytes_, part.bytes);
}

StatusOr<bool> GatheredParts::Add(std::span<const std::byte> bytes,
                                  ReadPart* next) {
  if (!bytes.empty() && bytes.data() != buffer_.data() + bytes_) {
    PENSTOCK_RETURN_IF_ERROR(MakeRoom(bytes.size()));
    std::memcpy(buffer_.data() + bytes_, bytes.data(), bytes.size());
  }
  bytes_ += bytes.size();
  ends_.push_back(bytes_);
  if (ends_.size() > parts_.size()) return false;
  *next = std::move(parts_[ends_.size() - 1]);
  return true;
}

Status GatheredParts::Named(const Status& status) const {
  return status.Prepend(
      Format("part {} of {}", ends_.size() + 1, parts_.size() + 1));
}

namespace {

StatusOr<std::unique_ptr<StorageReader>> MakeFileReader(ReadBackend backend,
                                                        uint32_t depth) {
  if (depth == 0 || depth > kDepthMax) {
    return InvalidArgumentError("read depth {}: wanted 1 to {}", depth,
                                kDepthMax);
  }
  if (backend == ReadBackend::kPread) return MakePreadReader(depth, "");
  if (backend != ReadBackend::kAuto) return MakeUringReader(backend, depth);
  StatusOr<std::unique_ptr<StorageReader>> uring = MakeBestUringReader(depth);
  if (uring.ok()) return uring;
  return MakePreadReader(depth, uring.status().message());
}

}  // namespace

StatusOr<std::unique_ptr<StorageReader>> MakeStorageReader(ReadBackend backend,
                                                           uint32_t depth) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<StorageReader> files,
                            MakeFileReader(backend, depth));
  return std::unique_ptr<StorageReader>(
      std::make_unique<FetchingReader>(std::move(files)));
}

}  // namespace penstock
