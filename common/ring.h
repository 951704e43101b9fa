// Hands filled slots from the broker to one rank, across processes, and back.
//
// Threads: any broker thread that holds the job's mutex calls Publish and
// CloseRing; the rank's consuming thread calls TryTake, Peek and ArmWait; any
// thread of the rank calls Release.
//
// Invariants
//   I1  taken <= published <= taken + kRingCells.
//   I2  Only the broker writes a Ring; only the rank writes its CursorPage.
//   I3  A lease number is in at most one outstanding cell: the broker reuses it
//       only once its released equals the last generation given out under it.
//       Leases are numbered apart from cells, so that a batch held for long
//       costs one lease and does not block the ring behind it.
//   I4  The cursor page of a dead rank tells which batches the rank had. The
//       rank writes the lease's record and its position, in this order, before
//       taken counts the batch, so every batch returned to the trainer is
//       recorded. A generation is the number of the batch in this ring, from 1:
//       a record whose generation exceeds taken is of a batch that was not
//       returned. While a record changes, its generation is 0: a step is never
//       paired with the generation of the batch before.
//
// Synchronizing edges
//   E1  Publish stores a cell's generation -> TryTake and Peek load it: a rank
//       that sees n sees the cell of batch n-1 and the batch bytes it names.
//       One line travels to the rank, instead of one with a count and one with
//       the cell (bench/handoff_benchmark: a third of a hand-off).
//   E2  A cell is overwritten only after the rank has copied it, by E3: there
//       are no more leases than cells, so one of the later batches was seen
//       released, and it was taken after that cell. Publish need not read
//       taken, a line that the rank has just written (bench/handoff_benchmark:
//       a third of a hand-off).
//   E3  Release stores released -> LeaseStateOf loads it: a slot is refilled
//       only after the rank's last read of it.
//   E4  (the rank sleeps) ArmWait stores waiting, then loads the next cell's
//       generation; Publish stores that, then loads waiting. A store-load
//       handshake: all four are seq_cst, or both sides could miss each other
//       and the rank would sleep beside a full ring. (Closing a ring always
//       sends a wake.)
//   E5  (the broker sleeps) the broker stores broker_waiting, then loads
//       released; Release stores released, then loads broker_waiting. As E4.
//   E6  (recall) TryTake stores taken, then loads closed, and returns the batch
//       only if it is not void; CloseRing stores closed, then loads taken. As
//       E4: a recalled batch is never both returned and counted as not taken.
//   E7  CloseRing stores closed -> TryTake loads it: a rank that sees it also
//       sees code, skipped, reason and every cell published before.
//   E8  (the broker sleeps until a batch is taken) as E5, with taken and
//       waiting instead of released.
#ifndef COMMON_RING_H_
#define COMMON_RING_H_

#include <atomic>
#include <cstdint>

#include "common/kill_point.h"
#include "common/layout.h"

namespace penstock {

static_assert(kLeasesMax <= kRingCells, "E2");

// ---- the rank's side -------------------------------------------------------

// kCorrupt: an impossible cell, from a broker of another build.
enum class TakeResult { kTaken, kEmpty, kClosed, kCorrupt };

// Whether there is a batch to take.
inline bool AnyUntaken(const Ring& ring, const CursorPage& cursor) {
  // Relaxed, both: our own value (I2); TryTake checks again before it reads.
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  return ring.cells[taken % kRingCells].generation.load(
             std::memory_order_relaxed) == taken + 1;
}

// kTaken: *cell is a copy of the batch's cell; Release gives it back. kClosed:
// nothing more will come; ring.closed says why.
inline TakeResult TryTake(const Ring& ring, CursorPage& cursor, Cell* cell) {
  // Relaxed: we are the only writer (I2) and read back our own value.
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  const RingCell& next = ring.cells[taken % kRingCells];
  if (next.generation.load(std::memory_order_acquire) != taken + 1) {  // E1
    if (ring.closed.load(std::memory_order_acquire) ==                 // E7
        static_cast<uint32_t>(Closed::kOpen)) {
      return TakeResult::kEmpty;
    }
    // The last cells may have come between the two loads.
    if (next.generation.load(std::memory_order_acquire) != taken + 1) {  // E1
      return TakeResult::kClosed;
    }
  }
  static_cast<BatchCell&>(*cell) = next.batch;
  cell->generation = taken + 1;
  KillPoint("take.copied");
  if (cell->lease >= kLeasesMax) return TakeResult::kCorrupt;
  // I4. Release, each: if this process dies between two of these stores, a
  // reader of the page that sees one sees those before it.
  LeaseRecord& record = cursor.leases[cell->lease];
  record.generation.store(0, std::memory_order_release);
  record.step.store(StepId(cell->position, cell->flags >> kPhaseShift),
                    std::memory_order_release);
  record.generation.store(cell->generation, std::memory_order_release);
  if ((cell->flags & kExtra) == 0) {
    cursor.position.store(cell->position + cell->global_rows,
                          std::memory_order_release);
  }
  KillPoint("take.noted");
  cursor.taken.store(taken + 1, std::memory_order_seq_cst);  // E6
  KillPoint("take.taken");
  if (ring.closed.load(std::memory_order_seq_cst) >=  // E6
      static_cast<uint32_t>(Closed::kRecalled)) {
    return TakeResult::kClosed;
  }
  return TakeResult::kTaken;
}

// Reads the batch that comes `ahead` batches after the next one, without taking
// it. False: it is not published. Its bytes stay as they are until it is taken
// and released, unless the ring is recalled: then no take returns it (E6), and
// what was read of it is to be discarded.
inline bool Peek(const Ring& ring, const CursorPage& cursor, uint32_t ahead,
                 Cell* cell) {
  // Relaxed: our own value (I2).
  const uint64_t number =
      cursor.taken.load(std::memory_order_relaxed) + ahead + 1;
  const RingCell& next = ring.cells[(number - 1) % kRingCells];
  if (next.generation.load(std::memory_order_acquire) != number) {  // E1
    return false;
  }
  static_cast<BatchCell&>(*cell) = next.batch;
  cell->generation = number;
  return true;
}

// Called while the rank spins: reclaims the line that its next take stores to.
// The broker has read that line since the last take, and the next take would
// wait for it (E6) as long as a batch travels (bench/handoff_benchmark: a third
// of a hand-off).
inline void KeepTakenLine(CursorPage& cursor) {
  // Relaxed: our own value (I2).
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  // I4: a reader of this store sees the records before it, as with the take's
  // own store.
  cursor.taken.store(taken, std::memory_order_release);  // E6
}

// Announces that the rank is going to sleep. False: something came meanwhile,
// do not sleep. In either case call DisarmWait before the next TryTake.
inline bool ArmWait(const Ring& ring, CursorPage& cursor) {
  cursor.waiting.store(1, std::memory_order_seq_cst);  // E4
  // Relaxed: our own value (I2).
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  const RingCell& next = ring.cells[taken % kRingCells];
  return next.generation.load(std::memory_order_seq_cst) != taken + 1 &&  // E4
         ring.closed.load(std::memory_order_seq_cst) ==
             static_cast<uint32_t>(Closed::kOpen);  // E4
}

inline void DisarmWait(CursorPage& cursor) {
  // Relaxed: a publisher that still sees 1 sends one unneeded wake.
  cursor.waiting.store(0, std::memory_order_relaxed);
}

// What the broker waits for; a higher value includes the lower ones.
enum class BrokerWaits : uint32_t {
  kNo = 0,
  kForReleases = 1,
  kForTakes = 2,  // or for the rank going to sleep
};

// Call after a TryTake that took, and after ArmWait before sleeping. True: the
// broker waits for it, send a wake.
[[nodiscard]] inline bool BrokerWaitsForTakes(const Ring& ring) {
  return ring.broker_waiting.load(std::memory_order_seq_cst) >=
         static_cast<uint32_t>(BrokerWaits::kForTakes);  // E8
}

// Gives a batch back. True: the broker waits for it, send a wake.
[[nodiscard]] inline bool Release(const Ring& ring, CursorPage& cursor,
                                  uint32_t lease, uint64_t generation) {
  KillPoint("release.begun");
  cursor.released[lease].store(generation,
                               std::memory_order_seq_cst);  // E3, E5
  KillPoint("release.released");
  return ring.broker_waiting.load(std::memory_order_seq_cst) != 0;  // E5
}

// ---- the broker's side -----------------------------------------------------

// Reads how many of `published` cells (the broker's own count) the rank took.
// False: the rank wrote an impossible count. A rank can write anything here, so
// I1 is checked, never asserted.
inline bool ReadTaken(const CursorPage& cursor, uint64_t published,
                      uint64_t* taken) {
  *taken = cursor.taken.load(std::memory_order_seq_cst);  // E6
  // A taken beyond published makes the difference wrap to a huge value.
  return published - *taken <= kRingCells;
}

// published: batches in the ring before this one. Requires a free lease (E2).
// True: the rank sleeps, send it a wake.
[[nodiscard]] inline bool Publish(Ring& ring, const CursorPage& cursor,
                                  uint64_t published, const Cell& cell) {
  RingCell& next = ring.cells[published % kRingCells];
  next.batch = cell;
  KillPoint("publish.copied");
  next.generation.store(published + 1, std::memory_order_seq_cst);  // E1, E4
  KillPoint("publish.published");
  return cursor.waiting.load(std::memory_order_seq_cst) != 0;  // E4
}

// Write Ring::code, skipped or reason before. Afterwards send a wake in any
// case; then taken tells what the rank got (E6).
inline void CloseRing(Ring& ring, Closed why) {
  ring.closed.store(static_cast<uint32_t>(why),
                    std::memory_order_seq_cst);  // E6, E7
}

enum class LeaseState { kFree, kHeld, kPeerCorrupt };

// generation: the last one the broker gave out under this lease (0: never);
// previous: the one before it.
inline LeaseState LeaseStateOf(const CursorPage& cursor, uint32_t lease,
                               uint64_t generation, uint64_t previous) {
  const uint64_t released =
      cursor.released[lease].load(std::memory_order_seq_cst);  // E3, E5
  if (released == generation) return LeaseState::kFree;
  if (released == previous) return LeaseState::kHeld;
  return LeaseState::kPeerCorrupt;
}

// The broker is going to sleep until this rank acts. It must check once more
// afterwards: the leases (E5), or taken and waiting (E8).
inline void SetBrokerWaiting(Ring& ring, BrokerWaits until) {
  ring.broker_waiting.store(static_cast<uint32_t>(until),
                            std::memory_order_seq_cst);  // E5, E8
}

// For a seat's new holder: the last one is dead, and nobody reads the ring.
inline void ResetRing(Ring& ring) {
  // Relaxed: the next holder gets the ring through a socket after this.
  for (RingCell& cell : ring.cells) {
    // Cells are used in order from the first.
    if (cell.generation.load(std::memory_order_relaxed) == 0) break;
    cell.generation.store(0, std::memory_order_relaxed);
  }
  ring.closed.store(static_cast<uint32_t>(Closed::kOpen),
                    std::memory_order_relaxed);
  ring.broker_waiting.store(0, std::memory_order_relaxed);
  ring.reason[0] = '\0';
}

}  // namespace penstock
#endif  // COMMON_RING_H_
