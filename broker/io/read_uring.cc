// The io_uring reader: a ring, a table of registered files and a buffer per
// ticket, all used by one thread.
//
// A file is three linked requests: open into the table at the ticket's number
// (no descriptor, no search for a free slot), read into the ticket's buffer,
// close. The open is a soft link: if it fails, the rest is cancelled. The read
// is a hard link: the file must be closed even after a short or failed read.
//
// A read that does not fill the buffer has reached the end of the file: on
// regular files the kernel continues a short read until the end or an error. A
// read that fills the buffer may not have; it is redone with a larger one.
//
// Where the file system has no `nowait` (ReadRequest), statx comes first, and
// the read has exactly the file's size. A kernel thread does open and read:
// this thread must not hang with the storage. FUSE's direct files need both
// (measured, 6.18): by default the kernel reads them on this thread, one after
// the other; and when a read does not fill the buffer, it continues at a
// position that FUSE has not advanced, so the content appears twice.
//
// Plain system calls that answer EAGAIN instead of waiting (RESOLVE_CACHED,
// RWF_NOWAIT) read from the page cache at once, as long as enough reads hit it:
// a chain of three requests costs half as much again (bench/read_benchmark).
// The other reads use the ring.
//
// A request of several parts is read part by part: when one ends, the same
// ticket starts the next.
//
// Invariants:
//   1. requests_ counts the requests without a seen completion; a ticket's
//      buffer, path and `into` are not touched or freed while it has one.
//   2. A ticket has at most kRequestsPerTicket requests. The submission queue
//      has room for the requests of all tickets, the completion queue for twice
//      as many: neither can be full.
#include <fcntl.h>
#include <liburing.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "broker/io/file_access.h"
#include "broker/io/file_error.h"
#include "broker/io/read_backend.h"
#include "common/fd.h"

namespace penstock {
namespace {

constexpr unsigned kRequestsPerTicket = 3;
constexpr unsigned kOps = 4;
// Attempts of a read before plain system calls do it.
constexpr int kTriesMax = 8;
constexpr uint64_t kCancelData = UINT64_MAX;
// Entries of the table of pinned memory; the kernel allows 16,384.
constexpr uint32_t kPinsMax = 4096;
// The page cache is tried first while at least this share of such reads hits it
// completely; below that, one read in kAskOneIn tries it.
constexpr double kCachedShareMin = 0.3;
constexpr uint32_t kAskOneIn = 32;
// Number of reads that the share averages, roughly.
constexpr double kCachedShareOver = 64;

enum class Op : uint32_t { kStat, kOpen, kRead, kClose };

unsigned SetupFlags(ReadBackend rung) {
  // TASKRUN_FLAG: a peek at the completion queue shows that the kernel has work
  // for this thread. SUBMIT_ALL: a refused request (a path over 4096 bytes)
  // does not hold up those behind it.
  switch (rung) {
    case ReadBackend::kDeferTaskrun:
      return IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
             IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
    case ReadBackend::kCoopTaskrun:
      return IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
             IORING_SETUP_SUBMIT_ALL;
    default:
      return 0;
  }
}

std::string RungName(ReadBackend rung) {
  return Format("io_uring ({})", kReadBackendNames[static_cast<size_t>(rung)]);
}

// Why this rung has no ring; error is that of io_uring_setup or of the
// registration.
Status SetupError(int error) {
  char buffer[128];
  const char* text = strerror_r(error, buffer, sizeof(buffer));
  switch (error) {
    case EPERM:   // kernel.io_uring_disabled, or a container's seccomp filter
    case EACCES:  // a security module
      return PermissionDeniedError("io_uring: {}", text);
    case ENOSYS:  // a kernel without it, or another seccomp filter
      return UnimplementedError("io_uring: {}", text);
    case ENOMEM:  // RLIMIT_MEMLOCK on kernels before 5.12
    case EMFILE:  // the table of files counts against RLIMIT_NOFILE
    case ENFILE:
      return ResourceExhaustedError("io_uring: {}", text);
    default:  // EINVAL: a flag unknown to this kernel
      return FailedPreconditionError("io_uring: {}", text);
  }
}

class UringReader final : public StorageReader {
 public:
  explicit UringReader(uint32_t depth) : tickets_(depth), ready_(depth) {}
  ~UringReader() override;
  UringReader(const UringReader&) = delete;
  UringReader& operator=(const UringReader&) = delete;

  Status Init(ReadBackend rung);
  // Reads a file and a range of known content through the ring.
  Status Probe();

  std::string backend() const override { return RungName(rung_); }
  uint32_t depth() const override {
    return static_cast<uint32_t>(tickets_.size());
  }
  bool Start(uint32_t ticket, const ReadRequest& request,
             std::span<std::byte> into, uint32_t pinned) override;
  uint32_t Pin(std::span<std::byte> memory) override;
  void Unpin(uint32_t pinned) override;
  bool blocking() const override { return false; }
  void Submit() override { Enter(0, kWaitForever); }
  bool Next(uint64_t wait_ns, Done* done) override;
  bool Arrived(uint32_t ticket) override {
    Reap();
    return tickets_[ticket].requests == 0;
  }
  void Release(uint32_t ticket) override;
  uint32_t in_flight() const override { return in_flight_; }

 private:
  struct Ticket {
    ReadPart request;              // the part that is read
    RangeTarget target;            // of a range
    uint32_t pinned = kNotPinned;  // pinned memory that holds target
    ReadBuffer buffer;
    unsigned requests = 0;  // without a completion
    int results[kOps] = {};
    uint64_t done = 0;  // bytes of a range that have arrived
    int tries = 0;
    struct statx stat = {};
    bool stating = false;  // its request in flight is kStat
    bool opening = false;  // or kOpen alone
    open_how how = {};
    Fd file;                  // opened by request.access, and read as a range
    uint64_t file_bytes = 0;  // of the file, where stat came first
    bool cached = false;
    Status status;
    std::span<const std::byte> bytes;
    GatheredParts parts;
    bool all_cached = false;  // the parts before this one
  };

  void StartPart(uint32_t ticket, std::span<std::byte> into, uint32_t pinned);
  void StartGathered(uint32_t ticket);
  bool GatherMore(uint32_t ticket, Status* status,
                  std::span<const std::byte> bytes);
  void Trim(ReadBuffer* buffer);
  bool MakePinTable();
  bool ProbeCache();
  bool ReadCachedFile(uint32_t ticket);
  bool ReadCachedRange(uint32_t ticket);
  io_uring_sqe* NewRequest(uint32_t ticket);
  void AllowThreads();
  void QueueFile(uint32_t ticket);
  void QueueStat(uint32_t ticket);
  void QueueOpen(uint32_t ticket);
  void FinishOpen(uint32_t ticket);
  void ReadOpened(uint32_t ticket, Fd file);
  void QueueChain(uint32_t ticket, uint64_t bytes);
  void QueueRange(uint32_t ticket);
  bool Enter(unsigned wait_for, uint64_t wait_ns);
  void Reap();
  void FinishStat(uint32_t ticket);
  void FinishFile(uint32_t ticket);
  void FinishRange(uint32_t ticket);
  void Grow(uint32_t ticket);
  void Retry(uint32_t ticket);
  void ReadPlainly(uint32_t ticket);
  void Finish(uint32_t ticket, Status status,
              std::span<const std::byte> bytes = {});

  ReadBackend rung_ = ReadBackend::kPlain;
  io_uring ring_;
  bool has_ring_ = false;
  bool threads_allowed_ = false;
  std::vector<Ticket> tickets_;
  // A ring of tickets that are finished and not yet returned.
  std::vector<uint32_t> ready_;
  size_t ready_first_ = 0;
  size_t ready_count_ = 0;
  uint32_t in_flight_ = 0;  // started, not yet returned
  bool pin_table_made_ = false;
  std::vector<uint32_t> pins_free_;
  double cached_share_ = 1;
  uint32_t not_asked_ = 0;  // reads since the cache was last asked
  unsigned requests_ = 0;   // queued or with the kernel
};

Status UringReader::Init(ReadBackend rung) {
  rung_ = rung;
  io_uring_params params = {};
  params.flags = SetupFlags(rung) | IORING_SETUP_CQSIZE;
  // One more for the destructor's cancellation.
  const unsigned entries = kRequestsPerTicket * depth() + 1;
  params.cq_entries = 2 * entries;
  const int result = io_uring_queue_init_params(entries, &ring_, &params);
  if (result < 0) return SetupError(-result);
  OrderRingMemory();
  has_ring_ = true;
  // Filled with "none" instead of registered as sparse, for kernels before
  // 5.19.
  const std::vector<int> none(depth(), -1);
  const int registered = io_uring_register_files(&ring_, none.data(), depth());
  return registered < 0 ? SetupError(-registered) : OkStatus();
}

UringReader::~UringReader() {
  if (!has_ring_) return;
  // Cancelled reads also write (measured: all of 1,280, up to 37 ms later).
  // Cancelling only shortens the wait for a peer (a FIFO); before a buffer is
  // freed, every completion must have arrived.
  bool cancel = true;
  while (requests_ > 0) {
    Enter(0, kWaitForever);
    if (cancel) {
      if (io_uring_sqe* sqe = io_uring_get_sqe(&ring_); sqe != nullptr) {
        io_uring_prep_cancel64(
            sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
        sqe->user_data = kCancelData;
      }
    }
    Enter(1, kWaitForever);
    // A completion can start the next request of its chain: cancel again.
    cancel = false;
    unsigned head;
    unsigned seen = 0;
    io_uring_cqe* cqe;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      ++seen;
      if (cqe->user_data == kCancelData) continue;
      --requests_;
      cancel = true;
    }
    io_uring_cq_advance(&ring_, seen);
  }
  OrderRingMemory();
  io_uring_queue_exit(&ring_);
}

Status UringReader::Probe() {
  const int fd = memfd_create("penstock-probe", MFD_CLOEXEC);
  if (fd < 0) return ErrnoError(errno, "memfd_create");
  constexpr std::string_view kText = "penstock";
  const ssize_t written = write(fd, kText.data(), kText.size());
  ReadRequest file;
  file.kind = ReadRequest::Kind::kFile;
  file.path = Format("/proc/self/fd/{}", fd);
  ReadRequest range;
  range.kind = ReadRequest::Kind::kRange;
  range.fd = fd;
  range.bytes = kText.size();
  Status status = written == static_cast<ssize_t>(kText.size())
                      ? OkStatus()
                      : InternalError("write to a memfd");
  for (const ReadRequest& request : {file, range}) {
    if (!status.ok()) break;
    Start(0, request, {}, kNotPinned);
    Done done;
    Next(kWaitForever, &done);
    status = done.status;
    if (status.ok() &&
        (done.bytes.size() != kText.size() ||
         std::memcmp(done.bytes.data(), kText.data(), kText.size()) != 0)) {
      status = InternalError("wrong bytes");
    }
    Release(0);
  }
  close(fd);
  return status.ok() ? status
                     : FailedPreconditionError("io_uring: probe read: {}",
                                               status.message());
}

io_uring_sqe* UringReader::NewRequest(uint32_t ticket) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  assert(sqe != nullptr);  // invariant 2
  ++tickets_[ticket].requests;
  ++requests_;
  return sqe;
}

// Call after the io_uring_prep_ function, which clears it.
void SetData(io_uring_sqe* sqe, uint32_t ticket, Op op) {
  sqe->user_data = uint64_t{ticket} * kOps + static_cast<uint32_t>(op);
}

// Makes an empty table of registered buffers, filled one by one: kernels from
// 5.19 on, with and without DEFER_TASKRUN.
bool UringReader::MakePinTable() {
  if (pin_table_made_) return !pins_free_.empty();
  pin_table_made_ = true;
  if (io_uring_register_buffers_sparse(&ring_, kPinsMax) < 0) return false;
  for (uint32_t i = kPinsMax; i > 0; --i) pins_free_.push_back(i - 1);
  return true;
}

uint32_t UringReader::Pin(std::span<std::byte> memory) {
  if (memory.empty() || memory.size() > kPinBytesMax || !MakePinTable()) {
    return kNotPinned;
  }
  const uint32_t pinned = pins_free_.back();
  const iovec range = {memory.data(), memory.size()};
  const __u64 tag = 0;
  if (io_uring_register_buffers_update_tag(&ring_, pinned, &range, &tag, 1) !=
      1) {
    return kNotPinned;  // ENOMEM: RLIMIT_MEMLOCK
  }
  pins_free_.pop_back();
  return pinned;
}

void UringReader::Unpin(uint32_t pinned) {
  const iovec none = {nullptr, 0};
  const __u64 tag = 0;
  // Clearing an entry fails only for lack of memory; it is then not reused.
  if (io_uring_register_buffers_update_tag(&ring_, pinned, &none, &tag, 1) ==
      1) {
    pins_free_.push_back(pinned);
  }
}

bool UringReader::Start(uint32_t ticket, const ReadRequest& request,
                        std::span<std::byte> into, uint32_t pinned) {
  Ticket& mine = tickets_[ticket];
  assert(mine.requests == 0);
  assert(request.kind != ReadRequest::Kind::kNone);
  mine.request = request;
  ++in_flight_;
  if (request.more.empty()) {
    StartPart(ticket, into, pinned);
  } else {
    mine.parts.Begin(request);
    mine.all_cached = true;
    StartGathered(ticket);
  }
  return mine.requests == 0;  // else it waits for a completion
}

void UringReader::StartPart(uint32_t ticket, std::span<std::byte> into,
                            uint32_t pinned) {
  Ticket& mine = tickets_[ticket];
  const ReadPart& request = mine.request;
  mine.tries = 0;
  mine.done = 0;
  mine.cached = false;
  const bool ask = request.nowait && request.align == 0 && ProbeCache();
  if (request.kind == ReadRequest::Kind::kFile) {
    if (ask && ReadCachedFile(ticket)) return;
    request.access == nullptr ? QueueFile(ticket) : QueueOpen(ticket);
    return;
  }
  assert(request.bytes <= kRecordBytesMax);
  assert(into.empty() || into.size() == request.bytes);
  if (request.bytes == 0) return Finish(ticket, OkStatus());
  mine.target = RangeTarget(request, into, &mine.buffer);
  mine.pinned = mine.target.Rest(0).data() == into.data() ? pinned : kNotPinned;
  if (!ask || !ReadCachedRange(ticket)) QueueRange(ticket);
}

// Starts the part of a request of several that mine.request is.
void UringReader::StartGathered(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const StatusOr<std::span<std::byte>> room = mine.parts.Room(mine.request);
  if (!room.ok()) return Finish(ticket, room.status());
  StartPart(ticket, *room, kNotPinned);
}

void UringReader::Release(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  Trim(&mine.buffer);
  if (!mine.parts.several()) return;
  Trim(&mine.parts.buffer());
  mine.parts.End();
}

void UringReader::Trim(ReadBuffer* buffer) {
  buffer->Trim();
  if (buffer->capacity() <= kBufferBytesMin) return;
  const size_t all = std::accumulate(tickets_.begin(), tickets_.end(),
                                     size_t{0}, [](size_t sum, Ticket& each) {
                                       return sum + each.buffer.capacity() +
                                              each.parts.buffer().capacity();
                                     });
  if (all > kBuffersBytesKept) buffer->Trim(kBufferBytesMin);
}

bool UringReader::ProbeCache() {
  if (cached_share_ >= kCachedShareMin || ++not_asked_ >= kAskOneIn) {
    not_asked_ = 0;
    return true;
  }
  return false;
}

// Reads the whole file from the page cache. False: part of it is not cached, or
// it is not a plain case, which the ring handles.
bool UringReader::ReadCachedFile(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  FileAccess::Place place{AT_FDCWD, mine.request.path.c_str(), 0};
  if (mine.request.access != nullptr &&
      !mine.request.access->Find(mine.request.path, &place)) {
    return false;
  }
  open_how how = {};
  how.flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  how.resolve = RESOLVE_CACHED | place.resolve;
  const int fd = static_cast<int>(
      syscall(SYS_openat2, place.folder, place.name, &how, sizeof(how)));
  struct stat st;
  if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
      static_cast<uint64_t>(st.st_size) <= kRecordBytesMax) {
    const auto bytes = static_cast<size_t>(st.st_size);
    mine.buffer.Reserve(std::max(bytes, kBufferBytesMin));
    const iovec piece = {mine.buffer.data(), bytes};
    mine.cached = preadv2(fd, &piece, 1, 0, RWF_NOWAIT) == st.st_size;
  }
  if (fd >= 0) close(fd);
  cached_share_ += (mine.cached - cached_share_) / kCachedShareOver;
  if (!mine.cached) return false;
  Finish(ticket, OkStatus(),
         mine.buffer.first(static_cast<size_t>(st.st_size)));
  return true;
}

// Reads the range's first bytes from the page cache. False: some remain.
bool UringReader::ReadCachedRange(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const std::span<std::byte> out = mine.target.Rest(0);
  const iovec piece = {out.data(), out.size()};
  const ssize_t found =
      preadv2(mine.request.fd, &piece, 1,
              static_cast<off_t>(mine.request.offset), RWF_NOWAIT);
  if (found > 0) mine.done = static_cast<uint64_t>(found);
  mine.cached = mine.target.Holds(mine.done);
  cached_share_ += (mine.cached - cached_share_) / kCachedShareOver;
  if (!mine.cached) return false;
  Finish(ticket, OkStatus(), mine.target.Deliver());
  return true;
}

// Allows one kernel thread per read in flight, where reads must wait on one;
// the default is at most four per processor. They are created as needed.
// Several times depth, because the limit is per thread, not per ring, and a
// worker may have rings whose reads hang.
void UringReader::AllowThreads() {
  if (threads_allowed_) return;
  threads_allowed_ = true;
  unsigned most[2] = {8 * depth(), 0};  // bounded work; other work as before
  // Kernels before 5.15 refuse and keep the default.
  io_uring_register_iowq_max_workers(&ring_, most);
}

void UringReader::QueueFile(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  mine.file_bytes = 0;
  if (!mine.request.nowait) {
    AllowThreads();
    return QueueStat(ticket);
  }
  mine.buffer.Reserve(kBufferBytesMin);
  QueueChain(ticket, mine.buffer.capacity());
}

void UringReader::QueueStat(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  mine.stating = true;
  io_uring_sqe* stat = NewRequest(ticket);
  io_uring_prep_statx(stat, AT_FDCWD, mine.request.path.c_str(), 0,
                      STATX_TYPE | STATX_SIZE, &mine.stat);
  SetData(stat, ticket, Op::kStat);
}

// A file that request.access opens: first that, then a read of its size. A
// chain could not check in between what was opened.
void UringReader::QueueOpen(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const ReadPart& request = mine.request;
  const int flags = O_NONBLOCK | (request.align > 0 ? O_DIRECT : 0);
  FileAccess::Place place;
  if (!request.access->Find(request.path, &place)) {
    // It is walked, folder by folder: on file systems that are quick.
    StatusOr<Fd> file = request.access->Open(request.path, flags);
    if (!file.ok()) return Finish(ticket, file.status());
    return ReadOpened(ticket, *std::move(file));
  }
  mine.opening = true;
  mine.how = {};
  mine.how.flags =
      static_cast<uint64_t>(O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
  mine.how.resolve = place.resolve;
  io_uring_sqe* open = NewRequest(ticket);
  io_uring_prep_openat2(open, place.folder, place.name, &mine.how);
  if (!request.nowait) {
    AllowThreads();
    open->flags |= IOSQE_ASYNC;
  }
  SetData(open, ticket, Op::kOpen);
}

void UringReader::FinishOpen(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  mine.opening = false;
  Fd file(std::max(mine.results[static_cast<int>(Op::kOpen)], -1));
  if (file) return ReadOpened(ticket, std::move(file));
  // Again, for a message, or because a signal came first.
  const Blocking blocking(*this, ticket);
  StatusOr<Fd> again = mine.request.access->Open(
      mine.request.path, O_NONBLOCK | (mine.request.align > 0 ? O_DIRECT : 0));
  if (!again.ok()) return Finish(ticket, again.status());
  ReadOpened(ticket, *std::move(again));
}

void UringReader::ReadOpened(uint32_t ticket, Fd file) {
  Ticket& mine = tickets_[ticket];
  ReadPart& request = mine.request;
  struct stat st;
  if (fstat(file.get(), &st) != 0) {
    return Finish(ticket, ReadError(errno, request.path, 0));
  }
  const auto bytes = static_cast<uint64_t>(st.st_size);
  Status status = CheckFile(request.path, st.st_mode, bytes);
  if (!status.ok()) return Finish(ticket, std::move(status));
  if (bytes == 0) return Finish(ticket, OkStatus());
  // As in DataFile::Open.
  if (!request.nowait) {
    fcntl(file.get(), F_SETFL, fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  }
  request.kind = ReadPart::Kind::kRange;
  request.fd = file.get();
  request.offset = 0;
  request.bytes = bytes;
  mine.file = std::move(file);
  mine.target = RangeTarget(request, {}, &mine.buffer);
  mine.pinned = kNotPinned;
  QueueRange(ticket);
}

void UringReader::QueueChain(uint32_t ticket, uint64_t bytes) {
  Ticket& mine = tickets_[ticket];
  // O_NONBLOCK: opening a FIFO would wait for its writer. The table accepts no
  // O_CLOEXEC: there is no descriptor to inherit.
  const int flags = (mine.request.nowait ? O_NONBLOCK : 0) |
                    (mine.request.align > 0 ? O_DIRECT : 0);
  io_uring_sqe* open = NewRequest(ticket);
  io_uring_prep_openat_direct(open, AT_FDCWD, mine.request.path.c_str(),
                              O_RDONLY | O_NOCTTY | flags, 0, ticket);
  open->flags |= IOSQE_IO_LINK;
  // By default the kernel opens a file whose name is cached on this thread, and
  // asks the server of a network file system there.
  if (!mine.request.nowait) open->flags |= IOSQE_ASYNC;
  SetData(open, ticket, Op::kOpen);

  const int file = static_cast<int>(ticket);
  io_uring_sqe* read = NewRequest(ticket);
  io_uring_prep_read(read, file, mine.buffer.data(),
                     static_cast<unsigned>(bytes), 0);
  read->flags |= IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK;
  if (!mine.request.nowait) read->flags |= IOSQE_ASYNC;
  SetData(read, ticket, Op::kRead);

  io_uring_sqe* close = NewRequest(ticket);
  io_uring_prep_close_direct(close, ticket);
  SetData(close, ticket, Op::kClose);
}

void UringReader::QueueRange(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const std::span<std::byte> rest = mine.target.Rest(mine.done);
  io_uring_sqe* read = NewRequest(ticket);
  const auto bytes = static_cast<unsigned>(rest.size());
  const uint64_t offset = mine.target.Offset(mine.done);
  if (mine.pinned == kNotPinned) {
    io_uring_prep_read(read, mine.request.fd, rest.data(), bytes, offset);
  } else {
    io_uring_prep_read_fixed(read, mine.request.fd, rest.data(), bytes, offset,
                             static_cast<int>(mine.pinned));
  }
  if (!mine.request.nowait) {
    AllowThreads();
    read->flags |= IOSQE_ASYNC;
  }
  SetData(read, ticket, Op::kRead);
}

// Submits the queue and waits at most wait_ns for wait_for completions; false:
// timed out. May return early: callers check the queue and call again.
bool UringReader::Enter(unsigned wait_for, uint64_t wait_ns) {
  for (;;) {
    int result = 0;
    if (wait_for == 0) {
      result = io_uring_submit(&ring_);
    } else if (wait_ns == kWaitForever) {
      result = io_uring_submit_and_wait(&ring_, wait_for);
    } else {
      io_uring_cqe* cqe = nullptr;
      __kernel_timespec limit;
      limit.tv_sec = static_cast<int64_t>(wait_ns / 1'000'000'000);
      limit.tv_nsec = static_cast<int64_t>(wait_ns % 1'000'000'000);
      result = io_uring_submit_and_wait_timeout(&ring_, &cqe, wait_for, &limit,
                                                nullptr);
    }
    if (result >= 0) {
      // Fewer than queued if the kernel ran out of memory midway; the next call
      // reports it.
      if (wait_for == 0 && result > 0 && io_uring_sq_ready(&ring_) > 0) {
        continue;
      }
      return true;
    }
    switch (-result) {
      case ETIME:
        return false;
      case EINTR:  // a signal came first
        return true;
      case EAGAIN:  // no memory for requests now; they stay queued
      case EBUSY:   // completions must be reaped first
        std::this_thread::yield();
        return true;
      default:
        // EBADF, EFAULT, EINVAL, EEXIST (called from a thread that did not make
        // the reader): a bug, and the state of the buffers is unknown.
        Print(stderr, "penstock: io_uring_enter: {}\n", strerror(-result));
        std::abort();
    }
  }
}

bool UringReader::Next(uint64_t wait_ns, Done* done) {
  // Finished tickets are returned before the ring is checked again: oldest
  // first.
  bool in_time = true;
  while (ready_count_ == 0) {
    Reap();
    if (ready_count_ > 0) break;
    if (wait_ns == kNoWait || !in_time || in_flight_ == 0) return false;
    // A completion that is not its ticket's last restarts the time limit; a
    // part has three.
    in_time = Enter(1, wait_ns);
  }
  const uint32_t ticket = ready_[ready_first_];
  ready_first_ = (ready_first_ + 1) % ready_.size();
  --ready_count_;
  --in_flight_;
  Ticket& mine = tickets_[ticket];
  done->ticket = ticket;
  done->status = std::move(mine.status);
  done->bytes = mine.bytes;
  done->ends =
      mine.parts.several() ? mine.parts.ends() : std::span<const uint64_t>();
  done->cached = mine.cached;
  return true;
}

void UringReader::Reap() {
  io_uring_cqe* cqe;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    const auto ticket = static_cast<uint32_t>(cqe->user_data / kOps);
    Ticket& mine = tickets_[ticket];
    mine.results[cqe->user_data % kOps] = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    --requests_;
    if (--mine.requests > 0) continue;
    if (mine.stating) {
      FinishStat(ticket);
    } else if (mine.opening) {
      FinishOpen(ticket);
    } else if (mine.request.kind == ReadRequest::Kind::kFile) {
      FinishFile(ticket);
    } else {
      FinishRange(ticket);
    }
  }
  // Requests queued by the Finish functions.
  if (io_uring_sq_ready(&ring_) > 0) Enter(0, kWaitForever);
}

void UringReader::FinishStat(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const std::string& path = mine.request.path;
  mine.stating = false;
  const int result = mine.results[static_cast<int>(Op::kStat)];
  if (result == -EINTR || result == -EAGAIN) return Retry(ticket);
  if (result < 0) return Finish(ticket, OpenError(-result, path));
  mine.file_bytes = mine.stat.stx_size;
  Status status = CheckFile(path, mine.stat.stx_mode, mine.file_bytes);
  if (!status.ok()) return Finish(ticket, std::move(status));
  // Empty, or a file of procfs, where every size is 0.
  if (mine.file_bytes == 0) return ReadPlainly(ticket);
  mine.buffer.Reserve(std::max<uint64_t>(mine.file_bytes, kBufferBytesMin));
  const uint64_t align = std::max(mine.request.align, 1u);
  QueueChain(ticket, (mine.file_bytes + align - 1) / align * align);
}

void UringReader::FinishFile(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const std::string& path = mine.request.path;
  const Blocking blocking(*this, ticket);  // there may be a stat below
  const int opened = mine.results[static_cast<int>(Op::kOpen)];
  const int read = mine.results[static_cast<int>(Op::kRead)];
  const int closed = mine.results[static_cast<int>(Op::kClose)];
  if (opened < 0) {
    // The other requests are ECANCELED.
    switch (-opened) {
      case EINTR:   // a signal to the kernel's worker
      case EAGAIN:  // another process's lease is being broken
        return Retry(ticket);
      default:
        return Finish(ticket, OpenError(-opened, path));
    }
  }
  if (closed < 0) {
    // The kernel split the chain (no memory in between), and its parts overtook
    // each other: empty the slot and discard all results.
    const int none = -1;
    io_uring_register_files_update(&ring_, ticket, &none, 1);
    return ReadPlainly(ticket);
  }
  if (read < 0) {
    switch (-read) {
      case EBADF:      // as above
      case ECANCELED:  // likewise
        return ReadPlainly(ticket);
      case EINTR:
        return Retry(ticket);
      case EAGAIN: {
        // Kernels before 5.19 return this for O_NONBLOCK on file systems
        // without `nowait`.
        struct stat st;
        if (stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
          mine.request.nowait = false;
          return Retry(ticket);
        }
        return ReadPlainly(ticket);
      }
      default:
        return Finish(ticket, ReadError(-read, path, 0));
    }
  }
  const auto found = static_cast<uint64_t>(read);
  if (mine.file_bytes > 0) {
    // The file shrank meanwhile.
    if (found != mine.file_bytes) return ReadPlainly(ticket);
    return Finish(ticket, OkStatus(), mine.buffer.first(found));
  }
  if (found == mine.buffer.capacity()) return Grow(ticket);
  if (read % 4096 == 0) {
    // A FIFO without a writer looks like an empty file. A device whose read was
    // interrupted (by a signal, between two pages) looks like a file that ends
    // at a page. Such files are rare.
    struct stat st;
    if (stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
      return Finish(ticket, NotRegularError(st.st_mode, path));
    }
  }
  Finish(ticket, OkStatus(), mine.buffer.first(found));
}

// The file fills the buffer, so there may be more. It is reread from the start,
// not continued, because the path may now lead to another file.
void UringReader::Grow(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const std::string& path = mine.request.path;
  struct stat st;
  if (stat(path.c_str(), &st) != 0) {
    return Finish(ticket, OpenError(errno, path));
  }
  if (!S_ISREG(st.st_mode)) {
    return Finish(ticket, NotRegularError(st.st_mode, path));
  }
  // One byte more than its size, or twice the bytes read: procfs reports 0.
  const auto size = static_cast<uint64_t>(st.st_size);
  const uint64_t capacity = mine.buffer.capacity();
  if (std::max(size, capacity - 1) > kRecordBytesMax) {
    return Finish(ticket, FileTooLargeError(path, std::max(size, capacity)));
  }
  mine.buffer.Reserve(size >= capacity
                          ? size + 1
                          : std::min(2 * capacity, kRecordBytesMax + 1));
  Retry(ticket);
}

void UringReader::Retry(uint32_t ticket) {
  if (++tickets_[ticket].tries > kTriesMax) return ReadPlainly(ticket);
  QueueFile(ticket);
}

void UringReader::ReadPlainly(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const Blocking blocking(*this, ticket);
  StatusOr<std::span<const std::byte>> bytes =
      ReadFile(mine.request, &mine.buffer);
  if (bytes.ok()) return Finish(ticket, OkStatus(), *bytes);
  Finish(ticket, bytes.status());
}

void UringReader::FinishRange(uint32_t ticket) {
  Ticket& mine = tickets_[ticket];
  const int result = mine.results[static_cast<int>(Op::kRead)];
  if (result > 0) {
    mine.done += static_cast<uint64_t>(result);
    if (mine.target.Holds(mine.done)) {
      return Finish(ticket, OkStatus(), mine.target.Deliver());
    }
    // A short read: read the rest. A direct read is cut in the middle of a
    // block only at the end of the file, and cannot continue there.
    if (mine.request.align == 0 || mine.done % mine.request.align == 0) {
      return QueueRange(ticket);
    }
  }
  if (result >= 0) {
    return Finish(ticket,
                  ShortRangeError(mine.request, mine.target.Found(mine.done)));
  }
  switch (-result) {
    case EINTR:   // a signal to the kernel's worker
    case EAGAIN:  // no memory, or the file was opened with O_NONBLOCK
      if (++mine.tries <= kTriesMax) return QueueRange(ticket);
      [[fallthrough]];
    default:
      return Finish(ticket,
                    ReadError(-result, "range", mine.target.Offset(mine.done)));
  }
}

// Adds a part that has ended. True: the next one was started; else *status is
// that of all.
bool UringReader::GatherMore(uint32_t ticket, Status* status,
                             std::span<const std::byte> bytes) {
  Ticket& mine = tickets_[ticket];
  mine.cached = mine.all_cached &= mine.cached;
  StatusOr<bool> more = false;
  if (status->ok()) {
    more = mine.parts.Add(bytes, &mine.request);
    *status = more.status();
  }
  if (!status->ok()) {
    *status = mine.parts.Named(*status);
    return false;
  }
  if (*more) StartGathered(ticket);
  return *more;
}

void UringReader::Finish(uint32_t ticket, Status status,
                         std::span<const std::byte> bytes) {
  Ticket& mine = tickets_[ticket];
  if (mine.file) {
    mine.file.Reset();
    if (!status.ok()) status = status.Prepend(mine.request.path);
  }
  if (mine.parts.several()) {
    if (GatherMore(ticket, &status, bytes)) return;
    bytes = mine.parts.bytes();
  }
  mine.status = std::move(status);
  mine.bytes = bytes;
  ready_[(ready_first_ + ready_count_++) % ready_.size()] = ticket;
}

}  // namespace

StatusOr<std::unique_ptr<StorageReader>> MakeUringReader(ReadBackend rung,
                                                         uint32_t depth) {
  auto reader = std::make_unique<UringReader>(depth);
  PENSTOCK_RETURN_IF_ERROR(reader->Init(rung));
  PENSTOCK_RETURN_IF_ERROR(reader->Probe());
  return std::unique_ptr<StorageReader>(std::move(reader));
}

}  // namespace penstock
