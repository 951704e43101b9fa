// Supervises the ranks of `penstock run` and their broker: passes signals on,
// restarts the broker, stops the other ranks when one fails, and leaves no
// process behind.
//
//   running ──rank failed | broker given up | signal | output's reader gone──┐
//                                                                            ▼
//   all ended ◄── killed ◄── grace over | second signal ── stopping ─► ended
#ifndef CLIENT_COMMAND_SUPERVISE_H_
#define CLIENT_COMMAND_SUPERVISE_H_

#include <string>
#include <vector>

#include "client/command/tagged_output.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/process.h"

namespace penstock {

struct SupervisedRank {
  std::string name;  // "rank 3", "the command"
  Process process;
  std::vector<TaggedOutput> outputs;  // its stdout and stderr, if tagged
  bool ended = false;
};

struct SuperviseOptions {
  double grace_s = 10;  // from SIGTERM to SIGKILL
  // Ranks that ended with success while others run are reported once nothing
  // has changed for this long: the others may wait for them.
  double early_end_s = 10;
  // The only process shares this one's terminal and group: signals of the
  // terminal reach it directly, and are not passed on.
  bool shares_terminal = false;
};

// Returns when every rank, and every process they left behind, has ended and is
// reaped. The exit status: 0, the first failing rank's, 1 when the broker was
// given up, 128 + N for signal N, 141 (that of SIGPIPE) when the reader of
// tagged output is gone. Reports on stderr how ranks ended.
int Supervise(std::vector<SupervisedRank>& ranks, PrivateBroker& broker,
              const SuperviseOptions& options);

}  // namespace penstock
#endif  // CLIENT_COMMAND_SUPERVISE_H_
