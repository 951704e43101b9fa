// The journal's tail: records not yet in the file, in memory that outlives the
// process. A record copied into the tail survives the death of the broker,
// whether the state directory answers or not.
//
// Threads: the starting thread calls Open. Any thread calls Put and NoteLost,
// one at a time (the caller's mutex). The thread that writes the file calls
// Next and Drop.
//
// Invariants:
//   T1  Records lie in [begin, end), positions that only grow. Position p is
//       byte p % kTailBytes of the ring. A record is contiguous: one that does
//       not fit before the ring's end begins at its start.
//   T2  A record is complete once end is behind it. Its bytes are not
//       overwritten before begin is behind it. Death at any instruction keeps
//       this: the kernel preserves the dead process's stores, in order.
//   T3  lost_ns is not 0 while a record is in neither the file nor the tail
//       because the tail was full.
//
// Synchronising edges:
//   E1  Put's release of end    ->  Next's acquire: sees the record's bytes.
//   E2  Drop's release of begin ->  Put's acquire: the bytes may be reused.
#ifndef BROKER_RECOVERY_JOURNAL_TAIL_H_
#define BROKER_RECOVERY_JOURNAL_TAIL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "broker/recovery/journal.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

inline constexpr char kJournalTailName[] = "journal.tail";
inline constexpr uint64_t kTailMagic = 0x4c4941544b545350;  // "PSTKTAIL"
inline constexpr uint32_t kTailVersion = 1;
// Bounds unwritten records: about 25 s at 1,000 dynamic batches per second.
inline constexpr uint64_t kTailBytes = uint64_t{4} << 20;
inline constexpr uint64_t kTailRingOffset = 4096;
inline constexpr uint64_t kTailFileBytes = kTailRingOffset + kTailBytes;
static_assert(kTailBytes % 8 == 0 && kTailBytes >= 2 * kJournalRecordBytesMax);

// The file is this header, zeros up to kTailRingOffset, then the ring.
struct TailHeader {
  uint64_t magic;  // written last
  uint32_t version;
  uint32_t reserved;
  uint64_t ring_bytes;
  uint64_t token;  // random, different in each file; not 0
  std::atomic<uint64_t> begin;
  std::atomic<uint64_t> end;
  std::atomic<uint64_t> lost_ns;  // T3: wall-clock time of the first loss
};
static_assert(sizeof(TailHeader) == 56);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class JournalTail {
 public:
  // Maps the file in folder, with the records of a former broker instance. A
  // foreign or damaged file is reset. folder "": memory that ends with this
  // process.
  static StatusOr<std::unique_ptr<JournalTail>> Open(const std::string& folder);

  uint64_t token() const { return header().token; }
  // Positions (T1).
  uint64_t begin() const;
  uint64_t end() const;
  uint64_t lost_ns() const;

  // False: the tail is full and the record was not added.
  bool Put(uint8_t type, std::string_view payload);
  // now_ns: wall-clock time, not 0. Only the first call since NothingIsLost
  // counts.
  void NoteLost(uint64_t now_ns);
  void NothingIsLost();

  // Reads the record at position *at <= end and moves *at behind it. False: *at
  // is end, or no valid record is there (*at is not end then). The payload is
  // valid until Drop passes it.
  bool Next(uint64_t* at, JournalEntry* entry) const;
  // Frees everything before `to`.
  void Drop(uint64_t to);
  // Empties the tail and changes its token, so the file's reference to it is
  // void.
  void BeginAnew();
  // Removes the file; the mapping ends with the process.
  void Remove();

 private:
  JournalTail(std::string path, Mapping mapping)
      : path_(std::move(path)), mapping_(std::move(mapping)) {}
  TailHeader& header() const {
    return *reinterpret_cast<TailHeader*>(mapping_.data());
  }
  char* ring(uint64_t position) const {
    return reinterpret_cast<char*>(mapping_.data()) + kTailRingOffset +
           position % kTailBytes;
  }
  bool IsWhole() const;

  const std::string path_;  // "": no file
  const Mapping mapping_;
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_JOURNAL_TAIL_H_
