#include "broker/recovery/journal_tail.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr uint64_t kAlign = 8;
// A record's length, then its type; the payload follows.
constexpr uint64_t kHeadBytes = 8;
// Replaces a length: the next record begins at the ring's start.
constexpr uint32_t kToTheStart = UINT32_MAX;

uint64_t BytesOf(uint64_t payload_bytes) {
  return (kHeadBytes + payload_bytes + kAlign - 1) / kAlign * kAlign;
}

uint64_t RandomToken() {
  uint64_t token = 0;
  // Eight bytes are never cut short or interrupted (getrandom(2)).
  (void)!getrandom(&token, sizeof(token), 0);
  return token == 0 ? 1 : token;
}

// Allocates space now: a store to a page without space raises SIGBUS.
StatusOr<Fd> OpenFile(const std::string& path) {
  Fd fd(path.empty()
            ? memfd_create("penstock journal tail", MFD_CLOEXEC)
            : open(path.c_str(),
                   O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                   0600));
  if (!fd) return ErrnoError(errno, "open " + path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoError(errno, "fstat " + path);
  if (!S_ISREG(info.st_mode)) {
    return FailedPreconditionError("{} is not a regular file: remove it", path);
  }
  if (static_cast<uint64_t>(info.st_size) != kTailFileBytes &&
      ftruncate(fd.get(), 0) != 0) {
    return ErrnoError(errno, "truncate " + path);
  }
  const int error = posix_fallocate(fd.get(), 0, kTailFileBytes);
  if (error != 0) {
    return ErrnoError(error,
                      Format("give {} its {} bytes", path, kTailFileBytes));
  }
  return fd;
}

}  // namespace

StatusOr<std::unique_ptr<JournalTail>> JournalTail::Open(
    const std::string& folder) {
  const std::string path =
      folder.empty() ? "" : folder + "/" + kJournalTailName;
  PENSTOCK_ASSIGN_OR_RETURN(const Fd fd, OpenFile(path));
  PENSTOCK_ASSIGN_OR_RETURN(Mapping mapping,
                            Mapping::Map(fd.get(), kTailFileBytes, true));
  std::unique_ptr<JournalTail> tail(new JournalTail(path, std::move(mapping)));
  if (!tail->IsWhole()) tail->BeginAnew();
  return tail;
}

bool JournalTail::IsWhole() const {
  const TailHeader& found = header();
  const uint64_t begin = this->begin();
  const uint64_t end = this->end();
  return found.magic == kTailMagic && found.version == kTailVersion &&
         found.ring_bytes == kTailBytes && found.token != 0 && begin <= end &&
         end - begin <= kTailBytes && begin % kAlign == 0 && end % kAlign == 0;
}

void JournalTail::BeginAnew() {
  TailHeader& fresh = header();
  fresh.magic = 0;
  fresh.version = kTailVersion;
  fresh.reserved = 0;
  fresh.ring_bytes = kTailBytes;
  fresh.token = RandomToken();
  // Relaxed, all: no other thread knows this object yet.
  fresh.begin.store(0, std::memory_order_relaxed);
  fresh.end.store(0, std::memory_order_relaxed);
  fresh.lost_ns.store(0, std::memory_order_relaxed);
  // Release: a death in between leaves a file without the magic number.
  reinterpret_cast<std::atomic<uint64_t>*>(&fresh.magic)
      ->store(kTailMagic, std::memory_order_release);
}

uint64_t JournalTail::begin() const {
  return header().begin.load(std::memory_order_acquire);  // E2
}

uint64_t JournalTail::end() const {
  return header().end.load(std::memory_order_acquire);  // E1
}

uint64_t JournalTail::lost_ns() const {
  // Relaxed: under the caller's mutex, or in Open.
  return header().lost_ns.load(std::memory_order_relaxed);
}

bool JournalTail::Put(uint8_t type, std::string_view payload) {
  if (payload.size() > kJournalRecordBytesMax) return false;
  const uint64_t bytes = BytesOf(payload.size());
  uint64_t end = this->end();
  const uint64_t to_the_start = kTailBytes - end % kTailBytes;
  const uint64_t skipped = to_the_start < bytes ? to_the_start : 0;
  if (skipped + bytes > kTailBytes - (end - begin())) return false;
  if (skipped > 0) {
    std::memcpy(ring(end), &kToTheStart, sizeof(kToTheStart));
    end += skipped;
  }
  char* const at = ring(end);
  const auto length = static_cast<uint32_t>(payload.size());
  std::memcpy(at, &length, sizeof(length));
  at[sizeof(length)] = static_cast<char>(type);
  std::memcpy(at + kHeadBytes, payload.data(), payload.size());
  header().end.store(end + bytes, std::memory_order_release);  // E1
  return true;
}

void JournalTail::NoteLost(uint64_t now_ns) {
  if (lost_ns() != 0) return;
  header().lost_ns.store(now_ns, std::memory_order_relaxed);  // as lost_ns()
}

void JournalTail::NothingIsLost() {
  header().lost_ns.store(0, std::memory_order_relaxed);  // as lost_ns()
}

bool JournalTail::Next(uint64_t* at, JournalEntry* entry) const {
  const uint64_t end = this->end();
  while (*at < end && *at % kAlign == 0) {
    const char* const from = ring(*at);
    const uint64_t to_the_start = kTailBytes - *at % kTailBytes;
    uint32_t length = 0;
    std::memcpy(&length, from, sizeof(length));
    if (length == kToTheStart) {
      *at += to_the_start;
      continue;
    }
    const uint64_t bytes = BytesOf(length);
    const auto type = static_cast<uint8_t>(from[sizeof(length)]);
    if (length > kJournalRecordBytesMax || type == 0 || bytes > to_the_start ||
        bytes > end - *at) {
      return false;
    }
    *entry = {type, {from + kHeadBytes, length}};
    *at += bytes;
    return true;
  }
  return false;
}

void JournalTail::Drop(uint64_t to) {
  header().begin.store(to, std::memory_order_release);  // E2
}

void JournalTail::Remove() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace penstock
