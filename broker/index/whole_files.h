// How files are read that are a record each, or a part of one.
#ifndef BROKER_INDEX_WHOLE_FILES_H_
#define BROKER_INDEX_WHOLE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "broker/index/data_file.h"
#include "broker/io/read_request.h"
#include "common/status.h"

namespace penstock {

class WholeFiles {
 public:
  explicit WholeFiles(std::shared_ptr<const FileAccess> access)
      : access_(std::move(access)) {}
  const FileAccess& access() const { return *access_; }

  // Asks the file system of one file only: those of others are read more slowly
  // or not directly, if they are in another one. InvalidArgument: Io::kDirect
  // where the file system has no direct reads.
  Status Ask(const std::string& path, Io io);

  // That of Io::kAuto: through the page cache.
  uint32_t align() const { return align_; }

  // All of the part but its path.
  void Locate(ReadPart* part) const {
    part->kind = ReadPart::Kind::kFile;
    part->nowait = nowait_;
    part->align = align_;
    part->access = access_->key().empty() ? nullptr : access_.get();
  }

 private:
  std::shared_ptr<const FileAccess> access_;
  bool nowait_ = true;
  uint32_t align_ = 0;
};

}  // namespace penstock
#endif  // BROKER_INDEX_WHOLE_FILES_H_
