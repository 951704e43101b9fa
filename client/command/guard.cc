#include "client/command/guard.h"

#include <poll.h>
#include <signal.h>

#include <iterator>

#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/private_folder.h"
#include "client/private_broker/process.h"

namespace penstock {

StatusOr<int> RunGuarded(const std::function<StatusOr<int>()>& body) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  AdoptOrphans();
  ProcessSpec spec;
  spec.body = [&] {
    CatchInterrupts();
    return ExitStatus(body());
  };
  spec.death_signal = SIGTERM;
  PENSTOCK_ASSIGN_OR_RETURN(Process supervisor, Process::Start(spec));
  std::optional<ProcessExit> ended;
  while (!(ended = supervisor.Ended())) {
    pollfd entries[] = {{InterruptFd(), POLLIN, 0},
                        {supervisor.pidfd(), POLLIN, 0}};
    poll(entries, std::size(entries), -1);
    while (const std::optional<Interrupt> interrupt = NextInterrupt()) {
      HandOn(*interrupt, supervisor.pid());
    }
  }
  const pid_t pid = supervisor.pid();
  supervisor.Reap();
  if (!ended->signaled) return ended->number;
  KillOrphans({});
  PrivateFolder::RemoveAbandoned();
  PrintError(Format(
      "the process that watches the ranks (pid {}) {}; they and their broker "
      "were killed",
      pid, ended->ToString()));
  return ended->ShellStatus();
}

}  // namespace penstock
