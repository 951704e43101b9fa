// The part of Delivery for restarts of the broker: the ranks' positions and
// batches from a former instance.
#include <algorithm>

#include "broker/delivery/delivery.h"
#include "common/quantity.h"
#include "common/ring.h"

namespace penstock {

std::vector<FormerBatch> FormerBatches(const CursorPage& page) {
  std::vector<FormerBatch> batches;
  const uint64_t taken = page.taken.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < kLeasesMax; ++i) {
    const LeaseRecord& lease = page.leases[i];
    // Acquire: values stored before it are seen (I4).
    const uint64_t generation =
        lease.generation.load(std::memory_order_acquire);
    if (generation == 0 || generation > taken) continue;
    // Sequentially consistent, as Release: its process may live, and what it
    // released before it is closed out is not given to others.
    batches.push_back(
        {lease.step.load(std::memory_order_relaxed),
         page.released[i].load(std::memory_order_seq_cst) == generation});
  }
  return batches;
}

uint64_t FormerPosition(const CursorPage& page, const Plan& plan) {
  // A take that was cut off already moved the position, though the rank never
  // had the batch. This holds only for the batch that ends there: an extra
  // batch, cut off, did not move it.
  const uint64_t taken = page.taken.load(std::memory_order_acquire);
  const uint64_t position = page.position.load(std::memory_order_relaxed);
  for (const LeaseRecord& lease : page.leases) {
    if (lease.generation.load(std::memory_order_acquire) != taken + 1) continue;
    const uint64_t begin =
        PositionOfStep(lease.step.load(std::memory_order_relaxed));
    if (begin < position && position - begin <= plan.RowsOfOneStep(begin)) {
      return begin;
    }
  }
  return position;
}

void Delivery::Lack(const Consumer& consumer, uint64_t id, bool redelivered) {
  LaneOf(consumer).Lack(phases_, consumer.account.get(), id, redelivered);
  openable_.insert(consumer.lane);
}

Status Delivery::RestorePhase(const FormerPhase& phase) {
  return phases_.Begin(phase);
}

void Delivery::PlaceAtEnd() {
  for (Lane& lane : lanes_) {
    lane.Place({0, plan().total_steps().value_or(0)});
  }
  Drain();
}

void Delivery::RestoreRank(const FormerConsumer& former) {
  if (!divided() || Knows(former.rank) || !FreeLane(former.rank, {}) ||
      GoesOnWithout(former.rank)) {
    return;
  }
  Consumer& consumer = *AddToLane(former.rank, {});
  // It had a batch of that phase. Its position may say less: a batch owed in
  // the phase that was cut off may end where the phase begins (FormerPosition).
  const uint32_t phase = std::min(former.phase, phases_.size() - 1);
  const uint64_t begin = phase == 0 ? 0 : phases_[phase].plan.start().position;
  const uint64_t position = std::max(former.position, begin);
  PlaceConsumer(&consumer, position, phase);
  for (const uint64_t step : former.redo) Lack(consumer, step, true);
  const Plan& plan = phases_[consumer.account->from.phase].plan;
  if (position <= plan.start().position) LackOwed(consumer, former.done);
  consumer.reconnects = former.reconnects;
  consumer.died = !former.left;
  consumer.state = former.left && NothingLeftFor(consumer)
                       ? ConsumerState::kFinished
                       : ConsumerState::kGone;
}

// broadcast. The rank may have reconnected, or have a replacement, already.
void Delivery::RestoreConsumer(const FormerConsumer& former) {
  const uint64_t position = Phases::Bounded(former.position);
  had_before_ = std::max(had_before_, position);
  Consumer* consumer = consumers_.Find(former.rank);
  if (consumer == nullptr) {
    if (consumers_.size() >= shape_.consumers_max) return;
    consumer = AddToLane(former.rank, {});
    consumer->died = true;
  }
  PhaseStep& from = consumer->account->from;
  from = std::max(from, phases_.Place(position, 0));
  for (const uint64_t step : former.redo) Lack(*consumer, step, true);
  if (position <= plan().start().position) {
    LackOwed(*consumer, former.done);
  }
}

void Delivery::PlaceConsumer(Consumer* consumer, uint64_t position,
                             uint32_t phase) {
  PhaseStep& from = consumer->account->from;
  from = phases_.Place(position, phase);
  had_before_ = std::max(had_before_, phases_.PositionOf(from));
  PlaceLane(&LaneOf(*consumer));
}

void Delivery::PlaceLane(Lane* lane) {
  if (!lane->complete() || lane->opened() > 0) return;
  const std::vector<Account*> accounts = lane->Accounts();
  const auto rearmost = std::min_element(
      accounts.begin(), accounts.end(),
      [](const Account* a, const Account* b) { return a->from < b->from; });
  lane->Place((*rearmost)->from);
  for (const Account* account : accounts) {
    for (const auto& [id, marked] : account->lacks) {
      lane->MakeAgain(phases_, id);
    }
  }
  openable_.insert(static_cast<uint32_t>(lane - lanes_.data()));
  for (const auto& [rank, member] : lane->members()) touched_.insert(rank);
}

void Delivery::LackOwed(const Consumer& consumer,
                        const std::set<uint64_t>& done) {
  const uint32_t phase = consumer.account->from.phase;
  for (const RowRange& range : phases_[phase].plan.start().owed) {
    const uint64_t id = StepId(range.position, phase);
    if (done.count(id) == 0) Lack(consumer, id, range.redelivered);
  }
}

void Delivery::PlaceReconnected(Consumer* consumer, const Joining& joining) {
  Lane& lane = LaneOf(*consumer);
  const uint64_t position = Phases::Bounded(*joining.position);
  if (lane.to_one()) return;
  if (lane.shared()) {
    consumer->account->from = phases_.Place(position, 0);
    had_before_ = std::max(had_before_, position);
    consumer->skipped_all = MissedSince(lane, consumer->account->from);
    consumer->skipped = static_cast<uint32_t>(consumer->skipped_all);
  } else {
    PlaceConsumer(consumer, position, joining.phase);
  }
  for (const uint64_t id : joining.owed) {
    const std::optional<PhaseStep> step = phases_.StepOf(id);
    if (!step) continue;
    const Plan::RankBatch rows =
        phases_.RankBatchOf(*step, consumer->plan_rank);
    Lack(*consumer, id, !rows.extra || rows.redelivered);
  }
}

uint64_t Delivery::MissedSince(const Lane& lane, PhaseStep from) const {
  // During recovery the others wait for it.
  if (gathering()) return 0;
  const uint64_t now = plan().StepAt(lane.Position(phases_));
  return now - std::min(now, from.step);
}

std::vector<RowRange> Delivery::OwedLeft(
    const Consumer& consumer, uint32_t phase,
    const std::map<uint64_t, bool>& ahead) const {
  std::vector<RowRange> left;
  const std::vector<RowRange>& owed = phases_[phase].plan.start().owed;
  for (uint32_t step = 0; step < owed.size(); ++step) {
    // During recovery the lane is yet to be placed, after all of these.
    const PhaseStep at{phase, step};
    if (ahead.count(StepId(owed[step].position, phase)) > 0 ||
        (!gathering() && LaneOf(consumer).WillOpen(at) &&
         at >= consumer.account->from)) {
      left.push_back(owed[step]);
    }
  }
  return left;
}

void Delivery::TakeOverSteps(const FormerSteps& former) {
  recovery_ = Recovery::kNone;
  OpenAll();
  TouchAll();
  for (Lane& lane : lanes_) {
    lane.started = former.started;
    lane.Place(phases_.Place(former.position, 0));
    for (const RowRange& each : former.redo) {
      lane.Lack(phases_, lane.common(), StepId(each.position, 0),
                each.redelivered);
    }
  }
  // Recorded anew: the pages that told it may be forgotten.
  for (const uint64_t position : former.completed) RecordCompleted(position);
  for (const auto& [rank, page] : std::exchange(orphans_, {})) {
    if (const Consumer* const consumer = consumers_.Find(rank)) {
      TakePageBack(*consumer, *page, false);
    }
  }
  for (const FormerConsumer& each : former.consumers) RestoreConsumer(each);
  std::vector<Consumer*> too_late;
  for (auto& [rank, consumer] : consumers_) {
    const Lane& lane = LaneOf(consumer);
    const uint64_t missed = MissedSince(lane, consumer.account->from);
    if (missed == 0 || lane.to_one()) continue;
    if (shape_.options.lag == Lag::kSkip) {
      consumer.skipped += static_cast<uint32_t>(missed);
      consumer.skipped_all += missed;
    } else if (consumer.attached()) {
      too_late.push_back(&consumer);
    }
  }
  for (Consumer* consumer : too_late) {
    const uint64_t missed =
        MissedSince(LaneOf(*consumer), consumer->account->from);
    (void)EvictSeat(
        consumer, Closed::kEvicted,
        AbortedError("rank {} is {} behind the others after the broker "
                     "restarted, and their rows are gone (lag: fail)",
                     consumer->rank, Counted(missed, "batch", "batches")),
        false);
  }
  // The lane had no place yet when its members said what they lack.
  for (Lane& lane : lanes_) {
    for (const Account* account : lane.Accounts()) {
      for (const auto& [id, marked] : account->lacks) {
        lane.MakeAgain(phases_, id);
      }
    }
  }
}

// Batches held from a former broker instance are only recorded.
void Delivery::ReclaimFormer(Consumer* consumer) {
  const std::vector<FormerBatch> batches = FormerBatches(*consumer->former);
  if (std::any_of(batches.begin(), batches.end(),
                  [](const FormerBatch& batch) { return !batch.released; })) {
    return;
  }
  TakeFormerBack(consumer, false);
}

// Those it released there are complete, the others are redone.
void Delivery::TakeFormerBack(Consumer* consumer, bool orderly) {
  auto former = std::exchange(consumer->former, nullptr);
  if (former == nullptr) return;
  if (gathering() && !orderly) {
    // The lane's position is not known yet.
    orphans_.push_back({consumer->rank, std::move(former)});
    return;
  }
  TakePageBack(*consumer, *former, orderly);
}

void Delivery::TakePageBack(const Consumer& consumer, const CursorPage& page,
                            bool orderly) {
  for (const FormerBatch& batch : FormerBatches(page)) {
    if (!batch.released && !orderly) {
      Lack(consumer, batch.step, true);
    } else if (LaneOf(consumer).to_one()) {
      RecordCompleted(PositionOfStep(batch.step));
    } else if (record_ != nullptr) {
      // The batch may have been its predecessor's, whose page says that it was
      // held and may outlive this one.
      record_->HandedOver(consumer.rank, batch.step);
    }
  }
}

bool Delivery::OwesPredecessor(uint32_t rank) const {
  const Consumer* const consumer = consumers_.Find(rank);
  if (consumer != nullptr && consumer->former != nullptr) return true;
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    if (consumer != nullptr && &lane != &LaneOf(*consumer)) return false;
    const std::vector<Account*> accounts = lane.Accounts();
    return std::any_of(accounts.begin(), accounts.end(),
                       [](const Account* account) {
                         return !account->lacks.empty();
                       }) ||
           std::any_of(
               lane.slots().begin(), lane.slots().end(), [](const Slot& slot) {
                 return slot.handed_over && slot.state != SlotState::kFree;
               });
  });
}

Status Delivery::FinishRecovery(bool shrink) {
  recovery_ = Recovery::kNone;
  TouchAll();
  const OnRankDeath policy = shape_.options.on_rank_death;
  std::vector<uint32_t> dead;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.gone() && consumer.died && !NothingLeftFor(consumer)) {
      dead.push_back(rank);
    }
  }
  for (const uint32_t rank : dead) {
    if (policy == OnRankDeath::kFail) {
      return AbortedError("rank {} died (on_rank_death: fail)", NameOf(rank));
    }
    // It may have gone with another replica of its rank.
    if (policy == OnRankDeath::kShrink && shrink && Knows(rank)) {
      PENSTOCK_RETURN_IF_ERROR(Shrink(consumers_.Find(rank)));
    }
  }
  return OkStatus();
}

}  // namespace penstock
