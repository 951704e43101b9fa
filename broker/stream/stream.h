// The rows that producers put for a job whose source is a stream: numbered as
// they come, kept in the producers' memory until every rank is through with
// them.
//
// Thread safe: the control thread lets producers in and numbers what they put,
// workers look up rows and read them. What a producer says is untrusted.
//
// Invariants
//   T1  Rows are numbered in the order of the puts, without gaps: the plan's
//       positions.
//   T2  A producer may write a row again only when Release was past its number
//       and that is recorded: until then a rank may still have to get it once
//       more, in this life or the next.
//   T3  The memory of a producer outlives its process: what was put is
//       delivered, what was not put is nothing to anybody.
//   T4  What a producer was told of is recorded: a life that follows numbers
//       the same rows in the same way, or knows that records are missing.
//
// A rank may hold a batch for long while others go on, in dynamic and in
// broadcast. Its rows must not end that by keeping a producer's ring full: they
// are moved to retained rows, memory of the broker's, when nobody gets anything
// because of them.
//
// Bounds: kProducersMax producers, at work or gone and with rows left; the rows
// of each one's ring, which are those that the job's slots hold, one step more,
// a quarter of these and two of its puts; twice the rows of all slots in the
// retained rows (the job's memory is promised with them), of which it has pages
// only for what is in it; StreamLedger::kChunksMax runs of rows.
#ifndef BROKER_STREAM_STREAM_H_
#define BROKER_STREAM_STREAM_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/plan/plan.h"
#include "broker/stream/stream_ledger.h"
#include "common/element_spec.h"
#include "common/fd.h"
#include "common/producer_memory.h"
#include "common/status.h"

namespace penstock {

// Told of what a later life has to know. On the control thread.
class StreamRecord {
 public:
  virtual ~StreamRecord() = default;
  // An error: it is not recorded, and has not happened. before: without the
  // producer. Its memory and its pidfd are kept for that life.
  virtual Status ProducerJoined(const StreamLedger& before,
                                const StreamLedger::Producer& producer,
                                int memory, int pidfd) = 0;
  // What of these cannot be recorded makes the record incomplete, and a later
  // life knows that.
  virtual void RowsPut(uint32_t producer, uint64_t place, uint64_t rows,
                       uint64_t first) = 0;
  virtual void ProducerLeft(uint32_t producer, bool finished) = 0;
  // Before their producers are told.
  virtual void RowsReleased(uint64_t row) = 0;
  // As StreamLedger; the retained rows's memory is kept for that life.
  virtual Status RetainedOpened(uint64_t rows, int memory) = 0;
  virtual void RowsMoved(uint64_t row,
                         const std::vector<StreamLedger::Chunk>& needed) = 0;
};

// What a former life left of one.
struct FormerStream {
  struct Kept {
    Fd memory;
    Fd pidfd;
  };
  StreamLedger ledger;
  std::map<uint32_t, Kept> kept;  // by producer
};

class Stream {
 public:
  struct Shape {
    uint64_t begin = 0;  // as StreamLedger has it, to_finish too
    uint64_t to_finish = 1;
    uint64_t rows_out = 1;       // as many may be put and not released when the
                                 // next one is needed
    uint64_t retained_rows = 1;  // at most
  };
  // record outlives it.
  Stream(ElementSpec element, const Shape& shape, StreamRecord* record);

  // ---- the control thread's
  // ---------------------------------------------------

  // Goes on where a former life was, before anything else is done here. Those
  // that were at work then are away until they come back, or are given up.
  void Restore(FormerStream former);

  struct Joining {
    uint64_t token = 0;
    uint64_t put_rows = 0;  // the most rows of one put
    // It was at work in a former life, and this is its memory.
    bool back = false;
    // Both are the caller's; -1: none.
    int memory = -1;
    int pidfd = -1;
  };
  struct Joined {
    uint32_t producer = 0;
    uint64_t rows = 0;  // of its ring
    int fd = -1;        // its memory; the stream's
    uint64_t next = 0;  // the number of the row that is put next, by anybody
    uint64_t end = 0;   // place behind its last put
    uint64_t freed = 0;
    bool finished = false;  // it had, before it could be told; else all above
  };
  // FailedPrecondition: the stream is over; ResourceExhausted: too many
  // producers, or rows in one put; Aborted: nobody waits for it to come back.
  StatusOr<Joined> Join(const Joining& joining);
  // It is of the kind that Join gives away as memory.
  static bool MayBeMemory(int fd);
  // Rows are whole, from this place of the producer's ring on; their first
  // number. InvalidArgument: they cannot be there.
  StatusOr<uint64_t> Put(uint32_t producer, uint64_t place, uint64_t rows);
  // finished: it has put all of its rows; else it died, and another may take
  // its place.
  void Leave(uint32_t producer, bool finished);
  // Producers at work that have more room since they were told last, and
  // enough of it.
  struct Freed {
    uint32_t producer = 0;
    uint64_t place = 0;  // up to which it may write again
    uint64_t end = 0;    // place behind its last put
  };
  std::vector<Freed> TakeFreed();
  // Gives up who is away and dead, or of unknown process and away for
  // kComeBackTime, or silent for wait_s (0: never). DataLoss: rows that were
  // put are gone with a producer.
  Status GiveUpAway(double wait_s);
  static constexpr std::chrono::seconds kComeBackTime{60};

  // ---- any thread's
  // -----------------------------------------------------------

  // Every rank is through with the rows before this one.
  void Release(uint64_t row);
  // A producer may wait for room.
  bool ShortOfRoom() const;
  // Of the rows before this one only the ranges are needed, which are in order
  // and apart, and nobody reads them now: makes room by moving them, no more
  // than it takes.
  void MakeRoom(uint64_t row, const std::vector<RowRange>& ranges);
  // There is enough to tell producers, or the record.
  bool AnyFreed() const;
  // Rows put so far, with those before begin.
  uint64_t end() const;
  // Rows before it can be had: of those behind, a producer that is away has the
  // memory, or they are not put yet.
  uint64_t available() const;
  // No more will come.
  bool over() const;
  uint32_t at_work() const;   // and not away
  uint64_t released() const;  // those before it
  // What is kept: ranges in order and apart, of which the last, maybe of no
  // rows, ends at end().
  std::vector<RowRange> Here() const;
  uint64_t kept_rows() const;  // put, and not released
  // Of those that are at work, are away, or are gone and rows of theirs are
  // kept.
  struct ProducerStatus {
    uint32_t producer = 0;
    const char* state = "";
    uint64_t rows_put = 0;
    uint64_t rows_kept = 0;  // in its memory
    // Of its ring, as far as it was told. It waits when its largest put has
    // none.
    uint64_t room_rows = 0;
    bool waits_for_room = false;
    uint64_t memory_bytes = 0;  // of its ring; 0: nobody kept it
  };
  std::vector<ProducerStatus> Producers() const;
  uint64_t retained_rows() const;  // that are in it
  // Since when nobody is at work who could put more; nullopt: somebody is, or
  // is away.
  std::optional<std::chrono::steady_clock::time_point> idle_since() const;

  class Memory;
  // Rows that follow one another in a producer's memory.
  struct Piece {
    uint64_t rows = 0;
    std::shared_ptr<const Memory> memory;
    uint64_t ring_row = 0;

    // Copies rows [row, row + count) of the piece: count * RowBytes bytes.
    Status Read(size_t feature, uint64_t row, uint64_t count,
                std::byte* out) const;
  };
  // The rows [first, first + count). DataLoss: they are not here, since a
  // former life released them.
  StatusOr<std::vector<Piece>> Find(uint64_t first, uint64_t count) const;

 private:
  // A ring has this share of rows_out more than it needs: its producer is told
  // of room when so much has come together. Each time wakes two threads, which
  // takes longer than to make a batch of a few bytes.
  static constexpr uint64_t kToldShare = 4;
  struct Away {
    Fd pidfd;
    std::chrono::steady_clock::time_point since;
  };
  StatusOr<Joined> ComeBack(uint32_t number, const Joining& joining)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Joined JoinedAs(uint32_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveLocked(uint32_t producer, bool finished)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpLocked(double wait_s) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordReleasedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StatusOr<std::shared_ptr<const Memory>> RetainedLocked()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StatusOr<std::vector<Piece>> FindLocked(uint64_t first, uint64_t count) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status CopyLocked(const StreamLedger::Chunk& to, const Memory& retained) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Copies rows into the retained rows, beside those that are kept there.
  StatusOr<std::vector<StreamLedger::Chunk>> MoveRunLocked(
      uint64_t first, uint64_t end,
      const std::vector<StreamLedger::Chunk>& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // StreamLedger::Move would change something.
  bool MovesLocked(uint64_t row,
                   const std::vector<StreamLedger::Chunk>& kept) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ShortOfRoomLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a ring. Besides: what is passed over at its end, and the put itself.
  uint64_t RowsNeeded(uint64_t put_rows) const {
    return shape_.rows_out + 2 * put_rows;
  }
  bool IsNewsLocked(uint32_t number,
                    const StreamLedger::Producer& producer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteMissingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(const std::vector<uint32_t>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ElementSpec element_;
  const Shape shape_;
  StreamRecord* const record_;

  mutable Mutex mutex_;
  StreamLedger ledger_ ABSL_GUARDED_BY(mutex_);
  // Of those in the ledger; not there: nobody kept it, and it is away or gone.
  std::map<uint32_t, std::shared_ptr<const Memory>> memories_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Away> away_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, uint64_t> told_ ABSL_GUARDED_BY(mutex_);  // of freed
  uint64_t recorded_ ABSL_GUARDED_BY(mutex_);                  // of released()
  // The first row kept whose memory is not here.
  std::optional<uint64_t> missing_ ABSL_GUARDED_BY(mutex_);
  bool retained_failed_ ABSL_GUARDED_BY(mutex_) = false;  // it was said
  std::chrono::steady_clock::time_point idle_since_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
};

}  // namespace penstock
#endif  // BROKER_STREAM_STREAM_H_
