// A penstockd of one's own, for the length of one command: no configuration, no
// root, nothing left behind.
//
// The socket is bound here, in a folder of mode 0700, and handed to penstockd
// by systemd's socket activation protocol. So it can be connected to at once,
// and a penstockd that dies takes the connections with it instead of leaving
// callers waiting. penstockd gets SIGTERM from the kernel when this process
// dies.
#ifndef CLIENT_COMMAND_PRIVATE_BROKER_H_
#define CLIENT_COMMAND_PRIVATE_BROKER_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "client/command/control_call.h"
#include "client/command/process.h"
#include "common/status.h"

namespace penstock {

struct PrivateBrokerOptions {
  int workers = 0;           // 0: penstockd's own choice
  std::string memory_limit;  // "": penstockd's own choice

  // --workers and --memory-limit.
  void AddTo(CLI::App* app);
};

// $PENSTOCKD, else next to this program, else the build tree's, else in PATH.
StatusOr<std::string> FindPenstockd();

class PrivateBroker {
 public:
  static StatusOr<std::unique_ptr<PrivateBroker>> Start(
      const PrivateBrokerOptions& options);
  ~PrivateBroker() { Stop(); }
  PrivateBroker(const PrivateBroker&) = delete;
  PrivateBroker& operator=(const PrivateBroker&) = delete;

  const std::string& socket() const { return socket_; }
  const Process& process() const { return process_; }

  // CallBroker; when penstockd is dead, the error says how it died.
  StatusOr<nlohmann::json> Call(const nlohmann::json& request);
  BrokerCall AsCall() {
    return [this](const nlohmann::json& request) { return Call(request); };
  }

  // "penstockd (pid 12) was killed by signal 9 (Killed)", if it has ended;
  // waits this long for it to.
  std::optional<Status> Death(double wait_s = 0);

  // SIGTERM, SIGKILL after 5 s; removes the folder. Again: nothing.
  void Stop();
  // CPU seconds of penstockd and its children; known after Stop.
  double cpu_s() const { return process_.cpu_s(); }

 private:
  PrivateBroker() = default;
  Status MakeFolder();
  StatusOr<Fd> Listen() const;

  std::string folder_;
  std::string socket_;
  Process process_;
};

// A name that no other run has: "bench-4711-1f3a5c7e".
std::string UniqueJobName(const std::string& prefix);

}  // namespace penstock
#endif  // CLIENT_COMMAND_PRIVATE_BROKER_H_
