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
//       once released[lease] == the generation it gave out last. Leases are
//       numbered apart from cells so that a batch held for long costs its one
//       lease and does not block the ring behind it.
//
// Synchronizing edges
//   E1  Publish stores published -> TryTake loads it: a rank that sees count n
//       sees cell n-1 and the batch bytes it names.
//   E2  TryTake stores taken -> Publish loads it: a cell is overwritten only
//       after the rank has copied it.
//   E3  Release stores released[lease] -> LeaseFree loads it: a slot is filled
//       again only after the rank has done its last read of it.
//   E4  (sleep of the rank) ArmWait stores waiting, then loads published and
//       closed; Publish and CloseRing store those, then load waiting. A
//       store-load handshake: seq_cst on all four, or both sides can miss the
//       other and the rank sleeps beside a full ring.
//   E5  (sleep of the broker) the broker stores broker_waiting, then loads
//       released; Release stores released, then loads broker_waiting. As E4.
//   E6  (recall) TryTake stores taken, then loads closed, and returns the batch
//       only if it is not void; CloseRing stores closed, then loads taken. As
//       E4: a recalled batch is never both returned and counted as not taken.
//   E7  CloseRing stores closed -> TryTake loads it: the rank that sees it sees
//       reason, and every cell published before.
//
// The functions are templates over the structs so that a test can run them on
// atomics of its own that explore interleavings.
#ifndef COMMON_RING_H_
#define COMMON_RING_H_

#include <atomic>
#include <cstdint>

#include "common/layout.h"

namespace penstock {

// ---- the rank's side
// ---------------------------------------------------------

enum class TakeResult { kTaken, kEmpty, kClosed };

// kTaken: *cell is a copy of the batch's cell, to be given back by Release.
// kClosed: nothing more will come; ring.closed says why.
template <typename RingT, typename CursorT, typename CellT>
TakeResult TryTake(const RingT& ring, CursorT& cursor, CellT* cell) {
  // Relaxed: we are the only writer (I2) and read back our own value.
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  if (ring.published.load(std::memory_order_acquire) == taken) {  // E1
    if (ring.closed.load(std::memory_order_acquire) ==            // E7
        static_cast<uint32_t>(Closed::kOpen)) {
      return TakeResult::kEmpty;
    }
    // The last cells may have come between the two loads.
    if (ring.published.load(std::memory_order_acquire) == taken) {  // E1
      return TakeResult::kClosed;
    }
  }
  *cell = ring.cells[taken % kRingCells];
  cursor.taken.store(taken + 1, std::memory_order_seq_cst);  // E2, E6
  if (ring.closed.load(std::memory_order_seq_cst) >=         // E6
      static_cast<uint32_t>(Closed::kRecalled)) {
    return TakeResult::kClosed;
  }
  return TakeResult::kTaken;
}

// Announces that the rank is going to sleep. False: something came meanwhile,
// do not sleep. Either way DisarmWait before the next TryTake.
template <typename RingT, typename CursorT>
bool ArmWait(const RingT& ring, CursorT& cursor) {
  cursor.waiting.store(1, std::memory_order_seq_cst);  // E4
  return ring.published.load(std::memory_order_seq_cst) ==
             cursor.taken.load(std::memory_order_relaxed) &&  // I2
         ring.closed.load(std::memory_order_seq_cst) ==
             static_cast<uint32_t>(Closed::kOpen);  // E4
}

template <typename CursorT>
void DisarmWait(CursorT& cursor) {
  // Relaxed: a publisher that still sees 1 sends a wake too many, no more.
  cursor.waiting.store(0, std::memory_order_relaxed);
}

// Gives a batch back. True: the broker waits for it, send a wake.
template <typename RingT, typename CursorT>
[[nodiscard]] bool Release(const RingT& ring, CursorT& cursor, uint32_t lease,
                           uint64_t generation) {
  cursor.released[lease].store(generation, std::memory_order_seq_cst);  // E3,E5
  return ring.broker_waiting.load(std::memory_order_seq_cst) != 0;      // E5
}

// ---- the broker's side
// ---------------------------------------------------------

enum class RoomResult { kRoom, kFull, kPeerCorrupt };

// Whether a cell is free, published being the broker's own count.
template <typename CursorT>
RoomResult RingRoom(const CursorT& cursor, uint64_t published) {
  const uint64_t taken = cursor.taken.load(std::memory_order_acquire);  // E2
  // The rank can write anything here, so I1 is checked, never asserted. A rank
  // that ran ahead makes the difference wrap to a huge value and lands here
  // too.
  const uint64_t untaken = published - taken;
  if (untaken > kRingCells) return RoomResult::kPeerCorrupt;
  return untaken == kRingCells ? RoomResult::kFull : RoomResult::kRoom;
}

// Needs RingRoom == kRoom. True: the rank sleeps, send it a wake.
template <typename RingT, typename CursorT, typename CellT>
[[nodiscard]] bool Publish(RingT& ring, const CursorT& cursor,
                           uint64_t published, const CellT& cell) {
  ring.cells[published % kRingCells] = cell;
  ring.published.store(published + 1, std::memory_order_seq_cst);  // E1, E4
  return cursor.waiting.load(std::memory_order_seq_cst) != 0;      // E4
}

// Ring::reason must be written before. Send a wake afterwards, whatever the
// rank does; then taken tells what it got (E6).
template <typename RingT>
void CloseRing(RingT& ring, Closed why) {
  ring.closed.store(static_cast<uint32_t>(why),
                    std::memory_order_seq_cst);  // E4, E6, E7
}

enum class LeaseState { kFree, kHeld, kPeerCorrupt };

// generation is what the broker gave out last under this lease (0: never).
template <typename CursorT>
LeaseState LeaseStateOf(const CursorT& cursor, uint32_t lease,
                        uint64_t generation) {
  const uint64_t released =
      cursor.released[lease].load(std::memory_order_seq_cst);  // E3, E5
  if (released == generation) return LeaseState::kFree;
  if (released + 1 == generation) return LeaseState::kHeld;
  return LeaseState::kPeerCorrupt;
}

// The broker is going to sleep until this rank releases something; it must look
// at the leases once more afterwards (E5).
template <typename RingT>
void SetBrokerWaiting(RingT& ring, bool waiting) {
  ring.broker_waiting.store(waiting ? 1 : 0, std::memory_order_seq_cst);  // E5
}

}  // namespace penstock
#endif  // COMMON_RING_H_
