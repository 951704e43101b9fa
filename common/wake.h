// Wakes a sleeping peer: one byte on a socket pair; sending never waits.
//
// Not a futex: poll on a socket also reports that the peer is gone. Not an
// eventfd: a peer could clear O_NONBLOCK on the shared file and hang us.
#ifndef COMMON_WAKE_H_
#define COMMON_WAKE_H_

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

struct WakePair {
  Fd broker;
  Fd rank;
};
StatusOr<WakePair> MakeWakePair();

// Never blocks and never fails: a full buffer means that a wake is pending;
// poll will report a gone peer. Async-signal-safe, any thread.
void SendWake(int socket);

// Discards pending wakes. False: the peer has closed its end.
bool DrainWakes(int socket);

}  // namespace penstock
#endif  // COMMON_WAKE_H_
