#include "common/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/format.h"

namespace penstock {

StatusOr<std::string> ReadTextFile(const std::string& what,
                                   const std::string& name, size_t bytes_max) {
  // O_NONBLOCK: opening a FIFO must not block before it is refused.
  const Fd fd(open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return ErrnoError(errno, Format("cannot read {} '{}'", what, name));
  return ReadTextFile(what, name, fd, bytes_max);
}

StatusOr<std::string> ReadTextFile(const std::string& what,
                                   const std::string& name, const Fd& fd,
                                   size_t bytes_max) {
  const auto failed = [&](int error) {
    return ErrnoError(error, Format("cannot read {} '{}'", what, name));
  };
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return failed(errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgumentError("{} '{}' is {}", what, name,
                                S_ISDIR(info.st_mode)
                                    ? "a folder, not a text file"
                                    : "not a regular file");
  }
  std::string text(bytes_max + 1, '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(errno);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  if (got > bytes_max) {
    return InvalidArgumentError("{} '{}' is larger than {} KiB, the limit",
                                what, name, bytes_max / 1024);
  }
  text.resize(got);
  return text;
}

}  // namespace penstock
