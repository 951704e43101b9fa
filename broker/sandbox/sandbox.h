// What this process gives up before it serves, so that a hostile file that
// takes over a decoder finds no network, starts no program, and writes only
// where the daemon itself writes. By Landlock and seccomp, for all threads that
// start afterwards; children inherit it. Programs are therefore started by a
// process that stays outside (program_launcher.h).
#ifndef BROKER_SANDBOX_SANDBOX_H_
#define BROKER_SANDBOX_SANDBOX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

enum class SandboxMode : uint8_t {
  kAuto,      // what this kernel has
  kRequired,  // all of it, or no start
  kOff,
};

struct SandboxOptions {
  bool io_uring = true;  // more rings may be made
  bool connects = true;  // to Unix sockets: of directories of users (NSS)
  // All below them may be written. Those that do not exist are left out.
  std::vector<std::string> written;
  // Sockets may be made in them.
  std::vector<std::string> sockets;
  // All in them may be removed.
  std::vector<std::string> emptied;
  // Empty folders may be removed from them.
  std::vector<std::string> parents;
};

struct Sandbox {
  std::string in_force;  // "landlock 7, seccomp"; "": nothing
  std::string lacking;   // why something is not; "": nothing is lacking
};

// For this thread and all that it starts: call before there is another.
// FailedPrecondition: mode is kRequired, and something is lacking.
StatusOr<Sandbox> EnterSandbox(SandboxMode mode, const SandboxOptions& options);

}  // namespace penstock
#endif  // BROKER_SANDBOX_SANDBOX_H_
