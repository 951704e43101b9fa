#include "broker/index/whole_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace penstock {

Status WholeFiles::Ask(const std::string& path, Io io) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return OkStatus();  // its read will report the error
  nowait_ = SupportsNowait(fd);
  if (io == Io::kDirect) align_ = DirectAlignment(fd);
  close(fd);
  return io == Io::kDirect && align_ == 0 ? NoDirectReadsError(path)
                                          : OkStatus();
}

}  // namespace penstock
