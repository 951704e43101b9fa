// Waking a sleeping peer: one byte on a socket pair, never waited for.
//
// A socket and not a futex: poll on it also tells that the peer is gone. Not an
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

// Never blocks and never fails: a full buffer means that a wake is pending, a
// gone peer will be noticed by poll. Async-signal-safe, any thread.
void SendWake(int socket);

// Eats pending wakes. False: the peer has closed its end.
bool DrainWakes(int socket);

}  // namespace penstock
#endif  // COMMON_WAKE_H_
