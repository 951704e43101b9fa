// The position of a job, as a trainer keeps it in its checkpoint: small JSON
// from which a later job starts, with any number of ranks and workers.
//
//   {"penstock_state": 1,                   version of this format
//    "dataset": "imagenet-train",
//    "delivery": "split",
//    "records": 1281167, "seed": 0,         identity: must match
//    "selection": "0123456789abcdef",       a digest of `select`, concat,
//                                           mix, window_files; left out
//                                           without them
//    "shuffle": {"seed": 42, "each_epoch": true},         or null
//    "shards": {"count": 4, "batch": 256},  only with `shard: file`, and with
//                                           buckets of rows of a rank: the
//                                           ranks that files or steps were
//                                           divided over, and the rows (or
//                                           tokens) of a step
//    "mix": {"begin": [1, 4],               only of a mix without schedule: the
//            "spec": [1, 1],                weights that it began with, those
//            "rule": "0123456789abcdef",    of the spec since its last resume,
//            "parts": [...],                a digest of the rest of it, its
//            "shuffles": 2,                 parts, and the next number of a
//            "from": [0, 512],              shuffle; once they have changed,
//            "gone": [...]},                from which epoch and row on it has
//                                           them, and those that it had before.
//                                           Of a part:
//                                             {"part": "01234567", what tells
//                                              it from others, "name": "tokens
//                                              a.bin", "records": 9000
//                                              of a pass, "shuffle": 1, its
//                                              number, and where it was at
//                                              "from": "pass": 2, "taken": 5
//                                              rows since that began, "rows":
//                                              9005 in all}
//    "weights": [[2, 512, 1, 4], ...],      only of a mix whose weights were
//                                           changed while it ran: epoch and
//                                           row from which on they hold, one
//                                           for each part
//    "epoch": 3, "row": 409600,             the next row of the plan
//    "owed": [[3, 2048, 512, true], ...]}   epoch, row, rows, redelivered:
//                                           earlier rows that are still to be
//                                           delivered; usually none
//
// Rows are counted in the epoch's order, over all ranks: a step boundary is a
// multiple of the global batch. Rows skipped by on_error: skip count.
//
// {"epoch": 0, "row": 4096}, a position alone, has no identity: a job of any
// dataset begins there.
#ifndef COMMON_JOB_STATE_H_
#define COMMON_JOB_STATE_H_

#include <compare>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/delivery_options.h"
#include "common/status.h"

namespace penstock {

// Weights of the parts of a mix from a row of an epoch on, for good, or until
// the next change. Whole numbers that have no common divisor.
struct WeightsChange {
  static constexpr size_t kPartsMax = 256;
  static constexpr uint32_t kWeightMax = 1'000'000;

  uint64_t epoch = 0;
  uint64_t row = 0;
  std::vector<uint32_t> weights;
  bool operator==(const WeightsChange&) const = default;
};

// As [epoch, row, weight, ...].
nlohmann::json WeightsChangeToJson(const WeightsChange& change);
// Foreign bytes. InvalidArgument: it is none.
StatusOr<WeightsChange> WeightsChangeFromJson(const nlohmann::json& json);

struct JobState {
  static constexpr int kVersion = 1;
  // Changes of the weights.
  static constexpr size_t kChangesMax = 128;
  // More than the number of batches that can be outstanding at once.
  static constexpr size_t kOwedMax = 16384;
  static constexpr size_t kTextBytesMax = 1 << 20;
  static constexpr uint32_t kShardsMax = 1 << 20;  // the largest world size

  struct Owed {
    uint64_t epoch = 0;
    uint64_t row = 0;
    uint64_t rows = 0;
    bool redelivered = false;
    bool operator==(const Owed&) const = default;
  };
  struct Shuffle {
    uint64_t seed = 0;
    bool each_epoch = true;
    bool operator==(const Shuffle&) const = default;
  };

  struct Shards {
    uint32_t count = 0;
    uint64_t batch = 0;
    bool operator==(const Shards&) const = default;
  };

  struct MixPart {
    static constexpr size_t kTextBytesMax = 512;
    static constexpr uint32_t kShufflesMax = 1 << 16;

    std::string key;
    std::string name;  // for people
    uint64_t records = 0;
    uint32_t shuffle = 0;
    uint64_t pass = 0;
    uint64_t taken = 0;
    uint64_t rows = 0;
    bool operator==(const MixPart&) const = default;
  };
  struct MixFrom {
    uint64_t epoch = 0;
    uint64_t row = 0;
    auto operator<=>(const MixFrom&) const = default;
  };
  // Weights as specs have them.
  struct Mix {
    // More parts than are kept of those that are gone: the first are forgotten.
    static constexpr size_t kGoneMax = 256;

    std::vector<double> begin;
    std::vector<double> spec;
    std::string rule;
    std::vector<MixPart> parts;   // empty: of an earlier release
    uint32_t shuffles = 0;        // the number of the next
    std::optional<MixFrom> from;  // nullopt: they are those of the beginning
    std::vector<MixPart> gone;
    bool operator==(const Mix&) const = default;
  };

  std::string dataset;
  DeliveryMode delivery = DeliveryMode::kSplit;
  uint64_t records = 0;
  uint64_t seed = 0;
  std::string selection;
  std::optional<Shuffle> shuffle;
  std::optional<Shards> shards;
  std::optional<Mix> mix;
  std::vector<WeightsChange> weights;  // in the order of their rows
  uint64_t epoch = 0;
  uint64_t row = 0;
  std::vector<Owed> owed;
  bool operator==(const JobState&) const = default;
};

nlohmann::json JobStateToJson(const JobState& state);
// Foreign bytes: every value is checked. InvalidArgument: not a state, names
// the key; FailedPrecondition: written by a newer version.
StatusOr<JobState> JobStateFromJson(const nlohmann::json& json);
// Parses a state as it was saved.
StatusOr<JobState> ParseJobState(const std::string& text);
// Reads a file written by `penstock state --save` or a trainer. All errors, the
// kernel's too, name the file and a remedy.
StatusOr<JobState> ReadJobState(const std::string& path);

// The first differing identity field ("shuffle: seed 42 in the state, 43
// here"), or "" if none differs.
std::string DifferingIdentity(const JobState& state, const JobState& here);

}  // namespace penstock
#endif  // COMMON_JOB_STATE_H_
