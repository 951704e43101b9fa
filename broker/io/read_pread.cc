// The reader of last resort: plain system calls one at a time, made when their
// result is requested. No read is in flight while the caller runs, so its depth
// hides no latency. It lets Penstock work in containers that forbid io_uring.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "broker/io/file_access.h"
#include "broker/io/file_error.h"
#include "broker/io/read_backend.h"

namespace penstock {
namespace {

// Fills out from offset; reads fewer bytes only at the end of the file.
StatusOr<uint64_t> ReadAt(int fd, const std::string& what, uint64_t offset,
                          std::span<std::byte> out) {
  uint64_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(fd, out.data() + done, out.size() - done,
                            static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;  // a signal; nothing was read
      return ReadError(errno, what, offset + done);
    }
    if (n == 0) break;  // the end: only an empty read proves it
    done += static_cast<uint64_t>(n);
  }
  return done;
}

class PreadReader final : public StorageReader {
 public:
  PreadReader(uint32_t depth, const std::string& reason)
      : backend_(reason.empty() ? "pread" : Format("pread ({})", reason)),
        tickets_(depth) {}

  std::string backend() const override { return backend_; }
  uint32_t depth() const override {
    return static_cast<uint32_t>(tickets_.size());
  }

  bool blocking() const override { return true; }

  bool Start(uint32_t ticket, const ReadRequest& request,
             std::span<std::byte> into, uint32_t) override {
    Ticket& mine = tickets_[ticket];
    mine.part = request;
    mine.into = into;
    if (!request.more.empty()) mine.parts.Begin(request);
    queue_[(first_ + queued_++) % tickets_.size()] = ticket;
    return false;
  }

  void Submit() override {}

  bool Next(uint64_t, Done* done) override {
    if (queued_ == 0) return false;
    const uint32_t ticket = queue_[first_];
    first_ = (first_ + 1) % tickets_.size();
    --queued_;
    Ticket& mine = tickets_[ticket];
    const Blocking blocking(*this, ticket);
    StatusOr<std::span<const std::byte>> bytes =
        mine.parts.several() ? ReadParts(&mine) : ReadOne(&mine);
    done->ticket = ticket;
    done->status = bytes.status();
    done->bytes = bytes.ok() ? *bytes : std::span<const std::byte>();
    done->ends =
        mine.parts.several() ? mine.parts.ends() : std::span<const uint64_t>();
    return true;
  }

  bool Arrived(uint32_t) override { return false; }  // it has not started

  void Release(uint32_t ticket) override {
    Ticket& mine = tickets_[ticket];
    mine.buffer.Trim();
    if (!mine.parts.several()) return;
    mine.parts.buffer().Trim();
    mine.parts.End();
  }

  uint32_t in_flight() const override { return static_cast<uint32_t>(queued_); }

 private:
  struct Ticket {
    ReadPart part;  // the one that is next
    std::span<std::byte> into;
    ReadBuffer buffer;
    GatheredParts parts;
  };

  static StatusOr<std::span<const std::byte>> ReadOne(Ticket* mine) {
    return mine->part.kind == ReadPart::Kind::kFile
               ? ReadFile(mine->part, &mine->buffer)
               : ReadRange(mine);
  }

  static StatusOr<std::span<const std::byte>> ReadParts(Ticket* mine) {
    GatheredParts& parts = mine->parts;
    for (;;) {
      StatusOr<std::span<std::byte>> room = parts.Room(mine->part);
      if (!room.ok()) return parts.Named(room.status());
      mine->into = *room;
      const auto bytes = ReadOne(mine);
      if (!bytes.ok()) return parts.Named(bytes.status());
      const StatusOr<bool> more = parts.Add(*bytes, &mine->part);
      if (!more.ok()) return parts.Named(more.status());
      if (!*more) return parts.bytes();
    }
  }

  static StatusOr<std::span<const std::byte>> ReadRange(Ticket* mine) {
    const ReadPart& request = mine->part;
    const RangeTarget target(request, mine->into, &mine->buffer);
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t done,
        ReadAt(request.fd, "range", target.Offset(0), target.Rest(0)));
    if (!target.Holds(done)) {
      return ShortRangeError(request, target.Found(done));
    }
    return target.Deliver();
  }

  const std::string backend_;
  std::vector<Ticket> tickets_;
  // A ring of tickets that were started and not yet returned; each ticket is in
  // it at most once, so it cannot overflow.
  std::vector<uint32_t> queue_ = std::vector<uint32_t>(tickets_.size());
  size_t first_ = 0;
  size_t queued_ = 0;
};

}  // namespace

StatusOr<std::span<const std::byte>> ReadFile(const ReadPart& part,
                                              ReadBuffer* buffer) {
  const std::string& path = part.path;
  const FileAccess& access =
      part.access != nullptr ? *part.access : *FileAccess::OfBroker();
  // O_NONBLOCK: opening a FIFO would wait for its writer.
  PENSTOCK_ASSIGN_OR_RETURN(const Fd file, access.Open(path, O_NONBLOCK));
  struct stat st;
  if (fstat(file.get(), &st) != 0) return ReadError(errno, path, 0);
  PENSTOCK_RETURN_IF_ERROR(
      CheckFile(path, st.st_mode, static_cast<uint64_t>(st.st_size)));
  // One byte more than the size, to detect the end: files of procfs report 0,
  // and a file can grow. Doubles until the end is seen.
  uint64_t wanted = static_cast<uint64_t>(st.st_size) + 1;
  for (;;) {
    buffer->Reserve(std::max<uint64_t>(wanted, kBufferBytesMin));
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t found,
        ReadAt(file.get(), path, 0, buffer->first(buffer->capacity())));
    if (found > kRecordBytesMax) return FileTooLargeError(path, found);
    if (found < buffer->capacity()) {
      return std::span<const std::byte>(buffer->first(found));
    }
    wanted = std::min(found * 2, kRecordBytesMax + 1);
  }
}

Status FileTooLargeError(const std::string& path, uint64_t bytes) {
  return DataLossError("{} has {} bytes; a record has at most {} ({} MiB)",
                       path, bytes, kRecordBytesMax, kRecordBytesMax >> 20);
}

Status CheckFile(const std::string& path, unsigned mode, uint64_t bytes) {
  if (!S_ISREG(mode)) return NotRegularError(mode, path);
  return bytes > kRecordBytesMax ? FileTooLargeError(path, bytes) : OkStatus();
}

Status ShortRangeError(const ReadPart& request, uint64_t found) {
  return DataLossError(
      "file is shorter than it was when it was opened, or than its header says "
      "(truncated?): wanted {} bytes at offset {}, found {}",
      request.bytes, request.offset, found);
}

std::unique_ptr<StorageReader> MakePreadReader(uint32_t depth,
                                               const std::string& reason) {
  return std::make_unique<PreadReader>(depth, reason);
}

}  // namespace penstock
