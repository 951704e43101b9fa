// Watches over the ranks that `penstock run` started, and over their broker:
// hands signals on, restarts the broker, stops the other ranks when one fails,
// and lets nothing of them live on.
//
//   running ──rank failed | broker given up | signal | output's reader gone──┐
//                                                                            ▼
//   all ended ◄── killed ◄── grace over | second signal ── stopping ─► all
//   ended
#ifndef CLIENT_COMMAND_SUPERVISE_H_
#define CLIENT_COMMAND_SUPERVISE_H_

#include <memory>
#include <string>
#include <vector>

#include "client/command/private_broker.h"
#include "client/command/process.h"
#include "client/command/tagged_output.h"

namespace penstock {

struct SupervisedRank {
  std::string name;  // "rank 3", "the command"
  Process process;
  std::vector<TaggedOutput> outputs;  // its stdout and stderr, if tagged
  bool ended = false;
};

struct SuperviseOptions {
  double grace_s = 10;  // from SIGTERM to SIGKILL
  // Ranks that ended well while others still run are told of once nothing has
  // changed for so long: the others may be waiting for them.
  double early_end_s = 10;
  // The only process shares this one's terminal and group: what the terminal
  // sends has reached it already, and what it does about it is its business.
  bool shares_terminal = false;
};

// Returns when every rank has ended and has been reaped, with what they left
// behind. The exit status: 0, the first failing rank's, 1 when the broker was
// given up, 128 + N for signal N, 141 (that of SIGPIPE) when nobody reads
// tagged output any more. Says on stderr who ended how.
int Supervise(std::vector<SupervisedRank>& ranks, PrivateBroker& broker,
              const SuperviseOptions& options);

}  // namespace penstock
#endif  // CLIENT_COMMAND_SUPERVISE_H_
