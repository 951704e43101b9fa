// A command in two processes, so that SIGKILL of either leaves nothing behind:
// no process can tidy up after its own SIGKILL, and the children of a process
// that is gone cannot be found any more.
//
//   user ─ signals ─► guard ─ signals ─► supervisor ─► ranks, penstockd
//
//   * The guard is what the user has started, and does nothing but wait. When
//   it
//     dies, the kernel sends SIGTERM to the supervisor, which stops the ranks
//     as for any SIGTERM: with their grace, and whatever left their groups too.
//   * When the supervisor dies, the orphans become children of the guard
//     (PR_SET_CHILD_SUBREAPER), which kills them and removes the private
//     broker's folder.
//
// The supervisor is alone in a process group: what the terminal or `kill -PGID`
// sends to the group reaches it once, by the guard. Killed both at once, the
// kernel still sends SIGTERM to the ranks, penstockd ends by itself, and the
// next private broker removes the folder (private_folder.h).
#ifndef CLIENT_COMMAND_GUARD_H_
#define CLIENT_COMMAND_GUARD_H_

#include <functional>

#include "common/status.h"

namespace penstock {

// Runs body in the supervisor; its exit status, once it has ended. To be called
// before anything is started.
StatusOr<int> RunGuarded(const std::function<StatusOr<int>()>& body);

}  // namespace penstock
#endif  // CLIENT_COMMAND_GUARD_H_
