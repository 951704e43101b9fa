#include "broker/io/cached_range.h"

#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>

#include "broker/io/guarded_copy.h"

namespace penstock {
namespace {

// Larger records gain nothing.
constexpr uint64_t kBytesMax = 1 << 20;

bool MayBeCached(const ReadPart& part) {
  return part.kind == ReadPart::Kind::kRange && part.nowait &&
         part.align == 0 && part.bytes <= kBytesMax;
}

// Calls with each part until one gives false.
template <typename Each>
bool AllParts(const ReadRequest& request, Each each) {
  return each(request) &&
         std::all_of(request.more.begin(), request.more.end(), each);
}

}  // namespace

std::optional<uint64_t> CachedBytes(const ReadRequest& request) {
  uint64_t bytes = 0;
  const bool may = AllParts(request, [&bytes](const ReadPart& part) {
    bytes += part.bytes;
    return MayBeCached(part) && bytes <= kBytesMax;
  });
  return may ? std::optional(bytes) : std::nullopt;
}

void ExpectCached(const ReadRequest& request) {
  if (request.map.empty()) return;
  // The processor finds the rest by itself.
  constexpr uint64_t kLineBytes = 64;
  const uint64_t bytes = std::min(request.bytes, 8 * kLineBytes);
  for (uint64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(request.map.data() + request.offset + at);
  }
}

bool ReadCached(const ReadRequest& request, bool mapped, std::byte* to) {
  return AllParts(request, [mapped, &to](const ReadPart& part) {
    const iovec piece = {to, part.bytes};
    to += part.bytes;
    if (part.bytes == 0) return true;
    if (mapped && !part.map.empty()) {
      return GuardedCopy(static_cast<std::byte*>(piece.iov_base),
                         part.map.data() + part.offset, part.bytes);
    }
    return preadv2(part.fd, &piece, 1, static_cast<off_t>(part.offset),
                   RWF_NOWAIT) == static_cast<ssize_t>(part.bytes);
  });
}

bool IsWhole(const ReadPart& part) {
  struct stat st;
  return part.map.empty() ||
         (fstat(part.fd, &st) == 0 &&
          static_cast<uint64_t>(st.st_size) >= part.map.size());
}

}  // namespace penstock
