// A private broker of this process: the `penstock broker` command as a child.
// It does what systemd does for the service, and ends with this process,
// however that ends.
//
// Ranks that share one hold its input, a FIFO, open: it ends with the last of
// them. They find it by a file named for their launch, in a folder of this user
// alone; a lock on that file (flock) lets one of them start it. The broker
// removes file and FIFO at its end, under the lock; those of brokers that were
// killed go with the next start.
#ifndef CLIENT_ATTACH_OWN_BROKER_H_
#define CLIENT_ATTACH_OWN_BROKER_H_

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
  // The shared one of the ranks of this launch, started unless it runs.
  static StatusOr<std::unique_ptr<OwnBroker>> StartOrJoin();
  // Stops it: at once, or after kStopGrace if it hangs. A shared one is only
  // left.
  ~OwnBroker();
  OwnBroker(const OwnBroker&) = delete;
  OwnBroker& operator=(const OwnBroker&) = delete;

  const std::string& socket() const { return socket_; }
  // It has ended, or is the parent's.
  bool Ended() const;

 private:
  OwnBroker() : hook_(&ForgetInChild, this) {}
  static void ForgetInChild(void* broker);
  // input: the command's stdin. place: the file that it removes at its end.
  Status Launch(const OwnBrokerOptions& options, const Fd& input,
                const std::string& place = "");

  Fd input_;  // the command ends when every copy of this is closed
  bool shared_ = false;
  Fd pidfd_;  // the command's; closed: nothing was started
  std::string socket_;
  ForkHook hook_;
};

// Returns the socket of a private broker, which is started unless it runs, and
// lives as long as this process. shared: the ranks that one launcher started on
// this host share it, and it lives as long as any of them. Thread safe.
StatusOr<std::string> SocketOfOwnBroker(bool shared);
// Returns this socket if a broker listens there, else SocketOfOwnBroker.
StatusOr<std::string> SocketOfAnyBroker(const std::string& socket, bool shared);

}  // namespace penstock
#endif  // CLIENT_ATTACH_OWN_BROKER_H_
