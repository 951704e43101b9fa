// Executes the plan serially: one thread, plain reads, no ring, no shared
// memory. `penstock bench --verify` compares the ranks' rows against it.
#ifndef BROKER_WORKERS_REPLAY_H_
#define BROKER_WORKERS_REPLAY_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "broker/spec/dataset_spec.h"
#include "broker/user_code/trusted_code.h"
#include "common/job_state.h"
#include "common/status.h"

namespace penstock {

// One row of the plan, and the output format of penstockd --replay (native byte
// order).
struct ReplayRecord {
  uint64_t epoch = 0;
  uint64_t step = 0;  // in the epoch
  uint32_t rank = 0;
  uint32_t row = 0;       // in the rank batch
  int64_t sample_id = 0;  // -1: padding
  uint32_t crc32 = 0;     // of the row's concatenated features (zlib's)
  uint32_t reserved = 0;
};
static_assert(sizeof(ReplayRecord) == 40);

struct ReplayOptions {
  uint32_t world_size = 1;
  std::optional<uint64_t> epochs;      // default: the spec's
  std::optional<uint64_t> steps;       // in total; default: no limit
  std::vector<WeightsChange> weights;  // of its mix, while it ran
};

// Writes one record per row, in plan order. With on_error: skip it omits bad
// rows and closes the gap as the broker does; with substitute it replaces them.
Status Replay(const DatasetSpec& spec, const FunctionOptions& functions,
              const ReplayOptions& options, std::FILE* out);

}  // namespace penstock
#endif  // BROKER_WORKERS_REPLAY_H_
