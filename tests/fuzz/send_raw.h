// A datagram with descriptors, as a peer sends it that checks nothing.
#ifndef TESTS_FUZZ_SEND_RAW_H_
#define TESTS_FUZZ_SEND_RAW_H_

#include <sys/socket.h>

#include <cstring>
#include <string_view>
#include <vector>

namespace penstock {

// fds: at most 8. False: the socket did not take it.
inline bool SendRaw(int socket, std::string_view text,
                    const std::vector<int>& fds) {
  iovec iov{const_cast<char*>(text.data()), text.size()};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* cmsg = CMSG_FIRSTHDR(&header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(cmsg), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace penstock
#endif  // TESTS_FUZZ_SEND_RAW_H_
