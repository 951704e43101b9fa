#include "broker/base/service_protocol.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace penstock {
namespace {

// SD_LISTEN_FDS_START
constexpr int kFirstPassed = 3;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// 0 if it is none.
int Number(const std::string& text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Empty: there is none.
Fd Connection() {
  const std::string path = Variable("NOTIFY_SOCKET");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return {};
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract one
  const auto bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) !=
      0) {
    return {};
  }
  return socket;
}

Fd& ServiceManager() {
  static Fd connected = Connection();
  return connected;
}

void Send(const std::string& state, int fd, int flags) {
  const int socket = ServiceManager().get();
  if (socket < 0) return;

  iovec text = {const_cast<char*>(state.data()), state.size()};
  msghdr message = {};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  while (sendmsg(socket, &message, flags | MSG_NOSIGNAL) < 0 &&
         errno == EINTR) {
  }
}

}  // namespace

void ConnectServiceManager() { ServiceManager() = Connection(); }

void NotifyServiceManager(const std::string& state, int fd) {
  Send(state, fd, 0);
}

void RemindServiceManager(const std::string& state) {
  Send(state, -1, MSG_DONTWAIT);
}

std::vector<PassedFd> TakePassedFds() {
  std::vector<PassedFd> passed;
  const int pid = Number(Variable("LISTEN_PID"));
  const int count = Number(Variable("LISTEN_FDS"));
  const std::string names = Variable("LISTEN_FDNAMES");
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) {
    unsetenv(name);
  }
  if (pid != getpid()) return passed;  // another process's
  size_t at = 0;
  for (int fd = kFirstPassed; fd < kFirstPassed + count; ++fd) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) break;
    const size_t end = std::min(names.find(':', at), names.size());
    passed.push_back(
        {names.empty() ? "unknown" : names.substr(at, end - at), Fd(fd)});
    at = std::min(end + 1, names.size());
  }
  return passed;
}

bool IsListening(int fd, int family, int type) {
  const auto is = [fd](int option, int wanted) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &bytes) == 0 &&
           value == wanted;
  };
  return is(SO_DOMAIN, family) && is(SO_TYPE, type) && is(SO_ACCEPTCONN, 1);
}

}  // namespace penstock
