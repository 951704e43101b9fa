// The part of Delivery for making batches: which steps are opened in which
// slots, and which a worker may claim.
#include <algorithm>

#include "broker/delivery/delivery.h"

namespace penstock {
namespace {

// Steps by which the record runs ahead.
constexpr uint64_t kOpenedAhead = 256;

}  // namespace

bool Delivery::Active(const Lane& lane) const {
  const auto& members = lane.members();
  if (shape_.replicas > 1 &&
      (!lane.complete() ||
       std::any_of(members.begin(), members.end(),
                   [](const auto& item) { return item.second->reconnects; }))) {
    return false;
  }
  return std::any_of(members.begin(), members.end(), [this](const auto& item) {
    return consumers_.IsOpen(*item.second);
  });
}

void Delivery::RanksAnnounced(uint32_t seat, uint32_t phase) {
  if (Consumer* consumer = consumers_.AtSeat(seat)) {
    consumer->known_phase = std::max(consumer->known_phase, phase);
    touched_.insert(consumer->rank);
  }
}

void Delivery::EndAt(uint64_t rows) {
  SetAvailable(rows);
  phases_.EndAt(rows);
  ForgetPastEnd();
  OpenAll();
  TouchAll();
}

// Steps reported from a former broker instance may lie past an end that is
// known only now.
void Delivery::ForgetPastEnd() {
  for (Lane& lane : lanes_) lane.ForgetPastEnd(phases_);
}

void Delivery::SetUsableSlots(uint32_t slots) {
  usable_slots_ = slots;
  OpenAll();
}

void Delivery::SetAvailable(uint64_t rows) {
  if (std::exchange(available_, rows) != rows) OpenAll();
}

// Records ahead, so that not every step is recorded; for a stream no further
// than its producers have put rows.
void Delivery::RecordOpened(const Lane& lane, const Plan::RankBatch& rows) {
  if (record_ == nullptr || !lane.to_one() ||
      rows.position < opened_recorded_) {
    return;
  }
  const Plan& plan = this->plan();
  const uint64_t next = lane.next().step;
  uint64_t step = next + kOpenedAhead;
  if (plan.total_steps()) step = std::min(step, *plan.total_steps());
  // Nobody can have had rows that the stream does not have yet.
  if (available_ != UINT64_MAX) {
    uint64_t whole = plan.StepAt(available_);
    if (whole > 0 && plan.PositionOf(whole) > available_) --whole;
    step = std::min(step, std::max(whole, next));
  }
  opened_recorded_ = plan.PositionOf(step);
  record_->Opened(opened_recorded_);
}

uint32_t Delivery::LaneInTurn() const {
  const bool any_absent =
      std::any_of(lanes_.begin(), lanes_.end(),
                  [](const Lane& lane) { return !lane.taken(); });
  const uint32_t absent = any_absent ? FirstAbsentRank() : 0;
  const auto rank_of = [absent](const Lane& lane) {
    return lane.members().empty() ? absent : lane.rank();
  };
  std::optional<uint32_t> first;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const Lane& one = lanes_[i];
    if (one.taken() && one.members().empty())
      continue;  // others have its share
    if (first) {
      const Lane& other = lanes_[*first];
      const bool is_later = !one.WillOpen(other.next());
      const bool is_earlier = !other.WillOpen(one.next());
      if (is_later || (!is_earlier && rank_of(other) <= rank_of(one))) continue;
    }
    first = i;
  }
  return first.value_or(0);
}

uint32_t Delivery::FirstAbsentRank() const {
  if (!all_here()) return 0;
  const std::vector<uint32_t>& ranks = phases_.last().ranks;
  const auto absent =
      std::find_if_not(ranks.begin(), ranks.end(),
                       [this](uint32_t rank) { return KnowsAny(rank); });
  return absent == ranks.end() ? 0 : *absent;
}

OpenBatch* Delivery::Open() {
  if (closed_ || gathering()) return nullptr;
  const uint32_t in_turn = shape_.in_order ? LaneInTurn() : 0;
  for (auto each = openable_.begin(); each != openable_.end();) {
    ++checks_;
    Lane& lane = lanes_[*each];
    if (!lane.HasFree(usable_slots_) || !Active(lane)) {
      each = openable_.erase(each);
      continue;
    }
    if (shape_.in_order && *each != in_turn && lane.again().empty()) {
      ++each;
      continue;
    }
    const Slot& free = lane.NextFree();
    if (!invariants_.Hold(free.state == SlotState::kFree && free.holders == 0 &&
                              free.quarantine == 0,
                          "D4: a slot is filled without readers")) {
      return nullptr;
    }
    Slot* const slot = lane.Open(phases_, available_);
    if (slot == nullptr) {
      each = openable_.erase(each);
      continue;
    }
    if (shape_.in_order) slot->batch.step = opened_in_order_++;
    RecordOpened(lane, slot->batch.rows);
    const uint32_t number = slot->batch.slot;
    if (slot->batch.rows.rows > 0) {
      claimable_[NodeOf(number)].push({slot->batch.step, number});
    }
    return &slot->batch;
  }
  return nullptr;
}

uint32_t Delivery::CopyOn(std::optional<uint32_t> node,
                          uint32_t otherwise) const {
  for (uint32_t copy = 0; node && shape_.copies > 1 && copy < shape_.copies;
       ++copy) {
    if (bank_nodes_[copy] == *node) return copy;
  }
  return otherwise;
}

uint32_t Delivery::SlotToFill(const OpenBatch& batch,
                              std::optional<uint32_t> node) const {
  return SegmentSlot(batch, CopyOn(node, 0));
}

bool Delivery::IsLocal(const OpenBatch& batch,
                       std::optional<uint32_t> node) const {
  if (bank_nodes_.empty()) return true;
  const uint32_t bank = SlotToFill(batch, node) / shape_.bank_slots;
  return node && bank_nodes_[bank] == *node;
}

// The bank of a lane is moved, if at all, before any of its steps is opened.
uint32_t Delivery::NodeOf(uint32_t slot) const {
  const bool one_for_all = bank_nodes_.empty() || shape_.copies > 1;
  return one_for_all ? 0 : bank_nodes_[slot / shape_.bank_slots];
}

// Work is conserved: a worker without batches on its own node takes another's.
// Batches on a node without workers are as near to every worker as its own;
// otherwise they would come last.
OpenBatch* Delivery::Claimable(std::optional<uint32_t> node) {
  if (closed_) return nullptr;
  const auto comes_first = [&](uint32_t here) {
    if (bank_nodes_.empty() || shape_.copies > 1 || !node) return true;
    const std::vector<uint32_t>& served = shape_.worker_nodes;
    return here == *node ||
           std::find(served.begin(), served.end(), here) == served.end();
  };
  OpenBatch* oldest = nullptr;
  std::pair<bool, Oldest> best;
  for (auto& [here, shares] : claimable_) {
    // Drop those claimed or abandoned meanwhile.
    for (; !shares.empty(); shares.pop()) {
      ++checks_;
      const auto [step, number] = shares.top();
      const Slot& slot = slots_[number];
      if (slot.state == SlotState::kFilling && slot.batch.step == step &&
          !slot.batch.abandoned && slot.batch.claimed < slot.batch.rows.rows) {
        break;
      }
    }
    if (shares.empty()) continue;
    const std::pair<bool, Oldest> found{!comes_first(here), shares.top()};
    if (oldest != nullptr && best < found) continue;
    best = found;
    oldest = &slots_[found.second.second].batch;
  }
  return oldest;
}

void Delivery::GiveBack(OpenBatch* batch, const BatchRows& rows) {
  batch->claimed -= rows.end - rows.begin;
  batch->given_back.push_back(rows);
  claimable_[NodeOf(batch->slot)].push({batch->step, batch->slot});
}

void Delivery::Filled(OpenBatch* batch) {
  Slot& slot = slots_[batch->slot];
  if (!invariants_.Hold(slot.state == SlotState::kFilling && batch->done(),
                        "D1: a batch is filled once, with all its rows")) {
    return;
  }
  if (batch->abandoned) {
    Free(&slot);
    return;
  }
  slot.state = SlotState::kReady;
  BeDue(slot.lane);
}

// Nobody will get the batch. Rows that workers are making are waited for
// (Filled).
void Delivery::Abandon(Slot* slot) {
  slot->batch.abandoned = true;
  if (slot->state != SlotState::kFilling || slot->batch.done()) Free(slot);
}

}  // namespace penstock
