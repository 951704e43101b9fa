// The part of Delivery for ranks that leave, die or are evicted.
#include <algorithm>

#include "broker/delivery/delivery.h"
#include "common/kill_point.h"

namespace penstock {

void Delivery::Drop(Consumer* consumer) {
  Lane& lane = LaneOf(*consumer);
  lane.foremost = std::max(lane.foremost, NextStepOf(*consumer));
  for (const Entry& entry : consumer->account->backlog) LetGo(entry.slot);
  BeDue(consumer->lane);
  lane.Remove(*consumer);
  consumers_.Remove(consumer);
  if (!lane.members().empty()) return;
  // What none of them had is made again for those who come next.
  for (Slot* slot : lane.in_turn()) Abandon(slot);
  lane.GoBackTo(lane.foremost);
  openable_.insert(static_cast<uint32_t>(&lane - lanes_.data()));
}

// broadcast: the first step in order that the consumer has not had.
uint64_t Delivery::NextStepOf(const Consumer& consumer) const {
  const auto step_of = [this](const Slot& slot) {
    return slot.is_redo ? std::nullopt
                        : plan().StepFrom(slot.batch.rows.position);
  };
  for (const Entry& entry : consumer.account->backlog) {
    const auto step = step_of(slots_[entry.slot]);
    if (step && !entry.redelivered) return *step;
  }
  const Lane& lane = LaneOf(consumer);
  for (const Slot* slot : lane.in_turn()) {
    if (const auto step = step_of(*slot)) return *step;
  }
  return lane.next().step;
}

Status Delivery::Gone(uint32_t seat, bool orderly) {
  Consumer* const consumer = consumers_.AtSeat(seat);
  const std::unique_ptr<Feed> feed = consumers_.TakeFeed(seat);
  if (feed == nullptr) return OkStatus();
  deaf_.erase(seat);
  ReclaimFrom(feed.get(), consumer);
  KillPoint("gone.reclaimed");
  std::vector<Entry> entries;
  for (const Feed::Batch& each : feed->TakeAllBack()) {
    if (consumer == nullptr) {
      Unquarantine(each.slot);
    } else if (each.taken && orderly) {
      Release(*consumer, each);
    } else {
      entries.push_back(
          {each.slot, each.taken || each.redelivered, each.skipped});
      slots_[each.slot].handed_over |= each.taken;
    }
  }
  if (consumer == nullptr) return OkStatus();
  touched_.insert(consumer->rank);
  consumer->state = ConsumerState::kGone;
  consumer->died = !orderly;
  TakeFormerBack(consumer, orderly);
  if (feed->finished() && entries.empty() && consumer->account->empty()) {
    // One that died may not know that it had everything: a replacement is told,
    // or gets batches of others who died.
    if (orderly) consumer->state = ConsumerState::kFinished;
    return OkStatus();
  }
  return Vacate(consumer, std::move(entries), orderly);
}

Status Delivery::Vacate(Consumer* consumer, std::vector<Entry> entries,
                        bool orderly) {
  consumer->state = ConsumerState::kGone;
  const OnRankDeath policy = shape_.options.on_rank_death;
  if (closed_) {
    for (const Entry& entry : entries) LetGo(entry.slot);
    return OkStatus();
  }
  std::deque<Entry>& backlog = consumer->account->backlog;
  backlog.insert(backlog.begin(), entries.begin(), entries.end());
  if (policy == OnRankDeath::kFail && !orderly) {
    return AbortedError("rank {} died (on_rank_death: fail)", consumer->rank);
  }
  const bool shrinks = policy == OnRankDeath::kShrink;
  if (LaneOf(*consumer).in_step() && (orderly || shrinks)) {
    Drop(consumer);
  } else if (divided() && shrinks && recovery_ != Recovery::kPositions) {
    return Shrink(consumer);
  }
  return OkStatus();
}

Status Delivery::EvictSeat(Consumer* consumer, Closed why, const Status& status,
                           bool keep_batches) {
  Feed& feed = FeedOf(*consumer);
  touched_.insert(consumer->rank);
  feed.Close(why, status);
  KillPoint("evict.closed");
  // Counts everything it has released so far.
  ReclaimFrom(&feed, consumer);
  std::vector<Entry> entries;
  for (const Feed::Batch& each : feed.Recall()) {
    // The process may still read batches it took.
    if (each.taken) ++slots_[each.slot].quarantine;
    entries.push_back(
        {each.slot, each.taken || each.redelivered, each.skipped});
    slots_[each.slot].handed_over |= keep_batches && each.taken;
  }
  consumer->state = ConsumerState::kGone;
  if (!keep_batches) {
    std::deque<Entry>& backlog = consumer->account->backlog;
    backlog.insert(backlog.begin(), entries.begin(), entries.end());
    Drop(consumer);
    return OkStatus();
  }
  TakeFormerBack(consumer, false);
  return Vacate(consumer, std::move(entries), false);
}

Status Delivery::Evict(uint32_t rank, const std::string& reason) {
  Consumer* const consumer = consumers_.Find(rank);
  if (consumer == nullptr) return NotFoundError("there is no rank {}", rank);
  if (!consumer->attached()) {
    return NotFoundError("rank {} {}", rank,
                         consumer->gone()
                             ? "is already gone: its batches were handed on"
                             : "has taken all of its data and left");
  }
  return EvictSeat(consumer, Closed::kRecalled, AbortedError("{}", reason),
                   true);
}

bool Delivery::AnyOtherFinished(const Consumer& gone) const {
  return std::any_of(
      consumers_.begin(), consumers_.end(), [&](const auto& item) {
        const Consumer& consumer = item.second;
        switch (consumer.state) {
          case ConsumerState::kFinished:
            return true;
          case ConsumerState::kAttached:
            return FeedOf(consumer).finished();
          case ConsumerState::kGone:
            // It may have been told the end without anybody seeing it leave.
            return &consumer != &gone && NothingLeftFor(consumer);
        }
        return false;
      });
}

std::vector<RowRange> Delivery::OwedBy(const Consumer& gone,
                                       uint64_t boundary) const {
  const Plan& plan = this->plan();
  const Account& account = *gone.account;
  std::vector<RowRange> owed;
  for (uint64_t step = boundary; step < plan.start().owed.size(); ++step) {
    owed.push_back(plan.start().owed[step]);
  }
  const auto owe = [&](const Plan::RankBatch& rows, bool redelivered) {
    if (rows.rows > 0) owed.push_back(RangeOf(rows, redelivered));
  };
  for (const Entry& entry : account.backlog) {
    owe(slots_[entry.slot].batch.rows, entry.redelivered);
  }
  const Lane& lane = LaneOf(gone);
  for (const Slot* slot : lane.in_turn()) {
    owe(slot->batch.rows, account.Wants(*slot).value_or(false));
  }
  for (const uint64_t id : lane.again()) {
    owe(phases_.RankBatchOf(*phases_.StepOf(id), gone.rank),
        account.lacks.at(id));
  }
  for (PhaseStep step = lane.next(); step.phase < phases_.size();
       step = {step.phase + 1, 0}) {
    const uint64_t end = phases_.IsLast(step.phase)
                             ? boundary
                             : phases_[step.phase].end_step.value_or(0);
    for (; step.step < end; ++step.step) {
      owe(phases_.RankBatchOf(step, gone.rank), false);
    }
  }
  return owed;
}

void Delivery::RemoveConsumer(Consumer* gone) {
  Lane& lane = LaneOf(*gone);
  for (Slot* slot : lane.in_turn()) Abandon(slot);
  lane.GoBackTo(lane.next().step);
  // Not completed: they are owed.
  for (const Entry& entry : gone->account->backlog) LetGo(entry.slot);
  lane.Remove(*gone);
  consumers_.Remove(gone);
}

// The other ranks divide the global batch from the first step that nobody
// began. The gone rank's remaining rank batches of earlier steps become steps
// of their own, also divided over the others, so that all take the same number
// of steps.
Status Delivery::Shrink(Consumer* gone) {
  const Plan& plan = this->plan();
  std::vector<uint32_t> ranks = phases_.last().ranks;
  std::erase(ranks, gone->rank);
  // Its batches wait for a replacement: no rank, or not every rank, can take
  // them.
  if (ranks.empty() || AnyOtherFinished(*gone) || draining_) return OkStatus();

  uint64_t boundary = 0;
  for (const Lane& lane : lanes_) {
    if (phases_.IsLast(lane.next().phase)) {
      boundary = std::max(boundary, lane.next().step);
    }
  }
  PlanStart start;
  start.position =
      plan.PositionOf(std::max<uint64_t>(boundary, plan.start().owed.size()));
  start.owed = OwedBy(*gone, boundary);
  auto next = plan.From(std::move(start), static_cast<uint32_t>(ranks.size()));
  if (!next.ok()) return next.status();
  if (next->max_batch_rows(0) > shape_.rows_max ||
      ranks.size() < shape_.ranks_min) {
    return AbortedError(
        "rank {} died, and the remaining ranks ({}) would need batches of {} "
        "rows; a job has memory to shrink to half of its ranks",
        gone->rank, ranks.size(), next->max_batch_rows(0));
  }
  RemoveConsumer(gone);
  if (record_ != nullptr) {
    record_->PhaseBegun({ranks, boundary, next->start()});
    KillPoint("shrink.recorded");
  }
  phases_.Begin(boundary, *std::move(next), ranks);
  const uint32_t number = phases_.size() - 1;
  for (const auto& [rank, consumer] : consumers_) {
    if (!consumer.attached()) continue;
    ranks_changed_.push_back(
        {consumer.seat, number, phases_.RankIndexOf(number, rank),
         static_cast<uint32_t>(ranks.size()), this->plan().start()});
  }
  OpenAll();
  TouchAll();
  return OkStatus();
}

}  // namespace penstock
