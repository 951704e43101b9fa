#include "common/wake.h"

#include <sys/socket.h>

#include <cerrno>

namespace penstock {

StatusOr<WakePair> MakeWakePair() {
  int fds[2];
  // SEQPACKET, because poll reports its close, unlike that of a DGRAM pair.
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                 fds) != 0) {
    return ErrnoError(errno, "socketpair");
  }
  return WakePair{Fd(fds[0]), Fd(fds[1])};
}

void SendWake(int socket) {
  const int saved = errno;
  const char byte = 1;
  (void)TEMP_FAILURE_RETRY(send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  errno = saved;
}

bool DrainWakes(int socket) {
  char bytes[64];
  // Bounded: the rest of a flood waits for the next poll.
  for (int i = 0; i < 64; ++i) {
    const ssize_t n = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    return n < 0 && errno == EAGAIN;
  }
  return true;
}

}  // namespace penstock
