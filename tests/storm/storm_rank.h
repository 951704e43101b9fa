// One process of a rank in a storm: takes batches until the data are over,
// checks every byte, tells its log, releases in any order.
#ifndef TESTS_STORM_STORM_RANK_H_
#define TESTS_STORM_STORM_RANK_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "tests/storm/job_kind.h"

namespace penstock {

struct StormRankOptions {
  JobKind kind;
  std::string job;
  std::string socket;
  std::string folder;  // of the job's logs
  uint32_t rank = 0;
  uint32_t restart = 0;  // 0: the first process of this rank
  uint64_t seed = 0;
  uint64_t pace_us = 0;      // at most so long with each batch
  uint64_t leave_after = 0;  // detaches after so many batches; 0: at the end

  void AddTo(CLI::App* app);
  // For another process's command line.
  std::vector<std::string> Arguments() const;
};

// The process's exit status.
int RunStormRank(const StormRankOptions& options);

}  // namespace penstock
#endif  // TESTS_STORM_STORM_RANK_H_
