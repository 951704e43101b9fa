#include "broker/io/cached_range.h"

#include <sys/uio.h>

#include <algorithm>

#include "broker/io/guarded_copy.h"

namespace penstock {
namespace {

// Larger records gain nothing, and the buffer is kept.
constexpr uint64_t kBytesMax = 1 << 20;

bool MayBeCached(const ReadPart& part) {
  return part.kind == ReadPart::Kind::kRange && part.nowait && part.align == 0;
}

bool ReadPartNow(const ReadPart& part, bool warm, std::byte* to) {
  if (warm && part.map != nullptr) {
    return GuardedCopy(to, part.map + part.offset, part.bytes);
  }
  const iovec piece = {to, part.bytes};
  return part.bytes == 0 ||
         preadv2(part.fd, &piece, 1, static_cast<off_t>(part.offset),
                 RWF_NOWAIT) == static_cast<ssize_t>(part.bytes);
}

}  // namespace

void CachedRange::Expect(const ReadRequest& request) {
  if (request.map == nullptr) return;
  // The processor finds the rest by itself.
  constexpr uint64_t kLineBytes = 64;
  const uint64_t bytes = std::min(request.bytes, 8 * kLineBytes);
  for (uint64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(request.map + request.offset + at);
  }
}

bool CachedRange::Read(const ReadRequest& request, bool warm,
                       std::span<std::byte> into, ReadBytes* read) {
  if (!MayBeCached(request) || request.bytes > kBytesMax) return false;
  if (!into.empty()) {
    *read = {into, {}};
    return ReadPartNow(request, warm, into.data());
  }
  uint64_t bytes = request.bytes;
  ends_.clear();
  if (!request.more.empty()) ends_.push_back(bytes);
  for (const ReadPart& part : request.more) {
    if (!MayBeCached(part) || part.bytes > kBytesMax - bytes) return false;
    bytes += part.bytes;
    ends_.push_back(bytes);
  }
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  if (!ReadPartNow(request, warm, buffer_.data())) return false;
  uint64_t at = request.bytes;
  for (const ReadPart& part : request.more) {
    if (!ReadPartNow(part, warm, buffer_.data() + at)) return false;
    at += part.bytes;
  }
  *read = {std::span(buffer_).first(bytes), ends_};
  return true;
}

}  // namespace penstock
