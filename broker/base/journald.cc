#include "broker/base/journald.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/format.h"

namespace penstock {
namespace {

// A journal that is written slowly holds the broker up for so long, once.
constexpr timeval kWait = {1, 0};

std::string Encoded(const JournalFields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    text += name;
    if (value.find('\n') == value.npos) {
      text += '=';
    } else {
      // Little-endian, as this machine is.
      const uint64_t bytes = value.size();
      text += '\n';
      text.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    }
    text += value + '\n';
  }
  return text;
}

// What does not fit into a datagram goes as a file; -1: errno says why not.
Fd SealedMemory(const std::string& text) {
  Fd memory(memfd_create("penstockd-log", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  if (!memory) return memory;
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote =
        write(memory.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return Fd();
    done += static_cast<size_t>(wrote);
  }
  if (fcntl(memory.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return Fd();
  }
  return memory;
}

}  // namespace

bool IsJournal(int fd) {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat found {};
  return stream != nullptr && fstat(fd, &found) == 0 &&
         stream == Format("{}:{}", found.st_dev, found.st_ino);
}

Journald::Journald(const std::string& socket)
    : path_(socket), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &kWait, sizeof(kWait));
}

int Journald::Send(const JournalFields& fields) {
  const std::string text = Encoded(fields);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  iovec part = {const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  // A journal that is restarted has another socket of the same name.
  message.msg_name = &address;
  message.msg_namelen = sizeof(address);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  // It has waited before, and in vain.
  const bool waits = waits_.exchange(false, std::memory_order_relaxed);
  const auto send = [&] {
    while (sendmsg(socket_.get(), &message,
                   MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT)) < 0) {
      if (errno != EINTR) return errno;
    }
    return 0;
  };
  int error = send();
  if (error == EMSGSIZE || error == ENOBUFS) {
    const Fd memory = SealedMemory(text);
    if (!memory) return errno;
    message.msg_iov = nullptr;
    message.msg_iovlen = 0;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = memory.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    error = send();
  }
  if (error != EAGAIN) waits_.store(true, std::memory_order_relaxed);
  return error;
}

}  // namespace penstock
