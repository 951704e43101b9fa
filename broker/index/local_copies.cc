#include "broker/index/local_copies.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <new>
#include <thread>

#include "broker/base/text.h"
#include "broker/index/cache_file.h"
#include "broker/index/fingerprint.h"
#include "broker/io/file_error.h"

namespace penstock {
namespace {

constexpr char kData[] = ".data";
constexpr char kSidecar[] = ".copy";
constexpr char kPart[] = ".part";
constexpr size_t kNameBytes = 32;                    // of Fingerprint::Hex
constexpr uint64_t kMoreBytes = uint64_t{64} << 20;  // promised at once

// Which file it is, and when it was last written: any write changes one.
struct Stamp {
  uint64_t inode = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  bool operator==(const Stamp&) const = default;
};

int64_t NsOf(const timespec& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

Stamp StampOf(const struct stat& st) {
  return {st.st_ino, NsOf(st.st_mtim), NsOf(st.st_ctim)};
}

struct CopyHeader {
  static constexpr uint64_t kMagic = 0x31595043534e5350;  // "PSNSCPY1"
  static constexpr uint64_t kKeyBytesMax = uint64_t{1} << 16;

  uint64_t magic = kMagic;
  uint64_t key_bytes = 0;
  uint64_t data_bytes = 0;
  Stamp stamp;
  std::array<uint64_t, 2> data{};  // XXH3 of the bytes
  uint64_t self = 0;               // XXH3 of all before it, and of the key

  uint64_t Self(const std::string& key) const {
    CopyHeader zero = *this;
    zero.self = 0;
    return XXH3_64bits_withSeed(&zero, sizeof(zero),
                                XXH3_64bits(key.data(), key.size()));
  }
};
static_assert(sizeof(CopyHeader) == 72);

std::optional<CopyHeader> ReadSidecar(const std::string& path,
                                      const std::string& key) {
  auto file = CacheReader::Open(path + kSidecar);
  CopyHeader header;
  if (!file || !file->Read(std::as_writable_bytes(std::span(&header, 1))) ||
      header.magic != CopyHeader::kMagic || header.key_bytes != key.size() ||
      file->left() != key.size()) {
    return std::nullopt;
  }
  std::string found(key.size(), '\0');
  if (!file->Read(std::as_writable_bytes(std::span(found))) || found != key ||
      header.self != header.Self(key)) {
    return std::nullopt;
  }
  return header;
}

Status WriteSidecar(const std::string& path, const std::string& key,
                    CopyHeader header) {
  header.key_bytes = key.size();
  header.self = header.Self(key);
  const std::array<std::span<const std::byte>, 2> regions = {
      std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(key))};
  return WriteCacheFile(path + kSidecar, regions);
}

// The sidecar's modification time is when the copy was last opened.
void NoteUse(const std::string& path) {
  const Fd fd(open((path + kSidecar).c_str(),
                   O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const uint64_t magic = CopyHeader::kMagic;
  if (fd) (void)!pwrite(fd.get(), &magic, sizeof(magic), 0);
}

bool IsOwn(const struct stat& st) {
  return S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
         (st.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// An own file; without one, or where somebody else has put another: errno.
Fd OpenOwn(const std::string& path, int flags, struct stat* st) {
  Fd fd(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd) return fd;
  if (fstat(fd.get(), st) == 0 && IsOwn(*st)) return fd;
  fd.Reset();
  errno = EACCES;
  return fd;
}

bool TryLock(int fd, int how) { return flock(fd, how | LOCK_NB) == 0; }

void Unlink(const std::string& path) { unlink(path.c_str()); }

}  // namespace

void HoldCopy(int fd) {
  // Whoever removes copies tries, and does not wait, for an exclusive lock.
  (void)!TryLock(fd, LOCK_SH);
}

// ---- one that is made

void LocalCopies::New::FreeState::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

LocalCopies::New::New(const LocalCopies* copies, OpenProgress::Copies* room,
                      std::string key, std::string path, Fd fd)
    : copies_(copies),
      room_(room),
      key_(std::move(key)),
      path_(std::move(path)),
      fd_(std::move(fd)),
      hash_(XXH3_createState()) {
  if (hash_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(hash_.get());
}

LocalCopies::New::New(New&&) noexcept = default;

LocalCopies::New::~New() {
  if (!fd_) return;
  Unlink(path_ + kPart);
  room_->bytes.fetch_sub(promised_, std::memory_order_relaxed);
}

Status LocalCopies::New::Promise(uint64_t bytes) {
  const std::pair<New*, uint64_t> wanted(this, bytes);
  return copies_->Promise(std::span(&wanted, 1)).status();
}

Status LocalCopies::New::Append(std::span<const std::byte> bytes) {
  const uint64_t end = bytes_ + bytes.size();
  if (end > promised_ &&
      !Promise(std::max(end, promised_ + std::max(kMoreBytes, promised_ / 4)))
           .ok()) {
    PENSTOCK_RETURN_IF_ERROR(Promise(end));
  }
  XXH3_128bits_update(hash_.get(), bytes.data(), bytes.size());
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_.get(), bytes.data(), bytes.size(),
                             static_cast<off_t>(bytes_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return FailedPreconditionError("{}: {}{}", copies_->folder(),
                                     std::strerror(n == 0 ? ENOSPC : errno),
                                     LimitHint(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    bytes_ += static_cast<uint64_t>(n);
  }
  return OkStatus();
}

// ---- all

StatusOr<LocalCopies> LocalCopies::Open(std::optional<uint64_t> kept_max) {
  const Status cache = CheckCacheFolder();
  if (!cache.ok()) return FailedPreconditionError("{}", cache.message());
  std::string folder = CacheFolder() + "/files";
  struct stat st;
  if ((mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
      lstat(folder.c_str(), &st) != 0) {
    return FailedPreconditionError("{}: {}", folder, std::strerror(errno));
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
      (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return FailedPreconditionError(
        "{} is no folder of this user alone, so its files are not believed; "
        "remove it",
        folder);
  }
  return LocalCopies(std::move(folder), kept_max);
}

StatusOr<Fd> LocalCopies::Lock() const {
  const std::string path = folder_ + "/lock";
  struct stat st;
  Fd fd = OpenOwn(path, O_RDWR | O_CREAT, &st);
  if (!fd) return FailedPreconditionError("{}: {}", path, std::strerror(errno));
  // It is held for as long as files are looked at and removed. A process that
  // is stopped meanwhile must not stop all others for good.
  constexpr std::chrono::seconds kWait{30};
  const auto latest = std::chrono::steady_clock::now() + kWait;
  while (!TryLock(fd.get(), LOCK_EX)) {
    if (std::chrono::steady_clock::now() > latest) {
      return FailedPreconditionError(
          "{}: another broker holds it for more than {} s; is it stopped?",
          path, kWait.count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return fd;
}

namespace {

// Whether the bytes have this digest; an error: they cannot be read, or this
// was cancelled.
StatusOr<bool> HasDigest(int fd, const CopyHeader& header,
                         const OpenProgress& progress) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  std::vector<std::byte> block(size_t{1} << 20);
  uint64_t at = 0;
  while (at < header.data_bytes) {
    PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled("a local copy"));
    const ssize_t n =
        pread(fd, block.data(), block.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    XXH3_128bits_update(state.get(), block.data(), static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return at == header.data_bytes && hash.high64 == header.data[0] &&
         hash.low64 == header.data[1];
}

std::string NameOfKey(const std::string& key) {
  Fingerprint name("local copy");
  name.Add(key);
  return name.Hex();
}

}  // namespace

StatusOr<LocalCopies::Claimed> LocalCopies::Claim(
    const std::string& key, const OpenProgress& progress) const {
  if (key.size() > CopyHeader::kKeyBytesMax) {
    return InvalidArgumentError("its path is too long for a local copy");
  }
  const std::string path = folder_ + "/" + NameOfKey(key);
  for (bool verified = false;; verified = true) {
    PENSTOCK_ASSIGN_OR_RETURN(Fd lock, Lock());
    Claimed claimed;
    struct stat st;
    const std::optional<CopyHeader> header = ReadSidecar(path, key);
    LocalCopy copy;
    if (header) copy.fd = OpenOwn(path + kData, O_RDONLY, &st);
    if (copy.fd && TryLock(copy.fd.get(), LOCK_SH) &&
        static_cast<uint64_t>(st.st_size) == header->data_bytes) {
      copy.bytes = header->data_bytes;
      if (StampOf(st) == header->stamp) {
        NoteUse(path);
        progress.copies.files.fetch_add(1, std::memory_order_relaxed);
        progress.copies.bytes.fetch_add(copy.bytes, std::memory_order_relaxed);
        claimed.copy.emplace(std::move(copy));
        return claimed;
      }
      if (!verified) {
        lock.Reset();
        PENSTOCK_ASSIGN_OR_RETURN(const bool same,
                                  HasDigest(copy.fd.get(), *header, progress));
        PENSTOCK_ASSIGN_OR_RETURN(lock, Lock());
        // What was written meanwhile shows in its times.
        if (same) {
          CopyHeader mended = *header;
          mended.stamp = StampOf(st);
          PENSTOCK_RETURN_IF_ERROR(WriteSidecar(path, key, mended));
          continue;
        }
        Unlink(path + kSidecar);
        Unlink(path + kData);
      }
    }
    Fd part = OpenOwn(path + kPart, O_RDWR | O_CREAT, &st);
    if (!part) {
      return FailedPreconditionError("{}{}: {}", path, kPart,
                                     std::strerror(errno));
    }
    if (!TryLock(part.get(), LOCK_EX)) return claimed;
    if (ftruncate(part.get(), 0) != 0) {
      return FailedPreconditionError("{}{}: {}", path, kPart,
                                     std::strerror(errno));
    }
    progress.copies.files.fetch_add(1, std::memory_order_relaxed);
    claimed.task.emplace(
        New(this, &progress.copies, key, path, std::move(part)));
    return claimed;
  }
}

StatusOr<LocalCopy> LocalCopies::Finish(New task) const {
  const auto failed = [this](int error) {
    return FailedPreconditionError("{}: {}", folder_, std::strerror(error));
  };
  if (ftruncate(task.fd_.get(), static_cast<off_t>(task.bytes_)) != 0 ||
      fdatasync(task.fd_.get()) != 0) {
    return failed(errno);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(task.hash_.get());
  PENSTOCK_ASSIGN_OR_RETURN(const Fd lock, Lock());
  struct stat st;
  if (rename((task.path_ + kPart).c_str(), (task.path_ + kData).c_str()) != 0 ||
      fstat(task.fd_.get(), &st) != 0) {
    return failed(errno);
  }
  CopyHeader header;
  header.data_bytes = task.bytes_;
  header.stamp = StampOf(st);
  header.data = {hash.high64, hash.low64};
  PENSTOCK_RETURN_IF_ERROR(WriteSidecar(task.path_, task.key_, header));
  task.room_->bytes.fetch_sub(task.promised_ - task.bytes_,
                              std::memory_order_relaxed);
  // Its exclusive lock goes, with the lock of all held.
  task.fd_.Reset();
  LocalCopy copy;
  copy.bytes = task.bytes_;
  copy.fd = OpenOwn(task.path_ + kData, O_RDONLY, &st);
  if (!copy.fd || StampOf(st) != header.stamp) return failed(ESTALE);
  HoldCopy(copy.fd.get());
  return copy;
}

// ---- room

struct LocalCopies::Entry {
  std::string path;  // without its end
  uint64_t bytes = 0;
  uint64_t taken = 0;  // of the disk
  int64_t used_ns = 0;
  bool is_part = false;
};

struct LocalCopies::Listing {
  std::vector<Entry> entries;
  uint64_t kept = 0;  // bytes of copies, and those promised
  uint64_t free = 0;  // bytes left for others
};

StatusOr<LocalCopies::Listing> LocalCopies::List() const {
  const auto failed = [this] {
    return FailedPreconditionError("{}: {}", folder_, std::strerror(errno));
  };
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> all(opendir(folder_.c_str()));
  struct statvfs disk;
  if (all == nullptr || statvfs(folder_.c_str(), &disk) != 0) return failed();
  Listing listing;
  std::map<std::string, int64_t, std::less<>> used;  // by name
  uint64_t promised = 0;
  while (const dirent* const each = readdir(all.get())) {
    const std::string name = each->d_name;
    struct stat st;
    if (name.size() < kNameBytes || name[0] == '.' ||
        fstatat(dirfd(all.get()), each->d_name, &st, AT_SYMLINK_NOFOLLOW) !=
            0) {
      continue;
    }
    const std::string_view end = std::string_view(name).substr(kNameBytes);
    if (end == kSidecar) {
      used[name.substr(0, kNameBytes)] = NsOf(st.st_mtim);
      continue;
    }
    if (end != kData && end != kPart) {
      // One of a writer that was killed: a sidecar takes no second.
      constexpr int64_t kHour_ns = 3600 * int64_t{1'000'000'000};
      if (end.starts_with(kSidecar) &&
          NsOf(st.st_mtim) < RealTimeNs() - kHour_ns) {
        Unlink(folder_ + "/" + name);
      }
      continue;
    }
    Entry entry;
    entry.path = folder_ + "/" + name.substr(0, kNameBytes);
    entry.is_part = end == kPart;
    entry.bytes = static_cast<uint64_t>(st.st_size);
    entry.taken = static_cast<uint64_t>(st.st_blocks) * 512;
    if (entry.is_part) {
      const Fd part = OpenOwn(entry.path + kPart, O_RDWR, &st);
      if (part && TryLock(part.get(), LOCK_EX)) {
        Unlink(entry.path + kPart);
        continue;
      }
      promised += entry.bytes - std::min(entry.bytes, entry.taken);
    }
    listing.kept += entry.bytes;
    listing.entries.push_back(std::move(entry));
  }
  for (Entry& entry : listing.entries) {
    const auto found = used.find(entry.path.substr(folder_.size() + 1));
    if (found != used.end()) entry.used_ns = found->second;
  }
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  listing.free = free - std::min(free, promised);
  return listing;
}

StatusOr<uint64_t> LocalCopies::Promise(
    std::span<const std::pair<New*, uint64_t>> wanted) const {
  if (wanted.empty()) return uint64_t{0};
  PENSTOCK_ASSIGN_OR_RETURN(const Fd lock, Lock());
  PENSTOCK_ASSIGN_OR_RETURN(Listing listing, List());
  uint64_t more = 0;
  for (const auto& [task, bytes] : wanted) {
    const uint64_t here = bytes - std::min(bytes, task->promised_);
    more = here > UINT64_MAX - more ? UINT64_MAX : more + here;
  }
  OpenProgress::Copies& own = *wanted[0].first->room_;
  const uint64_t had = own.bytes.load(std::memory_order_relaxed);
  if (own.most && (had > *own.most || more > *own.most - had)) {
    return FailedPreconditionError(
        "{} more are wanted, and `cache: {{files}}` lets them take {}{}",
        BytesText(more), BytesText(*own.most),
        had == 0 ? "" : Format(", {} of which are taken", BytesText(had)));
  }
  const uint64_t allowed =
      std::max(own.most.value_or(0),
               kept_max_.value_or(listing.kept / 2 + listing.free / 2));
  // Those that nobody has open, the least recently used last.
  std::vector<std::pair<Entry, Fd>> idle;
  uint64_t idle_bytes = 0;
  const auto fits = [&](uint64_t given_up) {
    return more <= listing.free + given_up &&
           listing.kept - given_up <= allowed &&
           more <= allowed - (listing.kept - given_up);
  };
  if (!fits(0)) {
    for (Entry& entry : listing.entries) {
      struct stat st;
      if (entry.is_part) continue;
      // An exclusive lock of NFS wants one that may write.
      Fd data = OpenOwn(entry.path + kData, O_RDWR, &st);
      if (!data || !TryLock(data.get(), LOCK_EX)) continue;
      idle_bytes += entry.bytes;
      idle.emplace_back(std::move(entry), std::move(data));
    }
    if (!fits(idle_bytes)) {
      const uint64_t in_use = listing.kept - idle_bytes;
      const uint64_t left = std::min(allowed - std::min(allowed, in_use),
                                     listing.free + idle_bytes);
      return FailedPreconditionError(
          "{} more are wanted, and {} has room for {} ({} are free; copies "
          "that are in use take {}); `cache: {{files: SIZE}}` lets them take "
          "more than half of what is free",
          BytesText(more), folder_, BytesText(left), BytesText(listing.free),
          BytesText(in_use));
    }
    std::sort(idle.begin(), idle.end(), [](const auto& a, const auto& b) {
      return a.first.used_ns > b.first.used_ns;
    });
    for (uint64_t given_up = 0; !fits(given_up); idle.pop_back()) {
      const Entry& last = idle.back().first;
      Unlink(last.path + kSidecar);
      Unlink(last.path + kData);
      given_up += last.bytes;
    }
  }
  for (const auto& [task, bytes] : wanted) {
    if (bytes <= task->promised_) continue;
    if (ftruncate(task->fd_.get(), static_cast<off_t>(bytes)) != 0) {
      return FailedPreconditionError("{}: {}", folder_, std::strerror(errno));
    }
    own.bytes.fetch_add(bytes - task->promised_, std::memory_order_relaxed);
    task->promised_ = bytes;
  }
  return own.most.value_or(allowed);
}

}  // namespace penstock
