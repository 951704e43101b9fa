#include "broker/recovery/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/fd.h"
#include "common/layout.h"

namespace penstock {
namespace {

constexpr std::string_view kMagic("penstkJ\n", 8);
constexpr size_t kMagicAndVersionBytes = 12;
// Bytes per read, and per write of Compact.
constexpr size_t kChunkBytes = 64 * 1024;

void StoreLittle(uint64_t value, size_t bytes, char* to) {
  for (size_t i = 0; i < bytes; ++i) {
    to[i] = static_cast<char>(value >> (8 * i) & 0xff);
  }
}

uint64_t LoadLittle(const char* from, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(from[i])} << (8 * i);
  }
  return value;
}

uint32_t Crc(uint32_t before, std::string_view data) {
  return static_cast<uint32_t>(
      crc32(before, reinterpret_cast<const Bytef*>(data.data()),
            static_cast<uInt>(data.size())));
}

uint32_t FrameCrc(uint32_t chain, std::string_view length, char type,
                  std::string_view payload) {
  return Crc(Crc(Crc(chain, length), {&type, 1}), payload);
}

// Appends a frame to out; returns its CRC.
uint32_t AddFrame(uint32_t chain, uint8_t type, std::string_view payload,
                  std::string* out) {
  char head[kJournalFrameBytes];
  StoreLittle(payload.size(), 4, head);
  head[8] = static_cast<char>(type);
  const uint32_t crc = FrameCrc(chain, {head, 4}, head[8], payload);
  StoreLittle(crc, 4, head + 4);
  out->append(head, sizeof(head));
  out->append(payload);
  return crc;
}

std::string MakeHeader(uint32_t salt, uint64_t settled) {
  std::string header(kMagic);
  header.resize(kJournalHeaderBytes);
  StoreLittle(kJournalVersion, 4, header.data() + 8);
  StoreLittle(salt, 4, header.data() + 12);
  StoreLittle(settled, 8, header.data() + 16);
  StoreLittle(Crc(0, {header.data(), 24}), 4, header.data() + 24);
  return header;
}

Status CheckRecord(uint8_t type, std::string_view payload) {
  if (type == 0) {
    return InvalidArgumentError("a journal record's type is 1 to 255, not 0");
  }
  if (payload.size() > kJournalRecordBytesMax) {
    return InvalidArgumentError(
        "a journal record of type {} has {} bytes, {} at most", type,
        payload.size(), kJournalRecordBytesMax);
  }
  return OkStatus();
}

// The failed operation, with advice for the reader of the log.
Status FileError(int error, const std::string& what) {
  const char* way_out = "see the kernel's log about its file system";
  switch (error) {
    case EDQUOT:
    case ENOSPC:
      way_out = "free space on its file system, or raise the quota";
      break;
    case EROFS:
      way_out = "mount its file system writable";
      break;
    case EACCES:
    case EPERM:
      way_out = "give it to the user penstockd runs as";
      break;
    case ELOOP:
    case EINVAL:
    case EISDIR:
    case ENXIO:
      return FailedPreconditionError(
          "{}: it is a {}, the journal is a regular file: move it away, a new "
          "one is made then",
          what,
          error == ELOOP    ? "symbolic link"
          : error == EISDIR ? "directory"
                            : "special file");
    default:
      break;
  }
  const Status status = ErrnoError(error, what);
  if (LimitHint(error)[0] != '\0') return status;
  return Status(status.code(), status.message() + "; " + way_out);
}

std::string PathOf(const JournalFiles* files, const char* name) {
  return files->directory() + "/" + name;
}

// 0 or a negative errno.
int WriteAll(JournalFiles* files, int file, uint64_t offset,
             std::string_view data) {
  while (!data.empty()) {
    const int64_t written = files->Write(file, offset, data);
    if (written < 0) return static_cast<int>(written);
    // pwrite of a regular file never writes 0 bytes.
    if (written == 0) return -EIO;
    data.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return 0;
}

// Writes a group's frames (I6). 0 or a negative errno.
int WriteGroup(JournalFiles* files, int file, uint64_t offset,
               std::string_view frames) {
  if (offset / kPageBytes != (offset + frames.size() - 1) / kPageBytes) {
    const int result = WriteAll(files, file, offset + kJournalFrameBytes,
                                frames.substr(kJournalFrameBytes));
    if (result < 0) return result;
    frames = frames.substr(0, kJournalFrameBytes);
  }
  return WriteAll(files, file, offset, frames);
}

// The bytes read (fewer only at the end of the file), or a negative errno.
int64_t ReadAll(JournalFiles* files, int file, uint64_t offset, char* data,
                size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const int64_t got =
        files->Read(file, offset + done, data + done, bytes - done);
    if (got < 0) return got;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<int64_t>(done);
}

Status NoRecords(const JournalRecord&) { return OkStatus(); }

class DirectoryFiles : public JournalFiles {
 public:
  DirectoryFiles(std::string path, Fd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}

  const std::string& directory() const override { return path_; }

  int Lock() override {
    // A separate lock file, because each compaction replaces the journal.
    Fd lock(openat(directory_.get(), kJournalLockName,
                   O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                   0600));
    if (!lock) return -errno;
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return -errno;
    lock_ = std::move(lock);
    return 0;
  }

  uint32_t Random() override {
    uint32_t value = 0;
    // Four bytes are never cut short or interrupted (getrandom(2)).
    if (getrandom(&value, sizeof(value), 0) != sizeof(value)) value = 0;
    return value;
  }

  int Open(const char* name, bool create) override {
    // O_NONBLOCK: a FIFO of this name is refused, not waited for.
    Fd file(openat(directory_.get(), name,
                   O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
                       (create ? O_CREAT | O_EXCL : 0),
                   0600));
    if (!file) return -errno;
    struct stat info;
    if (fstat(file.get(), &info) != 0) return -errno;
    if (!S_ISREG(info.st_mode)) return -EINVAL;
    return file.Release();
  }

  void Close(int file) override { Fd closed(file); }

  int64_t Size(int file) override {
    struct stat info;
    return fstat(file, &info) != 0 ? -errno : info.st_size;
  }

  int64_t Read(int file, uint64_t offset, char* data, size_t bytes) override {
    return Retry(
        [&] { return pread(file, data, bytes, static_cast<off_t>(offset)); });
  }

  int64_t Write(int file, uint64_t offset, std::string_view data) override {
    return Retry([&] {
      return pwrite(file, data.data(), data.size(), static_cast<off_t>(offset));
    });
  }

  int Truncate(int file, uint64_t bytes) override {
    return static_cast<int>(
        Retry([&] { return ftruncate(file, static_cast<off_t>(bytes)); }));
  }

  int Sync(int file) override {
    return static_cast<int>(Retry([&] { return fsync(file); }));
  }

  int Rename(const char* from, const char* to) override {
    return renameat(directory_.get(), from, directory_.get(), to) != 0 ? -errno
                                                                       : 0;
  }

  int Remove(const char* name) override {
    return unlinkat(directory_.get(), name, 0) != 0 ? -errno : 0;
  }

 private:
  template <typename Call>
  static int64_t Retry(Call call) {
    int64_t result;
    do {
      result = call();
    } while (result < 0 && errno == EINTR);
    return result < 0 ? -errno : result;
  }

  const std::string path_;
  const Fd directory_;
  Fd lock_;
};

}  // namespace

StatusOr<std::unique_ptr<JournalFiles>> OpenJournalDirectory(
    const std::string& path) {
  // Follows a link: systemd's StateDirectory may be one.
  Fd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) {
    const int error = errno;
    const Status status = ErrnoError(error, "state directory " + path);
    return Status(
        status.code(),
        status.message() +
            (error == ENOENT
                 ? "; create it, writable by the user penstockd runs as"
             : error == ENOTDIR ? "; name a directory"
             : error == EACCES  ? "; give it to the user penstockd runs as"
                                : ""));
  }
  return std::unique_ptr<JournalFiles>(
      new DirectoryFiles(path, std::move(directory)));
}

class Journal::File {
 public:
  File(JournalFiles* files, int handle) : files_(files), handle_(handle) {}
  ~File() { files_->Close(handle_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int handle() const { return handle_; }

 private:
  JournalFiles* const files_;
  const int handle_;
};

// Walks the frames of [offset, end) of a file.
class Journal::FrameReader {
 public:
  FrameReader(JournalFiles* files, int file, uint64_t offset, uint64_t end,
              uint32_t chain)
      : files_(files), file_(file), offset_(offset), end_(end), chain_(chain) {}

  // True: read the next record. False: at the end, or at an invalid record,
  // which damage() describes.
  StatusOr<bool> Next() {
    if (offset_ == end_) return false;
    PENSTOCK_RETURN_IF_ERROR(Fill(kJournalFrameBytes));
    if (buffered() < kJournalFrameBytes) {
      damage_ = Format("{} bytes where a record has {} or more", end_ - offset_,
                       kJournalFrameBytes);
      unfinished_ = true;
      return false;
    }
    type_ = static_cast<uint8_t>(data()[8]);
    if (type_ == 0) {
      damage_ = "a record of no type";
      unfinished_ = true;
      return false;
    }
    const uint64_t bytes = LoadLittle(data(), 4);
    if (bytes > kJournalRecordBytesMax) {
      damage_ = Format("a record of {} bytes, {} at most", bytes,
                       kJournalRecordBytesMax);
      return false;
    }
    const size_t whole = kJournalFrameBytes + bytes;
    // Only now: a false length alone allocates nothing.
    if (whole <= end_ - offset_) {
      PENSTOCK_RETURN_IF_ERROR(Fill(whole));
    }
    if (whole > end_ - offset_) {
      damage_ = Format("a record of {} bytes, of which {} are there", bytes,
                       end_ - offset_ - kJournalFrameBytes);
      return false;
    }
    payload_ = {data() + kJournalFrameBytes, bytes};
    const uint32_t crc = FrameCrc(chain_, {data(), 4}, data()[8], payload_);
    if (crc != LoadLittle(data() + 4, 4)) {
      damage_ = Format("a record of {} bytes with a wrong checksum", bytes);
      return false;
    }
    chain_ = crc;
    offset_ += whole;
    used_ += whole;
    return true;
  }

  uint8_t type() const { return type_; }
  std::string_view payload() const { return payload_; }  // until Next
  uint64_t offset() const { return offset_; }  // behind the last record
  uint32_t chain() const { return chain_; }    // of the last record
  const std::string& damage() const { return damage_; }
  bool unfinished() const { return unfinished_; }  // of damage()

 private:
  const char* data() const { return buffer_.data() + used_; }
  size_t buffered() const { return buffer_.size() - used_; }

  // Buffers `bytes` bytes from offset_ on; fewer if the file ends, which sets
  // end_.
  Status Fill(size_t bytes) {
    if (buffered() >= bytes) return OkStatus();
    buffer_.erase(0, used_);
    used_ = 0;
    const size_t had = buffer_.size();
    const size_t wanted = static_cast<size_t>(
        std::min<uint64_t>(std::max(bytes, kChunkBytes), end_ - offset_));
    buffer_.resize(wanted);
    const int64_t got = ReadAll(files_, file_, offset_ + had,
                                buffer_.data() + had, wanted - had);
    if (got < 0) {
      return FileError(static_cast<int>(-got),
                       "read " + PathOf(files_, kJournalName));
    }
    buffer_.resize(had + static_cast<size_t>(got));
    if (buffer_.size() < wanted) end_ = offset_ + buffer_.size();
    return OkStatus();
  }

  JournalFiles* const files_;
  const int file_;
  uint64_t offset_;
  uint64_t end_;
  uint32_t chain_;
  std::string buffer_;  // from offset_ on, behind used_
  size_t used_ = 0;
  uint8_t type_ = 0;
  std::string_view payload_;
  std::string damage_;
  bool unfinished_ = false;
};

// journal.new being written. Removed with the object unless it was renamed.
class Journal::Rewrite {
 public:
  Rewrite(JournalFiles* files, uint64_t file_bytes_max)
      : files_(files),
        file_bytes_max_(file_bytes_max),
        path_(PathOf(files, kJournalNewName)),
        salt_(files->Random()),
        chain_(salt_) {}
  ~Rewrite() {
    if (file_ != nullptr && !renamed_) (void)files_->Remove(kJournalNewName);
  }
  Rewrite(const Rewrite&) = delete;
  Rewrite& operator=(const Rewrite&) = delete;

  Status Create() {
    int result = files_->Remove(kJournalNewName);
    if (result == 0 || result == -ENOENT) {
      result = files_->Open(kJournalNewName, true);
    }
    if (result < 0) return FileError(-result, "create " + path_);
    file_ = std::make_shared<File>(files_, result);
    return OkStatus();
  }

  Status Put(uint8_t type, std::string_view payload) {
    PENSTOCK_RETURN_IF_ERROR(CheckRecord(type, payload));
    const uint64_t bytes = written_ + buffer_.size();
    if (bytes > file_bytes_max_ ||
        kJournalFrameBytes + payload.size() > file_bytes_max_ - bytes) {
      return ResourceExhaustedError(
          "{} would be larger than {} bytes: fewer or smaller jobs", path_,
          file_bytes_max_);
    }
    chain_ = AddFrame(chain_, type, payload, &buffer_);
    return buffer_.size() < kChunkBytes ? OkStatus() : Flush();
  }

  // Writes the header, syncs all that was put and replaces the journal.
  StatusOr<End> Finish(const JournalLimits& limits) {
    PENSTOCK_RETURN_IF_ERROR(Flush());
    int result =
        WriteAll(files_, file_->handle(), 0, MakeHeader(salt_, written_));
    if (result < 0) return FileError(-result, "write " + path_);
    result = files_->Sync(file_->handle());
    if (result < 0) return FileError(-result, "fsync " + path_);
    result = files_->Rename(kJournalNewName, kJournalName);
    if (result < 0) {
      return FileError(-result, Format("rename {} to {}", path_, kJournalName));
    }
    renamed_ = true;
    return End{file_, written_, chain_,
               std::max(limits.compact_bytes_min, 4 * written_)};
  }

 private:
  Status Flush() {
    const int result = WriteAll(files_, file_->handle(), written_, buffer_);
    if (result < 0) return FileError(-result, "write " + path_);
    written_ += buffer_.size();
    buffer_.clear();
    return OkStatus();
  }

  JournalFiles* const files_;
  const uint64_t file_bytes_max_;
  const std::string path_;
  const uint32_t salt_;
  std::shared_ptr<const File> file_;
  std::string buffer_;  // to be written at written_
  uint64_t written_ = kJournalHeaderBytes;
  uint32_t chain_;
  bool renamed_ = false;
};

Journal::Journal(std::unique_ptr<JournalFiles> files,
                 const JournalLimits& limits, End end)
    : files_(std::move(files)), limits_(limits), end_(std::move(end)) {}

Status LockJournal(JournalFiles* files) {
  const int result = files->Lock();
  if (result == 0) return OkStatus();
  if (result != -EWOULDBLOCK) {
    return FileError(-result, "lock " + PathOf(files, kJournalLockName));
  }
  return AlreadyExistsError(
      "the state directory {} is in use by another broker, which holds the "
      "lock on {} (lslocks names its process): stop that one, or give this "
      "one a directory of its own",
      files->directory(), kJournalLockName);
}

StatusOr<std::unique_ptr<Journal>> Journal::Open(
    std::unique_ptr<JournalFiles> files, const JournalLimits& limits,
    const JournalRecord& replay, JournalReplay* replayed) {
  *replayed = {};
  PENSTOCK_RETURN_IF_ERROR(LockJournal(files.get()));
  PENSTOCK_ASSIGN_OR_RETURN(End end,
                            OpenFile(files.get(), limits, replay, replayed));
  return std::unique_ptr<Journal>(
      new Journal(std::move(files), limits, std::move(end)));
}

StatusOr<Journal::End> Journal::OpenFile(JournalFiles* files,
                                         const JournalLimits& limits,
                                         const JournalRecord& replay,
                                         JournalReplay* replayed) {
  const std::string path = PathOf(files, kJournalName);
  const int handle = files->Open(kJournalName, false);
  if (handle == -ENOENT) return WriteNew(files, limits, NoRecords);
  if (handle < 0) return FileError(-handle, "open " + path);
  auto file = std::make_shared<File>(files, handle);

  const int64_t file_bytes = files->Size(handle);
  if (file_bytes < 0) {
    return FileError(static_cast<int>(-file_bytes), "size of " + path);
  }
  char header[kJournalHeaderBytes];
  const int64_t got = ReadAll(files, handle, 0, header, sizeof(header));
  if (got < 0) return FileError(static_cast<int>(-got), "read " + path);
  const std::string_view found(header, static_cast<size_t>(got));
  // The start of every journal of this version, as far as the file goes.
  const std::string wanted =
      MakeHeader(0, 0).substr(0, std::min(found.size(), kMagicAndVersionBytes));
  if (found.substr(0, kMagic.size()) != wanted.substr(0, kMagic.size())) {
    return FailedPreconditionError(
        "{} is not a Penstock journal: move it away, a new one is made then",
        path);
  }
  if (found.substr(0, wanted.size()) != wanted) {
    return FailedPreconditionError(
        "{} is of a version other than {}, the one this penstockd knows: start "
        "the newer penstockd that wrote it, or move the file away (what it "
        "records is forgotten then)",
        path, kJournalVersion);
  }
  if (found.size() < kJournalHeaderBytes) {
    // The file never held a record, so nothing is lost.
    replayed->bytes_cut = found.size();
    replayed->warning = Format(
        "{}: it ends after {} of the header's {} bytes; an empty journal takes "
        "its place",
        path, found.size(), kJournalHeaderBytes);
    return WriteNew(files, limits, NoRecords);
  }
  if (LoadLittle(header + 24, 4) != Crc(0, {header, 24})) {
    return DataLossError(
        "{}: its header is damaged, so none of its {} bytes can be relied on: "
        "bring back a copy of the file, or move it away (what it records is "
        "forgotten then)",
        path, file_bytes);
  }
  End start;
  start.file = std::move(file);
  start.size = kJournalHeaderBytes;
  start.chain = static_cast<uint32_t>(LoadLittle(header + 12, 4));
  PENSTOCK_ASSIGN_OR_RETURN(
      End end,
      Replay(files, limits, std::move(start), static_cast<uint64_t>(file_bytes),
             LoadLittle(header + 16, 8), replay, replayed));
  // A failure only wastes space.
  (void)files->Remove(kJournalNewName);
  return end;
}

StatusOr<Journal::End> Journal::WriteNew(
    JournalFiles* files, const JournalLimits& limits,
    const std::function<Status(const JournalRecord& put)>& live) {
  Rewrite rewrite(files, limits.file_bytes_max);
  PENSTOCK_RETURN_IF_ERROR(rewrite.Create());
  PENSTOCK_RETURN_IF_ERROR(
      live([&rewrite](uint8_t type, std::string_view payload) {
        return rewrite.Put(type, payload);
      }));
  return rewrite.Finish(limits);
}

StatusOr<Journal::End> Journal::Replay(JournalFiles* files,
                                       const JournalLimits& limits, End start,
                                       uint64_t file_bytes, uint64_t settled,
                                       const JournalRecord& replay,
                                       JournalReplay* replayed) {
  const std::string path = PathOf(files, kJournalName);
  End end = std::move(start);
  FrameReader reader(files, end.file->handle(), end.size, file_bytes,
                     end.chain);
  for (;;) {
    const uint64_t offset = reader.offset();
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, reader.Next());
    if (!found) break;
    if (const Status status = replay(reader.type(), reader.payload());
        !status.ok()) {
      return status.Prepend(
          Format("{}, record {} at byte {}", path, replayed->records, offset));
    }
    ++replayed->records;
  }
  end.size = reader.offset();
  end.chain = reader.chain();
  // As set by the compaction of this file; a damaged file may be shorter.
  end.compact_above =
      std::max(limits.compact_bytes_min, 4 * std::min(settled, file_bytes));
  if (end.size == file_bytes && end.size >= settled) return end;
  if (reader.unfinished() && end.size >= settled) {
    replayed->unfinished = true;
  } else {
    replayed->damaged = true;
  }
  // The header's settled stays wrong, and Open warns, until a compaction
  // replaces the file.
  if (end.size < settled) end.compact_above = 0;

  replayed->bytes_cut = file_bytes - end.size;
  replayed->warning = Format(
      "{}: at byte {}, after {} whole records, {}; {} bytes are cut off. {}",
      path, end.size, replayed->records,
      reader.damage().empty() ? "it ends" : "is " + reader.damage(),
      replayed->bytes_cut,
      end.size < settled
          ? Format("Its first {} bytes had been safe on the disk, so the "
                   "disk or another program damaged them: what they "
                   "recorded is lost",
                   settled)
      : replayed->unfinished
          ? "A broker that was killed while it wrote leaves such an end"
          : "A machine that died while it was written leaves such an end, "
            "and so does damage");
  if (const int result = files->Truncate(end.file->handle(), end.size);
      result < 0) {
    // The next Append overwrites the rest; by I2 it holds no record.
    replayed->warning +=
        "; " + FileError(-result, "truncating failed").message();
  }
  return end;
}

Status Journal::Append(uint8_t type, std::string_view payload) {
  const JournalEntry entry = {type, payload};
  return Append({&entry, 1});
}

Status Journal::Append(std::span<const JournalEntry> group) {
  for (const JournalEntry& entry : group) {
    PENSTOCK_RETURN_IF_ERROR(CheckRecord(entry.type, entry.payload));
  }
  if (group.empty()) return OkStatus();
  frames_.clear();
  uint32_t crc = end_.chain;
  for (const JournalEntry& entry : group) {
    crc = AddFrame(crc, entry.type, entry.payload, &frames_);
  }
  // An older file may be larger than the current limit.
  if (end_.size > limits_.file_bytes_max ||
      frames_.size() > limits_.file_bytes_max - end_.size) {
    refused_bytes_ += frames_.size();
    return ResourceExhaustedError(
        "append to {}: it has {} bytes, {} at most, until it is compacted",
        PathOf(files_.get(), kJournalName), end_.size, limits_.file_bytes_max);
  }
  if (const int result =
          WriteGroup(files_.get(), end_.file->handle(), end_.size, frames_);
      result < 0) {
    // If this fails, the next Append overwrites the rest.
    (void)files_->Truncate(end_.file->handle(), end_.size);
    refused_bytes_ += frames_.size();
    return FileError(-result, Format("append {} bytes to {}", frames_.size(),
                                     PathOf(files_.get(), kJournalName)));
  }
  end_.size += frames_.size();
  end_.chain = crc;
  return OkStatus();
}

Status Journal::Compact(
    const std::function<Status(const JournalRecord& put)>& live) {
  refused_bytes_ = 0;
  StatusOr<End> end = WriteNew(files_.get(), limits_, live);
  if (end.ok()) {
    end_ = *std::move(end);
    return OkStatus();
  }
  end_.compact_above = end_.size + kRetryBytes;
  return end.status().Prepend("compaction of " +
                              PathOf(files_.get(), kJournalName));
}

bool Journal::WantsCompaction() const {
  return end_.size + refused_bytes_ > end_.compact_above;
}

}  // namespace penstock
