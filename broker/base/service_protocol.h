// A service's end of systemd's protocols, which `penstock run` speaks too:
// sd_notify(3), sd_listen_fds(3). Not libsystemd: it brings 6 libraries along
// for two messages and three environment variables, which systemd promises to
// keep as they are.
#ifndef BROKER_BASE_SERVICE_PROTOCOL_H_
#define BROKER_BASE_SERVICE_PROTOCOL_H_

#include <string>
#include <vector>

#include "common/fd.h"

namespace penstock {

// Connects to the service manager, which NotifyServiceManager does at its first
// call: a sandbox that is entered afterwards keeps the connection. Call before
// there is a second thread.
void ConnectServiceManager();
// Tells the service manager lines of KEY=VALUE, with a descriptor (-1: none).
// Waits while the manager does not read what it has; no effect where there is
// no manager.
void NotifyServiceManager(const std::string& state, int fd = -1);
// The same for what is told again soon, which is dropped instead of waiting: a
// manager that does not read delays no rank.
void RemindServiceManager(const std::string& state);

struct PassedFd {
  std::string name;  // "unknown" if the manager gives no names
  Fd fd;
};
// Takes the descriptors that were passed to this process, close-on-exec from
// now on. To be called once, before threads are started.
std::vector<PassedFd> TakePassedFds();

// A listening socket of this family and type.
bool IsListening(int fd, int family, int type);

}  // namespace penstock
#endif  // BROKER_BASE_SERVICE_PROTOCOL_H_
