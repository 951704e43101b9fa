// The part of a dataset's spec that the plan follows.
#ifndef BROKER_PLAN_PLAN_SPEC_H_
#define BROKER_PLAN_PLAN_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

template <typename T>
class Declaration;

struct ShuffleSpec {
  uint64_t seed = 0;
  bool each_epoch = true;  // a new order every epoch
  // Within windows of so many files; nullopt: globally.
  std::optional<uint32_t> window_files;

  // The seed of a part of the order; 0: of all of it. An odd factor gives each
  // its own; not that of consumers (job_layout.cc).
  uint64_t SeedOf(uint32_t part) const {
    return seed + part * 0xd1b5'4a32'd192'ed03;
  }
  bool operator==(const ShuffleSpec&) const = default;

  static const Declaration<ShuffleSpec>& Declared();
};

enum class LastBatch { kPartial, kDrop, kPad };

// Parts of a source made of others.
inline constexpr size_t kSourcePartsMax = 256;

// batch.buckets
struct BucketsSpec {
  std::string by;  // a column
  std::optional<uint32_t> count;
  std::vector<uint64_t> boundaries;
  bool operator==(const BucketsSpec&) const = default;

  static const Declaration<BucketsSpec>& Declared();
};

// batch.pack
struct PackSpec {
  enum class Method { kBestFit, kFirstFit, kSplit };
  // What becomes of a document longer than a sequence.
  enum class Longer { kSplit, kCut, kDrop, kFail };
  // What comes with the items.
  enum class Output {
    kPositionIds,
    kDocumentIds,
    kSeqLens,
    kCuSeqlens,
    kLossMask,
    kRecords,
  };

  uint64_t length = 0;  // items of a sequence
  std::string feature;  // "": the only list
  std::string by;       // a column; "": the one of its lengths
  Method method = Method::kBestFit;
  Longer longer = Longer::kSplit;
  uint64_t window = 1 << 16;  // documents
  bool across_parts = false;
  std::optional<uint32_t> documents;  // at most, in a sequence
  // By feature; others are padded with 0.
  std::vector<std::pair<std::string, int64_t>> pad;
  std::vector<Output> with;
  bool mask_first = false;
  bool operator==(const PackSpec&) const = default;

  static const Declaration<PackSpec>& Declared();
};
// The feature that an output is.
std::string_view NameOf(PackSpec::Output output);

struct BatchSpec {
  uint64_t size = 1;      // rows; of the global batch unless per_rank
  bool per_rank = false;  // global batch = size * world size
  // size is not rows, but rows times the longest row of their bucket.
  bool tokens = false;
  std::optional<BucketsSpec> buckets;
  std::optional<PackSpec> pack;
  // Rows of each part of a mix, if its batches have sizes of their own; the
  // largest is `size`.
  std::vector<uint64_t> by_part;
  LastBatch last = LastBatch::kPartial;
  bool operator==(const BatchSpec&) const = default;

  static const Declaration<BatchSpec>& Declared();
};

struct PlanSpec {
  std::optional<ShuffleSpec> shuffle;  // absent: source order
  BatchSpec batch;
  std::optional<uint64_t> epochs = 1;  // nullopt: forever
  std::optional<uint64_t> steps_per_epoch;
  bool operator==(const PlanSpec&) const = default;
};

}  // namespace penstock
#endif  // BROKER_PLAN_PLAN_SPEC_H_
