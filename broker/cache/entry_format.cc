#include "broker/cache/entry_format.h"

#include <cstring>

namespace penstock {
namespace {

constexpr uint64_t kAlign = 8;

uint64_t Padded(uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

EntryFormat::EntryFormat(const RawSpec& features) {
  for (const RawFeature& each : features) {
    encoded_ += each.encoded;
    features_.push_back(each.encoded ? kEncoded : each.feature.RowBytes());
  }
  bytes_ = Padded(encoded_ * sizeof(uint32_t));
  for (const uint64_t bytes : features_) {
    if (bytes != kEncoded) bytes_ += Padded(bytes);
  }
}

std::optional<uint64_t> EntryFormat::Bytes(const RawRecord& made) const {
  uint64_t all = bytes_;
  for (size_t i = 0; i < features_.size(); ++i) {
    const uint64_t bytes = made[i].size();
    if (features_[i] != kEncoded && features_[i] != bytes) return std::nullopt;
    if (bytes > kBytesMax) return std::nullopt;
    if (features_[i] == kEncoded) all += Padded(bytes);
  }
  return all <= kBytesMax ? std::optional(all) : std::nullopt;
}

void EntryFormat::Write(const RawRecord& made, std::byte* to) const {
  const auto put = [&to](const void* bytes, uint64_t count) {
    if (count > 0) std::memcpy(to, bytes, count);
    std::memset(to + count, 0, Padded(count) - count);
    to += Padded(count);
  };
  if (encoded_ > 0) {
    std::byte* size = to;
    to += encoded_ * sizeof(uint32_t);
    for (size_t i = 0; i < features_.size(); ++i) {
      if (features_[i] != kEncoded) continue;
      const auto bytes = static_cast<uint32_t>(made[i].size());
      std::memcpy(size, &bytes, sizeof(bytes));
      size += sizeof(bytes);
    }
    const uint64_t sizes = encoded_ * sizeof(uint32_t);
    std::memset(to, 0, Padded(sizes) - sizes);
    to += Padded(sizes) - sizes;
  }
  for (const std::span<const std::byte> each : made) {
    put(each.data(), each.size());
  }
}

bool EntryFormat::Read(std::span<const std::byte> entry,
                       RawRecord* made) const {
  made->resize(features_.size());
  uint64_t at = Padded(encoded_ * sizeof(uint32_t));
  if (at > entry.size()) return false;
  const std::byte* size = entry.data();
  for (size_t i = 0; i < features_.size(); ++i) {
    uint64_t bytes = features_[i];
    if (bytes == kEncoded) {
      uint32_t stored = 0;
      std::memcpy(&stored, size, sizeof(stored));
      size += sizeof(stored);
      bytes = stored;
    }
    if (bytes > entry.size() - at || Padded(bytes) > entry.size() - at) {
      return false;
    }
    (*made)[i] = entry.subspan(at, bytes);
    at += Padded(bytes);
  }
  return true;
}

}  // namespace penstock
