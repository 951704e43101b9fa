// An owning file descriptor, what a pidfd says, and transfers of all bytes at
// once.
#ifndef COMMON_FD_H_
#define COMMON_FD_H_

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace penstock {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() { Fd().Swap(*this); }

 private:
  void Swap(Fd& other) { std::swap(fd_, other.fd_); }
  int fd_ = -1;
};

struct PipeEnds {
  Fd read;
  Fd write;
};
inline StatusOr<PipeEnds> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe");
  return PipeEnds{Fd(ends[0]), Fd(ends[1])};
}

// False for a pidfd of -1.
inline bool IsDead(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// Both go on where a signal came between; false: errno says why.
inline bool WriteWholly(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}
// From the beginning of a file, which has as many bytes.
inline bool ReadWholly(int fd, void* to, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t read = pread(fd, static_cast<char*>(to) + got, bytes - got,
                               static_cast<off_t>(got));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    got += static_cast<size_t>(read);
  }
  return true;
}

}  // namespace penstock
#endif  // COMMON_FD_H_
