// Detects the rank and the job of this process from its launcher's environment
// variables.
#ifndef CLIENT_ATTACH_LAUNCHER_H_
#define CLIENT_ATTACH_LAUNCHER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/status.h"

namespace penstock {

struct LaunchInfo {
  std::string launcher = "none";  // for messages: "torchrun", "OpenMPI", ...
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_world_size = 1;  // ranks on this host
  int64_t local_rank = 0;        // among these; -1: unknown
  // From one rank of this host to its next: 1, they follow one another as far
  // as is known; more, ranks are dealt out to hosts in turn; 0, in an order
  // that is not known.
  int64_t stride = 1;
  std::string job;  // the launcher's id of this run, or ""
};

// Returns the value of a variable, nullopt when it is not set.
using Environment =
    std::function<std::optional<std::string>(const std::string&)>;
Environment ProcessEnvironment();

// Finds the first launcher of: PENSTOCK_RANK (penstock run), Horovod, torchrun,
// OpenMPI, Slurm, TF_CONFIG; rank 0 of 1 when there is none. InvalidArgument
// names the variable that is missing or not a number.
StatusOr<LaunchInfo> DetectLaunch(const Environment& environment);

}  // namespace penstock
#endif  // CLIENT_ATTACH_LAUNCHER_H_
