// Watches over the ranks that `penstock run` started: hands signals on, stops
// the others when one fails, and lets nothing of them live on.
//
//   running ──rank failed | broker died | signal──► stopping ──► all ended
//                                   grace over | second signal ──► killed ──┘
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
  // The only process shares this one's terminal and group: what the terminal
  // sends has reached it already, and what it does about it is its business.
  bool shares_terminal = false;
};

// Returns when every rank has ended and has been reaped, with what they left
// behind. The exit status: 0, the first failing rank's, 1 when the broker died,
// 128 + N for signal N. Says on stderr who ended how.
int Supervise(std::vector<SupervisedRank>& ranks, PrivateBroker& broker,
              const SuperviseOptions& options);

}  // namespace penstock
#endif  // CLIENT_COMMAND_SUPERVISE_H_
