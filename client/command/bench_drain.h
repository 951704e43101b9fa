// Starts the consumer processes of `penstock bench`, watches them until they
// have drained the job, and adds up their cost.
#ifndef CLIENT_COMMAND_BENCH_DRAIN_H_
#define CLIENT_COMMAND_BENCH_DRAIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/command/row_check.h"
#include "client/private_broker/private_broker.h"
#include "common/status.h"

namespace penstock {

struct DrainTask {
  uint32_t ranks = 1;     // processes
  uint32_t replicas = 1;  // of them that are one rank, in turn
  std::string dataset;    // path of the spec
  std::string job;
  std::string socket;
  uint64_t epochs = 0;  // 0: to the end of the data
  uint64_t steps = 0;   // 0: no limit
  bool touch = true;    // read one byte of every cache line
  bool record_rows = false;
  bool checksums = false;         // of every row
  uint64_t samples_estimate = 0;  // for the progress bar; 0: unknown
  // A private broker, which is restarted when it dies, or nullptr.
  PrivateBroker* private_broker = nullptr;
  // Else the running broker's, to measure its memory; absent: unknown.
  std::optional<pid_t> broker_pid;
};

struct RankTotals {
  uint64_t steps = 0;
  uint64_t samples = 0;
  uint64_t epochs = 0;  // complete ones
  uint64_t redelivered = 0;
  double wait_s = 0;  // in penstock_next with nothing ready
  double cpu_s = 0;
};

struct DrainResult {
  std::vector<RankTotals> ranks;  // each process
  double wall_s = 0;    // from the first attach to the last rank's last batch
  double attach_s = 0;  // part of wall_s: until every rank was attached
  // Peak memory of broker and ranks, each shared page counted once. Absent when
  // the broker is another user's.
  std::optional<uint64_t> pss_bytes;
  // With record_rows, what the first replicas of all ranks had, what the second
  // had, and so on.
  std::vector<std::vector<RowRecord>> rows;
  // How somebody changed the weights of its mix meanwhile, as JSON; likewise.
  std::string weights;
};

StatusOr<DrainResult> DrainWithRanks(const DrainTask& task);

}  // namespace penstock
#endif  // CLIENT_COMMAND_BENCH_DRAIN_H_
