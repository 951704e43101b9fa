// The rows that producers put for a job whose source is a stream: numbered in
// order of arrival and kept in the producers' memory until every rank has
// finished with them.
//
// Thread-safe: the control thread admits producers and numbers their rows;
// workers find rows and read them. Data from producers are untrusted.
//
// Invariants
//   T1  Rows are numbered in put order, without gaps: the plan's positions.
//   T2  A producer may overwrite a row only after Release passed its number and
//       this was recorded. Until then the row may have to be redelivered to a
//       rank, by this broker instance or the next.
//   T3  A producer's memory outlives its process: rows that were put are
//       delivered; rows not yet put are discarded.
//   T4  Everything a producer was told is recorded: the next broker instance
//       numbers the same rows in the same way, or knows that records are
//       missing.
//
// In dynamic and broadcast mode a rank may hold a batch for long while others
// continue. Its rows must not stop them by keeping a producer's ring full: when
// they do, they are moved to the retained rows, memory of the broker.
//
// Bounds: kProducersMax producers, at work or gone with rows left; the rows of
// each ring: those in the job's slots, one more step, a quarter of these, and
// two puts; the retained rows: twice the rows of all slots (reserved with the
// job's memory, but with pages only for rows it holds);
// StreamLedger::kChunksMax runs of rows.
#ifndef BROKER_STREAM_STREAM_H_
#define BROKER_STREAM_STREAM_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/plan/plan.h"
#include "broker/stream/stream_ledger.h"
#include "common/element_spec.h"
#include "common/fd.h"
#include "common/producer_memory.h"
#include "common/status.h"

namespace penstock {

// Records what a later broker instance must know. On the control thread.
class StreamRecord {
 public:
  virtual ~StreamRecord() = default;
  // On an error nothing was recorded, and the producer has not joined. before:
  // the ledger without the producer. Keeps its memory and pidfd for the next
  // broker instance.
  virtual Status ProducerJoined(const StreamLedger& before,
                                const StreamLedger::Producer& producer,
                                int memory, int pidfd) = 0;
  // If one of these cannot be recorded, the record is incomplete, and the next
  // broker instance knows it.
  virtual void RowsPut(uint32_t producer, uint64_t ring_position, uint64_t rows,
                       uint64_t first) = 0;
  virtual void ProducerLeft(uint32_t producer, bool finished) = 0;
  // Called before the producers are told.
  virtual void RowsReleased(uint64_t row) = 0;
  // As in StreamLedger; keeps the memory of the retained rows for the next
  // broker instance.
  virtual Status RetainedOpened(uint64_t rows, int memory) = 0;
  virtual void RowsMoved(uint64_t row,
                         const std::vector<StreamLedger::Chunk>& needed) = 0;
};

// What a former broker instance left of a stream.
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
    uint64_t begin = 0;  // these two as in StreamLedger
    uint64_t to_finish = 1;
    // Rows that may be put and not released when the next one is needed.
    uint64_t rows_out = 1;
    uint64_t retained_rows = 1;  // at most
  };
  // record must outlive the stream.
  Stream(ElementSpec element, const Shape& shape, StreamRecord* record);

  // ---- called by the control thread ----------------------------------------

  // Continues where a former broker instance stopped; call before anything
  // else. Producers at work then are away until they come back or are given up.
  void Restore(FormerStream former);

  struct Joining {
    uint64_t token = 0;
    uint64_t put_rows = 0;  // the largest put
    // The producer was at work under a former broker instance; this is its
    // memory.
    bool back = false;
    // Both belong to the caller; -1: none.
    int memory = -1;
    int pidfd = -1;
  };
  struct Joined {
    uint32_t producer = 0;
    uint64_t rows = 0;  // of the producer's ring
    int fd = -1;        // the producer's memory, owned by the stream
    uint64_t next = 0;  // number of the next row put by any producer
    uint64_t end = 0;   // ring position after its last put
    uint64_t freed = 0;
    // It had finished before, but was not told; the fields above are unset.
    bool finished = false;
  };
  // FailedPrecondition: the stream is over; ResourceExhausted: too many
  // producers, or too many rows per put; Aborted: it was given up.
  StatusOr<Joined> Join(const Joining& joining);
  // Whether fd has the properties of memory that Join hands out.
  static bool MayBeMemory(int fd);
  // The producer has completed `rows` rows from this ring position on; returns
  // the number of the first. InvalidArgument: impossible position or rows.
  StatusOr<uint64_t> Put(uint32_t producer, uint64_t ring_position,
                         uint64_t rows);
  // finished: it has put all of its rows; else it died, and another may replace
  // it.
  void Leave(uint32_t producer, bool finished);
  // Producers at work with enough newly freed rows since they were last told.
  struct Freed {
    uint32_t producer = 0;
    uint64_t ring_position = 0;  // the producer may overwrite rows before it
    uint64_t end = 0;            // ring position after its last put
  };
  std::vector<Freed> TakeFreed();
  // Gives up producers that are away and dead, or whose process is unknown and
  // that have been away for kComeBackTime, or silent for wait_s (0: never).
  // DataLoss: rows that were put are lost with a producer.
  Status GiveUpAway(double wait_s);
  static constexpr std::chrono::seconds kComeBackTime{60};

  // ---- called by any thread ------------------------------------------------

  // Every rank has finished with the rows before this one.
  void Release(uint64_t row);
  // A producer may be waiting for free rows.
  bool ShortOfRoom() const;
  // Before row only these ranges, sorted and disjoint, are still needed, and
  // nobody reads them now. Moves no more of them than necessary to free the
  // producers' rows.
  void MakeRoom(uint64_t row, const std::vector<RowRange>& ranges);
  // There is enough to tell the producers, or to record.
  bool AnyFreed() const;
  // Rows put so far, including those before begin.
  uint64_t end() const;
  // Rows before this one are available. Later ones are in the memory of a
  // producer that is away, or not put yet.
  uint64_t available() const;
  // No more rows will come.
  bool over() const;
  uint32_t at_work() const;   // at work, not away
  uint64_t released() const;  // rows before this one are released
  // The kept rows: ranges, sorted and disjoint; the last one, possibly empty,
  // ends at end().
  std::vector<RowRange> Here() const;
  uint64_t kept_rows() const;  // put and not released
  // Producers that are at work, away, or gone with rows still kept.
  struct ProducerStatus {
    uint32_t producer = 0;
    const char* state = "";
    uint64_t rows_put = 0;
    uint64_t rows_kept = 0;  // in its memory
    // Free rows of its ring, as far as it was told. It waits if its largest put
    // does not fit.
    uint64_t room_rows = 0;
    bool waits_for_room = false;
    uint64_t memory_bytes = 0;  // of its ring; 0: the memory is lost
  };
  std::vector<ProducerStatus> Producers() const;
  uint64_t retained_rows() const;  // rows now in the retained rows
  // Since when no producer is at work that could put more; nullopt: one is
  // at work or away.
  std::optional<std::chrono::steady_clock::time_point> idle_since() const;

  class Memory;
  // Contiguous rows in a producer's memory.
  struct Piece {
    uint64_t rows = 0;
    std::shared_ptr<const Memory> memory;
    uint64_t ring_row = 0;

    // Copies rows [row, row + count) of the piece: count * RowBytes bytes.
    Status Read(size_t feature, uint64_t row, uint64_t count,
                std::byte* out) const;
  };
  // Finds the rows [first, first + count). DataLoss: a former broker instance
  // released them.
  StatusOr<std::vector<Piece>> Find(uint64_t first, uint64_t count) const;

 private:
  // A ring has this share of rows_out more than it needs, and its producer is
  // told of free rows once that many are free. Each message wakes two threads,
  // which takes longer than making a batch of a few bytes.
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
  // Copies rows into the retained rows, beside those kept there.
  StatusOr<std::vector<StreamLedger::Chunk>> MoveRunLocked(
      uint64_t first, uint64_t end,
      const std::vector<StreamLedger::Chunk>& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether StreamLedger::Move would change something.
  bool MovesLocked(uint64_t row,
                   const std::vector<StreamLedger::Chunk>& kept) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ShortOfRoomLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rows of a ring besides rows_out: those skipped at its end, and the put
  // itself.
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
  // For producers in the ledger; absent: the memory is lost, and the producer
  // is away or gone.
  std::map<uint32_t, std::shared_ptr<const Memory>> memories_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Away> away_ ABSL_GUARDED_BY(mutex_);
  // The freed last told.
  std::map<uint32_t, uint64_t> reported_freed_ ABSL_GUARDED_BY(mutex_);
  uint64_t recorded_ ABSL_GUARDED_BY(mutex_);  // the released() last recorded
  // The first kept row whose memory is missing.
  std::optional<uint64_t> missing_ ABSL_GUARDED_BY(mutex_);
  bool retained_failed_ ABSL_GUARDED_BY(mutex_) = false;  // already logged
  std::chrono::steady_clock::time_point idle_since_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
};

}  // namespace penstock
#endif  // BROKER_STREAM_STREAM_H_
