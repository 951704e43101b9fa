// Stages 4 to 8 of the flow for one rank: assemble a share in a slot, publish
// it in order, see it taken and released, reclaim the slot.
//
// Who runs it: any thread of the broker that holds the job's mutex; a Feed has
// no lock of its own. The memory of the rank (its cursor page) is read through
// ring.h only, as untrusted input.
//
// A slot's life: kFree -> Open -> kFilling (rows are claimed and finished by
// workers) -> Filled -> kFilled -> PublishReady -> kPublished (its lease is
// out)
// -> Reclaim, once the rank released it -> kFree.
//
// Bounds: prefetch + hold slots, as many leases; lease number = slot number.
#ifndef BROKER_FEED_H_
#define BROKER_FEED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "broker/plan.h"
#include "common/layout.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// One rank's rows of one step, being made in a slot.
struct Share {
  uint64_t step = 0;               // of the job, from 0
  Plan::Share rows;                // which plan rows
  uint32_t slot = 0;               // in the segment
  uint64_t claimed = 0;            // rows handed to workers
  uint64_t finished = 0;           // rows done by them
  std::vector<uint64_t> left_out;  // rows that on_error: skip leaves out
};

class Feed {
 public:
  // The slots [first_slot, first_slot + slots) and the ring of seat are this
  // feed's. segment outlives it.
  Feed(Segment* segment, uint32_t seat, uint32_t first_slot, uint32_t slots);

  // A rank took the seat: from first_step on its shares are made.
  void Attach(uint32_t rank, Mapping cursor, int wake_socket);

  bool attached() const { return attached_; }
  bool closed() const { return closed_; }
  uint32_t rank() const { return rank_; }
  uint32_t seat() const { return seat_; }
  // The rank has taken everything there is.
  bool drained() const;
  // It had when it left.
  bool finished() const { return finished_; }
  uint32_t ready() const;  // published, not taken
  uint32_t held() const;   // taken, not released
  uint64_t waits() const;
  uint64_t wait_ns() const;

  // Frees the slots whose leases came back. An error is the rank's: it wrote
  // what cannot be; it must be closed.
  Status Reclaim();
  // The first `slots` slots may be used; the rest are being populated.
  void SetUsableSlots(uint32_t slots) { usable_slots_ = slots; }

  // Starts the next step's share in a free slot; nullptr: no slot is free.
  Share* Open(const Plan& plan);
  // The share with rows left to claim, the oldest first; nullptr: none.
  Share* Claimable();
  // All rows of the share are done. keep_shape (last: pad): rows that were left
  // out are replaced by padding, else the batch is shorter.
  void Filled(Share* share, const ElementSpec& spec, bool keep_shape);
  // Publishes what is filled and next in order. Ends the ring after the last.
  Status PublishReady();

  // Asks the rank to send a wake when it releases, and looks once more (E5).
  // False: it has released meanwhile.
  bool WaitForRelease();

  // No more cells; the rank learns why. Slots being filled stay until they are.
  void Close(Closed why, const std::string& reason);
  // The rank is gone: its slots are free again, its socket is not ours any
  // more.
  void Detach();
  // No worker writes into its slots.
  bool idle() const;

  // Rows the rank got (valid ones, published), for status.
  uint64_t published() const { return published_; }

 private:
  enum class State { kFree, kFilling, kFilled, kPublished };
  struct Slot {
    State state = State::kFree;
    uint64_t generation = 0;
    Share share;
  };
  const CursorPage& cursor() const {
    return *reinterpret_cast<const CursorPage*>(cursor_.data());
  }

  Segment* const segment_;
  const uint32_t seat_;
  const uint32_t first_slot_;
  Ring& ring_;
  std::vector<Slot> slots_;
  uint32_t usable_slots_ = 0;
  bool attached_ = false;
  bool closed_ = false;
  uint32_t rank_ = 0;
  Mapping cursor_;
  int wake_socket_ = -1;
  uint64_t next_step_ = 0;     // to open
  uint64_t publish_step_ = 0;  // to publish
  uint64_t published_ = 0;     // cells, the ring's count
  bool last_published_ = false;
  bool finished_ = false;
};

}  // namespace penstock
#endif  // BROKER_FEED_H_
