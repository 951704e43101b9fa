// The last batch of a running job, for a person to look at.
//
// Its rows are made again from the job's plan by a private broker, which gives
// the same samples with the same augmentation: the broker of the job copies
// nothing for it, and who looks reads files with rights of her own.
#ifndef CLIENT_COMMAND_JOB_BATCH_H_
#define CLIENT_COMMAND_JOB_BATCH_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/status.h"

namespace penstock {

// Fewer where pictures are large: a sheet has 4 Mi pixels at most.
inline constexpr uint64_t kBatchRowsShown = 32;

struct BatchOfJob {
  std::string job;
  std::string dataset;
  uint64_t world_size = 1;  // of the launch
};

// {"text": "rows 96 to 127 of epoch 0", "picture": "data:image/png;base64,...",
// or "" where no feature is a picture, "table": lines}. Errors: those of the
// broker at socket (only its user's jobs), and of making the rows;
// FailedPrecondition: a stream, whose rows nobody can make again.
StatusOr<nlohmann::json> LastBatch(const std::string& socket,
                                   const BatchOfJob& job);

}  // namespace penstock
#endif  // CLIENT_COMMAND_JOB_BATCH_H_
