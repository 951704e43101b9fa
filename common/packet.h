// A packet of a Unix socket, and what came beside it. It is not trusted.
#ifndef COMMON_PACKET_H_
#define COMMON_PACKET_H_

#include <sys/socket.h>

#include <optional>
#include <span>
#include <vector>

#include "common/fd.h"

namespace penstock {

struct Packet {
  size_t bytes = 0;
  std::vector<Fd> fds;          // close-on-exec
  std::optional<ucred> sender;  // of a socket with SO_PASSCRED
  int flags = 0;                // MSG_TRUNC, MSG_CTRUNC
};

inline constexpr size_t kPacketFdsMax = 253;  // the kernel's (SCM_MAX_FD)

// Receives without waiting; a signal does not end it. nullopt: errno says why.
// MSG_CTRUNC: there were more descriptors than fds_max, or than this process
// may have; a few more than fds_max may come all the same.
std::optional<Packet> ReceivePacket(int socket, std::span<char> to,
                                    size_t fds_max = kPacketFdsMax);

}  // namespace penstock
#endif  // COMMON_PACKET_H_
