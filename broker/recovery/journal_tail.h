// The journal's end: records that are not in its file yet, in memory that
// outlives the process. So a record is safe from the death of the broker once
// it was copied in here, whether the state directory answers or not.
//
// Who runs it: Open the starting thread. Put and NoteLost any thread, one at a
// time (the caller's mutex); Next and Drop the one thread that writes the file.
//
// Invariants:
//   T1  Records lie in [begin, end), positions that only grow; position p is
//       byte p % kTailBytes of the ring. A record is contiguous: one that does
//       not fit before the ring's end begins at its start.
//   T2  A record is whole once end is behind it; its bytes are not overwritten
//       before begin is behind it. A death at any instruction leaves it so: the
//       kernel keeps what the dead process had stored, in its order.
//   T3  lost_ns is not 0 while a record that belongs into the file is neither
//       there nor here: no room was left for it.
//
// Synchronising edges:
//   E1  Put's release of end    ->  Next's acquire: sees the record's bytes.
//   E2  Drop's release of begin ->  Put's acquire: the bytes were used.
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
// The bound of what waits: some 25 s of a thousand dynamic batches a second.
inline constexpr uint64_t kTailBytes = uint64_t{4} << 20;
inline constexpr uint64_t kTailRingOffset = 4096;
inline constexpr uint64_t kTailFileBytes = kTailRingOffset + kTailBytes;
static_assert(kTailBytes % 8 == 0 && kTailBytes >= 2 * kJournalRecordBytesMax);

// The file: this, zeros up to kTailRingOffset, then the ring.
struct TailHeader {
  uint64_t magic;  // written last
  uint32_t version;
  uint32_t reserved;
  uint64_t ring_bytes;
  uint64_t token;  // random, another one in each file; not 0
  std::atomic<uint64_t> begin;
  std::atomic<uint64_t> end;
  std::atomic<uint64_t> lost_ns;  // T3: since when, of the wall clock
};
static_assert(sizeof(TailHeader) == 56);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class JournalTail {
 public:
  // Of the file in folder, with what a former life left; a file that is none of
  // ours, or damaged, begins anew. folder "": of memory that ends with this
  // process.
  static StatusOr<std::unique_ptr<JournalTail>> Open(const std::string& folder);

  uint64_t token() const { return header().token; }
  // Positions (T1).
  uint64_t begin() const;
  uint64_t end() const;
  uint64_t lost_ns() const;

  // false: it has no room, and is not in.
  bool Put(uint8_t type, std::string_view payload);
  // now_ns: of the wall clock, not 0. The first since it was found counts.
  void NoteLost(uint64_t now_ns);
  void NothingIsLost();

  // The record at *at, a position up to end; *at is behind it then. false: at
  // the end, or at what is no record (*at is not end then). The payload is
  // valid until Drop passes it.
  bool Next(uint64_t* at, JournalEntry* entry) const;
  // What lies before `to` is not needed any more.
  void Drop(uint64_t to);
  // Empty, under another token: what the file says of a former one is over.
  void BeginAnew();
  // The file goes; what is here goes with the process.
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
