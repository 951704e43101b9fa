// The penstockd of a storm. It is restarted whenever it dies, without pause or
// limit, with the socket, the descriptor store and the state directory that
// systemd gives it. (`penstock run` gives up a broker that dies often.)
//
// For a single-threaded program that polls.
#ifndef TESTS_CRASH_STORM_BROKER_H_
#define TESTS_CRASH_STORM_BROKER_H_

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/private_broker/descriptor_store.h"
#include "client/private_broker/process.h"
#include "common/fd.h"

namespace penstock {

class StormBroker {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  // Its socket, its state directory and its log are in folder. environment:
  // called for every broker instance.
  StormBroker(std::string program, std::string folder,
              std::function<Environment()> environment);
  ~StormBroker();

  const std::string& socket() const { return socket_; }
  std::string state_folder() const { return folder_ + "/state"; }
  const Process& process() const { return process_; }
  uint64_t instances() const { return instances_; }
  bool ready() const { return store_.ready(); }

  // Call Tend when one of these is readable.
  void AddTo(std::vector<pollfd>* entries) const;
  // Handles its messages. Returns its exit status if it ended; then call
  // Launch.
  std::optional<ProcessExit> Tend();
  void Launch();
  // SIGTERM, and SIGKILL after some seconds.
  void Stop();

 private:
  const std::string program_;
  const std::string folder_;
  const std::string socket_;
  const std::function<Environment()> environment_;
  Fd log_;
  Fd listener_;
  DescriptorStore store_;
  Process process_;
  uint64_t instances_ = 0;
};

}  // namespace penstock
#endif  // TESTS_CRASH_STORM_BROKER_H_
