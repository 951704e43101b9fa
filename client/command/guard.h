// Runs a command in two processes, so that SIGKILL of either leaves nothing
// behind: no process can clean up after its own SIGKILL, and nobody can find
// the children of a process that is gone.
//
//   user ─ signals ─► guard ─ signals ─► supervisor ─► ranks, penstockd
//
//   * The user starts the guard, which only waits. When it dies, the kernel
//     sends SIGTERM to the supervisor, which stops the ranks as for any
//     SIGTERM: with their grace, and with the processes that left their groups.
//   * When the supervisor dies, the orphans become children of the guard
//     (PR_SET_CHILD_SUBREAPER), which kills them and removes the private
//     broker's folder.
//
// The supervisor is alone in a process group: a signal of the terminal or of
// `kill -PGID` to the group reaches it once, through the guard. When both are
// killed at once, the kernel still sends SIGTERM to the ranks, penstockd ends
// by itself, and the next private broker removes the folder (private_folder.h).
#ifndef CLIENT_COMMAND_GUARD_H_
#define CLIENT_COMMAND_GUARD_H_

#include <functional>

#include "common/status.h"

namespace penstock {

// Runs body in the supervisor and returns its exit status. Must be called
// before any process is started.
StatusOr<int> RunGuarded(const std::function<StatusOr<int>()>& body);

}  // namespace penstock
#endif  // CLIENT_COMMAND_GUARD_H_
