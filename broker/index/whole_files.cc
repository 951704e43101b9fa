#include "broker/index/whole_files.h"

#include <fcntl.h>

namespace penstock {

Status WholeFiles::Ask(const std::string& path, Io io) {
  const StatusOr<Fd> fd = access_->Open(path, O_NONBLOCK);
  if (!fd.ok()) return OkStatus();  // its read will report the error
  nowait_ = SupportsNowait(fd->get());
  if (io == Io::kDirect) align_ = DirectAlignment(fd->get());
  return io == Io::kDirect && align_ == 0 ? NoDirectReadsError(path)
                                          : OkStatus();
}

}  // namespace penstock
