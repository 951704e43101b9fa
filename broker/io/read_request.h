// The reads that a record needs: a source fills them in, a reader executes
// them.
#ifndef BROKER_IO_READ_REQUEST_H_
#define BROKER_IO_READ_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

class FileAccess;
class RemoteFile;

struct ReadPart {
  enum class Kind {
    kNone,   // nothing: the record is in memory or computed
    kFile,   // the whole file at path, of unknown size
    kRange,  // bytes bytes at offset of the open file fd
  };
  Kind kind = Kind::kNone;
  std::string path;  // kFile; reused storage
  // kFile: opens it; nullptr: FileAccess::OfBroker. Owned by the source.
  const FileAccess* access = nullptr;
  // The file system can refuse a read that would wait (ext4, xfs, btrfs,
  // tmpfs). Where it cannot (NFS, FUSE, Lustre) such a read would block the
  // other reads of its thread; a kernel thread does it instead.
  bool nowait = true;
  // Bypass the page cache; file offset and memory are multiples of this. 0: use
  // the page cache. kRange: fd was opened accordingly.
  uint32_t align = 0;
  int fd = -1;                     // kRange; owned by the source
  // Whose local copy fd is, of which a part may be absent. Owned by the source.
  RemoteFile* remote = nullptr;
  std::span<const std::byte> map;  // of the whole file, if there is one
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Most records have one part.
struct ReadRequest : ReadPart {
  // The parts after the first: read one after the other, in this order. Whoever
  // reuses a request clears them.
  std::vector<ReadPart> more;
};

// What was read for a request.
struct ReadBytes {
  std::span<const std::byte> bytes;  // of all parts, one after the other
  // One past each part's last byte; empty for a request of one part.
  std::span<const uint64_t> ends = {};

  std::span<const std::byte> Part(size_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return bytes.subspan(begin, ends[i] - begin);
  }
};

}  // namespace penstock
#endif  // BROKER_IO_READ_REQUEST_H_
