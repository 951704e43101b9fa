// Hands filled slots from the broker to one rank, across processes, and back.
//
// Who runs it: Publish and CloseRing by any thread of the broker that holds the
// job's mutex; TryTake, ArmWait by the rank's consuming thread; Release by any
// thread of the rank.
//
// Invariants
//   I1  taken <= published <= taken + kRingCells.
//   I2  Only the broker writes a Ring, only the rank its CursorPage.
//   I3  A lease number is in one outstanding cell at most: the broker reuses it
//       once its released == the generation it gave out last. Leases are
//       numbered apart from cells so that a batch held for long costs its one
//       lease and does not block the ring behind it.
//   I4  The cursor page of a dead rank tells what the rank had: its leases'
//       records and its position are written before taken counts the batch, in
//       this order, so a batch that was returned to the trainer is always in
//       them. A generation is the number of the batch in this ring, from 1: a
//       record whose generation is more than taken is of a batch that was not
//       returned. While a record changes its generation is 0: a step is never
//       found with the generation of the batch before.
//
// Synchronizing edges
//   E1  Publish stores a cell's generation -> TryTake loads it: a rank that
//       sees n sees the cell of batch n-1 and the batch bytes it names. One
//       line goes to the rank, not one with a count and then one with the cell
//       (bench/handoff_benchmark: a third of a hand-off).
//   E2  A cell is overwritten only after the rank has copied it, by E3: there
//       are no more leases than cells, so one of the batches since that one was
//       seen released, and was taken after it. Publish needs no look at taken,
//       a line that the rank has just written (bench/handoff_benchmark: a third
//       of a hand-off).
//   E3  Release stores released -> LeaseStateOf loads it: a slot is filled
//       again only after the rank has done its last read of it.
//   E4  (sleep of the rank) ArmWait stores waiting, then loads the next cell's
//       generation; Publish stores that, then loads waiting. A store-load
//       handshake: seq_cst on all four, or both sides can miss the other and
//       the rank sleeps beside a full ring. (A ring that is closed is followed
//       by a wake in any case.)
//   E5  (sleep of the broker) the broker stores broker_waiting, then loads
//       released; Release stores released, then loads broker_waiting. As E4.
//   E6  (recall) TryTake stores taken, then loads closed, and returns the batch
//       only if it is not void; CloseRing stores closed, then loads taken. As
//       E4: a recalled batch is never both returned and counted as not taken.
//   E7  CloseRing stores closed -> TryTake loads it: the rank that sees it sees
//       reason, and every cell published before.
//   E8  (sleep of the broker until a batch is taken) as E5, with taken and
//       waiting in the place of released.
#ifndef COMMON_RING_H_
#define COMMON_RING_H_

#include <atomic>
#include <cstdint>

#include "common/kill_point.h"
#include "common/layout.h"

namespace penstock {

static_assert(kLeasesMax <= kRingCells, "E2");

// ---- the rank's side
// ---------------------------------------------------------

// kCorrupt: a cell that cannot be, from a broker of another build.
enum class TakeResult { kTaken, kEmpty, kClosed, kCorrupt };

// Whether there is a batch to take.
inline bool AnyUntaken(const Ring& ring, const CursorPage& cursor) {
  // Relaxed, both: our own value (I2); TryTake looks again before it reads.
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  return ring.cells[taken % kRingCells].generation.load(
             std::memory_order_relaxed) == taken + 1;
}

// kTaken: *cell is a copy of the batch's cell, to be given back by Release.
// kClosed: nothing more will come; ring.closed says why.
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
  // I4. Release, each: whoever reads the page after this process died between
  // any two of them finds those before.
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

// While the rank spins: gets back the line that its next take stores to. The
// broker has read it since the last take, which otherwise waits for it (E6) as
// long as for a batch's way (bench/handoff_benchmark: a third of a hand-off).
inline void KeepTakenLine(CursorPage& cursor) {
  // Relaxed: our own value (I2).
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  // I4: whoever finds it finds the records before it, as if by the take that
  // stored it first.
  cursor.taken.store(taken, std::memory_order_release);  // E6
}

// Announces that the rank is going to sleep. False: something came meanwhile,
// do not sleep. Either way DisarmWait before the next TryTake.
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
  // Relaxed: a publisher that still sees 1 sends a wake too many, no more.
  cursor.waiting.store(0, std::memory_order_relaxed);
}

// What the broker sleeps until; a stronger one includes the weaker.
enum class BrokerWaits : uint32_t {
  kNo = 0,
  kForReleases = 1,
  kForTakes = 2,  // or for the rank to go to sleep
};

// After TryTake took, and after ArmWait before sleeping: whether the broker
// wants to hear of it; send a wake.
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

// ---- the broker's side
// ---------------------------------------------------------

// What the rank has taken of `published` cells, the broker's own count. False:
// it wrote a count that cannot be. The rank can write anything here, so I1 is
// checked, never asserted.
inline bool ReadTaken(const CursorPage& cursor, uint64_t published,
                      uint64_t* taken) {
  *taken = cursor.taken.load(std::memory_order_seq_cst);  // E6
  // A rank that ran ahead makes the difference wrap to a huge value.
  return published - *taken <= kRingCells;
}

// published: the ring's batches before this one; needs a lease that is free
// (E2). True: the rank sleeps, send it a wake.
[[nodiscard]] inline bool Publish(Ring& ring, const CursorPage& cursor,
                                  uint64_t published, const Cell& cell) {
  RingCell& next = ring.cells[published % kRingCells];
  next.batch = cell;
  KillPoint("publish.copied");
  next.generation.store(published + 1, std::memory_order_seq_cst);  // E1, E4
  KillPoint("publish.published");
  return cursor.waiting.load(std::memory_order_seq_cst) != 0;  // E4
}

// Ring::reason must be written before. Send a wake afterwards, whatever the
// rank does; then taken tells what it got (E6).
inline void CloseRing(Ring& ring, Closed why) {
  ring.closed.store(static_cast<uint32_t>(why),
                    std::memory_order_seq_cst);  // E6, E7
}

enum class LeaseState { kFree, kHeld, kPeerCorrupt };

// generation is what the broker gave out last under this lease (0: never),
// previous what it gave out before.
inline LeaseState LeaseStateOf(const CursorPage& cursor, uint32_t lease,
                               uint64_t generation, uint64_t previous) {
  const uint64_t released =
      cursor.released[lease].load(std::memory_order_seq_cst);  // E3, E5
  if (released == generation) return LeaseState::kFree;
  if (released == previous) return LeaseState::kHeld;
  return LeaseState::kPeerCorrupt;
}

// The broker is going to sleep until this rank does something; it must look
// once more afterwards, at the leases (E5), at taken and waiting (E8).
inline void SetBrokerWaiting(Ring& ring, BrokerWaits until) {
  ring.broker_waiting.store(static_cast<uint32_t>(until),
                            std::memory_order_seq_cst);  // E5, E8
}

// A seat is taken again: its last holder is dead and nobody reads the ring.
inline void ResetRing(Ring& ring) {
  // Relaxed: the next holder gets the ring through a socket after this.
  for (RingCell& cell : ring.cells) {
    // They are used from the first on.
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
