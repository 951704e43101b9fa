// Queries of Delivery: state and status.
#include <algorithm>

#include "broker/delivery/delivery.h"

namespace penstock {

std::optional<uint32_t> Delivery::RankAt(uint32_t seat) {
  const Consumer* const consumer = consumers_.AtSeat(seat);
  if (consumer == nullptr) return std::nullopt;
  return consumer->rank;
}

bool Delivery::AnyAttached() const {
  return std::any_of(consumers_.begin(), consumers_.end(),
                     [](const auto& it) { return it.second.attached(); });
}

std::vector<uint32_t> Delivery::RanksHere() const {
  std::vector<uint32_t> ranks;
  for (const auto& [number, consumer] : consumers_) {
    if (consumer.attached() &&
        (ranks.empty() || ranks.back() != consumer.plan_rank)) {
      ranks.push_back(consumer.plan_rank);
    }
  }
  return ranks;
}

bool Delivery::AnySeatTaken() const {
  for (uint32_t seat = 0; seat < consumers_.seats(); ++seat) {
    if (consumers_.FeedAt(seat) != nullptr) return true;
  }
  return false;
}

bool Delivery::OwesTheDead() const {
  if (draining_) return false;
  return std::any_of(
      consumers_.begin(), consumers_.end(), [this](const auto& it) {
        return it.second.gone() && it.second.died && !NothingLeftFor(it.second);
      });
}

bool Delivery::WaitsFor(uint32_t rank) const {
  const Consumer* const consumer = consumers_.Find(rank);
  return consumer != nullptr && consumer->gone();
}

bool Delivery::NothingLeftFor(const Consumer& consumer) const {
  const Account& account = *consumer.account;
  return account.empty() &&
         (Exhausted(consumer) || phases_.AtEnd(account.from));
}

bool Delivery::Finished(uint32_t rank) const {
  const Consumer* const consumer = consumers_.Find(rank);
  return consumer != nullptr && consumer->state == ConsumerState::kFinished;
}

bool Delivery::ToldTheEnd(uint32_t rank) const {
  const Consumer* const consumer = consumers_.Find(rank);
  return consumer != nullptr && consumer->attached() &&
         FeedOf(*consumer).finished();
}

bool Delivery::AllCame() const {
  // The number of ranks shrinks only where all ranks are on this host.
  if (phases_.size() == 1) return consumers_.size() == shape_.consumers_max;
  const std::vector<uint32_t>& ranks = phases_.last().ranks;
  return std::all_of(ranks.begin(), ranks.end(), [this](uint32_t rank) {
    for (uint32_t replica = 0; replica < shape_.replicas; ++replica) {
      if (!Knows(rank * shape_.replicas + replica)) return false;
    }
    return true;
  });
}

bool Delivery::KnowsAny(uint32_t plan_rank) const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [&](const Lane& lane) { return lane.IsOf(plan_rank); });
}

bool Delivery::AllDelivered() const {
  if (Unsettled()) return false;
  const std::vector<const Lane*> lanes = LanesNeeded();
  return std::all_of(lanes.begin(), lanes.end(), [this](const Lane* lane) {
    const std::vector<Account*> accounts = lane->Accounts();
    return lane->Exhausted(phases_) &&
           std::all_of(accounts.begin(), accounts.end(),
                       [](const Account* each) { return each->empty(); });
  });
}

uint64_t Delivery::FirstNotOpened() const {
  uint64_t first = std::max(plan().start().position, had_before_);
  for (const Lane& lane : lanes_) {
    first = std::max(first, phases_.PositionOf(lane.next()));
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
      divided() || (options.lag == Lag::kBlock &&
                    options.on_rank_death == OnRankDeath::kWait);
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.gone() && numbers_are_reserved && !LaneOf(consumer).to_one()) {
      missing.push_back(rank);
    }
  }
  // If the world spans several hosts, it is not known which ranks belong here:
  // missing ones can be named only when all do.
  std::vector<uint32_t> expected;
  if (divided() && all_here()) {
    for (const uint32_t rank : phases_.last().ranks) {
      for (uint32_t replica = 0; replica < shape_.replicas; ++replica) {
        expected.push_back(rank * shape_.replicas + replica);
      }
    }
  }
  const bool started =
      std::all_of(lanes_.begin(), lanes_.end(),
                  [](const Lane& lane) { return lane.started; });
  for (uint32_t rank = 0; !started && rank < shape_.start_with; ++rank) {
    expected.push_back(rank);
  }
  for (const uint32_t rank : expected) {
    if (!Knows(rank)) missing.push_back(rank);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

std::vector<uint32_t> Delivery::TakeCorrupt() {
  std::vector<uint32_t> ranks;
  if (!std::exchange(any_corrupt_, false) || closed_) return ranks;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.attached() && FeedOf(consumer).corrupt()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

namespace {

// Sorts ranges by position. Of rows listed twice the first listing counts; rows
// from the position on are reached anyway.
void InOrder(PlanStart* start) {
  std::stable_sort(start->owed.begin(), start->owed.end(),
                   [](const RowRange& a, const RowRange& b) {
                     return a.position < b.position;
                   });
  uint64_t end = 0;
  for (RowRange& range : start->owed) {
    const uint64_t last =
        std::min(range.position + range.rows, start->position);
    range.position = std::max(range.position, end);
    range.rows = last - std::min(last, range.position);
    end = std::max(end, last);
  }
  std::erase_if(start->owed,
                [](const RowRange& range) { return range.rows == 0; });
}

}  // namespace

PlanStart Delivery::State() const { return Unreleased(shared_); }

PlanStart Delivery::RowsNeeded() const { return Unreleased(true); }

PlanStart Delivery::Unreleased(bool exact) const {
  PlanStart state;
  state.position = UINT64_MAX;
  const auto owe = [&](const Plan::RankBatch& rows, bool redelivered) {
    if (exact) {
      state.owed.push_back(RangeOf(rows, redelivered));
    } else {
      state.position = std::min(state.position, rows.position);
    }
  };
  // By phase: steps that all lanes opened.
  std::vector<uint64_t> opened(phases_.size(), UINT64_MAX);
  for (const Lane* lane : LanesNeeded()) {
    // By StepId: whether some rank may have had it.
    std::map<uint64_t, bool> had;
    for (const Account* account : lane->Accounts()) {
      for (const auto& [id, redelivered] : account->lacks) {
        had[id] |= redelivered || lane->in_step();
      }
    }
    if (lane->to_one()) {
      for (const Entry& entry : lane->common()->backlog) {
        had[slots_[entry.slot].id()] = entry.redelivered;
      }
    }
    for (const Slot& slot : lane->slots()) {
      if (!slot.unreleased()) continue;
      const auto found = had.find(slot.id());
      owe(slot.batch.rows,
          found != had.end() ? found->second : slot.state == SlotState::kOut);
    }
    for (const uint64_t id : lane->again()) {
      owe(phases_.RankBatchOf(*phases_.StepOf(id), lane->rank()), had[id]);
    }
    const PhaseStep next = lane->next();
    state.position = std::min(state.position, phases_.PositionOf(next));
    opened[next.phase] = std::min(opened[next.phase], next.step);
    std::fill(opened.begin() + next.phase + 1, opened.end(), 0);
  }
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.former == nullptr) continue;
    for (const FormerBatch& batch : FormerBatches(*consumer.former)) {
      const auto step = phases_.StepOf(batch.step);
      if (!step || batch.released) continue;
      owe(phases_.RankBatchOf(*step, consumer.plan_rank), true);
    }
  }
  for (uint32_t number = 0; number < phases_.size(); ++number) {
    const std::vector<RowRange>& owed = phases_[number].plan.start().owed;
    for (uint64_t step = opened[number]; step < owed.size(); ++step) {
      state.owed.push_back(owed[step]);
      state.owed.back().redelivered |= !exact;
    }
  }
  InOrder(&state);
  return state;
}

std::vector<const Lane*> Delivery::LanesNeeded() const {
  std::vector<const Lane*> needed;
  for (const Lane& lane : lanes_) {
    if (!lane.members().empty() || lane.shared() ||
        !(lane.taken() || AllCame())) {
      needed.push_back(&lane);
    }
  }
  return needed;
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
    if (divided() && !bank_nodes_.empty()) {
      status.memory_node = bank_nodes_[consumer.lane];
    } else if (shape_.copies > 1) {
      status.memory_node = bank_nodes_[CopyFor(consumer)];
    }
    if (!consumer.attached()) {
      status.state = consumer.gone() ? "gone" : "finished";
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
    if (!LaneOf(consumer).to_one()) {
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
    if (!consumers_.IsOpen(consumer)) continue;
    if (FeedOf(consumer).waiting()) return Demand::kNow;
    demand = Demand::kAhead;
  }
  return demand;
}

bool Delivery::WaitsForRows() const {
  bool free = false;
  for (const Lane& lane : lanes_) {
    free |= lane.HasFree(usable_slots_);
    for (const Slot& slot : lane.slots()) {
      if (slot.state == SlotState::kFilling) return false;
    }
  }
  return free;
}

bool Delivery::Filling() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == SlotState::kFilling && !slot.batch.abandoned;
  });
}

bool Delivery::OnlyRanksHaveBatches() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [this](const Lane& lane) {
    return lane.to_one() && lane.common()->empty() && lane.Exhausted(phases_);
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
  // Batches that no rank has yet.
  for (const Lane& lane : lanes_) {
    if (!lane.to_one()) continue;
    for (const Entry& entry : lane.common()->backlog) {
      if (slots_[entry.slot].quarantine > 0) continue;
      --counts.out;
      ++counts.ready;
    }
  }
  return counts;
}

std::vector<uint32_t> Delivery::EvictedInTheWay() {
  const auto any_of = [](const auto& all, const auto& is) {
    return std::any_of(all.begin(), all.end(), is);
  };
  const bool in_the_way = any_of(lanes_, [&](const Lane& lane) {
    return !lane.HasFree(usable_slots_) && Active(lane) &&
           any_of(lane.slots(),
                  [](const Slot& slot) { return slot.quarantine > 0; }) &&
           !any_of(lane.slots(),
                   [](const Slot& slot) {
                     return slot.state == SlotState::kFilling ||
                            slot.state == SlotState::kReady;
                   }) &&
           any_of(lane.members(), [&](const auto& item) {
             return consumers_.IsOpen(*item.second) &&
                    FeedOf(*item.second).waiting();
           });
  });
  std::vector<uint32_t> seats;
  for (uint32_t seat = 0; in_the_way && seat < consumers_.seats(); ++seat) {
    const Feed* const feed = consumers_.FeedAt(seat);
    if (feed != nullptr && feed->out() > 0 &&
        consumers_.AtSeat(seat) == nullptr) {
      seats.push_back(seat);
    }
  }
  return seats;
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
    const std::set<uint32_t> free = lane.FreeSlots();
    for (uint32_t i = 0; i < lane.slots().size(); ++i) {
      const Slot& slot = lane.slots()[i];
      const uint32_t at = slot.batch.slot;
      if ((free.count(i) > 0) != (slot.state == SlotState::kFree)) {
        return Format(
            "the state of slot {} does not agree with the free slots of lane "
            "{}",
            at, number);
      }
      const bool in_turn =
          std::find(lane.in_turn().begin(), lane.in_turn().end(), &slot) !=
          lane.in_turn().end();
      const bool is_in_lane = slot.being_made() && !slot.batch.abandoned;
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
    const bool any_step = !lane.again().empty() || !phases_.AtEnd(lane.next());
    if (!gathering() && lane.HasFree(usable_slots_) && Active(lane) &&
        openable_.count(number) == 0 && available_ == UINT64_MAX && any_step) {
      return Format("lane {} has a step to open but is not in openable_",
                    number);
    }
  }
  if (MustAdvance()) return "";
  for (const auto& [rank, consumer] : consumers_) {
    const Lane& lane = LaneOf(consumer);
    const std::deque<Entry>& backlog = consumer.account->backlog;
    if (!lane.shared() && lane.NextReady() != nullptr) {
      return Format("a batch does not leave the lane of rank {}", rank);
    }
    if (!consumers_.IsOpen(consumer) || FeedOf(consumer).corrupt()) continue;
    const Feed& feed = FeedOf(consumer);
    const bool knows_it =
        !backlog.empty() &&
        slots_[backlog.front().slot].at.phase <= consumer.known_phase;
    const bool is_unsure = lane.unsure.count(rank) > 0 || feed.wakes_on_takes();
    if (knows_it && feed.HasFreeLease() && !(lane.to_one() && is_unsure)) {
      return Format("rank {} can get a batch and does not", rank);
    }
    if (lane.without.count(rank) > 0 && !is_unsure) {
      return Format("rank {} has no room but is not in unsure", rank);
    }
    if (!lane.to_one() && recovery_ != Recovery::kPositions &&
        backlog.empty() && lane.Exhausted(phases_)) {
      return Format("rank {} does not get the end", rank);
    }
  }
  return "";
}

}  // namespace penstock
