// A file that holds many records, opened once for all workers, and whether it
// is read through the page cache.
#ifndef BROKER_SOURCE_DATA_FILE_H_
#define BROKER_SOURCE_DATA_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "broker/source/source.h"
#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

class DataFile {
 public:
  // Errors as OpenSource says; a file that is not a regular one, too.
  static StatusOr<DataFile> Open(const std::string& path);

  DataFile(DataFile&& other) noexcept
      : path_(std::move(other.path_)),
        bytes_(other.bytes_),
        nowait_(other.nowait_),
        align_(other.align_),
        device_(other.device_),
        inode_(other.inode_),
        mtime_ns_(other.mtime_ns_),
        fd_(std::exchange(other.fd_, -1)) {}
  ~DataFile();

  // How its records will be read. total_bytes: of all the dataset's files.
  // kAuto takes O_DIRECT when they exceed half of the memory there is now and a
  // record is kDirectBytesMin or more: the page cache would only be passed
  // through, at the price of a copy.
  // InvalidArgument: kDirect where the file system has no direct reads.
  Status ChooseIo(Io io, uint64_t total_bytes, uint64_t record_bytes);
  static constexpr uint64_t kDirectBytesMin = 64 << 10;

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  uint32_t align() const { return align_; }
  // The path leads to another file by now, or to this one written anew.
  bool Changed() const;

  void Locate(uint64_t offset, uint64_t bytes, ReadRequest* request) const;

 private:
  DataFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  uint64_t bytes_ = 0;
  bool nowait_ = true;
  uint32_t align_ = 0;  // ReadRequest's
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  int64_t mtime_ns_ = 0;
  int fd_;
};

// What direct reads of the open file must be multiples of; 0: it has none.
uint32_t DirectAlignment(int fd);
// "direct: ... has no direct reads; use `io: auto`"
Status NoDirectReadsError(const std::string& path);
// "buffered", "direct, in multiples of 4096 bytes": for people.
std::string IoText(uint32_t align);

}  // namespace penstock
#endif  // BROKER_SOURCE_DATA_FILE_H_
