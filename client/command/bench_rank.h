// One consumer process of `penstock bench`: attaches as one rank and drains the
// job.
#ifndef CLIENT_COMMAND_BENCH_RANK_H_
#define CLIENT_COMMAND_BENCH_RANK_H_

#include <cstdint>

#include "client/command/bench_drain.h"
#include "client/penstock.h"

namespace penstock {

// Reads every cache line of the batch into this core, as any trainer does at
// least. features: how many its reader has.
void TouchBatch(uint32_t features, const penstock_batch* batch);

// A rank's report to the parent, through a pipe shared by all ranks: totals so
// far, not differences.
struct RankReport {
  enum Kind : uint32_t {
    kAttached,
    kProgress,  // a few a second
    kDone,      // all is drained; waits for release_fd
    kFailed,    // message says why
  };
  uint32_t kind;
  uint32_t rank;
  RankTotals totals;  // cpu_s is not known
  char message[1024];
};
// Up to this size the kernel writes it atomically.
static_assert(sizeof(RankReport) <= PIPE_BUF);

struct RankTask {
  const DrainTask& drain;
  uint32_t rank;   // among all processes
  int records_fd;  // gets a RowRecord per row; -1: none
  int report_fd;   // a pipe's writing end
  int release_fd;  // done ranks stay attached until it is readable
};

// Runs in the forked process; the result is its exit status.
int DrainAsRank(const RankTask& task);

}  // namespace penstock
#endif  // CLIENT_COMMAND_BENCH_RANK_H_
