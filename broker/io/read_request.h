// What has to be read of storage for a record: a source fills it in, a reader
// carries it out.
#ifndef BROKER_IO_READ_REQUEST_H_
#define BROKER_IO_READ_REQUEST_H_

#include <cstdint>
#include <string>

namespace penstock {

struct ReadRequest {
  enum class Kind {
    kNone,   // nothing: the record is in memory or made up
    kFile,   // the whole file at path; its size is not known beforehand
    kRange,  // bytes bytes at offset of the open file fd
  };
  Kind kind = Kind::kNone;
  std::string path;  // kFile; reused storage
  // The file system can refuse a read that would wait (ext4, xfs, btrfs,
  // tmpfs). Where it cannot (NFS, FUSE, Lustre) such a read would hold up the
  // others of its thread; it is left to a thread of the kernel.
  bool nowait = true;
  // Read past the page cache: file and memory are addressed in multiples of
  // this. 0: through it. kRange: so was fd opened.
  uint32_t align = 0;
  int fd = -1;  // kRange; owned by the source
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

}  // namespace penstock
#endif  // BROKER_IO_READ_REQUEST_H_
