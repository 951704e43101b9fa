#include "broker/index/data_file.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "broker/declare/value_type.h"
#include "broker/index/fingerprint.h"
#include "broker/index/local_copies.h"
#include "broker/index/values.h"
#include "broker/io/file_error.h"
#include "broker/io/read.h"
#include "broker/io/stores.h"
#include "broker/memory/available_memory.h"

namespace penstock {
namespace {

// Defined in Debian 12's linux/stat.h, but its sys/stat.h hides that struct
// statx.
#ifndef STATX_DIOALIGN
constexpr unsigned STATX_DIOALIGN = 0x2000;
#endif
// The tail of struct statx, from include/uapi/linux/stat.h of Linux 6.1.
constexpr size_t kStatxBytes = 256;
constexpr size_t kMaskAt = 0;
constexpr size_t kMemoryAlignAt = 0x98;
constexpr size_t kOffsetAlignAt = 0x9c;

// Kernels before 6.1 do not report it; every disk supports this value. Files
// that need more are read through the page cache, because the readers' buffers
// have this alignment.
constexpr uint32_t kUsualAlign = kReadBufferAlign;

int64_t ModifiedNs(const struct stat& st) {
  return st.st_mtim.tv_sec * int64_t{1'000'000'000} + st.st_mtim.tv_nsec;
}

}  // namespace

ValueType<Io> IoType() {
  return Words<Io>({{"auto", Io::kAuto},
                    {"buffered", Io::kBuffered},
                    {"direct", Io::kDirect}});
}

bool SupportsNowait(int fd) {
  char byte;
  const iovec into = {&byte, 1};
  return preadv2(fd, &into, 1, 0, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP;
}

uint32_t DirectAlignment(int fd) {
  alignas(8) std::byte statx_bytes[kStatxBytes] = {};
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, statx_bytes) ==
          0 &&
      (ValueAt<uint32_t>(&statx_bytes[kMaskAt]) & STATX_DIOALIGN) != 0) {
    const uint32_t align =
        std::max(ValueAt<uint32_t>(&statx_bytes[kMemoryAlignAt]),
                 ValueAt<uint32_t>(&statx_bytes[kOffsetAlignAt]));
    return align <= kUsualAlign ? align : 0;
  }
  // The kernel does not report it: try.
  const int direct =
      open(Format("/proc/self/fd/{}", fd).c_str(),
           O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_DIRECT);
  if (direct < 0) return 0;
  close(direct);
  return kUsualAlign;
}

Status NoDirectReadsError(const std::string& path) {
  return InvalidArgumentError(
      "io: direct: the file system of {} has no direct reads; use `io: auto`",
      path);
}

std::string IoText(uint32_t align) {
  if (align == 0) return "buffered";
  return Format("direct, in multiples of {} bytes", align);
}

StatusOr<DataFile> DataFile::OpenRemote(const std::string& url,
                                        const FileAccess& access,
                                        std::optional<uint64_t> room) {
  PENSTOCK_ASSIGN_OR_RETURN(Stores* const stores, access.StoresOf(url));
  static const std::atomic<bool> cancel{false};
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<RemoteFile> remote,
                            stores->Open(url, room, cancel));
  DataFile file(url, fcntl(remote->fd(), F_DUPFD_CLOEXEC, 0));
  if (file.fd_ < 0) return ErrnoError(errno, "fcntl");
  file.stores_ = stores;
  file.bytes_ = remote->bytes();
  file.nowait_ = SupportsNowait(file.fd_);
  // What tells one content of this address from another.
  Fingerprint version("");
  version.Add(std::string_view(remote->version()));
  file.inode_ = version.digest()[0];
  file.version_ = remote->version();
  file.remote_ = remote;
  file.real_path_ = remote->path();
  return file;
}

StatusOr<DataFile> DataFile::Open(const std::string& path,
                                  const OpenProgress& progress) {
  return IsAddress(path) ? OpenRemote(path, *progress.access,
                                      progress.copies.most.value_or(0))
                         : OpenLocal(path, *progress.access);
}

StatusOr<DataFile> DataFile::Open(const std::string& path,
                                  const FileAccess& access) {
  return IsAddress(path) ? OpenRemote(path, access, std::nullopt)
                         : OpenLocal(path, access);
}

StatusOr<DataFile> DataFile::OpenLocal(const std::string& path,
                                       const FileAccess& access) {
  // O_NONBLOCK: opening a FIFO would wait for its writer.
  PENSTOCK_ASSIGN_OR_RETURN(Fd fd, access.Open(path, O_NONBLOCK));
  DataFile file(path, fd.Release());
  if (std::string real = access.RealPath(path); real != path) {
    file.real_path_ = std::move(real);
  }
  struct stat st;
  if (fstat(file.fd_, &st) != 0) return ReadError(errno, path, 0);
  if (!S_ISREG(st.st_mode)) return NotRegularError(st.st_mode, path);
  // Blocking again: on file systems without asynchronous reads (NFS, FUSE)
  // io_uring answers EAGAIN for a non-blocking file instead of waiting.
  fcntl(file.fd_, F_SETFL, fcntl(file.fd_, F_GETFL) & ~O_NONBLOCK);
  file.bytes_ = file.origin_bytes_ = static_cast<uint64_t>(st.st_size);
  file.device_ = st.st_dev;
  file.inode_ = st.st_ino;
  file.mtime_ns_ = ModifiedNs(st);
  file.nowait_ = SupportsNowait(file.fd_);
  return file;
}

void DataFile::AddTime(Fingerprint* to) const {
  to->Add(static_cast<uint64_t>(mtime_ns_));
  to->Add(inode_);
}

StatusOr<DataFile::Identity> DataFile::identity() const {
  if (remote_ == nullptr) return Identity{device_, inode_, mtime_ns_};
  struct stat st;
  if (fstat(fd_, &st) != 0) return ReadError(errno, path_, 0);
  return Identity{st.st_dev, st.st_ino, ModifiedNs(st)};
}

bool DataFile::Changed() const {
  if (stores_ != nullptr) {
    const StatusOr<std::string> now = stores_->Version(path_);
    return !now.ok() || *now != version_;
  }
  struct stat st;
  return stat(real_path().c_str(), &st) != 0 || st.st_dev != device_ ||
         st.st_ino != inode_ ||
         static_cast<uint64_t>(st.st_size) != origin_bytes_ ||
         ModifiedNs(st) != mtime_ns_;
}

void DataFile::ReadCopy(LocalCopy copy) {
  close(fd_);
  fd_ = copy.fd.Release();
  remote_ = nullptr;
  bytes_ = copy.bytes;
  is_copy_ = true;
  nowait_ = SupportsNowait(fd_);
}

DataFile::~DataFile() {
  if (map_ != nullptr) munmap(const_cast<std::byte*>(map_), bytes_);
  if (fd_ >= 0) close(fd_);
}

Status DataFile::ChooseIo(Io io, uint64_t total_bytes, uint64_t record_bytes) {
  if (io != Io::kDirect && record_bytes < kDirectBytesMin) {
    Map(total_bytes);
    return OkStatus();
  }
  if (io == Io::kBuffered ||
      (io == Io::kAuto && total_bytes < FindAvailableMemory({}).bytes / 2)) {
    return OkStatus();
  }
  const uint32_t align = DirectAlignment(fd_);
  // Opened by its descriptor, because the path may now lead to another file.
  const int direct = align == 0
                         ? -1
                         : open(Format("/proc/self/fd/{}", fd_).c_str(),
                                O_RDONLY | O_CLOEXEC | O_NOCTTY | O_DIRECT);
  if (direct < 0) {
    return io == Io::kAuto ? OkStatus() : NoDirectReadsError(path_);
  }
  if (is_copy_) HoldCopy(direct);
  close(fd_);
  fd_ = direct;
  align_ = align;
  return OkStatus();
}

void DataFile::Map(uint64_t total_bytes) {
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // A process has 65,530 maps; a source of more files than this has few large
  // ones.
  constexpr uint64_t kMapsMax = 1024;
  if (!nowait_ || bytes_ == 0 || bytes_ < total_bytes / kMapsMax ||
      total_bytes > std::min(kMapBytesMax, memory / 8)) {
    return;
  }
  void* const map = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_, 0);
  if (map == MAP_FAILED) return;  // reads do as well
  // A missing page is read alone: its neighbours are other rows.
  madvise(map, bytes_, MADV_RANDOM);
  map_ = static_cast<const std::byte*>(map);
}

void DataFile::Locate(uint64_t offset, uint64_t bytes,
                      ReadPart* request) const {
  request->kind = ReadPart::Kind::kRange;
  request->nowait = nowait_;
  request->align = align_;
  request->fd = fd_;
  request->remote = remote_.get();
  request->map = {};
  if (map_ != nullptr && offset <= bytes_ && bytes <= bytes_ - offset) {
    request->map = {map_, bytes_};
  }
  request->offset = offset;
  request->bytes = bytes;
}

StatusOr<HeldRanges> DataFile::Fetch(std::vector<RemoteFile::Range> ranges,
                                     const OpenProgress& progress) const {
  return HeldRanges::Await(remote_.get(), std::move(ranges),
                           [&] { return progress.CheckCancelled(path_); });
}

Status DataFile::FetchForGood(std::vector<RemoteFile::Range> ranges,
                              const OpenProgress& progress) const {
  if (remote_ == nullptr) return OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(HeldRanges held,
                            Fetch(std::move(ranges), progress));
  held.Leave();
  return OkStatus();
}

StatusOr<uint64_t> DataFile::Read(uint64_t offset, std::span<std::byte> into,
                                  const OpenProgress* progress) const {
  if (remote_ == nullptr || offset >= bytes_) {
    return ReadFile(offset, into, progress);
  }
  const uint64_t bytes = std::min<uint64_t>(into.size(), bytes_ - offset);
  PENSTOCK_ASSIGN_OR_RETURN(const HeldRanges held,
                            Fetch({{offset, bytes}}, *progress));
  return ReadFile(offset, into.first(bytes), progress);
}

StatusOr<uint64_t> DataFile::ReadFile(uint64_t offset,
                                      std::span<std::byte> into,
                                      const OpenProgress* progress) const {
  constexpr uint64_t kChunkBytes = 1 << 20;
  uint64_t done = 0;
  while (done < into.size()) {
    PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(path_));
    const ssize_t got = pread(fd_, into.data() + done,
                              std::min(kChunkBytes, into.size() - done),
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(errno, path_, offset + done);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Status WholeFiles::Ask(const std::string& path, Io io) {
  const StatusOr<Fd> fd = access_->Open(path, O_NONBLOCK);
  if (!fd.ok()) return OkStatus();  // its read will report the error
  nowait_ = SupportsNowait(fd->get());
  if (io == Io::kDirect) align_ = DirectAlignment(fd->get());
  return io == Io::kDirect && align_ == 0 ? NoDirectReadsError(path)
                                          : OkStatus();
}

}  // namespace penstock
