// A file of an object store as the broker reads it: its local copy, a sparse
// file of the same size with the blocks that have been fetched.
//
// Whoever reads a range of fd() has it kept (Keeps), or holds it from before
// the read to after it: a block that is not there reads as zeros.
//
// A block that is kept stays for as long as this object lives. One that passes
// is given up when nobody holds it any more: there is no room to keep it.
//
// Thread-safe.
#ifndef BROKER_IO_REMOTE_FILE_H_
#define BROKER_IO_REMOTE_FILE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

// Wakes a thread that waits for ranges of any files.
class FetchSignal {
 public:
  void Notify();
  // Returns at the next Notify since the last return, or after ns.
  void Wait(uint64_t ns);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;  // guarded by mutex_
};

// What a thread waits for: ranges of one or more files.
class FetchWait {
 public:
  explicit FetchWait(std::shared_ptr<FetchSignal> signal)
      : signal_(std::move(signal)) {}

  // All has come, or status() says what has not.
  bool over() const { return left_.load(std::memory_order_acquire) == 0; }
  Status status() const;

  // For RemoteFile.
  void Add() { left_.fetch_add(1, std::memory_order_relaxed); }
  void Finish(const Status& status);

 private:
  const std::shared_ptr<FetchSignal> signal_;
  std::atomic<uint32_t> left_{0};
  mutable std::mutex mutex_;
  Status status_;  // the first error; guarded by mutex_
};

class RemoteFile {
 public:
  static constexpr uint64_t kBlockBytes = 4096;

  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  // kHurry: a fetch that somebody waits for. kPromote: of what was asked for
  // and has not come, the same.
  enum class Ask : uint64_t { kFetch = 1, kHurry, kGiveUp, kClose, kPromote };
  // Tells the fetcher; must not call back. Any thread.
  using Asks = std::function<void(Ask, uint64_t copy, const Range&)>;

  struct Opened {
    std::string url;
    std::string version;
    std::string path;
    uint64_t bytes = 0;
    uint64_t copy = 0;
    // What is fetched at once, a multiple of kBlockBytes: of all files that
    // one fetcher has, as it follows from their sizes together.
    std::shared_ptr<const std::atomic<uint64_t>> unit_bytes;
    uint64_t ahead_bytes = 0;
    // What all copies may take, and what of it stays when it has been read.
    uint64_t room_bytes = 0;
    uint64_t kept_bytes = 0;
    std::optional<uint64_t> asked_room_bytes;  // as of Stores::Open
  };
  RemoteFile(Opened opened, Fd fd, Asks asks);
  ~RemoteFile();
  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;

  const std::string& url() const { return url_; }
  // The store's name of this content (ETag and size).
  const std::string& version() const { return version_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  // The local copy, for processes of this user.
  const std::string& path() const { return path_; }
  // The most that is fetched ahead of its use.
  uint64_t ahead_bytes() const { return ahead_bytes_; }
  uint64_t room_bytes() const { return room_bytes_; }
  // What whoever opened it lets all copies take.
  std::optional<uint64_t> asked_room_bytes() const { return asked_room_bytes_; }
  uint64_t kept_bytes() const { return kept_bytes_; }

  // The range is there and stays.
  bool Keeps(uint64_t offset, uint64_t bytes) const;

  // Asks for what is not there of the range (kFetch, or kHurry: somebody waits
  // for it), and holds it until Release. wait: is added to where something is
  // not there; nullptr: nobody waits. Returns the bytes that it has asked for.
  uint64_t Hold(const Range& range, const std::shared_ptr<FetchWait>& wait,
                Ask ask);
  void Release(const Range& range);

  // Whether the rest of a unit is fetched with what is asked for of it, as at
  // first: whoever reads parts of a file alone wants no more.
  void FetchUnits(bool whole) {
    // Relaxed: a late view fetches a little more or less.
    whole_units_.store(whole, std::memory_order_relaxed);
  }

  // ---- what the fetcher answers

  void Arrived(const Range& range, bool kept);
  void Failed(const Range& range, const Status& status);
  // It is another one, which knows nothing of what the former was asked for.
  void AskAgain(uint64_t copy);

 private:
  struct Held {
    uint32_t holds = 0;
    bool there = false;
  };
  struct Waiting {
    uint64_t first = 0;  // block
    uint64_t end = 0;
    std::shared_ptr<FetchWait> wait;
  };
  using Bits = std::vector<std::atomic<uint64_t>>;

  static uint64_t FirstBlock(const Range& range) {
    return range.offset / kBlockBytes;
  }
  static uint64_t EndBlock(const Range& range) {
    return (range.offset + range.bytes + kBlockBytes - 1) / kBlockBytes;
  }
  bool Has(const Bits& bits, uint64_t block) const {
    return (bits[block / 64].load(std::memory_order_acquire) >> block % 64 &
            1) != 0;
  }
  static void Set(Bits* bits, uint64_t block) {
    (*bits)[block / 64].fetch_or(uint64_t{1} << block % 64,
                                 std::memory_order_release);
  }
  static void Clear(Bits* bits, uint64_t block) {
    (*bits)[block / 64].fetch_and(~(uint64_t{1} << block % 64),
                                  std::memory_order_relaxed);
  }
  Range RangeOf(uint64_t first, uint64_t end) const;
  bool IsThere(uint64_t block) const;
  uint64_t AskFor(uint64_t first, uint64_t end, Ask ask);
  void EndWaits(const Range& range, const Status& status);

  const std::string url_;
  const std::string version_;
  const std::string path_;
  const uint64_t bytes_;
  const uint64_t ahead_bytes_;
  const uint64_t room_bytes_;
  const uint64_t kept_bytes_;
  const std::optional<uint64_t> asked_room_bytes_;
  const Fd fd_;
  const std::shared_ptr<const std::atomic<uint64_t>> unit_bytes_;
  const Asks asks_;
  std::atomic<bool> whole_units_{true};
  Bits kept_;
  mutable std::mutex mutex_;
  // Guarded by mutex_; kept_ is only written with it.
  uint64_t copy_;
  Bits asked_;                               // of blocks that have not come
  std::unordered_map<uint64_t, Held> held_;  // blocks that are not kept
  std::vector<Waiting> waiting_;
};

// Ranges of a file, held until this ends.
class HeldRanges {
 public:
  HeldRanges() = default;
  // As RemoteFile::Hold, of each. file: outlives this.
  HeldRanges(RemoteFile* file, std::vector<RemoteFile::Range> ranges,
             const std::shared_ptr<FetchWait>& wait, RemoteFile::Ask ask);
  HeldRanges(HeldRanges&& other) noexcept
      : file_(other.file_),
        ranges_(std::exchange(other.ranges_, {})),
        asked_bytes_(other.asked_bytes_) {}
  HeldRanges& operator=(HeldRanges&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(ranges_, other.ranges_);
    std::swap(asked_bytes_, other.asked_bytes_);
    return *this;
  }
  ~HeldRanges() {
    for (const RemoteFile::Range& each : ranges_) file_->Release(each);
  }

  // Holds them, and waits until they are there. Errors: check's, which is asked
  // now and then, and those of stores.
  static StatusOr<HeldRanges> Await(RemoteFile* file,
                                    std::vector<RemoteFile::Range> ranges,
                                    const std::function<Status()>& check);

  uint64_t asked_bytes() const { return asked_bytes_; }
  // They stay for as long as the file is open.
  void Leave() { ranges_.clear(); }

 private:
  RemoteFile* file_ = nullptr;
  std::vector<RemoteFile::Range> ranges_;
  uint64_t asked_bytes_ = 0;
};

}  // namespace penstock
#endif  // BROKER_IO_REMOTE_FILE_H_
