// A place for one batch in the segment.
//
// Life of a slot: kFree -> Open -> kFilling (workers make its rows) -> Filled
// -> kReady -> (its turn) kOut, held by leases of feeds and by accounts;
// without holders -> kFree.
#ifndef BROKER_DELIVERY_SLOT_H_
#define BROKER_DELIVERY_SLOT_H_

#include <cstdint>
#include <vector>

#include "broker/delivery/phases.h"
#include "broker/plan/plan.h"
#include "common/layout.h"

namespace penstock {

// Rows of one batch, from begin to end.
struct BatchRows {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// One step's rows for one lane, being made in a slot.
struct OpenBatch {
  uint64_t step = 0;                  // number in the lane, from 0: its order;
                                      // in_order: over all lanes
  Plan::RankBatch rows;               // which plan rows
  uint32_t slot = 0;                  // in the segment
  uint64_t claimed = 0;               // rows that workers have, or have made
  std::vector<BatchRows> given_back;  // that workers had, and did not make
  uint64_t finished = 0;              // rows done by them
  uint64_t valid_rows = 0;            // set when it is assembled
  uint64_t shape_rows = 0;            // valid rows plus padding
  bool abandoned = false;             // nobody will take it
  bool broken = false;                // a row of it ends the job
  std::vector<uint64_t> left_out;     // rows that on_error: skip leaves out

  bool done() const { return finished == (abandoned ? claimed : rows.rows); }
  // Some of the rows that no worker has; empty: there are none. Without rows
  // given back, `claimed` is where the others begin.
  BatchRows Unclaimed() const {
    return given_back.empty() ? BatchRows{claimed, rows.rows}
                              : given_back.back();
  }
  // A worker has those of Unclaimed() before `end`.
  void Claim(uint64_t end) {
    claimed += end - Unclaimed().begin;
    if (given_back.empty()) return;
    given_back.back().begin = end;
    if (end == given_back.back().end) given_back.pop_back();
  }
};

enum class SlotState { kFree, kFilling, kReady, kOut };

struct Slot {
  SlotState state = SlotState::kFree;
  uint32_t lane = 0;
  uint32_t holders = 0;      // may deliver it or were given it
  uint32_t quarantine = 0;   // evicted processes that may read it
  PhaseStep at;              // which step
  bool handed_over = false;  // delivered outside the order of positions
  bool is_redo = false;      // a step that was made before
  OpenBatch batch;

  uint64_t id() const { return StepId(batch.rows.position, at.phase); }
  // It has not left its lane.
  bool being_made() const {
    return state == SlotState::kFilling || state == SlotState::kReady;
  }
  // Somebody is yet to release its batch.
  bool unreleased() const {
    return state == SlotState::kOut ? holders > 0
                                    : being_made() && !batch.abandoned;
  }
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_SLOT_H_
