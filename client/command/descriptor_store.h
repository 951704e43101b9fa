// The service manager's end of systemd's notify protocol, for a penstockd that
// systemd does not run: takes what penstockd says of itself, and the
// descriptors that shall outlive it (sd_notify(3), FDSTORE=1).
//
//   penstockd ── NOTIFY_SOCKET: READY=1, FDSTORE=1 + fd, ... ──► store
//   next life ◄── LISTEN_FDS, LISTEN_FDNAMES ───────────────────── store
//
// Who sends is told by the kernel (SCM_CREDENTIALS): a message of any process
// but the one expected is dropped. Descriptors are close-on-exec here, and are
// closed at once where they are not kept; they are meant to be memfds and
// pidfds, whose closing never waits.
//
// For one thread. penstockd's sd_notify waits while the socket's queue is full
// (net.unix.max_dgram_qlen, 10 unless systemd raised it): whoever waits for
// penstockd has to call Receive meanwhile.
#ifndef CLIENT_COMMAND_DESCRIPTOR_STORE_H_
#define CLIENT_COMMAND_DESCRIPTOR_STORE_H_

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
  // Printable ASCII without ':', as systemd has it; an empty one is refused.
  static constexpr size_t kNameBytesMax = 255;
  // Of all names together, a ':' with each. They become one environment string,
  // LISTEN_FDNAMES, for which execve has 128 KiB (MAX_ARG_STRLEN).
  static constexpr size_t kAllNamesBytesMax = 120 * 1024;
  // The name of a descriptor that came without one, systemd's.
  static constexpr char kNameless[] = "stored";

  // Binds the notify socket at path, which must be short enough for one.
  Status Listen(const std::string& path);

  // Readable when Receive has something to do; -1: closed.
  int fd() const { return socket_.get(); }

  // From now on this process is listened to, and it has said nothing yet; -1:
  // none is.
  void Expect(pid_t pid);
  // Takes what has arrived, without waiting; a limited number of messages, so
  // that a sender without end does not keep the caller.
  void Receive();

  // The process expected has said so.
  bool ready() const { return ready_; }
  bool stopping() const { return stopping_; }
  // X_PENSTOCK_EXPLAINED=1: it knows what the life before it died of, and that
  // this cannot go on for ever (SampleQuarantine).
  bool explained() const { return explained_; }
  // Its last STATUS=, for people.
  const std::string& status() const { return status_; }

  // In the order in which they came.
  const std::vector<StoredDescriptor>& descriptors() const {
    return descriptors_;
  }

  // Calls look_at with each descriptor before it is removed on request.
  void BeforeRemoval(std::function<void(int fd)> look_at) {
    before_removal_ = std::move(look_at);
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
  size_t name_bytes_ = 0;  // of descriptors_, a ':' with each
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_DESCRIPTOR_STORE_H_
