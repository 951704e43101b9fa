// The part of Delivery for making batches: which steps are opened in which
// slots, and which a worker may claim.
#include <algorithm>

#include "broker/delivery/delivery.h"

namespace penstock {
namespace {

// Steps by which the record runs ahead.
constexpr uint64_t kOpenedAhead = 256;

}  // namespace

bool Delivery::Active(uint32_t lane) const {
  const auto is_given_batches = [this](const Consumer& consumer) {
    return consumer.state == ConsumerState::kAttached &&
           feeds_[consumer.seat]->open();
  };
  if (split()) {
    const Consumer* const consumer = OfLane(lane);
    return consumer != nullptr && is_given_batches(*consumer);
  }
  return std::any_of(
      consumers_.begin(), consumers_.end(),
      [&](const auto& item) { return is_given_batches(item.second); });
}

void Delivery::RanksAnnounced(uint32_t seat, uint32_t phase) {
  if (Consumer* consumer = AtSeat(seat)) {
    consumer->known_phase = std::max(consumer->known_phase, phase);
    touched_.insert(consumer->rank);
  }
}

std::optional<Delivery::Next> Delivery::NextStep(uint32_t number) {
  Lane& lane = lanes_[number];
  const Consumer* consumer = OfLane(number);
  const auto rank_index = [&](const Phase& phase) {
    return split() ? RankIndexOf(phase, consumer->rank) : 0;
  };
  if (!lane.redo.empty()) {
    const Redo redo = lane.redo.front();
    Next next{{}, PhaseOfStep(redo.step), true};
    const Phase& phase = phases_[next.phase];
    const auto step = phase.plan.StepFrom(PositionOfStep(redo.step));
    next.rows = phase.plan.RankBatchOf(*step, rank_index(phase));
    if (!Available(next.rows)) return std::nullopt;
    lane.redo.pop_front();
    next.rows.extra = true;
    next.rows.redelivered = redo.redelivered;
    return next;
  }
  for (;;) {
    const Phase& phase = phases_[lane.phase];
    const std::optional<uint64_t> end =
        phase.end_step ? phase.end_step : phase.plan.total_steps();
    if (!end || lane.next_step < *end) {
      const Plan::RankBatch rows =
          phase.plan.RankBatchOf(lane.next_step, rank_index(phase));
      if (!Available(rows)) return std::nullopt;
      ++lane.next_step;
      return Next{rows, lane.phase, false};
    }
    if (lane.phase + 1 == phases_.size()) return std::nullopt;
    ++lane.phase;
    lane.next_step = 0;
    lane.phase_begins = true;
  }
}

void Delivery::EndAt(uint64_t rows) {
  SetAvailable(rows);
  for (Phase& phase : phases_) {
    if (auto plan = phase.plan.Ending(rows)) {
      phase.plan = *std::move(plan);
    } else if (&phase == &phases_.back()) {
      const uint64_t owed = phase.plan.start().owed.size();
      phase.end_step = std::min(phase.end_step.value_or(owed), owed);
    }
  }
  // Steps reported from a former broker instance may lie past the end.
  for (Lane& lane : lanes_) {
    std::erase_if(lane.redo, [this](const Redo& each) {
      const Plan& plan = phases_[PhaseOfStep(each.step)].plan;
      return !plan.StepFrom(PositionOfStep(each.step));
    });
  }
  OpenAll();
  TouchAll();
}

void Delivery::SetUsableSlots(uint32_t slots) {
  usable_slots_ = slots;
  OpenAll();
}

void Delivery::SetAvailable(uint64_t rows) {
  if (std::exchange(available_, rows) != rows) OpenAll();
}

bool Delivery::Exhausted(const Lane& lane) const {
  if (!lane.in_turn.empty() || !lane.redo.empty()) return false;
  const Phase& phase = phases_[lane.phase];
  const std::optional<uint64_t> end =
      phase.end_step ? phase.end_step : phase.plan.total_steps();
  return end && lane.next_step >= *end && lane.phase + 1 == phases_.size();
}

// Records ahead, so that not every step is recorded; for a stream no further
// than its producers have put rows.
void Delivery::RecordOpened(const Plan::RankBatch& rows) {
  if (record_ == nullptr || mode_ != DeliveryMode::kDynamic ||
      rows.position < opened_recorded_) {
    return;
  }
  const Plan& plan = this->plan();
  uint64_t step = lanes_[0].next_step + kOpenedAhead;
  if (plan.total_steps()) step = std::min(step, *plan.total_steps());
  // Nobody can have had rows that the stream does not have yet.
  if (available_ != UINT64_MAX) {
    uint64_t whole = plan.StepAt(available_);
    if (whole > 0 && plan.PositionOf(whole) > available_) --whole;
    step = std::min(step, std::max(whole, lanes_[0].next_step));
  }
  opened_recorded_ = plan.PositionOf(step);
  record_->Opened(opened_recorded_);
}

OpenBatch* Delivery::Open() {
  if (closed_ || gathering()) return nullptr;
  for (; !openable_.empty(); openable_.erase(openable_.begin())) {
    ++checks_;
    const uint32_t number = *openable_.begin();
    Lane& lane = lanes_[number];
    const uint32_t usable = std::min(usable_slots_, shape_.slots_per_lane);
    if (lane.free.empty() || lane.free.top() >= lane.first_slot + usable ||
        !Active(number)) {
      continue;
    }
    const uint32_t at = lane.free.top();
    Slot& slot = slots_[at];
    if (!invariants_.Hold(slot.state == SlotState::kFree && slot.holders == 0 &&
                              slot.quarantine == 0,
                          "D4: a slot is filled without readers")) {
      return nullptr;
    }
    const std::optional<Next> next = NextStep(number);
    if (!next) continue;
    lane.free.pop();
    lane.in_turn.push_back(at);
    slot.state = SlotState::kFilling;
    slot.ranks_changed =
        !next->is_redo && std::exchange(lane.phase_begins, false);
    slot.phase = next->phase;
    slot.handed_over = next->rows.extra;
    slot.is_redo = next->is_redo;
    RecordOpened(next->rows);
    slot.batch = OpenBatch{};
    slot.batch.slot = at;
    slot.batch.step = lane.opened++;
    slot.batch.rows = next->rows;
    if (slot.batch.rows.rows > 0) {
      claimable_[NodeOf(at)].push({slot.batch.step, at});
    }
    return &slot.batch;
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
  if (const Consumer* const consumer = OfLane(slot.lane)) {
    touched_.insert(consumer->rank);
  }
}

// Nobody will get the batch. Rows that workers are making are waited for
// (Filled).
void Delivery::Abandon(Slot* slot) {
  slot->batch.abandoned = true;
  if (slot->state != SlotState::kFilling || slot->batch.done()) Free(slot);
}

}  // namespace penstock
