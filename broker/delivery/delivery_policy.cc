// The part of Delivery for the policy of a lane: its batches go each to one of
// its members, or to all of them.
#include <algorithm>
#include <utility>

#include "broker/delivery/delivery.h"
#include "common/quantity.h"

namespace penstock {

// ---- to one

bool Delivery::IsHungry(const Consumer& consumer) {
  ++checks_;
  if (!consumer.attached()) return false;
  Feed& feed = FeedOf(consumer);
  if (!feed.open() || feed.corrupt()) return false;
  // Without a free lease: its next release brings a wake.
  if (!feed.HasFreeLease()) Reclaim(consumer.seat);
  if (!feed.HasFreeLease()) return false;
  if (feed.untaken() > 0) {
    feed.RequestWakes(true);  // E8
    if (feed.untaken() > 0) return false;
  }
  return !feed.corrupt();
}

// Round robin over ranks that have no untaken batch, starting after the last.
Consumer* Delivery::NextHungry(Lane* lane) {
  while (!lane->unsure.empty()) {
    auto next = lane->unsure.upper_bound(lane->last_given);
    if (next == lane->unsure.end()) next = lane->unsure.begin();
    Consumer* const consumer = consumers_.Find(*next);
    if (consumer != nullptr && IsHungry(*consumer)) return consumer;
    lane->unsure.erase(next);
  }
  return nullptr;
}

void Delivery::DeliverToOne(Lane* lane) {
  Account& common = *lane->common();
  while (const Slot* slot = lane->NextReady()) {
    const bool redelivered = common.Wants(*slot).value_or(slot->is_redo);
    if (!common.lacks.empty()) common.lacks.erase(slot->id());
    common.backlog.push_back({slot->batch.slot, redelivered});
    lane->Pop(1);
  }
  while (!common.backlog.empty()) {
    Consumer* const next = NextHungry(lane);
    if (next == nullptr) break;
    Give(next, common.backlog.front());
    lane->last_given = next->rank;
    common.backlog.pop_front();
  }
}

bool Delivery::IsAtWork(const Consumer& consumer) {
  if (!consumer.attached()) return false;
  Feed& feed = FeedOf(consumer);
  const auto is_at_work = [&feed] {
    return feed.open() && feed.out() > 0 && !feed.waiting();
  };
  if (!is_at_work()) return false;
  ++checks_;
  feed.RequestWakes(true);  // E8
  return is_at_work();
}

// A rank that works on a batch may still die, and then others must be there to
// take it.
void Delivery::FinishToOne(Lane* lane) {
  if (!lane->common()->backlog.empty() || !lane->Exhausted(phases_)) return;
  // The rank that was at work last time probably still is.
  const auto& members = lane->members();
  const auto from = members.lower_bound(lane->at_work);
  const auto is_at_work = [this](const auto& item) {
    return IsAtWork(*item.second);
  };
  auto found = std::find_if(from, members.end(), is_at_work);
  if (found == members.end()) {
    found = std::find_if(members.begin(), from, is_at_work);
    if (found == from) {
      for (const auto& [rank, member] : members) FinishIfOver(member);
      return;
    }
  }
  lane->at_work = found->first;
}

// ---- to all

std::optional<bool> Delivery::Wants(const Consumer& consumer,
                                    const Slot& slot) const {
  if (consumer.state == ConsumerState::kFinished ||
      (consumer.attached() && !FeedOf(consumer).open())) {
    return std::nullopt;
  }
  return consumer.account->Wants(slot);
}

bool Delivery::IsAsleep(const Consumer& consumer) const {
  return consumers_.IsOpen(consumer) && FeedOf(consumer).waiting();
}

bool Delivery::HasRoom(const Consumer& consumer) {
  ++checks_;
  const std::deque<Entry>& backlog = consumer.account->backlog;
  size_t behind = backlog.size();
  if (!consumer.attached()) return behind < shape_.options.window;
  Feed& feed = FeedOf(consumer);
  // In this order: a consumer that was less than a window behind then has a
  // lease once its releases are seen.
  behind += feed.untaken();
  if (feed.corrupt() || behind >= shape_.options.window) return false;
  if (Reclaim(consumer.seat) && !backlog.empty()) {
    touched_.insert(consumer.rank);
  }
  return feed.HasFreeLease() && !feed.corrupt();
}

void Delivery::NoteRoom(Lane* lane, Consumer* consumer) {
  bool has_room = HasRoom(*consumer);
  bool asleep = false;
  if (consumer->attached()) {
    // Sleepers matter only where a consumer may be left behind.
    const bool block = shape_.options.lag == Lag::kBlock;
    FeedOf(*consumer).RequestWakes(!has_room || !block);  // E8
    asleep = !block && IsAsleep(*consumer);
    if (!has_room) has_room = HasRoom(*consumer);
  }
  const auto note = [consumer](bool is_in, std::set<uint32_t>* ranks) {
    if (is_in) {
      ranks->insert(consumer->rank);
    } else {
      ranks->erase(consumer->rank);
    }
  };
  note(!has_room, &lane->without);
  note(asleep, &lane->asleep);
}

// A rank seen asleep may have been interrupted since.
bool Delivery::OneSleeps(Lane* lane) {
  while (!lane->asleep.empty()) {
    const Consumer* const consumer = consumers_.Find(*lane->asleep.begin());
    if (consumer != nullptr && IsAsleep(*consumer)) return true;
    lane->asleep.erase(lane->asleep.begin());
  }
  return false;
}

// Whether the batch has to wait, as far as can be told without walking over all
// members.
bool Delivery::IsHeldUp(Lane* lane, const Slot& slot) {
  for (const uint32_t rank : std::exchange(lane->unsure, {})) {
    if (Consumer* const consumer = consumers_.Find(rank)) {
      NoteRoom(lane, consumer);
    } else {
      lane->without.erase(rank);
    }
  }
  const bool block = shape_.options.lag == Lag::kBlock;
  const bool one_holds_it_up = std::any_of(
      lane->without.begin(), lane->without.end(), [&](uint32_t rank) {
        const Consumer* const consumer = consumers_.Find(rank);
        return consumer != nullptr && Wants(*consumer, slot) &&
               (block || consumer->skipped == 0);
      });
  // A consumer is newly left behind only after another has taken a whole window
  // more and sleeps: consumers of similar speed lose nothing.
  return one_holds_it_up && (block || !OneSleeps(lane));
}

void Delivery::LeaveBehind(Consumer* consumer, const Slot& slot) {
  if (shape_.options.lag == Lag::kSkip) {
    ++consumer->skipped;
    ++consumer->skipped_all;
    consumer->account->lacks.erase(slot.id());
  } else if (consumer->gone()) {
    Drop(consumer);
  } else {
    (void)EvictSeat(
        consumer, Closed::kEvicted,
        AbortedError("rank {} fell more than {} behind (lag: fail; window: {})",
                     consumer->rank,
                     Counted(shape_.options.window, "batch", "batches"),
                     shape_.options.window),
        false);
  }
}

bool Delivery::GiveToAll(Lane* lane, Slot* slot) {
  std::vector<Consumer*> behind;
  takers_.clear();
  bool anyone = false;
  bool one_is_ahead = false;  // since a former instance: awaits later steps
  for (const auto& [rank, consumer] : lane->members()) {
    anyone |= consumer->attached();
    const std::optional<bool> redelivered = Wants(*consumer, *slot);
    if (!redelivered) {
      one_is_ahead |= !slot->is_redo && consumers_.IsOpen(*consumer);
      continue;
    }
    // Redone steps do not count as lag. A consumer in `without` is checked once
    // more after another was seen asleep, which still sleeps: so both were true
    // at one time.
    if (!slot->is_redo && lane->without.count(rank) > 0 &&
        !HasRoom(*consumer)) {
      behind.push_back(consumer);
    } else {
      takers_.push_back({consumer, *redelivered});
    }
  }
  // Nobody wants it: it was redone for a consumer that is gone for good, or all
  // have it.
  const bool is_for_nobody = anyone && takers_.empty() && behind.empty();
  // While all members of a shared lane are gone, it is kept for those who come.
  if (!is_for_nobody &&
      ((lane->shared() && !anyone) || (takers_.empty() && !one_is_ahead))) {
    return false;
  }
  lane->Pop(static_cast<uint32_t>(takers_.size()));
  for (const auto& [consumer, redelivered] : takers_) {
    Entry entry{slot->batch.slot, redelivered};
    if (!slot->is_redo) entry.skipped = std::exchange(consumer->skipped, 0);
    Account& account = *consumer->account;
    if (!account.lacks.empty()) {
      slot->handed_over |= account.lacks.erase(slot->id()) > 0;
    }
    account.backlog.push_back(entry);
    Flush(consumer);
    if (lane->shared()) lane->unsure.insert(consumer->rank);
  }
  // Ranks are told the end, once they have what was theirs.
  if (lane->Exhausted(phases_)) {
    for (const auto& [rank, consumer] : lane->members()) touched_.insert(rank);
  }
  for (Consumer* consumer : behind) LeaveBehind(consumer, *slot);
  FreeIfUnheld(slot);  // nobody got it: only a consumer that is ahead goes on
  return true;
}

void Delivery::DeliverToAll(Lane* lane) {
  lane->started |= consumers_.size() >= shape_.start_with;
  while (lane->started) {
    Slot* const slot = lane->NextReady();
    if (slot == nullptr) break;
    if (lane->shared() && !slot->is_redo && IsHeldUp(lane, *slot)) break;
    if (!GiveToAll(lane, slot)) break;
  }
}

// ---- both

void Delivery::FinishIfOver(Consumer* consumer) {
  if (recovery_ == Recovery::kPositions || !consumers_.IsOpen(*consumer) ||
      !consumer->account->backlog.empty() || !Exhausted(*consumer)) {
    return;
  }
  FeedOf(*consumer).Finish(consumer->skipped);
}

void Delivery::ForgoTakes(const Consumer& consumer) {
  const Lane& lane = LaneOf(consumer);
  const bool waits = lane.to_one() ? !lane.common()->backlog.empty()
                                   : lane.NextReady() != nullptr;
  // D5 does not need them of those it checks anyway.
  if (consumer.attached() && !waits && lane.unsure.count(consumer.rank) > 0) {
    FeedOf(consumer).RequestWakes(false);
  }
}

}  // namespace penstock
