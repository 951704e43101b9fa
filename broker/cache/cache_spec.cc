#include "broker/cache/cache_spec.h"

#include <nlohmann/json.hpp>

#include "broker/cache/row_cache.h"
#include "broker/declare/declaration.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr uint64_t kStepsMax = 64;

ValueType<std::optional<uint64_t>> Size() {
  return Maybe(ValueType<uint64_t>{
      "a size of at most 16T, in bytes or with K, M, G or T (powers of 1024)",
      [](const YamlValue& value, std::string_view wanted, uint64_t* out) {
        std::string text;
        if (!value.IsScalar()) return value.Wanted(wanted);
        PENSTOCK_RETURN_IF_ERROR(value.String(&text));
        const StatusOr<uint64_t> bytes = ParseBytes(text);
        if (!bytes.ok() || *bytes > RowCache::kBytesMax) {
          return value.Wanted(wanted);
        }
        *out = *bytes;
        return OkStatus();
      },
      [](const uint64_t& bytes, nlohmann::ordered_json* out) {
        *out = bytes;
      }});
}

constexpr char kAtText[] =
    "what is kept: rows after so many steps of `map`, none of which may draw "
    "random numbers or be a function; 0: records as they are read. By default "
    "all steps before the first of those";
constexpr int64_t kZstdLevelMax = 19;

ValueType<std::optional<uint64_t>> KeptStepCount() {
  return Maybe(WholeNumber<uint64_t>(0, kStepsMax));
}
ValueType<std::optional<int64_t>> ZstdLevel() {
  return Maybe(WholeNumber<int64_t>(1, kZstdLevelMax));
}

Status Check(const YamlValue& value, CacheSpec* spec) {
  if ((spec->memory && spec->disk) || (!spec->keeps_rows() && !spec->files)) {
    return value.Error(
        "wanted `memory` or `disk`, one of them, with a size; or `files`");
  }
  if (!spec->keeps_rows() && (spec->at || spec->zstd)) {
    return value.Optional(spec->at ? "at" : "zstd")
        .Error("belongs to rows that are kept, by `memory` or `disk`");
  }
  if (spec->zstd && spec->memory) {
    return value.Optional("zstd").Error(
        "compresses what is on a disk: leave it out, or use `disk`");
  }
  return OkStatus();
}

}  // namespace

const Declaration<CacheSpec>& CacheSpec::Declared() {
  static const auto declared =
      Declaration<CacheSpec>(
          "cache",
          "Keeps rows as the first steps of `map` have made them, for all jobs "
          "of the host that make the same of the same data; and local copies "
          "of files.")
          .Example("{memory: 8G}")
          .Optional("memory", &CacheSpec::memory, Size(),
                    "the size of a cache in the broker's memory, which counts "
                    "as memory of the job's dataset from the beginning")
          .Optional("disk", &CacheSpec::disk, Size(),
                    "the most that a cache in files of the cache folder takes; "
                    "it outlives the broker")
          .Optional("files", &CacheSpec::files, Size(),
                    "the most that local copies of the dataset's files take in "
                    "the cache folder, with or without rows: of objects of a "
                    "store, and of files that are compressed as a whole. By "
                    "default all copies take at most "
                    "half of what is free without them")
          .Optional("at", &CacheSpec::at, KeptStepCount(), kAtText)
          .Optional("zstd", &CacheSpec::zstd, ZstdLevel(),
                    "of `disk`: entries are compressed, with this level")
          .Check(Check);
  return declared;
}

const Declaration<SnapshotSpec>& SnapshotSpec::Declared() {
  static const auto declared =
      Declaration<SnapshotSpec>(
          "snapshot",
          "Rows as the first steps of `map` have made them, in a folder for "
          "good: written while a job takes all records, read from then on.")
          .Example("{path: /data/snapshots/train}")
          .Required("path", &SnapshotSpec::path, Path(),
                    "the folder, of this snapshot alone. One of other data, of "
                    "files that were changed since, or of other steps is "
                    "refused")
          .Optional("at", &SnapshotSpec::at, KeptStepCount(), kAtText)
          .Optional("zstd", &SnapshotSpec::zstd, ZstdLevel(),
                    "entries are compressed, with this level");
  return declared;
}

}  // namespace penstock
