// The part of Delivery for ranks that leave, die or are evicted.
#include <algorithm>

#include "broker/delivery/delivery.h"
#include "common/kill_point.h"

namespace penstock {

void Delivery::Drop(Consumer* consumer) {
  foremost_ = std::max(foremost_, NextStepOf(*consumer));
  for (const Entry& entry : consumer->backlog) Release(entry.slot);
  touched_.insert(consumer->rank);
  consumers_.erase(consumer->rank);
  if (consumers_.empty()) GoBackTo(foremost_);
}

// broadcast: the first step in order that the consumer has not had.
uint64_t Delivery::NextStepOf(const Consumer& consumer) const {
  const auto step_of = [this](uint32_t number) {
    const Slot& slot = slots_[number];
    return slot.is_redo ? std::nullopt
                        : plan().StepFrom(slot.batch.rows.position);
  };
  for (const Entry& entry : consumer.backlog) {
    const auto step = step_of(entry.slot);
    if (step && !entry.redelivered) return *step;
  }
  const Lane& lane = lanes_[consumer.lane];
  for (const uint32_t number : lane.in_turn) {
    if (const auto step = step_of(number)) return *step;
  }
  return lane.next_step;
}

// broadcast, nobody is left: steps that none of them had are redone for those
// who come next.
void Delivery::GoBackTo(uint64_t step) {
  Lane& lane = lanes_[0];
  for (const uint32_t number : lane.in_turn) Abandon(&slots_[number]);
  lane.in_turn.clear();
  lane.redo.clear();
  lane.next_step = std::min(lane.next_step, step);
  openable_.insert(0);
}

Status Delivery::Gone(uint32_t seat, bool orderly) {
  const std::unique_ptr<Feed> feed = std::move(feeds_[seat]);
  if (feed == nullptr) return OkStatus();
  deaf_.erase(seat);
  Consumer* consumer = AtSeat(seat);
  std::vector<Feed::Batch> released;
  feed->Reclaim(&released);
  for (const Feed::Batch& each : released) ReleaseLease(consumer, each);
  KillPoint("gone.reclaimed");
  std::vector<Entry> entries;
  for (const Feed::Batch& each : feed->TakeAllBack()) {
    if (consumer == nullptr) {
      Unquarantine(each.slot);
    } else if (each.taken && orderly) {
      Release(each.slot);
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
  if (!lanes_[consumer->lane].redo.empty()) {
    return Vacate(consumer, std::move(entries), orderly);
  }
  if (feed->finished() && entries.empty() && consumer->backlog.empty()) {
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
    for (const Entry& entry : entries) Release(entry.slot);
    return OkStatus();
  }
  if (mode_ == DeliveryMode::kDynamic) {
    pool_.insert(pool_.begin(), entries.begin(), entries.end());
  } else {
    consumer->backlog.insert(consumer->backlog.begin(), entries.begin(),
                             entries.end());
  }
  if (policy == OnRankDeath::kFail && !orderly) {
    return AbortedError("rank {} died (on_rank_death: fail)", consumer->rank);
  }
  if (mode_ == DeliveryMode::kBroadcast &&
      (orderly || policy == OnRankDeath::kShrink)) {
    Drop(consumer);
    return OkStatus();
  }
  if (split() && policy == OnRankDeath::kShrink &&
      recovery_ != Recovery::kPositions) {
    return Shrink(consumer);
  }
  return OkStatus();
}

Status Delivery::EvictSeat(Consumer* consumer, Closed why,
                           const std::string& reason, bool keep_batches) {
  Feed& feed = FeedOf(*consumer);
  touched_.insert(consumer->rank);
  feed.Close(why, reason);
  KillPoint("evict.closed");
  // Counts everything it has released so far.
  std::vector<Feed::Batch> released;
  feed.Reclaim(&released);
  for (const Feed::Batch& each : released) ReleaseLease(consumer, each);
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
    consumer->backlog.insert(consumer->backlog.begin(), entries.begin(),
                             entries.end());
    Drop(consumer);
    return OkStatus();
  }
  TakeFormerBack(consumer, false);
  return Vacate(consumer, std::move(entries), false);
}

Status Delivery::Evict(uint32_t rank, const std::string& reason) {
  const auto found = consumers_.find(rank);
  if (found == consumers_.end()) {
    return NotFoundError("there is no rank {}", rank);
  }
  if (found->second.state != ConsumerState::kAttached) {
    return NotFoundError("rank {} {}", rank,
                         found->second.state == ConsumerState::kGone
                             ? "is already gone: its batches were handed on"
                             : "has taken all of its data and left");
  }
  return EvictSeat(&found->second, Closed::kRecalled, reason, true);
}

bool Delivery::AnyOtherFinished(const Consumer& gone) const {
  return std::any_of(
      consumers_.begin(), consumers_.end(), [&](const auto& item) {
        const Consumer& consumer = item.second;
        switch (consumer.state) {
          case ConsumerState::kFinished:
            return true;
          case ConsumerState::kAttached:
            return feeds_[consumer.seat]->finished();
          case ConsumerState::kGone:
            // It may have been told the end without anybody seeing it leave.
            return &consumer != &gone && NothingLeftFor(consumer);
        }
        return false;
      });
}

bool Delivery::IsBeingMade(const Slot& slot) {
  return slot.state == SlotState::kFilling || slot.state == SlotState::kReady;
}

std::vector<RowRange> Delivery::OwedBy(const Consumer& gone,
                                       uint64_t boundary) const {
  const Plan& plan = phases_.back().plan;
  std::vector<RowRange> owed;
  for (uint64_t step = boundary; step < plan.start().owed.size(); ++step) {
    owed.push_back(plan.start().owed[step]);
  }
  const auto owe = [&](const Plan::RankBatch& rows, bool redelivered) {
    if (rows.rows == 0) return;
    owed.push_back({rows.epoch * plan.rows_per_epoch() + rows.first_row,
                    rows.rows, redelivered || rows.redelivered});
  };
  for (const Entry& entry : gone.backlog) {
    owe(slots_[entry.slot].batch.rows, entry.redelivered);
  }
  const Lane& lane = lanes_[gone.lane];
  for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
    const Slot& slot = slots_[lane.first_slot + i];
    if (IsBeingMade(slot)) {
      owe(slot.batch.rows, false);
    }
  }
  for (const Redo& redo : lane.redo) {
    const Phase& phase = phases_[PhaseOfStep(redo.step)];
    const auto step = phase.plan.StepFrom(PositionOfStep(redo.step));
    owe(phase.plan.RankBatchOf(*step, RankIndexOf(phase, gone.rank)),
        redo.redelivered);
  }
  uint64_t step = lane.next_step;
  for (uint32_t number = lane.phase; number < phases_.size(); ++number) {
    const Phase& phase = phases_[number];
    const uint64_t end =
        number + 1 == phases_.size() ? boundary : phase.end_step.value_or(0);
    for (; step < end; ++step) {
      owe(phase.plan.RankBatchOf(step, RankIndexOf(phase, gone.rank)), false);
    }
    step = 0;
  }
  return owed;
}

void Delivery::RemoveConsumer(Consumer* gone) {
  Lane& lane = lanes_[gone->lane];
  for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
    Slot& slot = slots_[lane.first_slot + i];
    if (IsBeingMade(slot)) Abandon(&slot);
  }
  for (const Entry& entry : gone->backlog) {
    Slot& slot = slots_[entry.slot];
    --slot.holders;  // not completed: it is owed
    FreeIfUnheld(&slot);
  }
  lane.redo.clear();
  lane.in_turn.clear();
  consumers_.erase(gone->rank);
}

// The other ranks divide the global batch from the first step that nobody
// began. The gone rank's remaining rank batches of earlier steps become steps
// of their own, also divided over the others, so that all take the same number
// of steps.
Status Delivery::Shrink(Consumer* gone) {
  const Plan& plan = phases_.back().plan;
  std::vector<uint32_t> ranks = phases_.back().ranks;
  std::erase(ranks, gone->rank);
  // Its batches wait for a replacement: no rank, or not every rank, can take
  // them.
  if (ranks.empty() || AnyOtherFinished(*gone) || draining_) return OkStatus();

  uint64_t boundary = 0;
  for (const Lane& lane : lanes_) {
    if (lane.phase + 1 == phases_.size()) {
      boundary = std::max(boundary, lane.next_step);
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
  phases_.back().end_step = boundary;
  RemoveConsumer(gone);
  if (record_ != nullptr) {
    record_->PhaseBegun({ranks, boundary, next->start()});
    KillPoint("shrink.recorded");
  }
  phases_.push_back({*std::move(next), ranks, {}});
  const Phase& now = phases_.back();
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.state != ConsumerState::kAttached) continue;
    ranks_changed_.push_back(
        {consumer.seat, static_cast<uint32_t>(phases_.size() - 1),
         RankIndexOf(now, rank), static_cast<uint32_t>(ranks.size()),
         now.plan.start()});
  }
  OpenAll();
  TouchAll();
  return OkStatus();
}

}  // namespace penstock
