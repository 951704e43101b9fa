#include "broker/delivery/lane.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace penstock {

Lane::Lane(std::span<Slot> slots, std::optional<uint32_t> places, bool to_one)
    : slots_(slots),
      places_(places),
      common_(to_one ? std::make_shared<Account>() : nullptr),
      shared_(!places),
      in_step_(places != 1 && !to_one) {
  for (uint32_t i = 0; i < slots_.size(); ++i) free_.push(i);
  started = !shared() || to_one;
}

void Lane::Add(Consumer* member) {
  assert(HasPlaceFor(member->plan_rank));
  taken_ = true;
  member->account = common_ != nullptr ? common_ : std::make_shared<Account>();
  members_[member->rank] = member;
}

std::vector<Account*> Lane::Accounts() const {
  if (common_ != nullptr) return {common_.get()};
  std::vector<Account*> accounts;
  for (const auto& [rank, member] : members_) {
    accounts.push_back(member->account.get());
  }
  return accounts;
}

// ---- steps

void Lane::Lack(const Phases& phases, Account* account, uint64_t id,
                bool redelivered) {
  const std::optional<PhaseStep> step = phases.StepOf(id);
  if (!step || step->phase > std::max(next_.phase, account->from.phase)) return;
  // The same step may be reported twice: by the page of a former broker
  // instance, and by the process itself when it reconnected before it died.
  const auto has_it = [this, account, id](const Slot& slot) {
    return slot.state == SlotState::kOut && slot.holders > 0 &&
           slot.id() == id &&
           (!in_step() || account->Find(slot.batch.slot) != nullptr);
  };
  if (std::any_of(slots_.begin(), slots_.end(), has_it)) return;
  account->lacks[id] |= redelivered;
  MakeAgain(phases, id);
}

void Lane::MakeAgain(const Phases& phases, uint64_t id) {
  const std::optional<PhaseStep> step = phases.StepOf(id);
  const auto is_it = [id](const Slot* slot) { return slot->id() == id; };
  if (!step || WillOpen(*step) ||
      std::any_of(in_turn_.begin(), in_turn_.end(), is_it)) {
    return;
  }
  again_.insert(id);
}

void Lane::ForgetPastEnd(const Phases& phases) {
  const auto is_past = [&phases](uint64_t id) { return !phases.StepOf(id); };
  std::erase_if(again_, is_past);
  for (Account* account : Accounts()) {
    std::erase_if(account->lacks,
                  [&](const auto& item) { return is_past(item.first); });
  }
}

uint64_t Lane::Position(const Phases& phases) const {
  for (const Slot* slot : in_turn_) {
    if (!slot->batch.abandoned && !slot->batch.rows.extra) {
      return slot->batch.rows.position;
    }
  }
  return phases.PositionOf(next_);
}

void Lane::GoBackTo(uint64_t step) {
  in_turn_.clear();
  again_.clear();
  next_.step = std::min(next_.step, step);
}

// ---- slots

Slot* Lane::Open(const Phases& phases, uint64_t available) {
  PhaseStep step = next_;
  const bool is_redo = !again_.empty();
  if (is_redo) {
    step = *phases.StepOf(*again_.begin());
  } else if (!phases.Settle(&step)) {
    return nullptr;
  }
  Plan::RankBatch rows = phases.RankBatchOf(step, rank());
  if (rows.position + rows.global_rows > available) return nullptr;
  Slot& slot = slots_[free_.top()];
  free_.pop();
  if (is_redo) {
    again_.erase(again_.begin());
    // Marked as its account says.
    rows.extra = true;
    rows.redelivered = false;
  } else {
    next_ = {step.phase, step.step + 1};
  }
  slot.state = SlotState::kFilling;
  slot.at = step;
  slot.handed_over = rows.extra;
  slot.is_redo = is_redo;
  const uint32_t number = slot.batch.slot;
  slot.batch = OpenBatch{};
  slot.batch.slot = number;
  slot.batch.step = opened_++;
  slot.batch.rows = rows;
  in_turn_.push_back(&slot);
  return &slot;
}

void Lane::Free(Slot* slot) {
  slot->state = SlotState::kFree;
  free_.push(static_cast<uint32_t>(slot - slots_.data()));
}

Slot* Lane::NextReady() const {
  if (in_turn_.empty()) return nullptr;
  Slot* const slot = in_turn_.front();
  return slot->state == SlotState::kReady ? slot : nullptr;
}

void Lane::Pop(uint32_t holders) {
  in_turn_.front()->state = SlotState::kOut;
  in_turn_.front()->holders = holders;
  in_turn_.pop_front();
}

uint64_t Lane::StepsNotGiven(const Phases& phases) const {
  const auto last =
      std::find_if(in_turn_.rbegin(), in_turn_.rend(), [&](const Slot* slot) {
        return slot->is_redo || !phases.IsLast(slot->at.phase);
      });
  return static_cast<uint64_t>(last - in_turn_.rbegin());
}

Slot* Lane::PopLast() {
  Slot* const slot = in_turn_.back();
  in_turn_.pop_back();
  --next_.step;
  return slot;
}

std::set<uint32_t> Lane::FreeSlots() const {
  std::set<uint32_t> slots;
  for (auto left = free_; !left.empty(); left.pop()) slots.insert(left.top());
  return slots;
}

}  // namespace penstock
