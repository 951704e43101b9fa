// Queries of Delivery: state and status.
#include <algorithm>

#include "broker/delivery/delivery.h"

namespace penstock {

std::optional<uint32_t> Delivery::RankAt(uint32_t seat) {
  const Consumer* consumer = AtSeat(seat);
  if (consumer == nullptr) return std::nullopt;
  return consumer->rank;
}

bool Delivery::AnyAttached() const {
  return std::any_of(consumers_.begin(), consumers_.end(), [](const auto& it) {
    return it.second.state == ConsumerState::kAttached;
  });
}

bool Delivery::AnySeatTaken() const {
  return std::any_of(feeds_.begin(), feeds_.end(),
                     [](const auto& feed) { return feed != nullptr; });
}

bool Delivery::OwesTheDead() const {
  if (draining_) return false;
  return std::any_of(consumers_.begin(), consumers_.end(),
                     [this](const auto& it) {
                       return it.second.state == ConsumerState::kGone &&
                              it.second.died && !NothingLeftFor(it.second);
                     });
}

bool Delivery::WaitsFor(uint32_t rank) const {
  const auto found = consumers_.find(rank);
  return found != consumers_.end() &&
         found->second.state == ConsumerState::kGone;
}

bool Delivery::NothingLeftFor(const Consumer& consumer) const {
  return consumer.backlog.empty() && consumer.redo.empty() && pool_.empty() &&
         Exhausted(lanes_[consumer.lane]);
}

bool Delivery::Finished(uint32_t rank) const {
  const auto found = consumers_.find(rank);
  return found != consumers_.end() &&
         found->second.state == ConsumerState::kFinished;
}

bool Delivery::ToldTheEnd(uint32_t rank) const {
  const auto found = consumers_.find(rank);
  return found != consumers_.end() &&
         found->second.state == ConsumerState::kAttached &&
         feeds_[found->second.seat]->finished();
}

bool Delivery::GoesOnWithout(uint32_t rank) const {
  const std::vector<uint32_t>& ranks = phases_.back().ranks;
  return split() && !std::binary_search(ranks.begin(), ranks.end(), rank);
}

bool Delivery::AllCame() const {
  // The number of ranks shrinks only where all ranks are on this host.
  if (phases_.size() == 1) return consumers_.size() == shape_.consumers_max;
  const std::vector<uint32_t>& ranks = phases_.back().ranks;
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](uint32_t rank) { return Knows(rank); });
}

bool Delivery::AllDelivered() const {
  if (Unsettled() || !pool_.empty()) return false;
  const std::vector<uint32_t> lanes =
      split() ? LanesNeeded() : std::vector<uint32_t>{0};
  return std::all_of(lanes.begin(), lanes.end(),
                     [this](uint32_t i) { return Exhausted(lanes_[i]); }) &&
         std::all_of(consumers_.begin(), consumers_.end(), [](const auto& it) {
           return it.second.backlog.empty() && it.second.redo.empty();
         });
}

uint64_t Delivery::FirstNotOpened() const {
  uint64_t first = std::max(phases_.back().plan.start().position, had_before_);
  for (const Lane& lane : lanes_) {
    const Plan& plan = phases_[lane.phase].plan;
    first = std::max(first, plan.PositionOf(std::max<uint64_t>(
                                lane.next_step, plan.start().owed.size())));
  }
  return first;
}

bool Delivery::Idle() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == SlotState::kFilling &&
           slot.batch.finished < slot.batch.claimed;
  });
}

std::vector<uint32_t> Delivery::Missing() const {
  std::vector<uint32_t> missing;
  if (draining_ && AllDelivered()) return missing;
  // Others wait for it now or later.
  const DeliveryOptions& options = shape_.options;
  const bool numbers_are_reserved =
      split() || (broadcast() && options.lag == Lag::kBlock &&
                  options.on_rank_death == OnRankDeath::kWait);
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.state == ConsumerState::kGone && numbers_are_reserved) {
      missing.push_back(rank);
    }
  }
  // If the world spans several hosts, it is not known which ranks belong here:
  // missing ones can be named only when all do.
  if (mode_ == DeliveryMode::kBroadcast && !started_) {
    for (uint32_t rank = 0; rank < shape_.start_with; ++rank) {
      if (consumers_.count(rank) == 0) missing.push_back(rank);
    }
  }
  if (split() && shape_.world_size == shape_.consumers_max) {
    for (const uint32_t rank : phases_.back().ranks) {
      if (consumers_.count(rank) == 0) missing.push_back(rank);
    }
    std::sort(missing.begin(), missing.end());
  }
  return missing;
}

std::vector<uint32_t> Delivery::TakeCorrupt() {
  std::vector<uint32_t> ranks;
  if (!std::exchange(any_corrupt_, false) || closed_) return ranks;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.state == ConsumerState::kAttached &&
        feeds_[consumer.seat]->corrupt()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

namespace {

// Sorts ranges by position, removes rows listed twice and ranges past the
// position.
void InOrder(PlanStart* start) {
  std::sort(start->owed.begin(), start->owed.end(),
            [](const RowRange& a, const RowRange& b) {
              return a.position < b.position;
            });
  // A range owed in one phase may be owed in another too.
  uint64_t end = 0;
  for (RowRange& range : start->owed) {
    const uint64_t twice =
        std::min(end - std::min(end, range.position), range.rows);
    range.position += twice;
    range.rows -= twice;
    end = std::max(end, range.position + range.rows);
  }
  std::erase_if(start->owed,
                [](const RowRange& range) { return range.rows == 0; });
  // Ranges past the position are reached anyway.
  std::erase_if(start->owed, [start](const RowRange& range) {
    return range.position >= start->position;
  });
}

}  // namespace

PlanStart Delivery::State() const {
  PlanStart state;
  if (!split()) {
    const Lane& lane = lanes_[0];
    state.position = phases_[0].plan.PositionOf(std::max<uint64_t>(
        lane.next_step, phases_[0].plan.start().owed.size()));
    for (uint64_t step = lane.next_step;
         step < phases_[0].plan.start().owed.size(); ++step) {
      state.owed.push_back(phases_[0].plan.start().owed[step]);
    }
    for (const Slot& slot : slots_) {
      if (slot.state == SlotState::kFree ||
          (slot.state == SlotState::kOut && slot.holders == 0)) {
        continue;
      }
      const Plan::RankBatch& rows = slot.batch.rows;
      const auto pooled = std::find_if(
          pool_.begin(), pool_.end(),
          [&](const Entry& entry) { return entry.slot == slot.batch.slot; });
      const bool had = pooled != pool_.end() ? pooled->redelivered
                                             : slot.state == SlotState::kOut;
      state.owed.push_back(
          {rows.position, rows.global_rows, rows.redelivered || had});
    }
    const auto owe = [&](uint64_t position, bool redelivered) {
      const auto step = phases_[0].plan.StepFrom(position);
      if (!step || std::any_of(state.owed.begin(), state.owed.end(),
                               [position](const RowRange& range) {
                                 return range.position == position;
                               })) {
        return;
      }
      state.owed.push_back({position,
                            phases_[0].plan.RankBatchOf(*step, 0).global_rows,
                            redelivered});
    };
    for (const Redo& redo : lane.redo) {
      owe(PositionOfStep(redo.step), redo.redelivered || broadcast());
    }
    for (const uint64_t step : HeldOfFormerInstances()) {
      owe(PositionOfStep(step), true);
    }
  } else {
    // Steps that some rank did not release are all redone: the number of ranks
    // may change, so the rows that other ranks released cannot be kept apart.
    state.position = UINT64_MAX;
    const auto before = [&](uint64_t position) {
      state.position = std::min(state.position, position);
    };
    for (const Slot& slot : slots_) {
      if (slot.state == SlotState::kFree || slot.batch.abandoned ||
          (slot.state == SlotState::kOut && slot.holders == 0)) {
        continue;
      }
      before(slot.batch.rows.position);
    }
    for (const uint32_t i : LanesNeeded()) {
      const Lane& lane = lanes_[i];
      for (const Redo& redo : lane.redo) {
        before(PositionOfStep(redo.step));
      }
      const Phase& phase = phases_[lane.phase];
      before(phase.plan.PositionOf(
          std::max<uint64_t>(lane.next_step, phase.plan.start().owed.size())));
    }
    for (const uint64_t step : HeldOfFormerInstances()) {
      before(PositionOfStep(step));
    }
    for (uint32_t number = 0; number < phases_.size(); ++number) {
      if (AllPassedOwed(number)) continue;
      const Phase& phase = phases_[number];
      for (const RowRange& range : phase.plan.start().owed) {
        if (range.position >= state.position) continue;
        // Rows past the position are reached anyway.
        state.owed.push_back(
            {range.position,
             std::min(range.rows, state.position - range.position), true});
      }
    }
  }
  InOrder(&state);
  return state;
}

PlanStart Delivery::RowsNeeded() const {
  // In dynamic and broadcast every rank gets whole steps, so State() is exact.
  if (!split()) return State();
  PlanStart needed;
  needed.position = UINT64_MAX;
  const auto whole_step = [&](uint64_t id) {
    const Plan& plan = phases_[PhaseOfStep(id)].plan;
    const auto step = plan.StepFrom(PositionOfStep(id));
    if (!step) return;
    const Plan::RankBatch rows = plan.RankBatchOf(*step, 0);
    needed.owed.push_back({rows.position, rows.global_rows, false});
  };
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::kFree || slot.batch.abandoned ||
        (slot.state == SlotState::kOut && slot.holders == 0)) {
      continue;
    }
    needed.owed.push_back(
        {slot.batch.rows.first_row, slot.batch.rows.rows, false});
  }
  for (const uint32_t i : LanesNeeded()) {
    const Lane& lane = lanes_[i];
    for (const Redo& redo : lane.redo) whole_step(redo.step);
    const Phase& phase = phases_[lane.phase];
    needed.position = std::min(
        needed.position, phase.plan.PositionOf(std::max<uint64_t>(
                             lane.next_step, phase.plan.start().owed.size())));
  }
  for (const uint64_t id : HeldOfFormerInstances()) {
    if (PhaseOfStep(id) < phases_.size()) whole_step(id);
  }
  for (uint32_t number = 0; number < phases_.size(); ++number) {
    if (AllPassedOwed(number)) continue;
    for (const RowRange& range : phases_[number].plan.start().owed) {
      needed.owed.push_back(range);
    }
  }
  for (RowRange& range : needed.owed) {
    if (range.position >= needed.position) continue;
    range.rows = std::min(range.rows, needed.position - range.position);
  }
  InOrder(&needed);
  return needed;
}

// Lanes of ranks that have more to do. If a rank is gone for good, whenever it
// left, its remaining batches are owed to the others.
std::vector<uint32_t> Delivery::LanesNeeded() const {
  std::vector<uint32_t> needed;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (OfLane(i) != nullptr || !(lanes_[i].taken || AllCame())) {
      needed.push_back(i);
    }
  }
  return needed;
}

// Every rank was given the steps owed at the beginning of the phase; the
// unreleased ones are in slots or will be redone.
bool Delivery::AllPassedOwed(uint32_t number) const {
  const uint64_t owed = phases_[number].plan.start().owed.size();
  const std::vector<uint32_t> lanes = LanesNeeded();
  return std::all_of(lanes.begin(), lanes.end(), [&](uint32_t i) {
    return lanes_[i].phase > number ||
           (lanes_[i].phase == number && lanes_[i].next_step >= owed);
  });
}

std::vector<Delivery::RankStatus> Delivery::Ranks() {
  std::vector<RankStatus> ranks;
  for (auto& [rank, consumer] : consumers_) {
    RankStatus& status = ranks.emplace_back();
    status.rank = rank;
    status.skipped = consumer.skipped_all;
    status.position = consumer.position;
    status.node = consumer.node;
    status.node_from = consumer.node_from;
    if (split() && !bank_nodes_.empty()) {
      status.memory_node = bank_nodes_[consumer.lane];
    } else if (shape_.copies > 1) {
      status.memory_node = bank_nodes_[CopyFor(consumer)];
    }
    if (consumer.state != ConsumerState::kAttached) {
      status.state =
          consumer.state == ConsumerState::kGone ? "gone" : "finished";
      continue;
    }
    Feed& feed = FeedOf(consumer);
    status.seat = consumer.seat;
    status.ready = feed.untaken();
    status.held = feed.out() > status.ready ? feed.out() - status.ready : 0;
    status.taken = consumer.taken_before + feed.published() - status.ready;
    status.waits = feed.waits();
    status.wait_ns = feed.wait_ns();
    status.open = feed.open();
    status.waiting = feed.waiting();
    if (mode_ != DeliveryMode::kDynamic) {
      status.progress =
          2 * static_cast<int64_t>(plan().StepAt(consumer.position)) -
          2 * int64_t{status.ready} - int64_t{status.held};
    }
    status.state = !feed.finished()    ? (feed.open() ? "attached" : "closed")
                   : status.ready == 0 ? "finished"
                                       : "attached";
  }
  return ranks;
}

Demand Delivery::Wanted() {
  Demand demand = Demand::kNobody;
  for (auto& [id, consumer] : consumers_) {
    if (consumer.state != ConsumerState::kAttached || !FeedOf(consumer).open())
      continue;
    if (FeedOf(consumer).waiting()) return Demand::kNow;
    demand = Demand::kAhead;
  }
  return demand;
}

bool Delivery::WaitsForRows() const {
  const uint32_t usable = std::min(usable_slots_, shape_.slots_per_lane);
  bool free = false;
  for (const Lane& lane : lanes_) {
    for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
      const SlotState state = slots_[lane.first_slot + i].state;
      if (state == SlotState::kFilling) return false;
      free |= state == SlotState::kFree && i < usable;
    }
  }
  return free;
}

bool Delivery::Filling() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == SlotState::kFilling && !slot.batch.abandoned;
  });
}

Delivery::SlotCounts Delivery::CountSlots() const {
  SlotCounts counts;
  for (const Slot& slot : slots_) {
    switch (slot.state) {
      case SlotState::kFree:
        ++counts.free;
        break;
      case SlotState::kFilling:
        ++counts.filling;
        break;
      case SlotState::kReady:
        ++counts.ready;
        break;
      case SlotState::kOut:
        ++(slot.quarantine > 0 ? counts.quarantined : counts.out);
        break;
    }
  }
  // dynamic: batches that no rank has yet.
  for (const Entry& entry : pool_) {
    if (slots_[entry.slot].quarantine > 0) continue;
    --counts.out;
    ++counts.ready;
  }
  return counts;
}

std::string Delivery::IndexError() const {
  if (violated() != nullptr) return violated();
  if (closed_) return "";
  std::set<std::pair<uint64_t, uint32_t>> claimable;
  for (auto [node, shares] : claimable_) {
    for (; !shares.empty(); shares.pop()) claimable.insert(shares.top());
  }
  for (uint32_t number = 0; number < lanes_.size(); ++number) {
    const Lane& lane = lanes_[number];
    std::set<uint32_t> free;
    for (auto left = lane.free; !left.empty(); left.pop()) {
      free.insert(left.top());
    }
    uint32_t usable = 0;
    for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
      const Slot& slot = slots_[lane.first_slot + i];
      const uint32_t at = slot.batch.slot;
      const bool is_free = slot.state == SlotState::kFree;
      usable += is_free && i < usable_slots_;
      if (free.count(at) != is_free) {
        return Format(
            "the state of slot {} does not agree with the free slots of lane "
            "{}",
            at, number);
      }
      const bool in_turn = std::find(lane.in_turn.begin(), lane.in_turn.end(),
                                     at) != lane.in_turn.end();
      const bool is_in_lane = (slot.state == SlotState::kFilling ||
                               slot.state == SlotState::kReady) &&
                              !slot.batch.abandoned;
      if (in_turn != is_in_lane) {
        return Format(
            "the state of slot {} does not agree with the queue of lane {}", at,
            number);
      }
      if (is_in_lane && slot.batch.claimed < slot.batch.rows.rows &&
          claimable.count({slot.batch.step, at}) == 0) {
        return Format("slot {} has rows to claim but is not in claimable_", at);
      }
    }
    if (gathering() || usable == 0 || openable_.count(number) > 0 ||
        !Active(number)) {
      continue;
    }
    const Phase& phase = phases_[lane.phase];
    const auto end = phase.end_step ? phase.end_step : phase.plan.total_steps();
    const bool any_step = !lane.redo.empty() ||
                          lane.phase + 1 < phases_.size() || !end ||
                          lane.next_step < *end;
    if (available_ == UINT64_MAX && any_step) {
      return Format("lane {} has a step to open but is not in openable_",
                    number);
    }
  }
  if (MustAdvance()) return "";
  for (const auto& [rank, consumer] : consumers_) {
    const bool is_given_batches = consumer.state == ConsumerState::kAttached &&
                                  feeds_[consumer.seat]->open() &&
                                  !feeds_[consumer.seat]->corrupt();
    if (split()) {
      const Lane& lane = lanes_[consumer.lane];
      if (!lane.in_turn.empty() &&
          slots_[lane.in_turn.front()].state == SlotState::kReady) {
        return Format("a batch does not leave the lane of rank {}", rank);
      }
    }
    if (!is_given_batches) continue;
    const Feed& feed = *feeds_[consumer.seat];
    if (!consumer.backlog.empty() && feed.HasFreeLease() &&
        slots_[consumer.backlog.front().slot].phase <= consumer.known_phase) {
      return Format("rank {} does not get its backlog", rank);
    }
    const bool wakes_on_takes = feed.wakes_on_takes();
    if (mode_ == DeliveryMode::kDynamic && !pool_.empty() &&
        hungry_.count(rank) == 0 && feed.HasFreeLease() && !wakes_on_takes) {
      return Format("rank {} can take a batch but is not in hungry_", rank);
    }
    if (broadcast() && unsure_.count(rank) == 0 && without_.count(rank) > 0 &&
        !wakes_on_takes) {
      return Format("rank {} has no room but is not in unsure_", rank);
    }
    if (mode_ != DeliveryMode::kDynamic && recovery_ != Recovery::kPositions &&
        consumer.backlog.empty() && Exhausted(lanes_[consumer.lane])) {
      return Format("rank {} does not get the end", rank);
    }
  }
  return "";
}

}  // namespace penstock
