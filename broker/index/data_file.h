// A file that holds many records, opened once for all workers, and the choice
// whether its reads use the page cache.
#ifndef BROKER_INDEX_DATA_FILE_H_
#define BROKER_INDEX_DATA_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/io/file_access.h"
#include "broker/io/read_request.h"
#include "broker/io/remote_file.h"
#include "common/status.h"

namespace penstock {

template <typename V>
struct ValueType;
class Fingerprint;
struct LocalCopy;

// Read through the page cache or bypass it (O_DIRECT). kAuto bypasses it when
// the file is too large for the page cache and its records are large enough.
enum class Io { kAuto, kBuffered, kDirect };
ValueType<Io> IoType();
inline constexpr char kIoText[] =
    "through the page cache, or past it (O_DIRECT)";

// Each keeps a descriptor: the broker raises its limit of them to the most that
// the system allows when it starts, and a source of more files is refused with
// that limit's name.
class DataFile {
 public:
  // Errors as for OpenSource, also if the file is not a regular one, and of
  // Stores.
  static StatusOr<DataFile> Open(const std::string& path,
                                 const OpenProgress& progress);
  // One that is read and closed: its local copy has whatever room the others
  // have.
  static StatusOr<DataFile> Open(const std::string& path,
                                 const FileAccess& access);

  DataFile(DataFile&& other) noexcept
      : path_(std::move(other.path_)),
        real_path_(std::move(other.real_path_)),
        bytes_(other.bytes_),
        origin_bytes_(other.origin_bytes_),
        is_copy_(other.is_copy_),
        nowait_(other.nowait_),
        align_(other.align_),
        device_(other.device_),
        inode_(other.inode_),
        mtime_ns_(other.mtime_ns_),
        stores_(other.stores_),
        version_(std::move(other.version_)),
        remote_(std::move(other.remote_)),
        fd_(std::exchange(other.fd_, -1)),
        map_(std::exchange(other.map_, nullptr)) {}
  ~DataFile();

  // From now on the bytes are those of its copy, which stays in use; all else
  // concerns the file itself.
  void ReadCopy(LocalCopy copy);

  // Chooses how the file's records are read. total_bytes: of all files of the
  // dataset. kAuto takes O_DIRECT if total_bytes exceeds half of the memory
  // available now and a record is kDirectBytesMin or larger: the page cache
  // would then only cost a copy. InvalidArgument: kDirect where the file system
  // has no direct reads.
  // Files of small records that memory easily holds are mapped as well, for
  // rows whose pages are in the page cache: a copy costs less than a system
  // call.
  Status ChooseIo(Io io, uint64_t total_bytes, uint64_t record_bytes);
  static constexpr uint64_t kDirectBytesMin = 64 << 10;
  // Mapped pages count as the broker's in what `ps` and the kernel's choice of
  // a process to kill see.
  static constexpr uint64_t kMapBytesMax = uint64_t{4} << 30;

  const std::string& path() const { return path_; }
  // The broker's own.
  const std::string& real_path() const {
    return real_path_.empty() ? path_ : real_path_;
  }
  uint64_t bytes() const { return bytes_; }
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }
  int64_t mtime_ns() const { return mtime_ns_; }
  int fd() const { return fd_; }
  RemoteFile* remote() const { return remote_.get(); }
  uint32_t align() const { return align_; }
  // What tells the file at real_path() from others.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t mtime_ns = 0;
  };
  StatusOr<Identity> identity() const;
  // The path now leads to another file, or the file was rewritten.
  bool Changed() const;
  // As for Source::AddTimes. The inode tells of a file that replaced one of the
  // same size and time.
  void AddTime(Fingerprint* to) const;

  void Locate(uint64_t offset, uint64_t bytes, ReadPart* request) const;
  // These ranges of a remote file are there from now on, for those who read
  // fd() or real_path() themselves.
  Status FetchForGood(std::vector<RemoteFile::Range> ranges,
                      const OpenProgress& progress) const;
  Status FetchAll(const OpenProgress& progress) const {
    return FetchForGood({{0, bytes_}}, progress);
  }
  // The same, until they are let go. Of a remote file.
  StatusOr<HeldRanges> Fetch(std::vector<RemoteFile::Range> ranges,
                             const OpenProgress& progress) const;
  // Reads while the source is opened, before ChooseIo: into.size() bytes at
  // offset, fewer only at the end of the file. Returns how many.
  StatusOr<uint64_t> Read(uint64_t offset, std::span<std::byte> into,
                          const OpenProgress* progress) const;

 private:
  static StatusOr<DataFile> OpenRemote(const std::string& url,
                                       const FileAccess& access,
                                       std::optional<uint64_t> room);
  static StatusOr<DataFile> OpenLocal(const std::string& path,
                                      const FileAccess& access);
  StatusOr<uint64_t> ReadFile(uint64_t offset, std::span<std::byte> into,
                              const OpenProgress* progress) const;
  void Map(uint64_t total_bytes);

  DataFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  std::string real_path_;  // as FileAccess::RealPath; "": the same
  uint64_t bytes_ = 0;
  uint64_t origin_bytes_ = 0;  // of the file itself
  bool is_copy_ = false;       // fd_
  bool nowait_ = true;
  uint32_t align_ = 0;  // as in ReadRequest
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  int64_t mtime_ns_ = 0;
  Stores* stores_ = nullptr;            // nullptr: a file of this machine
  std::string version_;                 // of an object
  std::shared_ptr<RemoteFile> remote_;  // nullptr: all bytes of fd_ are there
  int fd_;
  const std::byte* map_ = nullptr;
};

// Whether reads of the open file can be told not to wait (ReadRequest).
bool SupportsNowait(int fd);
// The alignment for direct reads of the open file; 0: no direct reads.
uint32_t DirectAlignment(int fd);
// "direct: ... has no direct reads; use `io: auto`"
Status NoDirectReadsError(const std::string& path);
// For people: "buffered", "direct, in multiples of 4096 bytes".
std::string IoText(uint32_t align);

// How files are read that are a record each, or a part of one.
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
    part->remote = nullptr;
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
#endif  // BROKER_INDEX_DATA_FILE_H_
