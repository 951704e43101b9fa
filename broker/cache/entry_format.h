// An entry of a cache: the features of one record, one after the other, as the
// head of `map` has made them.
//
// First the number of bytes of each encoded feature (uint32); then the
// features, in order, each on a multiple of 8 bytes. Native byte order.
// Immutable: any thread may use it.
#ifndef BROKER_CACHE_ENTRY_FORMAT_H_
#define BROKER_CACHE_ENTRY_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "broker/source/source.h"

namespace penstock {

class EntryFormat {
 public:
  // About as long as a record may be.
  static constexpr uint64_t kBytesMax = (uint64_t{256} << 20) - 4096;

  explicit EntryFormat(const RawSpec& features);

  // What every entry takes; nullopt: a feature is encoded, each has its own
  // size.
  std::optional<uint64_t> fixed_bytes() const {
    return encoded_ == 0 ? std::optional(bytes_) : std::nullopt;
  }
  // What this one takes; nullopt: a feature has not its size, or they are more
  // than kBytesMax.
  std::optional<uint64_t> Bytes(const RawRecord& made) const;
  // Writes those bytes.
  void Write(const RawRecord& made, std::byte* to) const;
  // Points *made into the entry. False: it is none of this format.
  bool Read(std::span<const std::byte> entry, RawRecord* made) const;

 private:
  static constexpr uint64_t kEncoded = UINT64_MAX;

  std::vector<uint64_t> features_;  // bytes of each, or kEncoded
  size_t encoded_ = 0;
  uint64_t bytes_ = 0;  // of the sizes and of the features of known sizes
};

}  // namespace penstock
#endif  // BROKER_CACHE_ENTRY_FORMAT_H_
