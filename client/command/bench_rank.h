// One consumer process of `penstock bench`: attaches as one rank and drains the
// job.
#ifndef CLIENT_COMMAND_BENCH_RANK_H_
#define CLIENT_COMMAND_BENCH_RANK_H_

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

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
  uint64_t steps;
  uint64_t samples;
  uint64_t epochs;  // complete ones
  uint64_t redelivered;
  double wait_s;
  char message[1024];
};
// Up to this size the kernel writes it atomically.
static_assert(sizeof(RankReport) <= PIPE_BUF);

struct RankTask {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  std::string dataset;  // path of the spec
  std::string job;
  std::string socket;
  uint64_t epochs = 0;     // stop after these; 0: at the end of the data
  uint64_t steps = 0;      // stop after these; 0: no limit
  bool touch = true;       // read one byte of every cache line
  bool checksums = false;  // of every row, into records_fd
  int records_fd = -1;     // gets a RowRecord per row; -1: none
  int report_fd = -1;      // a pipe's writing end
  int release_fd = -1;     // done ranks stay attached until it is readable
};

// Runs in the forked process; the result is its exit status.
int DrainAsRank(const RankTask& task);

}  // namespace penstock
#endif  // CLIENT_COMMAND_BENCH_RANK_H_
