#include "common/packet.h"

#include <cerrno>
#include <cstring>

namespace penstock {

std::optional<Packet> ReceivePacket(int socket, std::span<char> to,
                                    size_t fds_max) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) +
                                CMSG_SPACE(kPacketFdsMax * sizeof(int))];
  iovec part = {to.data(), to.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen =
      CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(fds_max * sizeof(int));
  ssize_t bytes;
  do {
    bytes = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) return std::nullopt;
  Packet packet;
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr;
       each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET) continue;
    if (each->cmsg_type == SCM_RIGHTS) {
      const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(each) + i * sizeof(fd), sizeof(fd));
        packet.fds.emplace_back(fd);
      }
    } else if (each->cmsg_type == SCM_CREDENTIALS &&
               each->cmsg_len == CMSG_LEN(sizeof(ucred))) {
      std::memcpy(&packet.sender.emplace(), CMSG_DATA(each), sizeof(ucred));
    }
  }
  packet.bytes = static_cast<size_t>(bytes);
  packet.flags = header.msg_flags;
  return packet;
}

}  // namespace penstock
