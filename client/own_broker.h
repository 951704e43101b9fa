// A private broker of this process: the `penstock broker` command as a child,
// which does all that systemd does for the service, and ends with this process,
// however that ends.
#ifndef CLIENT_OWN_BROKER_H_
#define CLIENT_OWN_BROKER_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/message.h"
#include "common/status.h"

namespace penstock {

struct OwnBrokerOptions {
  int64_t workers = 0;       // 0: penstockd's own choice
  std::string memory_limit;  // "": penstockd's own choice
};

// Any thread, one at a time.
class OwnBroker {
 public:
  // Returns once it listens. NotFound: no such command; Unavailable: it ended,
  // and has said why on standard error.
  static StatusOr<std::unique_ptr<OwnBroker>> Start(
      const OwnBrokerOptions& options);
  ~OwnBroker();
  OwnBroker(const OwnBroker&) = delete;
  OwnBroker& operator=(const OwnBroker&) = delete;

  const std::string& socket() const { return socket_; }

 private:
  OwnBroker() = default;
  Fd input_;  // of the command: it ends when this is closed
  pid_t pid_ = -1;
  std::string socket_;
};

// Where a broker listens: at this socket, or, if there is none, a private one
// that is started at the first call and lives as long as this process. Thread
// safe.
StatusOr<std::string> SocketOfAnyBroker(const std::string& socket);

}  // namespace penstock
#endif  // CLIENT_OWN_BROKER_H_
