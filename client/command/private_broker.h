// A penstockd of one's own, for the length of one command: no configuration, no
// root, nothing left behind. What systemd is to the service, this is to it:
//
//   * The socket is bound here, in a folder of mode 0700, and handed over by
//     systemd's socket activation protocol. It stays open here: it can be
//     connected to at once, and who connects while penstockd is restarted waits
//     in the backlog.
//   * Descriptors that shall outlive penstockd are kept here (DescriptorStore)
//     and given to its next life, as is a folder, --state-dir.
//   * It is restarted when it dies, as RestartPolicy has it, by whoever calls
//     Tend in the loop that it waits in.
//
// Nobody waits for ever: once penstockd is given up, the socket is closed, so
// that whoever waits or connects is refused.
//
// penstockd gets a pidfd of this process, and ends when this process does,
// however that ends. Every method belongs to one thread.
#ifndef CLIENT_COMMAND_PRIVATE_BROKER_H_
#define CLIENT_COMMAND_PRIVATE_BROKER_H_

#include <poll.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/command/control_call.h"
#include "client/command/descriptor_store.h"
#include "client/command/private_folder.h"
#include "client/command/process.h"
#include "client/command/restart_policy.h"
#include "common/fd.h"
#include "common/status.h"

namespace CLI {
class App;
}

namespace penstock {

struct PrivateBrokerOptions {
  int workers = 0;           // 0: penstockd's own choice
  std::string memory_limit;  // "": penstockd's own choice
  // More of penstockd's command line and environment; not on ours.
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;

  // --workers and --memory-limit.
  void AddTo(CLI::App* app);
};

// $PENSTOCKD, else next to this program, else the build tree's, else in PATH.
StatusOr<std::string> FindPenstockd();

class PrivateBroker {
 public:
  using Clock = RestartPolicy::Clock;
  // Gets what there is to tell the user, one line.
  using Tell = std::function<void(const std::string&)>;

  static StatusOr<std::unique_ptr<PrivateBroker>> Start(
      const PrivateBrokerOptions& options);
  ~PrivateBroker() { Stop(); }
  PrivateBroker(const PrivateBroker&) = delete;
  PrivateBroker& operator=(const PrivateBroker&) = delete;

  const std::string& folder() const { return folder_.path(); }
  const std::string& socket() const { return socket_; }
  // Of its present life; pid() is -1 between two lives.
  const Process& process() const { return process_; }
  const DescriptorStore& store() const { return store_; }

  // CallBroker; when penstockd is dead, the error says how it died. It is not
  // restarted meanwhile, and nothing is asked twice.
  StatusOr<nlohmann::json> Call(const nlohmann::json& request);
  BrokerCall AsCall() {
    return [this](const nlohmann::json& request) { return Call(request); };
  }

  // "penstockd (pid 12) was killed by signal 9 (Killed)", if it has ended and
  // has not been restarted, with what kept it from starting; waits this long
  // for it to end.
  std::optional<Status> Death(double wait_s = 0);

  // ---- for a loop that polls ----------------------------------------------
  //
  // Tend is to be called when one of these is readable, at TendAt at the
  // latest; more often does no harm.
  void AddTo(std::vector<pollfd>* entries) const;
  std::optional<Clock::time_point> TendAt() const;
  // Takes what penstockd has said, and restarts it when it has died.
  // Unavailable once it is given up, again and again: it ended before it was
  // ever ready, or because somebody asked it to, or too often without any
  // progress: since the death before, no rank took a batch, and no sample was
  // found to be the cause.
  Status Tend(const Tell& tell);

  // ---- for a program without such a loop ----------------------------------
  //
  // Tends until this descriptor is readable (OK), or until penstockd is given
  // up. For a thread that has called Start, or a process.
  Status TendUntil(int stop_fd, const Tell& tell);

  // SIGTERM, SIGKILL after 5 s; removes the folder. Again: nothing.
  void Stop();
  // In a forked child that does not exec: lets go of what only the parent may
  // hold. A listening socket held here would let clients wait for ever.
  void ForgetInFork();
  // CPU seconds of penstockd's lives and their children; known after Stop.
  double cpu_s() const { return former_cpu_s_ + process_.cpu_s(); }
  uint32_t starts() const { return starts_; }  // restarts among them

 private:
  PrivateBroker() = default;
  Status Listen();
  Status Launch();
  std::optional<ProcessExit> WaitForEnd(double seconds);
  Status WaitForAnswer(int socket);
  Status DeathBy(const ProcessExit& ended) const;
  // The cursor page's rank took more than taken_ says; *taken is to say it.
  bool TookMore(int fd, std::map<uint64_t, uint64_t>* taken);
  bool RanksTookBatches();
  Status Died(const std::string& message, const Tell& tell);
  Status GiveUp(const std::string& message);
  std::string Name() const;

  PrivateBrokerOptions options_;
  std::string program_;
  PrivateFolder folder_;
  std::string socket_;
  std::string state_folder_;
  std::string notify_path_;
  Fd listener_;
  DescriptorStore store_;
  Process process_;
  Clock::time_point launched_at_;
  bool was_ready_ = false;  // in one of its lives
  double former_cpu_s_ = 0;
  uint32_t starts_ = 0;

  RestartPolicy policy_;
  // By cursor page (its inode): batches its rank had taken at the last death.
  std::map<uint64_t, uint64_t> taken_;
  // A rank did since the last death, and its page is not kept any more.
  bool took_and_left_ = false;
  std::optional<Status> death_;                  // of the last life; dead now
  std::optional<Clock::time_point> restart_at_;  // dead, and to be restarted
  std::optional<Status> given_up_;
};

// A name that no other run has: "bench-4711-1f3a5c7e".
std::string UniqueJobName(const std::string& prefix);

}  // namespace penstock
#endif  // CLIENT_COMMAND_PRIVATE_BROKER_H_
