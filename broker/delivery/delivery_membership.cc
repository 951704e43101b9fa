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
  std::deque<Entry>& backlog = consumer->account->backlog;
  const bool had_all = feed->finished() && entries.empty();
  backlog.insert(backlog.begin(), entries.begin(), entries.end());
  TakeFormerBack(consumer, orderly);
  if (had_all && consumer->account->empty()) {
    // One that died may not know that it had everything: a replacement is told,
    // or gets batches of others who died.
    if (orderly) consumer->state = ConsumerState::kFinished;
    return OkStatus();
  }
  return Vacate(consumer, orderly);
}

Status Delivery::Vacate(Consumer* consumer, bool orderly) {
  const OnRankDeath policy = shape_.options.on_rank_death;
  if (closed_) {
    for (const Entry& entry : std::exchange(consumer->account->backlog, {})) {
      LetGo(entry.slot);
    }
    return OkStatus();
  }
  if (policy == OnRankDeath::kFail && !orderly) {
    return AbortedError("rank {} died (on_rank_death: fail)",
                        NameOf(consumer->rank));
  }
  const bool shrinks = policy == OnRankDeath::kShrink;
  if (shared_ && LaneOf(*consumer).in_step() && (orderly || shrinks)) {
    Drop(consumer);
  } else if (divided() && shrinks && recovery_ != Recovery::kPositions) {
    return Shrink(consumer);
  }
  return OkStatus();
}

void Delivery::Expel(Consumer* consumer, Closed why, const Status& status,
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
  std::deque<Entry>& backlog = consumer->account->backlog;
  backlog.insert(backlog.begin(), entries.begin(), entries.end());
  if (keep_batches) TakeFormerBack(consumer, false);
}

Status Delivery::EvictSeat(Consumer* consumer, Closed why, const Status& status,
                           bool keep_batches) {
  Expel(consumer, why, status, keep_batches);
  if (keep_batches) return Vacate(consumer, false);
  Drop(consumer);
  return OkStatus();
}

Status Delivery::Evict(uint32_t rank, const std::string& reason) {
  Consumer* const consumer = consumers_.Find(rank);
  if (consumer == nullptr) {
    return NotFoundError("there is no rank {}", NameOf(rank));
  }
  if (!consumer->attached()) {
    return NotFoundError("rank {} {}", NameOf(rank),
                         consumer->gone()
                             ? "is already gone: its batches were handed on"
                             : "has taken all of its data and left");
  }
  return EvictSeat(consumer, Closed::kRecalled, AbortedError("{}", reason),
                   true);
}

bool Delivery::AnyOtherFinished(const Consumer& gone) const {
  return std::any_of(consumers_.begin(), consumers_.end(),
                     [&](const auto& item) {
                       const Consumer& consumer = item.second;
                       if (consumer.plan_rank == gone.plan_rank) return false;
                       switch (consumer.state) {
                         case ConsumerState::kFinished:
                           return true;
                         case ConsumerState::kAttached:
                           return FeedOf(consumer).finished();
                         case ConsumerState::kGone:
                           // It may have been told the end without anybody
                           // seeing it leave.
                           return NothingLeftFor(consumer);
                       }
                       return false;
                     });
}

std::vector<RowRange> Delivery::OwedBy(const Lane& gone,
                                       uint64_t boundary) const {
  const Plan& plan = this->plan();
  const std::vector<Account*> accounts = gone.Accounts();
  std::vector<RowRange> owed;
  for (uint64_t step = boundary; step < plan.start().owed.size(); ++step) {
    owed.push_back(plan.start().owed[step]);
  }
  std::set<uint64_t> listed;
  // in_order: whoever is not past the step is to get it.
  const auto owe = [&](PhaseStep step, const Plan::RankBatch& rows,
                       bool in_order) {
    const uint64_t id = StepId(rows.position, step.phase);
    if (!listed.insert(id).second) return;
    const auto lacks = [&](const Account& account) -> std::optional<bool> {
      for (const Entry& entry : account.backlog) {
        if (slots_[entry.slot].id() == id) return entry.redelivered;
      }
      const auto found = account.lacks.find(id);
      if (found != account.lacks.end()) return found->second;
      if (in_order && step >= account.from) return false;
      return std::nullopt;  // it has had it
    };
    bool one_lacks = false;
    bool redelivered = false;
    for (const Account* account : accounts) {
      const std::optional<bool> marked = lacks(*account);
      one_lacks |= marked.has_value();
      redelivered |= marked.value_or(true);
    }
    if (one_lacks && rows.rows > 0) owed.push_back(RangeOf(rows, redelivered));
  };
  for (const Account* account : accounts) {
    for (const Entry& entry : account->backlog) {
      const Slot& slot = slots_[entry.slot];
      owe(slot.at, slot.batch.rows, false);
    }
  }
  for (const Slot* slot : gone.in_turn()) {
    owe(slot->at, slot->batch.rows, !slot->is_redo);
  }
  for (const uint64_t id : gone.again()) {
    const PhaseStep step = *phases_.StepOf(id);
    owe(step, phases_.RankBatchOf(step, gone.rank()), false);
  }
  for (PhaseStep step = gone.next(); step.phase < phases_.size();
       step = {step.phase + 1, 0}) {
    const uint64_t end = phases_.IsLast(step.phase)
                             ? boundary
                             : phases_[step.phase].end_step.value_or(0);
    for (; step.step < end; ++step.step) {
      owe(step, phases_.RankBatchOf(step, gone.rank()), true);
    }
  }
  return owed;
}

void Delivery::RemoveMembers(Lane* gone) {
  for (Slot* slot : gone->in_turn()) Abandon(slot);
  gone->GoBackTo(gone->next().step);
  while (!gone->members().empty()) {
    Consumer* const member = gone->members().begin()->second;
    // Not completed: they are owed.
    for (const Entry& entry : member->account->backlog) LetGo(entry.slot);
    gone->Remove(*member);
    consumers_.Remove(member);
  }
}

uint64_t Delivery::FirstOfNobody() const {
  uint64_t first = 0;
  const auto pass = [&](PhaseStep step) {
    if (phases_.IsLast(step.phase)) first = std::max(first, step.step);
  };
  for (const Lane& lane : lanes_) pass(lane.next());
  for (const auto& [rank, consumer] : consumers_) pass(consumer.account->from);
  return first;
}

// The other ranks divide the global batch from the first step that nobody
// began. The gone rank's remaining rank batches of earlier steps become steps
// of their own, also divided over the others, so that all take the same number
// of steps. Its other replicas cannot train without it: they go, too.
Status Delivery::Shrink(Consumer* gone) {
  const Plan& plan = this->plan();
  std::vector<uint32_t> ranks = phases_.last().ranks;
  std::erase(ranks, gone->plan_rank);
  // Its batches wait for a replacement: no rank, or not every rank, can take
  // them.
  if (ranks.empty() || AnyOtherFinished(*gone) || draining_) return OkStatus();

  Lane& lane = LaneOf(*gone);
  const std::string name = NameOf(gone->rank);
  for (const auto& [rank, member] : lane.members()) {
    if (!member->attached()) continue;
    Expel(member, Closed::kRecalled,
          AbortedError("rank {} died, and the others go on without rank {} "
                       "(on_rank_death: shrink)",
                       name, member->plan_rank),
          true);
  }
  const uint64_t boundary = FirstOfNobody();
  PlanStart start;
  start.position =
      plan.PositionOf(std::max<uint64_t>(boundary, plan.start().owed.size()));
  start.owed = OwedBy(lane, boundary);
  auto next = plan.From(std::move(start), static_cast<uint32_t>(ranks.size()));
  if (!next.ok()) return next.status();
  if (next->max_batch_rows(0) > shape_.rows_max ||
      ranks.size() < shape_.ranks_min) {
    return AbortedError(
        "rank {} died, and the remaining ranks ({}) would need batches of {} "
        "rows; a job has memory to shrink to half of its ranks",
        name, ranks.size(), next->max_batch_rows(0));
  }
  RemoveMembers(&lane);
  if (record_ != nullptr) {
    record_->PhaseBegun({ranks, boundary, next->start()});
    KillPoint("shrink.recorded");
  }
  phases_.Begin(boundary, *std::move(next), ranks);
  const uint32_t number = phases_.size() - 1;
  for (const auto& [rank, consumer] : consumers_) {
    if (!consumer.attached()) continue;
    ranks_changed_.push_back(
        {consumer.seat, number, phases_.RankIndexOf(number, consumer.plan_rank),
         static_cast<uint32_t>(ranks.size()), this->plan().start()});
  }
  OpenAll();
  TouchAll();
  return OkStatus();
}

}  // namespace penstock
