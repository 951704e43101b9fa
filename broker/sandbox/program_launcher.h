// Starts programs, and the process that does so for a process in the sandbox,
// which cannot: the launcher is forked before the sandbox is entered, and
// decides itself what may be started. A process that a hostile file has taken
// over can ask it for nothing else.
#ifndef BROKER_SANDBOX_PROGRAM_LAUNCHER_H_
#define BROKER_SANDBOX_PROGRAM_LAUNCHER_H_

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/message.h"
#include "common/status.h"

namespace penstock {

// The words of its command line, and the descriptors that it has as 3, 4, ...
struct Program {
  std::vector<std::string> words;
  std::vector<Fd> fds;
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;
};

// Starts a program, found by PATH, in a process group of its own, with no
// signal blocked, /dev/null to read and OMP_NUM_THREADS=1 unless that is set.
// Errors: the kernel's.
StatusOr<Child> StartProgram(const Program& program);

// Thread-safe. The launcher ends with this process, however that ends; so do
// programs that follow their parent (PR_SET_PDEATHSIG).
class ProgramLauncher {
 public:
  // These run in the launcher.
  struct Handlers {
    // The program that a request means, which came with these descriptors.
    std::function<StatusOr<Program>(const nlohmann::json& request,
                                    std::vector<Fd> fds)>
        program;
    // A connection to a process that serves as a program.
    std::function<StatusOr<Fd>(const nlohmann::json& request)> connect;
    // Reads again what decides which programs may be started.
    std::function<Status()> reload;
    std::string socket;  // "": none
    // Removed at the launcher's end if it is empty then; "": none.
    std::string folder = {};
  };

  // Forks it. Call once, before any thread starts.
  static Status Start(const Handlers& handlers);
  // nullptr: there is none, and this process starts programs itself.
  static ProgramLauncher* Get();
  ~ProgramLauncher();  // waits for its end

  // Errors: those of the handler and of StartProgram. Unavailable: the launcher
  // has ended.
  StatusOr<Child> Run(const nlohmann::json& request,
                      const std::vector<int>& fds);
  // Errors: those of the handler.
  StatusOr<Fd> Connect(const nlohmann::json& request);
  // How a program ended (waitpid), which it must have; nullopt: nobody knows.
  std::optional<int> Reap(pid_t pid);
  // When memory runs out, the kernel kills this process first, which must be a
  // child of the one that has the launcher.
  Status KillFirst(pid_t pid);
  // Kills the process group of a program, or of its child.
  Status Kill(pid_t pid);
  Status Reload();
  // Removes the socket that Handlers::socket names.
  Status RemoveSocket();
  // CPU time of programs that have ended, and of the launcher. Waits for
  // nobody.
  double CpuSeconds() const;
  // Readable once the launcher has ended.
  int pidfd() const { return pidfd_.get(); }

 private:
  ProgramLauncher(pid_t pid, Fd link, Fd pidfd)
      : pid_(pid), link_(std::move(link)), pidfd_(std::move(pidfd)) {}
  StatusOr<Message> Ask(nlohmann::json request,
                        const std::vector<int>& fds = {});

  std::mutex mutex_;  // held from a request to its answer
  const pid_t pid_;
  Fd link_;
  const Fd pidfd_;
};

}  // namespace penstock
#endif  // BROKER_SANDBOX_PROGRAM_LAUNCHER_H_
