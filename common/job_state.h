// Where a job stands, as a trainer keeps it in its checkpoint: small JSON that
// a later job begins from, with any number of ranks and workers.
//
//   {"penstock_state": 1,                   version of this format
//    "dataset": "imagenet-train",
//    "delivery": "split",
//    "records": 1281167, "seed": 0,         identity: they must be the same
//    "shuffle": {"seed": 42, "each_epoch": true},         or null
//    "epoch": 3, "row": 409600,             the next row of the plan
//    "owed": [[3, 2048, 512, true], ...]}   epoch, row, rows, redelivered: rows
//                                           before that which are still to be
//                                           delivered; most often there are
//                                           none
//
// A row is counted in the epoch's order, over all ranks: a step boundary is a
// multiple of the global batch. Rows that on_error: skip leaves out count.
#ifndef COMMON_JOB_STATE_H_
#define COMMON_JOB_STATE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/delivery_options.h"
#include "common/status.h"

namespace penstock {

struct JobState {
  static constexpr int kVersion = 1;
  // Batches that can be outstanding at once, and more.
  static constexpr size_t kOwedMax = 16384;
  static constexpr size_t kTextBytesMax = 1 << 20;

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

  std::string dataset;
  DeliveryMode delivery = DeliveryMode::kSplit;
  uint64_t records = 0;
  uint64_t seed = 0;
  std::optional<Shuffle> shuffle;
  uint64_t epoch = 0;
  uint64_t row = 0;
  std::vector<Owed> owed;
  bool operator==(const JobState&) const = default;
};

nlohmann::json JobStateToJson(const JobState& state);
// InvalidArgument: not a state, names the key; FailedPrecondition: of a newer
// version. Foreign bytes: every value is checked.
StatusOr<JobState> JobStateFromJson(const nlohmann::json& json);
// Of text, as it was saved.
StatusOr<JobState> ParseJobState(const std::string& text);
// Of the file that `penstock state --save` or a trainer wrote. Errors, also
// what the kernel says, name the file and the way out.
StatusOr<JobState> ReadJobState(const std::string& path);

// "" or what of the identity differs: "shuffle: seed 42 in the state, 43 here".
std::string DifferingIdentity(const JobState& state, const JobState& here);

}  // namespace penstock
#endif  // COMMON_JOB_STATE_H_
