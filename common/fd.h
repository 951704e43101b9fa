// An owning file descriptor.
#ifndef COMMON_FD_H_
#define COMMON_FD_H_

#include <unistd.h>

#include <utility>

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

}  // namespace penstock
#endif  // COMMON_FD_H_
