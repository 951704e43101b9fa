// One process of a rank in a storm. It takes batches to the end of the data,
// checks every byte, logs each event and releases in any order.
#ifndef TESTS_CRASH_STORM_RANK_H_
#define TESTS_CRASH_STORM_RANK_H_

#include <cstdint>
#include <string>

#include "common/command_line.h"
#include "tests/crash/job_kind.h"

namespace penstock {

struct StormRankOptions {
  JobKind kind;
  std::string job;
  std::string socket;
  std::string folder;  // of the job's logs
  uint32_t rank = 0;
  uint32_t restart = 0;      // 0: the first process of this rank
  uint32_t local_ranks = 0;  // 0: all are on this host
  std::string state;         // where the job begins; "": at the beginning
  uint64_t seed = 0;
  uint64_t pace_us = 0;      // longest time spent with a batch
  uint64_t leave_after = 0;  // batches before it detaches; 0: at the end
  // Batches before it waits until the file `go` is in folder; 0: never.
  uint64_t wait_after = 0;

  void AddTo(Command command);
  // Command-line arguments of a child process.
  std::vector<std::string> Arguments() const;
};

// Returns the exit status of the process.
int RunStormRank(const StormRankOptions& options);

}  // namespace penstock
#endif  // TESTS_CRASH_STORM_RANK_H_
