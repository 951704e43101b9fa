// What a spec says of the rows that are kept: `cache` and `snapshot`.
#ifndef BROKER_CACHE_CACHE_SPEC_H_
#define BROKER_CACHE_CACHE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

template <typename T>
class Declaration;

struct CacheSpec {
  std::optional<uint64_t> memory;  // bytes: this, or disk
  std::optional<uint64_t> disk;
  std::optional<uint64_t> files;  // bytes; of local copies of files
  std::optional<uint64_t>
      at;  // steps of `map`; absent: all before a random one
  std::optional<int64_t> zstd;  // level; of disk
  bool keeps_rows() const { return memory || disk; }
  bool operator==(const CacheSpec&) const = default;

  static const Declaration<CacheSpec>& Declared();
};

struct SnapshotSpec {
  std::string path;  // a folder
  std::optional<uint64_t> at;
  std::optional<int64_t> zstd;
  bool operator==(const SnapshotSpec&) const = default;

  static const Declaration<SnapshotSpec>& Declared();
};

}  // namespace penstock
#endif  // BROKER_CACHE_CACHE_SPEC_H_
