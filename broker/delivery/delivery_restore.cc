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
    batches.push_back(
        {lease.step.load(std::memory_order_relaxed),
         page.released[i].load(std::memory_order_acquire) == generation});
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

uint64_t Delivery::IdOf(const Slot& slot) const {
  return StepId(slot.batch.rows.position, slot.phase);
}

// Ignores impossible steps: the source of id is not trusted.
void Delivery::RedoStep(Lane* lane, uint64_t id, bool redelivered) {
  const uint32_t number = PhaseOfStep(id);
  if (number > lane->phase) return;
  const Phase& phase = phases_[number];
  const std::optional<uint64_t> step = phase.plan.StepFrom(PositionOfStep(id));
  if (!step || *step >= phase.end_step.value_or(UINT64_MAX) ||
      // It will be made in any case.
      (number == lane->phase && *step >= lane->next_step)) {
    return;
  }
  // The same step may be reported twice: by the page of a former broker
  // instance, and by the process itself when it reconnected before it died.
  const auto is_it = [id](const Redo& each) { return each.step == id; };
  const auto has_it = [&](const Slot& slot) {
    return &lanes_[slot.lane] == lane && slot.state != SlotState::kFree &&
           !slot.batch.abandoned && IdOf(slot) == id &&
           (slot.state != SlotState::kOut ||
            (slot.holders > 0 && mode_ != DeliveryMode::kBroadcast));
  };
  if (std::any_of(lane->redo.begin(), lane->redo.end(), is_it) ||
      std::any_of(slots_.begin(), slots_.end(), has_it)) {
    return;
  }
  lane->redo.push_back({id, redelivered});
  openable_.insert(static_cast<uint32_t>(lane - lanes_.data()));
}

Status Delivery::RestorePhase(const FormerPhase& former) {
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan next, phases_.back().plan.From(
                     former.start, static_cast<uint32_t>(former.ranks.size())));
  phases_.back().end_step = former.boundary;
  phases_.push_back({std::move(next), former.ranks, {}});
  return OkStatus();
}

void Delivery::PlaceAtEnd() {
  for (Lane& lane : lanes_) {
    lane.next_step = phases_[0].plan.total_steps().value_or(0);
  }
  Drain();
}

void Delivery::RestoreRank(const FormerConsumer& former) {
  if (!split() || Knows(former.rank) || !FreeLane(former.rank, {}) ||
      GoesOnWithout(former.rank)) {
    return;
  }
  Consumer& consumer = consumers_[former.rank];
  consumer.rank = former.rank;
  consumer.lane = TakeLane(former.rank, {});
  Lane& lane = lanes_[consumer.lane];
  const bool owed = PlaceLane(&lane, former.position, former.phase);
  for (const uint64_t step : former.redo) RedoStep(&lane, step, true);
  if (owed) {
    for (const RowRange& range : phases_[lane.phase].plan.start().owed) {
      const uint64_t step = StepId(range.position, lane.phase);
      if (former.done.count(step) > 0) continue;
      RedoStep(&lane, step, range.redelivered);
    }
  }
  consumer.died = !former.left;
  consumer.state = former.left && NothingLeftFor(consumer)
                       ? ConsumerState::kFinished
                       : ConsumerState::kGone;
}

// broadcast. The rank may have reconnected, or have a replacement, already.
void Delivery::RestoreConsumer(const FormerConsumer& former) {
  had_before_ = std::max(had_before_, former.position);
  const bool known = Knows(former.rank);
  if (!known && consumers_.size() >= shape_.consumers_max) return;
  Consumer& consumer = consumers_[former.rank];
  if (!known) {
    consumer.rank = former.rank;
    consumer.state = ConsumerState::kGone;
    consumer.died = true;
  }
  consumer.from = std::max(consumer.from, former.position);
  for (const uint64_t step : former.redo) consumer.redo[step] = true;
  if (former.position > plan().start().position) return;
  for (const RowRange& range : plan().start().owed) {
    const uint64_t step = StepId(range.position, 0);
    if (former.done.count(step) == 0) {
      consumer.redo.emplace(step, range.redelivered);
    }
  }
}

bool Delivery::PlaceLane(Lane* lane, uint64_t position, uint32_t phase) {
  // A rank exactly where a phase begins may still be in the previous one, or
  // may have taken some of the owed steps; it says which. NextStep goes on to
  // the next phase.
  const auto begin = [this](uint32_t number) {
    return phases_[number].plan.start().position;
  };
  const auto last = static_cast<uint32_t>(phases_.size()) - 1;
  lane->phase = std::min(phase, last);
  while (lane->phase > 0 && position < begin(lane->phase)) --lane->phase;
  while (lane->phase < last && position > begin(lane->phase + 1)) ++lane->phase;
  const Plan& plan = phases_[lane->phase].plan;
  lane->next_step = plan.StepAt(position);
  // Never past the end: the position is not trusted.
  if (plan.total_steps()) {
    lane->next_step = std::min(lane->next_step, *plan.total_steps());
  }
  return position <= plan.start().position;
}

void Delivery::PlaceReconnected(Consumer* consumer, const Joining& joining) {
  const auto lacks = [&joining](const RowRange& range) {
    return std::find(joining.owed.begin(), joining.owed.end(),
                     range.position) != joining.owed.end();
  };
  if (broadcast()) {
    consumer->from = *joining.position;
    had_before_ = std::max(had_before_, *joining.position);
    consumer->skipped_all = MissedSince(*joining.position);
    consumer->skipped = static_cast<uint32_t>(consumer->skipped_all);
    for (const RowRange& range : plan().start().owed) {
      if (!lacks(range)) continue;
      consumer->redo.emplace(StepId(range.position, 0), range.redelivered);
    }
  }
  if (!split()) return;
  Lane& lane = lanes_[consumer->lane];
  if (!PlaceLane(&lane, *joining.position, joining.phase)) return;
  for (const RowRange& range : phases_[lane.phase].plan.start().owed) {
    if (!lacks(range)) continue;
    RedoStep(&lane, StepId(range.position, lane.phase), range.redelivered);
  }
}

uint64_t Delivery::MissedSince(uint64_t position) const {
  // During recovery the others wait for it.
  if (gathering()) return 0;
  const uint64_t now = plan().StepAt(LanePosition(lanes_[0]));
  return now - std::min(now, plan().StepAt(position));
}

std::vector<RowRange> Delivery::OwedLeft(const Consumer& consumer,
                                         uint32_t phase) const {
  const Lane& lane = lanes_[consumer.lane];
  const std::vector<RowRange>& owed = phases_[phase].plan.start().owed;
  std::vector<RowRange> left;
  for (uint64_t step = 0; step < owed.size(); ++step) {
    const uint64_t id = StepId(owed[step].position, phase);
    const auto is_on_its_way = [&](const Slot& slot) {
      return &lanes_[slot.lane] == &lane && IdOf(slot) == id &&
             (slot.state == SlotState::kFilling ||
              slot.state == SlotState::kReady);
    };
    const auto is_had = [&](const Entry& entry) {
      return IdOf(slots_[entry.slot]) == id;
    };
    if ((phase == lane.phase && step >= lane.next_step) ||
        consumer.redo.count(id) > 0 ||
        std::any_of(lane.redo.begin(), lane.redo.end(),
                    [id](const Redo& each) { return each.step == id; }) ||
        std::any_of(slots_.begin(), slots_.end(), is_on_its_way) ||
        std::any_of(consumer.backlog.begin(), consumer.backlog.end(), is_had)) {
      left.push_back(owed[step]);
    }
  }
  return left;
}

void Delivery::TakeOverSteps(const FormerSteps& former) {
  recovery_ = Recovery::kNone;
  OpenAll();
  TouchAll();
  started_ = former.started;
  Lane& lane = lanes_[0];
  PlaceLane(&lane, former.position, 0);
  // Recorded anew: the pages that told it may be forgotten.
  for (const uint64_t position : former.completed) RecordCompleted(position);
  for (const RowRange& each : former.redo) {
    RedoStep(&lane, StepId(each.position, 0), each.redelivered);
  }
  for (const auto& [rank, page] : std::exchange(orphans_, {})) {
    const auto found = consumers_.find(rank);
    if (found != consumers_.end()) TakePageBack(&found->second, *page, false);
  }
  if (mode_ != DeliveryMode::kBroadcast) return;
  for (const FormerConsumer& each : former.consumers) RestoreConsumer(each);
  std::vector<Consumer*> too_late;
  for (auto& [rank, consumer] : consumers_) {
    const uint64_t missed = MissedSince(consumer.from);
    if (missed == 0) continue;
    if (shape_.options.lag == Lag::kSkip) {
      consumer.skipped += static_cast<uint32_t>(missed);
      consumer.skipped_all += missed;
    } else if (consumer.state == ConsumerState::kAttached) {
      too_late.push_back(&consumer);
    }
  }
  for (Consumer* consumer : too_late) {
    (void)EvictSeat(
        consumer, Closed::kFailed,
        Format("{} rank {} is {} behind the others after the "
               "broker restarted, and their rows are gone (lag: fail)",
               static_cast<int>(StatusCode::kAborted), consumer->rank,
               Counted(MissedSince(consumer->from), "batch", "batches")),
        false);
  }
  for (const auto& [rank, consumer] : consumers_) {
    // Steps the lane has yet to open anyway are ignored.
    for (const auto& [step, marked] : consumer.redo) {
      RedoStep(&lane, step, false);
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
  TakePageBack(consumer, *former, orderly);
}

void Delivery::TakePageBack(Consumer* consumer, const CursorPage& page,
                            bool orderly) {
  for (const FormerBatch& batch : FormerBatches(page)) {
    if (!batch.released && !orderly) {
      // In broadcast the others had it: it is redone for this one alone.
      if (mode_ == DeliveryMode::kBroadcast) consumer->redo[batch.step] = true;
      RedoStep(&lanes_[consumer->lane], batch.step, !broadcast());
    } else if (mode_ == DeliveryMode::kDynamic) {
      RecordCompleted(PositionOfStep(batch.step));
    } else if (record_ != nullptr) {
      // The batch may have been its predecessor's, whose page says that it was
      // held and may outlive this one.
      record_->HandedOver(consumer->rank, batch.step);
    }
  }
}

bool Delivery::OwesPredecessor(uint32_t rank) const {
  for (const Slot& slot : slots_) {
    if (slot.handed_over && slot.state != SlotState::kFree &&
        (!split() || slot.for_rank == rank)) {
      return true;
    }
  }
  const auto consumer = consumers_.find(rank);
  if (consumer != consumers_.end() && consumer->second.former != nullptr) {
    return true;
  }
  const uint32_t lane =
      split() && consumer != consumers_.end() ? consumer->second.lane : 0;
  return !lanes_[lane].redo.empty();
}

Status Delivery::FinishRecovery(bool shrink) {
  recovery_ = Recovery::kNone;
  TouchAll();
  const OnRankDeath policy = shape_.options.on_rank_death;
  std::vector<uint32_t> dead;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.state == ConsumerState::kGone && consumer.died &&
        !NothingLeftFor(consumer)) {
      dead.push_back(rank);
    }
  }
  for (const uint32_t rank : dead) {
    if (policy == OnRankDeath::kFail) {
      return AbortedError("rank {} died (on_rank_death: fail)", rank);
    }
    if (policy == OnRankDeath::kShrink && shrink) {
      PENSTOCK_RETURN_IF_ERROR(Shrink(&consumers_.at(rank)));
    }
  }
  return OkStatus();
}

std::vector<uint64_t> Delivery::HeldOfFormerInstances() const {
  std::vector<uint64_t> steps;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.former == nullptr) continue;
    for (const FormerBatch& batch : FormerBatches(*consumer.former)) {
      if (!batch.released) steps.push_back(batch.step);
    }
  }
  return steps;
}

}  // namespace penstock
