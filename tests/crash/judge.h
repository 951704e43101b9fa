// Checks what a job delivered in a storm, from the logs of all processes of its
// ranks.
//
//   split, dynamic    every sample of every epoch was taken; unmarked once at
//                     most; never again once it was released
//   split, replicas   the same for the processes of each replica; shrink: never
//                     again once all replicas of a rank released it
//   broadcast         every process by itself: no gap in what it took but those
//                     that it was told of (lag: skip)
//   broadcast, wait   and each rank as split and dynamic, since its place is
//   and independent   kept when its process dies (on_rank_death)
#ifndef TESTS_CRASH_JUDGE_H_
#define TESTS_CRASH_JUDGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/crash/job_kind.h"
#include "tests/crash/rank_log.h"

namespace penstock {

struct Verdict {
  uint64_t batches = 0;
  uint64_t rows = 0;
  uint64_t redelivered = 0;  // batches
  uint64_t skipped = 0;      // batches
  uint64_t reconnects = 0;
  uint64_t lost = 0;      // rows
  uint64_t torn = 0;      // rows
  uint64_t unmarked = 0;  // rows that came again unmarked
  uint64_t released = 0;  // batches that came again after their release
  uint64_t gaps = 0;      // batches missed without a report
  uint64_t errors = 0;    // what penstock refused
  std::vector<std::string> findings;  // one line each

  bool ok() const {
    return lost + torn + unmarked + released + gaps + errors == 0;
  }
  void Add(const Verdict& other);
};

Verdict Judge(const JobKind& kind, const std::vector<RankLog>& logs);

// A start of all ranks of a job, which its launcher ends and starts again, with
// as many as there are then: the logs of the i-th have `restart` i.
struct Attempt {
  uint64_t epoch = 0;
  uint64_t step = 0;  // the first
  uint32_t ranks = 0;
};
// split: of each attempt what comes before the next one's first step counts.
// That is judged as above; besides, each rank gets its part of the steps of
// `alone`, a job of one rank, one after the other.
Verdict JudgeAttempts(const JobKind& kind, const std::vector<Attempt>& attempts,
                      std::vector<RankLog> logs, const RankLog& alone);

}  // namespace penstock
#endif  // TESTS_CRASH_JUDGE_H_
