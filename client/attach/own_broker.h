// A private broker of this process: the `penstock broker` command as a child,
// which does all that systemd does for the service, and ends with this process,
// however that ends.
#ifndef CLIENT_ATTACH_OWN_BROKER_H_
#define CLIENT_ATTACH_OWN_BROKER_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "client/attach/fork.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

struct OwnBrokerOptions {
  int64_t workers = 0;       // 0: penstockd's own choice
  std::string memory_limit;  // "": penstockd's own choice
};

// Any thread, one at a time. In a forked child it is none: the broker is the
// parent's, and ends with the parent whatever children are left.
class OwnBroker {
 public:
  // Returns once it listens. NotFound: no such command; InvalidArgument: an
  // option; what else keeps it from starting, in its own words.
  static StatusOr<std::unique_ptr<OwnBroker>> Start(
      const OwnBrokerOptions& options);
  // Stops it: at once, or within kStopGrace if it hangs.
  ~OwnBroker();
  OwnBroker(const OwnBroker&) = delete;
  OwnBroker& operator=(const OwnBroker&) = delete;

  const std::string& socket() const { return socket_; }
  // It has died, or is the parent's.
  bool Ended() const;

 private:
  OwnBroker() : hook_(&ForgetInChild, this) {}
  static void ForgetInChild(void* broker);
  Status Launch(const OwnBrokerOptions& options);

  Fd input_;  // of the command: it ends when this is closed
  Fd pidfd_;  // of the command; none: nothing was started
  std::string socket_;
  ForkHook hook_;
};

// Where a broker listens: at this socket, or, if there is none, a private one
// that is started where there is none yet, or none any more, and lives as long
// as this process. Thread safe.
StatusOr<std::string> SocketOfAnyBroker(const std::string& socket);

}  // namespace penstock
#endif  // CLIENT_ATTACH_OWN_BROKER_H_
