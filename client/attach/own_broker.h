// A private broker of this process: the `penstock broker` command as a child.
// It does what systemd does for the service, and ends with this process,
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
  int64_t workers = 0;       // threads; 0: penstockd's own choice
  std::string memory_limit;  // "": penstockd's own choice
};

// Any thread, one at a time. In a forked child the object owns no broker: it is
// the parent's, and ends with the parent whatever children are left.
class OwnBroker {
 public:
  // Returns once it listens. NotFound: no such command; InvalidArgument: an
  // option; else the command's own error.
  static StatusOr<std::unique_ptr<OwnBroker>> Start(
      const OwnBrokerOptions& options);
  // Stops it: at once, or after kStopGrace if it hangs.
  ~OwnBroker();
  OwnBroker(const OwnBroker&) = delete;
  OwnBroker& operator=(const OwnBroker&) = delete;

  const std::string& socket() const { return socket_; }
  // The command has ended, or is the parent's.
  bool Ended() const;

 private:
  OwnBroker() : hook_(&ForgetInChild, this) {}
  static void ForgetInChild(void* broker);
  Status Launch(const OwnBrokerOptions& options);

  Fd input_;  // the command's stdin: it ends when this is closed
  Fd pidfd_;  // the command's; closed: nothing was started
  std::string socket_;
  ForkHook hook_;
};

// Returns this socket if a broker listens there, else that of this process's
// private broker, which is started unless it runs and lives as long as this
// process. Thread safe.
StatusOr<std::string> SocketOfAnyBroker(const std::string& socket);

}  // namespace penstock
#endif  // CLIENT_ATTACH_OWN_BROKER_H_
