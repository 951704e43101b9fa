// A private penstockd for the length of one command: no configuration, no root,
// nothing left behind. This does what systemd does for the service:
//
//   * It binds the socket, in a folder of mode 0700, and passes it on by
//     systemd's socket activation protocol. The socket stays open here: clients
//     can connect at once, and wait in the backlog while penstockd is
//     restarted.
//   * It keeps the descriptors that must outlive penstockd (DescriptorStore),
//     and a folder (--state-dir), and gives them to the next broker instance.
//   * It restarts penstockd as RestartPolicy allows: the caller's loop calls
//     Tend.
//
// Once penstockd is given up the socket is closed, so that waiting and new
// clients are refused.
//
// penstockd gets a pidfd of this process, and ends when this process does,
// however that ends. All methods are for one thread.
#ifndef CLIENT_PRIVATE_BROKER_PRIVATE_BROKER_H_
#define CLIENT_PRIVATE_BROKER_PRIVATE_BROKER_H_

#include <poll.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/private_broker/control_call.h"
#include "client/private_broker/descriptor_store.h"
#include "client/private_broker/private_folder.h"
#include "client/private_broker/process.h"
#include "client/private_broker/restart_policy.h"
#include "common/command_line.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

struct PrivateBrokerOptions {
  int workers = 0;           // 0: penstockd's own choice
  std::string memory_limit;  // "": penstockd's own choice
  // Added to penstockd's command line and environment; no options of ours.
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;

  // --workers and --memory-limit.
  void AddTo(Command command);
  // With a log that lacks these messages, because the command tells them.
  PrivateBrokerOptions Without(
      std::initializer_list<const char*> messages) const;
};

// $PENSTOCKD, else next to this program, else the build tree's, else in PATH.
StatusOr<std::string> FindPenstockd();

class PrivateBroker {
 public:
  using Clock = RestartPolicy::Clock;
  // Receives one line for the user.
  using Report = std::function<void(const std::string&)>;

  static StatusOr<std::unique_ptr<PrivateBroker>> Start(
      const PrivateBrokerOptions& options);
  ~PrivateBroker() { Stop(); }
  PrivateBroker(const PrivateBroker&) = delete;
  PrivateBroker& operator=(const PrivateBroker&) = delete;

  const std::string& folder() const { return folder_.path(); }
  const std::string& socket() const { return socket_; }
  // It is for ranks: RunningBroker finds it.
  void Announce() const { folder_.Announce(); }
  // The present broker instance; pid() is -1 between two instances.
  const Process& process() const { return process_; }
  const DescriptorStore& store() const { return store_; }

  // CallBroker; when penstockd is dead, the error says how it died. Neither
  // restarts it nor repeats the request.
  StatusOr<nlohmann::json> Call(const nlohmann::json& request);
  BrokerCall AsCall() {
    return [this](const nlohmann::json& request) { return Call(request); };
  }

  // "penstockd (pid 12) was killed by signal 9 (Killed)", with the reason if it
  // could not start; nullopt: it runs. Waits wait_s for it to end.
  std::optional<Status> Death(double wait_s = 0);

  // ---- for a loop that polls ----------------------------------------------
  //
  // Tend must be called when one of these is readable, and at TendAt; more
  // calls do no harm.
  void AddTo(std::vector<pollfd>* entries) const;
  std::optional<Clock::time_point> TendAt() const;
  // Takes penstockd's messages, and restarts it when it has died. Unavailable,
  // from then on, once it is given up: it ended before it was ever ready, or on
  // request, or too often without progress. Progress: since the former death a
  // rank took a batch, or a sample was found to be the cause.
  Status Tend(const Report& report);

  // ---- for a program without such a loop ----------------------------------
  //
  // Tends until stop_fd is readable (OK), or until penstockd is given up. For a
  // thread or process of its own, which also called Start.
  Status TendUntil(int stop_fd, const Report& report);

  // SIGTERM, SIGKILL after 5 s; removes the folder. No effect the second time.
  void Stop();
  // For a forked child that does not exec: closes what only the parent may
  // hold. With a listening socket held there, clients would wait for ever.
  void ForgetInFork();
  // CPU seconds of all broker instances and their children; known after Stop.
  double cpu_s() const { return former_cpu_s_ + process_.cpu_s(); }
  uint32_t starts() const { return starts_; }  // restarts included

 private:
  PrivateBroker() = default;
  Status Listen();
  Status Launch();
  std::optional<ProcessExit> WaitForEnd(double seconds);
  Status WaitForAnswer(int socket);
  Status DeathBy(const ProcessExit& ended) const;
  // Whether the cursor page's rank took more than taken_ says; notes its count
  // in *taken.
  bool TookMore(int fd, std::map<uint64_t, uint64_t>* taken);
  bool RanksTookBatches();
  Status Died(const std::string& message, const Report& report);
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
  bool was_ready_ = false;  // some instance was ready
  double former_cpu_s_ = 0;
  uint32_t starts_ = 0;

  RestartPolicy policy_;
  // Cursor page (inode) -> batches its rank had taken at the last death.
  std::map<uint64_t, uint64_t> taken_;
  // Since the last death a rank took batches and its page was removed.
  bool took_and_left_ = false;
  std::optional<Status> death_;                  // set: dead now
  std::optional<Clock::time_point> restart_at_;  // set: to be restarted
  std::optional<Status> given_up_;
};

// A unique name: "bench-4711-1f3a5c7e".
std::string UniqueJobName(const std::string& prefix);

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_PRIVATE_BROKER_H_
