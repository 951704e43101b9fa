// Gets the rows a job must deliver from `penstockd --replay`, which makes them
// serially, on one thread, with plain reads, without rings, slots or workers.
#ifndef CLIENT_COMMAND_REPLAY_H_
#define CLIENT_COMMAND_REPLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/command/row_check.h"
#include "common/status.h"

namespace penstock {

struct ReplayTask {
  std::string spec_path;
  uint32_t world_size = 1;
  uint64_t epochs = 0;  // exactly one of the two is not 0
  uint64_t steps = 0;
  std::string weights;         // how those of its mix changed, as JSON
  uint64_t rows_estimate = 0;  // for the progress bar; 0: unknown
};

StatusOr<std::vector<RowRecord>> ReplayRows(const ReplayTask& task);

}  // namespace penstock
#endif  // CLIENT_COMMAND_REPLAY_H_
