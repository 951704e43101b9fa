// The plan carried out once more, serially: one thread, plain reads, no ring,
// no shared memory. `penstock bench --verify` compares what the ranks got
// against it.
#ifndef BROKER_WORKERS_REPLAY_H_
#define BROKER_WORKERS_REPLAY_H_

#include <cstdint>
#include <cstdio>
#include <optional>

#include "broker/transform/row_function.h"
#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

// One row of the plan; also the format of penstockd --replay's output, native
// byte order.
struct ReplayRecord {
  uint64_t epoch = 0;
  uint64_t step = 0;  // in the epoch
  uint32_t rank = 0;
  uint32_t row = 0;       // in the rank's share
  int64_t sample_id = 0;  // -1: padding
  uint32_t crc32 = 0;     // of the row's features, one after the other (zlib's)
  uint32_t reserved = 0;
};
static_assert(sizeof(ReplayRecord) == 40);

struct ReplayOptions {
  uint32_t world_size = 1;
  std::optional<uint64_t> epochs;  // default: the spec's
  std::optional<uint64_t> steps;   // of the job in all; default: no limit
};

// Writes every row's record in the order of the plan. on_error: skip leaves bad
// rows out and closes the gap as the broker does; substitute replaces them.
Status Replay(const DatasetSpec& spec, const FunctionOptions& functions,
              const ReplayOptions& options, std::FILE* out);

}  // namespace penstock
#endif  // BROKER_WORKERS_REPLAY_H_
