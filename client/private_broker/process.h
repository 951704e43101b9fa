// A child process that cannot be left behind: identified by pidfd, in its own
// process group, killed by the kernel when this process dies, else by the
// destructor.
//
// For programs of one thread: Start forks, and PR_SET_PDEATHSIG follows the
// thread that forked.
#ifndef CLIENT_PRIVATE_BROKER_PROCESS_H_
#define CLIENT_PRIVATE_BROKER_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

// How a process ended.
struct ProcessExit {
  bool signaled = false;
  int number = 0;  // exit status or signal

  bool ok() const { return !signaled && number == 0; }
  // As in a shell: the status, or 128 + signal.
  int ShellStatus() const { return signaled ? 128 + number : number; }
  // "ended with status 3", "was killed by signal 9 (Killed)".
  std::string ToString() const;
};

struct PassedDescriptor {
  int fd;
  std::string name;
};

struct ProcessSpec {
  // Either a program (looked up in PATH) with its arguments, ...
  std::vector<std::string> argv;
  // ... or a function to run in the fork; its result is the exit status.
  std::function<int()> body;
  std::vector<std::pair<std::string, std::string>> environment;  // added
  // Its descriptors 0, 1 and 2; -1: inherited.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  // Passed on by systemd's protocol: descriptors 3, 4, ... in this order,
  // LISTEN_FDS, LISTEN_FDNAMES, and LISTEN_PID=the child's. Empty: the
  // variables are unset.
  std::vector<PassedDescriptor> listen_fds;
  // The process group it joins; 0: a new one that it leads, so that signals
  // reach its children too. Not 0 only for a process that shares the terminal.
  pid_t group = 0;
  // Sent when this process dies; 0: none, the child notices by itself.
  int death_signal = SIGKILL;
};

class Process {
 public:
  // Forks, and waits until the program is executed: returns errors of execve.
  static StatusOr<Process> Start(const ProcessSpec& spec);

  Process() = default;
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  // Readable (POLLIN) once it has ended; -1 once it is reaped.
  int pidfd() const { return pidfd_.get(); }

  // Signals the group it leads, else the process alone. No effect once it is
  // reaped: its number may be reused.
  void Signal(int signal) const;

  // How it ended, nullopt while it runs. Until Reap its number stays taken, so
  // that its group can still be signalled.
  std::optional<ProcessExit> Ended() const;
  // Waits this long at most for it to end.
  std::optional<ProcessExit> WaitFor(double seconds) const;

  // Kills it and its group, and waits; then cpu_s is known.
  void Reap();
  // CPU seconds, user and system, of it and of the children it waited for.
  double cpu_s() const { return cpu_s_; }

 private:
  pid_t pid_ = -1;  // -1: none, or reaped
  bool leads_group_ = true;
  Fd pidfd_;
  double cpu_s_ = 0;
};

// Raises the descriptor limit to the maximum. Programs started later get the
// former limit: select() fails on numbers above 1023.
void RaiseDescriptorLimit();

// From now on, descendants whose parents die become children of this process.
void AdoptOrphans();
// Reaps adopted orphans that have ended, except keep.
void ReapOrphans(const std::vector<pid_t>& keep);
// Kills and reaps every child but keep, and their children in turn.
void KillOrphans(const std::vector<pid_t>& keep);

// Sum of the proportional set size of a process in bytes: shared pages divided
// by the number of processes that map them. nullopt: gone, or another user's.
// Walks the page tables: slow.
std::optional<uint64_t> PssBytes(pid_t pid);

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_PROCESS_H_
