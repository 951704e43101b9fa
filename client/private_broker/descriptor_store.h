// The service manager's end of systemd's notify protocol, for a penstockd that
// systemd does not run: receives penstockd's status, and keeps the descriptors
// that must outlive it (sd_notify(3), FDSTORE=1).
//
//   penstockd ── NOTIFY_SOCKET: READY=1, FDSTORE=1 + fd, ... ──► store
//   next instance ◄── LISTEN_FDS, LISTEN_FDNAMES ───────────────── store
//
// The kernel identifies the sender (SCM_CREDENTIALS): messages of any process
// but the expected one are dropped. Descriptors are close-on-exec here; those
// not kept are closed at once. They should be memfds and pidfds, whose closing
// never waits.
//
// For one thread. penstockd's sd_notify blocks while the socket's queue is full
// (net.unix.max_dgram_qlen, 10 unless systemd raised it): a caller that waits
// for penstockd has to call Receive meanwhile.
#ifndef CLIENT_PRIVATE_BROKER_DESCRIPTOR_STORE_H_
#define CLIENT_PRIVATE_BROKER_DESCRIPTOR_STORE_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

struct StoredDescriptor {
  std::string name;
  Fd fd;
};

class DescriptorStore {
 public:
  static constexpr size_t kDescriptorsMax = 4096;
  // Printable ASCII without ':', as in systemd; an empty name is refused.
  static constexpr size_t kNameBytesMax = 255;
  // All names together, a ':' with each. They become one environment string,
  // LISTEN_FDNAMES, which execve limits to 128 KiB (MAX_ARG_STRLEN).
  static constexpr size_t kAllNamesBytesMax = 120 * 1024;
  // systemd's name for a descriptor without one.
  static constexpr char kNameless[] = "stored";

  // Binds the notify socket at path, which must fit a socket address.
  Status Listen(const std::string& path);

  // Readable when Receive has something to do; -1: closed.
  int fd() const { return socket_.get(); }

  // Accepts messages of this process from now on and forgets what the former
  // one said; -1: of none.
  void Expect(pid_t pid);
  // Takes the messages that have arrived, without waiting; a limited number, so
  // that an endless sender does not keep the caller.
  void Receive();

  // The expected process has said so.
  bool ready() const { return ready_; }
  bool stopping() const { return stopping_; }
  // X_PENSTOCK_EXPLAINED=1: it knows why the former broker instance died, and
  // that the cause cannot recur for ever (SampleQuarantine).
  bool explained() const { return explained_; }
  // Its last STATUS=, for people.
  const std::string& status() const { return status_; }

  // In the order of arrival.
  const std::vector<StoredDescriptor>& descriptors() const {
    return descriptors_;
  }

  // Calls inspect with each descriptor before it is removed on request.
  void BeforeRemoval(std::function<void(int fd)> inspect) {
    before_removal_ = std::move(inspect);
  }

  // Closes the socket and all descriptors. Leaves the path.
  void Close();

 private:
  void Obey(const std::string& text, std::vector<Fd> fds);
  void Keep(const std::string& name, Fd fd);
  void Remove(const std::string& name);

  std::function<void(int fd)> before_removal_;
  Fd socket_;
  pid_t expected_ = -1;
  bool ready_ = false;
  bool stopping_ = false;
  bool explained_ = false;
  std::string status_;
  std::vector<StoredDescriptor> descriptors_;
  size_t name_bytes_ = 0;  // names of descriptors_, a ':' with each
};

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_DESCRIPTOR_STORE_H_
