#include "broker/delivery.h"

#include <algorithm>
#include <cassert>

#include "common/kill_point.h"
#include "common/ring.h"

namespace penstock {
namespace {

// How far ahead of the steps that are opened the record says that they may be.
constexpr uint64_t kOpenedAhead = 256;

bool Contains(const std::vector<uint64_t>& values, uint64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

std::vector<FormerBatch> FormerBatches(const CursorPage& page) {
  std::vector<FormerBatch> batches;
  const uint64_t taken = page.taken.load(std::memory_order_acquire);
  for (const LeaseRecord& lease : page.leases) {
    // Acquire: what was stored before it is seen (I4).
    const uint64_t generation =
        lease.generation.load(std::memory_order_acquire);
    if (generation == 0 || generation > taken) continue;
    batches.push_back(
        {lease.step.load(std::memory_order_relaxed),
         lease.released.load(std::memory_order_acquire) == generation});
  }
  return batches;
}

uint64_t FormerPosition(const CursorPage& page, uint64_t global_batch) {
  // A take that was cut off moved it already, and is no batch that it had. Only
  // of the batch before it: an extra one, cut off, did not move it.
  const uint64_t taken = page.taken.load(std::memory_order_acquire);
  const uint64_t position = page.position.load(std::memory_order_relaxed);
  for (const LeaseRecord& lease : page.leases) {
    if (lease.generation.load(std::memory_order_acquire) != taken + 1) continue;
    const uint64_t begin =
        PositionOfStep(lease.step.load(std::memory_order_relaxed));
    if (begin < position && position - begin <= global_batch) return begin;
  }
  return position;
}

Delivery::Delivery(const Shape& shape, Plan plan, std::vector<Ring*> rings,
                   DeliveryRecord* record)
    : shape_(shape),
      mode_(shape.options.mode),
      rings_(std::move(rings)),
      record_(record),
      slots_(shape.lanes * shape.slots_per_lane),
      lanes_(shape.lanes),
      feeds_(rings_.size()) {
  Phase& first = phases_.emplace_back(Phase{std::move(plan), {}, {}});
  if (split()) {
    for (uint32_t rank = 0; rank < shape.world_size; ++rank) {
      first.ranks.push_back(rank);
    }
  }
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    slots_[i].lane = i / shape.slots_per_lane;
    slots_[i].share.slot = i;
  }
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].first_slot = i * shape.slots_per_lane;
  }
}

// ---- who is where
// -----------------------------------------------------------

Delivery::Consumer* Delivery::AtSeat(uint32_t seat) {
  for (auto& [rank, consumer] : consumers_) {
    if (consumer.place == Place::kAttached && consumer.seat == seat) {
      return &consumer;
    }
  }
  return nullptr;
}

std::optional<uint32_t> Delivery::RankAt(uint32_t seat) {
  const Consumer* consumer = AtSeat(seat);
  if (consumer == nullptr) return std::nullopt;
  return consumer->rank;
}

Delivery::Consumer* Delivery::OfLane(uint32_t lane) {
  for (auto& [rank, consumer] : consumers_) {
    if (consumer.lane == lane) return &consumer;
  }
  return nullptr;
}

uint32_t Delivery::PlaceOf(const Phase& phase, uint32_t rank) const {
  if (!split()) return 0;
  const auto found = std::find(phase.ranks.begin(), phase.ranks.end(), rank);
  assert(found != phase.ranks.end());
  return static_cast<uint32_t>(found - phase.ranks.begin());
}

bool Delivery::AnyAttached() const {
  return std::any_of(consumers_.begin(), consumers_.end(), [](const auto& it) {
    return it.second.place == Place::kAttached;
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
                       return it.second.place == Place::kGone &&
                              it.second.died && !NothingLeftFor(it.second);
                     });
}

bool Delivery::WaitsFor(uint32_t rank) const {
  const auto found = consumers_.find(rank);
  return found != consumers_.end() && found->second.place == Place::kGone;
}

bool Delivery::NothingLeftFor(const Consumer& consumer) const {
  return consumer.backlog.empty() && consumer.again.empty() &&
         pool_.empty() && Exhausted(lanes_[consumer.lane]);
}

bool Delivery::Finished(uint32_t rank) const {
  const auto found = consumers_.find(rank);
  return found != consumers_.end() && found->second.place == Place::kFinished;
}

bool Delivery::AllFinished() const {
  const bool kept = shape_.options.on_rank_death == OnRankDeath::kWait;
  return std::all_of(
      consumers_.begin(), consumers_.end(), [&](const auto& it) {
        return it.second.place == Place::kFinished ||
               (it.second.place == Place::kGone && !kept &&
                NothingLeftFor(it.second));
      });
}

bool Delivery::Idle() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == SlotState::kFilling &&
           slot.share.finished < slot.share.claimed;
  });
}

std::vector<uint32_t> Delivery::Missing() const {
  std::vector<uint32_t> missing;
  if (draining_) return missing;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.place == Place::kGone && split()) missing.push_back(rank);
  }
  // Which of a world over several hosts belong here is not known: numbers can
  // be named only when all do.
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

// ---- attach
// -----------------------------------------------------------------

uint64_t Delivery::LanePosition(const Lane& lane) const {
  // The oldest share that has not left the lane, else the next to be opened.
  uint64_t oldest = UINT64_MAX;
  uint64_t position = 0;
  for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
    const Slot& slot = slots_[lane.first_slot + i];
    if ((slot.state == SlotState::kFilling ||
         slot.state == SlotState::kReady) &&
        !slot.share.abandoned && !slot.share.rows.extra &&
        slot.share.step < oldest) {
      oldest = slot.share.step;
      position = slot.share.rows.position;
    }
  }
  if (oldest != UINT64_MAX) return position;
  uint64_t step = lane.next_step;
  const Plan& plan = phases_[lane.phase].plan;
  step = std::max<uint64_t>(step, plan.start().owed.size());
  return plan.PositionOf(step);
}

uint64_t Delivery::NextPosition(const Consumer& consumer) const {
  for (const Entry& entry : consumer.backlog) {
    const Share& share = slots_[entry.slot].share;
    if (!share.rows.extra) return share.rows.position;
  }
  const Lane& lane = lanes_[consumer.lane];
  if (mode_ != DeliveryMode::kBroadcast && !lane.again.empty()) {
    return PositionOfStep(lane.again.front().step);
  }
  return LanePosition(lane);
}

StatusOr<Delivery::Joined> Delivery::Attach(Joining joining) {
  if (joining.rank == kAnyRank) {
    joining.rank = 0;
    while (Knows(joining.rank)) ++joining.rank;
  }
  const auto known = consumers_.find(joining.rank);
  const bool replaces = known != consumers_.end();
  if (replaces && known->second.place == Place::kAttached) {
    return AlreadyExistsError(
        "rank {} is attached already: give each process its own rank, or "
        "another job name",
        joining.rank);
  }
  if (replaces && known->second.place == Place::kFinished) {
    return FailedPreconditionError("rank {} has taken all of its data",
                                   joining.rank);
  }
  const std::vector<uint32_t>& ranks = phases_.back().ranks;
  if (split() &&
      std::find(ranks.begin(), ranks.end(), joining.rank) == ranks.end()) {
    return FailedPreconditionError(
        "rank {} died and the others go on without it (on_rank_death: shrink)",
        joining.rank);
  }
  if (!replaces && consumers_.size() >= shape_.consumers_max) {
    return ResourceExhaustedError("{} local ranks, all are attached",
                                  shape_.consumers_max);
  }
  const auto seat = std::find(feeds_.begin(), feeds_.end(), nullptr);
  if (seat == feeds_.end()) {
    return ResourceExhaustedError(
        "no seat is left: processes that were evicted are still alive");
  }
  Joined joined;
  joined.rank = joining.rank;
  joined.seat = static_cast<uint32_t>(seat - feeds_.begin());
  joined.replaces = replaces;
  Consumer& consumer = consumers_[joining.rank];
  if (!replaces) {
    consumer.rank = joining.rank;
    consumer.lane = split() ? lanes_taken_++ : 0;
    Lane& lane = lanes_[consumer.lane];
    if (split() && joining.position) PlaceReconnected(&lane, joining);
    consumer.former = joining.former;
    if (mode_ == DeliveryMode::kBroadcast && joining.position) {
      consumer.from = *joining.position;
      for (const RowRange& range : plan().start().owed) {
        if (Contains(joining.owed, range.position)) {
          consumer.again.emplace(StepId(range.position, 0), range.redelivered);
        }
      }
    }
    if (joining.full_epoch && mode_ == DeliveryMode::kBroadcast) {
      consumer.epochs_from = lane.out;
      consumer.base_epoch =
          LanePosition(lane) / phases_[0].plan.rows_per_epoch();
    }
  }
  if (replaces && joining.position && split()) {
    // Restored: it is the process that was there before, and knows more of
    // where it is, but for what its predecessors left.
    Lane& lane = lanes_[consumer.lane];
    if (lane.opened == 0 && *joining.position > LanePosition(lane)) {
      PlaceReconnected(&lane, joining);
    }
    consumer.former = joining.former;
    joined.replaces = false;
  }
  consumer.place = Place::kAttached;
  consumer.seat = joined.seat;
  *seat = std::make_unique<Feed>(rings_[joined.seat], std::move(joining.cursor),
                                 shape_.leases, joining.wake_socket);
  joined.backlog = static_cast<uint32_t>(consumer.backlog.size());
  // While it is gathered the lane is nowhere yet; where this one is it said.
  joined.position = std::max(consumer.from, NextPosition(consumer));
  joined.phase = consumer.backlog.empty()
                     ? lanes_[consumer.lane].phase
                     : slots_[consumer.backlog.front().slot].phase;
  const Phase& phase = phases_[joined.phase];
  joined.place = PlaceOf(phase, consumer.rank);
  joined.ranks = static_cast<uint32_t>(phase.ranks.size());
  joined.owed = OwedLeft(consumer, joined.phase);
  uint32_t first_phase = lanes_[consumer.lane].phase + 1;
  for (const Entry& entry : consumer.backlog) {
    if (slots_[entry.slot].ranks_changed) {
      first_phase = std::min(first_phase, slots_[entry.slot].phase);
    }
  }
  for (uint32_t i = first_phase; i < phases_.size(); ++i) {
    ranks_changed_.push_back({joined.seat, i,
                              PlaceOf(phases_[i], consumer.rank),
                              static_cast<uint32_t>(phases_[i].ranks.size()),
                              phases_[i].plan.start()});
  }
  return joined;
}

// ---- after a former life
// ----------------------------------------------------

uint64_t Delivery::IdOf(const Slot& slot) const {
  return StepId(slot.share.rows.position, slot.phase);
}

// A step that cannot be is not made: who says it is not trusted.
void Delivery::MakeAgain(Lane* lane, uint64_t id, bool redelivered) {
  const uint32_t number = PhaseOfStep(id);
  if (number > lane->phase) return;
  const Phase& phase = phases_[number];
  const std::optional<uint64_t> step = phase.plan.StepFrom(PositionOfStep(id));
  if (!step || *step >= phase.end_step.value_or(UINT64_MAX) ||
      // It is made in any case.
      (number == lane->phase && *step >= lane->next_step)) {
    return;
  }
  // A process may be told of twice: as one of a former life, and by itself when
  // it reconnected before it died.
  const auto is_it = [id](const Again& each) { return each.step == id; };
  const auto has_it = [&](const Slot& slot) {
    return &lanes_[slot.lane] == lane && slot.state != SlotState::kFree &&
           !slot.share.abandoned && IdOf(slot) == id &&
           (slot.state != SlotState::kOut ||
            (slot.holders > 0 && mode_ != DeliveryMode::kBroadcast));
  };
  if (std::any_of(lane->again.begin(), lane->again.end(), is_it) ||
      std::any_of(slots_.begin(), slots_.end(), has_it)) {
    return;
  }
  lane->again.push_back({id, redelivered});
}

Status Delivery::RestorePhase(const FormerPhase& former) {
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan next, phases_.back().plan.From(
                     former.start, static_cast<uint32_t>(former.ranks.size())));
  phases_.back().end_step = former.boundary;
  phases_.push_back({std::move(next), former.ranks, {}});
  return OkStatus();
}

void Delivery::RestoreRank(const FormerConsumer& former) {
  const std::vector<uint32_t>& ranks = phases_.back().ranks;
  if (!split() || Knows(former.rank) || lanes_taken_ >= lanes_.size() ||
      std::find(ranks.begin(), ranks.end(), former.rank) == ranks.end()) {
    return;
  }
  Consumer& consumer = consumers_[former.rank];
  consumer.rank = former.rank;
  consumer.lane = lanes_taken_++;
  Lane& lane = lanes_[consumer.lane];
  const bool owed = PlaceLane(&lane, former.position, former.phase);
  for (const uint64_t step : former.again) MakeAgain(&lane, step, true);
  if (owed) {
    for (const RowRange& range : phases_[lane.phase].plan.start().owed) {
      const uint64_t step = StepId(range.position, lane.phase);
      if (former.done.count(step) > 0) continue;
      MakeAgain(&lane, step, range.redelivered);
    }
  }
  consumer.died = !former.left;
  consumer.place =
      former.left && NothingLeftFor(consumer) ? Place::kFinished : Place::kGone;
}

// broadcast. One that reconnected, or came in the place of one, is here.
void Delivery::RestoreConsumer(const FormerConsumer& former) {
  const bool known = Knows(former.rank);
  if (!known && consumers_.size() >= shape_.consumers_max) return;
  Consumer& consumer = consumers_[former.rank];
  if (!known) {
    consumer.rank = former.rank;
    consumer.place = Place::kGone;
    consumer.died = true;
  }
  consumer.from = std::max(consumer.from, former.position);
  for (const uint64_t step : former.again) consumer.again[step] = true;
  if (former.position > plan().start().position) return;
  for (const RowRange& range : plan().start().owed) {
    const uint64_t step = StepId(range.position, 0);
    if (former.done.count(step) == 0) {
      consumer.again.emplace(step, range.redelivered);
    }
  }
}

bool Delivery::PlaceLane(Lane* lane, uint64_t position, uint32_t phase) {
  // At the very place where a phase begins one may be in that before or have
  // taken some of what is owed: that it tells. NextStep goes on to the next.
  const auto begin = [this](uint32_t number) {
    return phases_[number].plan.start().position;
  };
  const auto last = static_cast<uint32_t>(phases_.size()) - 1;
  lane->phase = std::min(phase, last);
  while (lane->phase > 0 && position < begin(lane->phase)) --lane->phase;
  while (lane->phase < last && position > begin(lane->phase + 1)) ++lane->phase;
  const Plan& plan = phases_[lane->phase].plan;
  lane->next_step = plan.StepAt(position);
  // Who says it is not trusted: not behind the end.
  if (plan.total_steps()) {
    lane->next_step = std::min(lane->next_step, *plan.total_steps());
  }
  return position <= plan.start().position;
}

void Delivery::PlaceReconnected(Lane* lane, const Joining& joining) {
  if (!PlaceLane(lane, *joining.position, joining.phase)) return;
  for (const RowRange& range : phases_[lane->phase].plan.start().owed) {
    if (Contains(joining.owed, range.position)) {
      MakeAgain(lane, StepId(range.position, lane->phase), range.redelivered);
    }
  }
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
        consumer.again.count(id) > 0 ||
        std::any_of(lane.again.begin(), lane.again.end(),
                    [id](const Again& each) { return each.step == id; }) ||
        std::any_of(slots_.begin(), slots_.end(), is_on_its_way) ||
        std::any_of(consumer.backlog.begin(), consumer.backlog.end(), is_had)) {
      left.push_back(owed[step]);
    }
  }
  return left;
}

void Delivery::Gathered(const FormerSteps& former) {
  gathering_ = false;
  started_ = former.started;
  Lane& lane = lanes_[0];
  PlaceLane(&lane, former.position, 0);
  // Now by this life too, which may forget the pages that told it.
  for (const uint64_t position : former.completed) RecordCompleted(position);
  for (const RowRange& each : former.again) {
    MakeAgain(&lane, StepId(each.position, 0), each.redelivered);
  }
  for (const auto& [rank, page] : std::exchange(orphans_, {})) {
    const auto found = consumers_.find(rank);
    if (found != consumers_.end()) TakePageBack(&found->second, *page, false);
  }
  if (mode_ != DeliveryMode::kBroadcast) return;
  for (const FormerConsumer& each : former.consumers) RestoreConsumer(each);
  for (const auto& [rank, consumer] : consumers_) {
    // Those behind where the lane is come with it.
    for (const auto& [step, marked] : consumer.again) {
      MakeAgain(&lane, step, false);
    }
  }
}

// ---- making
// -----------------------------------------------------------------

bool Delivery::Active(uint32_t lane) const {
  return std::any_of(
      consumers_.begin(), consumers_.end(), [&](const auto& item) {
        const Consumer& consumer = item.second;
        return consumer.place == Place::kAttached && consumer.lane == lane &&
               feeds_[consumer.seat]->open();
      });
}

std::optional<Delivery::Next> Delivery::NextStep(uint32_t number) {
  Lane& lane = lanes_[number];
  const Consumer* consumer = OfLane(number);
  const auto place = [&](const Phase& phase) {
    return split() ? PlaceOf(phase, consumer->rank) : 0;
  };
  if (!lane.again.empty()) {
    const Again again = lane.again.front();
    lane.again.pop_front();
    Next next{{}, PhaseOfStep(again.step), true};
    const Phase& phase = phases_[next.phase];
    const auto step = phase.plan.StepFrom(PositionOfStep(again.step));
    next.rows = phase.plan.ShareOf(*step, place(phase));
    next.rows.extra = true;
    next.rows.redelivered = again.redelivered;
    return next;
  }
  for (;;) {
    const Phase& phase = phases_[lane.phase];
    const std::optional<uint64_t> end =
        phase.end_step ? phase.end_step : phase.plan.total_steps();
    if (!end || lane.next_step < *end) {
      return Next{phase.plan.ShareOf(lane.next_step++, place(phase)),
                  lane.phase, false};
    }
    if (lane.phase + 1 == phases_.size()) return std::nullopt;
    ++lane.phase;
    lane.next_step = 0;
    lane.phase_begins = true;
  }
}

bool Delivery::Exhausted(const Lane& lane) const {
  if (lane.out != lane.opened || !lane.again.empty()) return false;
  const Phase& phase = phases_[lane.phase];
  const std::optional<uint64_t> end =
      phase.end_step ? phase.end_step : phase.plan.total_steps();
  return end && lane.next_step >= *end && lane.phase + 1 == phases_.size();
}

// Ahead, so that not every step is recorded.
void Delivery::RecordOpened(const Plan::Share& rows) {
  if (record_ == nullptr || mode_ != DeliveryMode::kDynamic ||
      rows.position < opened_recorded_) {
    return;
  }
  const Plan& plan = this->plan();
  uint64_t step = lanes_[0].next_step + kOpenedAhead;
  if (plan.total_steps()) step = std::min(step, *plan.total_steps());
  opened_recorded_ = plan.PositionOf(step);
  record_->Opened(opened_recorded_);
}

Share* Delivery::Open() {
  if (closed_ || gathering_) return nullptr;
  for (uint32_t number = 0; number < lanes_.size(); ++number) {
    if (!Active(number)) continue;
    Lane& lane = lanes_[number];
    const uint32_t usable = std::min(usable_slots_, shape_.slots_per_lane);
    for (uint32_t i = 0; i < usable; ++i) {
      Slot& slot = slots_[lane.first_slot + i];
      if (slot.state != SlotState::kFree) continue;
      const std::optional<Next> next = NextStep(number);
      if (!next) break;
      const uint32_t at = slot.share.slot;
      slot.state = SlotState::kFilling;
      slot.ranks_changed =
          !next->again && std::exchange(lane.phase_begins, false);
      slot.phase = next->phase;
      slot.handed_over = next->rows.extra;
      slot.again = next->again;
      RecordOpened(next->rows);
      slot.share = Share{};
      slot.share.slot = at;
      slot.share.step = lane.opened++;
      slot.share.rows = next->rows;
      return &slot.share;
    }
  }
  return nullptr;
}

Share* Delivery::Claimable() {
  if (closed_) return nullptr;
  Share* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::kFilling && !slot.share.abandoned &&
        slot.share.claimed < slot.share.rows.rows &&
        (oldest == nullptr || slot.share.step < oldest->step)) {
      oldest = &slot.share;
    }
  }
  return oldest;
}

void Delivery::Filled(Share* share) {
  Slot& slot = slots_[share->slot];
  assert(slot.state == SlotState::kFilling && share->done());
  slot.state = share->abandoned ? SlotState::kFree : SlotState::kReady;
}

// Nobody will get it. Rows that workers are at are waited for (Filled).
void Delivery::Abandon(Slot* slot) {
  slot->share.abandoned = true;
  if (slot->state != SlotState::kFilling || slot->share.done()) {
    slot->state = SlotState::kFree;
  }
}

// ---- handing out
// ------------------------------------------------------------

Delivery::Slot* Delivery::NextReady(uint32_t number) {
  const Lane& lane = lanes_[number];
  for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
    Slot& slot = slots_[lane.first_slot + i];
    if (slot.state == SlotState::kReady && slot.share.step == lane.out) {
      return &slot;
    }
  }
  return nullptr;
}

void Delivery::FreeIfUnheld(Slot* slot) {
  if (slot->state == SlotState::kOut && slot->holders == 0 &&
      slot->quarantine == 0) {
    slot->state = SlotState::kFree;
  }
}

// A holder is through with it.
void Delivery::Release(uint32_t index) {
  Slot& slot = slots_[index];
  assert(slot.state == SlotState::kOut && slot.holders > 0);
  --slot.holders;
  if (slot.holders == 0 && record_ != nullptr) {
    if (mode_ == DeliveryMode::kDynamic) {
      RecordCompleted(slot.share.rows.position);
    } else if (split() && slot.handed_over) {
      record_->HandedOver(slot.for_rank, IdOf(slot));
    }
    KillPoint("delivery.recorded");
  }
  FreeIfUnheld(&slot);
}

// What is owed is not followed by what comes behind it.
void Delivery::RecordCompleted(uint64_t position) {
  if (record_ == nullptr || mode_ != DeliveryMode::kDynamic ||
      !plan().StepFrom(position)) {
    return;
  }
  const uint64_t step = plan().StepAt(position);
  const bool owed = position < plan().start().position;
  record_->Completed(position, owed ? position : plan().PositionOf(step + 1));
}

void Delivery::Unquarantine(uint32_t index) {
  Slot& slot = slots_[index];
  assert(slot.quarantine > 0);
  --slot.quarantine;
  FreeIfUnheld(&slot);
}

Cell Delivery::CellOf(const Consumer& consumer, const Slot& slot,
                      bool redelivered) {
  const Share& share = slot.share;
  const Plan::Share& rows = share.rows;
  redelivered |= rows.redelivered;
  Cell cell{};
  cell.slot_offset = shape_.slots_offset + share.slot * shape_.slot_stride;
  cell.flags = (rows.last_of_epoch ? kLastOfEpoch : 0u) |
               (redelivered ? kRedelivered : 0u) |
               (redelivered || rows.extra ? kExtra : 0u) |
               (slot.ranks_changed ? kRanksChanged : 0u) |
               slot.phase << kPhaseShift;
  cell.rows = static_cast<uint32_t>(share.shape_rows);
  cell.valid_rows = static_cast<uint32_t>(share.valid_rows);
  cell.global_rows = static_cast<uint32_t>(rows.global_rows);
  cell.skipped = consumer.skipped;
  cell.epoch = rows.epoch;
  cell.step_in_epoch = rows.step_in_epoch;
  cell.position = rows.position;
  if (consumer.epochs_from) {
    const uint64_t step = share.step - *consumer.epochs_from;
    const uint64_t per_epoch = plan().steps_per_epoch();
    cell.epoch = consumer.base_epoch + step / per_epoch;
    cell.step_in_epoch = step % per_epoch;
    cell.flags &= ~uint32_t{kLastOfEpoch};
    if (cell.step_in_epoch + 1 == per_epoch) cell.flags |= kLastOfEpoch;
  }
  return cell;
}

bool Delivery::Give(Consumer* consumer, const Entry& entry) {
  const Slot& slot = slots_[entry.slot];
  if (!FeedOf(*consumer).Publish(entry.slot, entry.redelivered,
                                 CellOf(*consumer, slot, entry.redelivered))) {
    return false;
  }
  consumer->skipped = 0;
  consumer->position =
      std::max(consumer->position,
               slot.share.rows.position + slot.share.rows.global_rows);
  return true;
}

// Publishes the backlog while leases are free.
bool Delivery::Flush(Consumer* consumer) {
  bool any = false;
  while (consumer->place == Place::kAttached && !consumer->backlog.empty()) {
    Feed& feed = FeedOf(*consumer);
    if (!feed.open() || feed.corrupt() || !feed.HasFreeLease() ||
        !Give(consumer, consumer->backlog.front())) {
      break;
    }
    consumer->backlog.pop_front();
    any = true;
  }
  return any;
}

// consumer: nullptr: the process was evicted.
void Delivery::ReleaseLease(const Consumer* consumer,
                            const Feed::Batch& lease) {
  if (consumer == nullptr) {
    Unquarantine(lease.slot);
    return;
  }
  const Slot& slot = slots_[lease.slot];
  if (record_ != nullptr && mode_ == DeliveryMode::kBroadcast &&
      shape_.options.on_rank_death == OnRankDeath::kWait &&
      (lease.redelivered || slot.share.rows.extra)) {
    record_->HandedOver(consumer->rank, IdOf(slot));
  }
  Release(lease.slot);
}

bool Delivery::Reclaim() {
  bool any = false;
  std::vector<Feed::Batch> released;
  for (uint32_t seat = 0; seat < feeds_.size(); ++seat) {
    if (feeds_[seat] == nullptr) continue;
    released.clear();
    feeds_[seat]->Reclaim(&released);
    if (released.empty()) continue;
    const Consumer* consumer = AtSeat(seat);
    for (const Feed::Batch& each : released) {
      ReleaseLease(consumer, each);
    }
    any = true;
  }
  for (auto& [rank, consumer] : consumers_) {
    if (consumer.former != nullptr) any |= ReclaimFormer(&consumer);
  }
  return any;
}

// What it held of a former life: nothing to us but for the record.
bool Delivery::ReclaimFormer(Consumer* consumer) {
  const std::vector<FormerBatch> batches = FormerBatches(*consumer->former);
  if (std::any_of(batches.begin(), batches.end(),
                  [](const FormerBatch& batch) { return !batch.released; })) {
    return false;
  }
  TakeFormerBack(consumer, false);
  return true;
}

// What it released there is done, what it did not is made again.
void Delivery::TakeFormerBack(Consumer* consumer, bool orderly) {
  auto former = std::exchange(consumer->former, nullptr);
  if (former == nullptr) return;
  if (gathering_ && !orderly) {
    // Where the lane is is not known yet.
    orphans_.push_back({consumer->rank, std::move(former)});
    return;
  }
  TakePageBack(consumer, *former, orderly);
}

void Delivery::TakePageBack(Consumer* consumer, const CursorPage& page,
                            bool orderly) {
  for (const FormerBatch& batch : FormerBatches(page)) {
    if (!batch.released && !orderly) {
      // In broadcast the others had it: it is for this one alone.
      if (mode_ == DeliveryMode::kBroadcast) consumer->again[batch.step] = true;
      MakeAgain(&lanes_[consumer->lane], batch.step, !broadcast());
    } else if (mode_ == DeliveryMode::kDynamic) {
      RecordCompleted(PositionOfStep(batch.step));
    } else if (record_ != nullptr) {
      // It may have been its predecessor's, whose page says that it was held
      // and may outlive this one.
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
  return !lanes_[lane].again.empty();
}

bool Delivery::DeliverSplit() {
  bool any = false;
  for (uint32_t number = 0; number < lanes_.size(); ++number) {
    Consumer* consumer = OfLane(number);
    if (consumer == nullptr) continue;
    while (Slot* slot = NextReady(number)) {
      slot->state = SlotState::kOut;
      slot->holders = 1;
      slot->for_rank = consumer->rank;
      ++lanes_[number].out;
      consumer->backlog.push_back({slot->share.slot, false});
      any = true;
    }
    any |= Flush(consumer);
  }
  return any;
}

bool Delivery::DeliverDynamic() {
  while (Slot* slot = NextReady(0)) {
    slot->state = SlotState::kOut;
    slot->holders = 1;
    ++lanes_[0].out;
    pool_.push_back({slot->share.slot, false});
  }
  bool any = false;
  while (!pool_.empty()) {
    // Round robin over those that have none untaken, from the last on.
    Consumer* next = nullptr;
    for (auto& [rank, consumer] : consumers_) {
      if (consumer.place != Place::kAttached) continue;
      Feed& feed = FeedOf(consumer);
      if (!feed.open() || !feed.HasFreeLease() || feed.untaken() > 0 ||
          feed.corrupt()) {
        continue;
      }
      if (next == nullptr ||
          (next->rank <= last_given_ && rank > last_given_)) {
        next = &consumer;
      }
    }
    if (next == nullptr || !Give(next, pool_.front())) break;
    last_given_ = next->rank;
    pool_.pop_front();
    any = true;
  }
  return any;
}

std::optional<bool> Delivery::Wants(const Consumer& consumer,
                                    const Slot& slot) const {
  if (consumer.place == Place::kFinished ||
      (consumer.place == Place::kAttached && !feeds_[consumer.seat]->open())) {
    return std::nullopt;
  }
  const auto again = consumer.again.find(IdOf(slot));
  if (again != consumer.again.end()) return again->second;
  const Plan::Share& rows = slot.share.rows;
  if (slot.again || (!rows.extra && rows.position < consumer.from)) {
    return std::nullopt;
  }
  return false;
}

bool Delivery::DeliverBroadcast() {
  bool any = false;
  for (auto& [rank, consumer] : consumers_) any |= Flush(&consumer);
  const uint32_t window = shape_.options.window;
  const auto is_behind = [&](Consumer& consumer) {
    if (consumer.place == Place::kGone) {
      return consumer.backlog.size() >= window;
    }
    Feed& feed = FeedOf(consumer);
    return !consumer.backlog.empty() || feed.untaken() >= window ||
           feed.corrupt();
  };
  if (!started_) {
    if (consumers_.size() < shape_.start_with) return any;
    started_ = true;
  }
  while (Slot* slot = NextReady(0)) {
    // In this order, so that what is seen was so at one time: who sleeps goes
    // on sleeping; who was less than a window behind then has a lease, once
    // what it released is seen.
    bool one_sleeps = false;
    for (auto& [rank, consumer] : consumers_) {
      one_sleeps |= consumer.place == Place::kAttached &&
                    FeedOf(consumer).open() && FeedOf(consumer).waiting();
    }
    std::vector<Consumer*> with_room;
    std::vector<Consumer*> without;
    bool anyone = false;
    for (auto& [rank, consumer] : consumers_) {
      anyone |= consumer.place == Place::kAttached;
      if (!Wants(consumer, *slot)) continue;
      // What it had before is not counted as what it is behind.
      (is_behind(consumer) && !slot->again ? without : with_room)
          .push_back(&consumer);
    }
    if (anyone && with_room.empty() && without.empty()) {
      // Of one that is gone for good, or before where all are.
      slot->state = SlotState::kFree;
      ++lanes_[0].out;
      any = true;
      continue;
    }
    any |= Reclaim();
    std::erase_if(with_room, [&](Consumer* consumer) {
      if (consumer->place == Place::kGone || slot->again ||
          FeedOf(*consumer).HasFreeLease()) {
        return false;
      }
      without.push_back(consumer);
      return true;
    });
    if (!anyone || with_room.empty()) break;
    if (!without.empty()) {
      if (shape_.options.lag == Lag::kBlock) break;
      // Nobody is newly left behind before another has taken a whole window
      // more and sleeps: consumers of about the same speed lose nothing.
      const bool left_already =
          std::all_of(without.begin(), without.end(),
                      [](Consumer* consumer) { return consumer->skipped > 0; });
      if (!left_already && !one_sleeps) break;
    }
    slot->state = SlotState::kOut;
    ++lanes_[0].out;
    slot->holders = static_cast<uint32_t>(with_room.size());
    for (Consumer* consumer : with_room) {
      const Entry entry{slot->share.slot, *Wants(*consumer, *slot)};
      consumer->again.erase(IdOf(*slot));
      if (consumer->place == Place::kGone || !consumer->backlog.empty() ||
          !FeedOf(*consumer).HasFreeLease() || !Give(consumer, entry)) {
        consumer->backlog.push_back(entry);
      }
    }
    for (Consumer* consumer : without) {
      if (shape_.options.lag == Lag::kSkip) {
        ++consumer->skipped;
        ++consumer->skipped_all;
        consumer->again.erase(IdOf(*slot));
      } else if (consumer->place == Place::kGone) {
        Drop(consumer);
      } else {
        (void)EvictSeat(
            consumer, Closed::kFailed,
            fmt::format("{} rank {} fell more than {} batches behind (lag: "
                        "fail; window: {})",
                        static_cast<int>(StatusCode::kAborted), consumer->rank,
                        shape_.options.window, shape_.options.window),
            false);
      }
    }
    any = true;
  }
  return any;
}

// Tells ranks that the data are over.
bool Delivery::FinishFeeds() {
  bool any = false;
  const auto finish = [&](Consumer& consumer) {
    FeedOf(consumer).Finish(std::exchange(consumer.skipped, 0));
    any = true;
  };
  if (withheld_) return false;
  // dynamic: a rank that works on a batch may still die with it, and then
  // others have to be there.
  if (mode_ == DeliveryMode::kDynamic) {
    if (!pool_.empty() || !Exhausted(lanes_[0])) return false;
    for (auto& [rank, consumer] : consumers_) {
      if (consumer.place != Place::kAttached) continue;
      Feed& feed = FeedOf(consumer);
      if (feed.open() && feed.out() > 0 && !feed.waiting()) return false;
    }
  }
  for (auto& [rank, consumer] : consumers_) {
    if (consumer.place == Place::kAttached && FeedOf(consumer).open() &&
        consumer.backlog.empty() && Exhausted(lanes_[consumer.lane])) {
      finish(consumer);
    }
  }
  return any;
}

bool Delivery::Advance() {
  if (closed_) return false;
  bool any = Reclaim();
  switch (mode_) {
    case DeliveryMode::kDynamic:
      any |= DeliverDynamic();
      break;
    case DeliveryMode::kBroadcast:
      any |= DeliverBroadcast();
      break;
    default:
      any |= DeliverSplit();
      break;
  }
  any |= FinishFeeds();
  return any;
}

void Delivery::AskForNews() {
  // Taking a batch is news only where one waits for the place of another, or
  // for the end.
  const bool takes =
      !split() && (!pool_.empty() || NextReady(0) != nullptr ||
                   (mode_ == DeliveryMode::kDynamic && Exhausted(lanes_[0])));
  for (const auto& feed : feeds_) {
    if (feed != nullptr && !feed->corrupt()) feed->AskForNews(takes);
  }
}

void Delivery::Drain() {
  if (draining_ || closed_) return;
  draining_ = true;
  Phase& phase = phases_.back();
  uint64_t end = 0;
  for (const Lane& lane : lanes_) {
    if (lane.phase + 1 == phases_.size()) end = std::max(end, lane.next_step);
  }
  if (const auto total = phase.plan.total_steps()) end = std::min(end, *total);
  phase.end_step = end;
}

void Delivery::Close(Closed why, const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  for (const auto& feed : feeds_) {
    if (feed != nullptr) feed->Close(why, reason);
  }
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::kFilling) Abandon(&slot);
  }
}

std::vector<uint32_t> Delivery::Corrupt() const {
  std::vector<uint32_t> ranks;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.place == Place::kAttached &&
        feeds_[consumer.seat]->corrupt() && !closed_) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

void Delivery::Mute(uint32_t seat) {
  if (feeds_[seat] != nullptr) feeds_[seat]->Mute();
}

// ---- ranks that go
// ----------------------------------------------------------

void Delivery::Drop(Consumer* consumer) {
  for (const Entry& entry : consumer->backlog) Release(entry.slot);
  consumers_.erase(consumer->rank);
}

Status Delivery::Gone(uint32_t seat, bool orderly) {
  const std::unique_ptr<Feed> feed = std::move(feeds_[seat]);
  if (feed == nullptr) return OkStatus();
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
      entries.push_back({each.slot, each.taken || each.redelivered});
      slots_[each.slot].handed_over |= each.taken;
    }
  }
  if (consumer == nullptr) return OkStatus();
  consumer->place = Place::kGone;
  consumer->died = !orderly;
  TakeFormerBack(consumer, orderly);
  if (!lanes_[consumer->lane].again.empty()) {
    return Vacate(consumer, std::move(entries), orderly);
  }
  if (feed->finished() && entries.empty() && consumer->backlog.empty()) {
    // One that died may not know that it was all: another that comes is told,
    // or gets what somebody else had who died.
    if (orderly) consumer->place = Place::kFinished;
    return OkStatus();
  }
  return Vacate(consumer, std::move(entries), orderly);
}

Status Delivery::Vacate(Consumer* consumer, std::vector<Entry> entries,
                        bool orderly) {
  consumer->place = Place::kGone;
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
  if (split() && policy == OnRankDeath::kShrink && !withheld_) {
    return Shrink(consumer);
  }
  return OkStatus();
}

Status Delivery::Settle(bool shrink) {
  withheld_ = false;
  const OnRankDeath policy = shape_.options.on_rank_death;
  std::vector<uint32_t> dead;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.place == Place::kGone && consumer.died &&
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

Status Delivery::EvictSeat(Consumer* consumer, Closed why,
                           const std::string& reason, bool keep_batches) {
  Feed& feed = FeedOf(*consumer);
  feed.Close(why, reason);
  KillPoint("evict.closed");
  // What it has released is done, also what it released just now.
  std::vector<Feed::Batch> released;
  feed.Reclaim(&released);
  for (const Feed::Batch& each : released) ReleaseLease(consumer, each);
  std::vector<Entry> entries;
  for (const Feed::Batch& each : feed.Recall()) {
    // The process may go on reading what it took.
    if (each.taken) ++slots_[each.slot].quarantine;
    if (keep_batches) {
      entries.push_back({each.slot, each.taken || each.redelivered});
      slots_[each.slot].handed_over |= each.taken;
    } else {
      Release(each.slot);
    }
  }
  consumer->place = Place::kGone;
  if (!keep_batches) {
    Drop(consumer);
    return OkStatus();
  }
  TakeFormerBack(consumer, false);
  return Vacate(consumer, std::move(entries), false);
}

Status Delivery::Evict(uint32_t rank, const std::string& reason) {
  const auto found = consumers_.find(rank);
  if (found == consumers_.end() || found->second.place != Place::kAttached) {
    return NotFoundError("rank {} is not attached", rank);
  }
  return EvictSeat(&found->second, Closed::kRecalled, reason, true);
}

// The others divide the global batch from the first step on that nobody began.
// What the gone rank still had to do before it becomes steps of its own,
// divided over the others too, so that all take the same number of steps.
Status Delivery::Shrink(Consumer* gone) {
  Phase& last = phases_.back();
  std::vector<uint32_t> ranks = last.ranks;
  std::erase(ranks, gone->rank);
  const bool someone_finished =
      std::any_of(consumers_.begin(), consumers_.end(), [&](const auto& item) {
        const Consumer& consumer = item.second;
        return consumer.place == Place::kFinished ||
               (consumer.place == Place::kAttached &&
                feeds_[consumer.seat]->finished());
      });
  // Nobody to give them to, or not to all: they wait for a replacement.
  if (ranks.empty() || someone_finished || draining_) return OkStatus();

  uint64_t boundary = 0;
  for (const Lane& lane : lanes_) {
    if (lane.phase + 1 == phases_.size()) {
      boundary = std::max(boundary, lane.next_step);
    }
  }
  const Plan& plan = last.plan;
  PlanStart start;
  const uint64_t owed_steps = plan.start().owed.size();
  start.position = plan.PositionOf(std::max(boundary, owed_steps));
  for (uint64_t step = boundary; step < owed_steps; ++step) {
    start.owed.push_back(plan.start().owed[step]);
  }
  const auto owe = [&](const Plan::Share& rows, bool redelivered) {
    if (rows.rows == 0) return;
    start.owed.push_back({rows.epoch * plan.rows_per_epoch() + rows.first_row,
                          rows.rows, redelivered || rows.redelivered});
  };
  for (const Entry& entry : gone->backlog) {
    owe(slots_[entry.slot].share.rows, entry.redelivered);
  }
  Lane& lane = lanes_[gone->lane];
  for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
    Slot& slot = slots_[lane.first_slot + i];
    if (slot.state == SlotState::kFilling || slot.state == SlotState::kReady) {
      owe(slot.share.rows, false);
    }
  }
  for (const Again& again : std::exchange(lane.again, {})) {
    const Phase& phase = phases_[PhaseOfStep(again.step)];
    const auto step = phase.plan.StepFrom(PositionOfStep(again.step));
    owe(phase.plan.ShareOf(*step, PlaceOf(phase, gone->rank)),
        again.redelivered);
  }
  uint64_t step = lane.next_step;
  for (uint32_t number = lane.phase; number < phases_.size(); ++number) {
    const Phase& phase = phases_[number];
    const uint64_t end =
        number + 1 == phases_.size() ? boundary : phase.end_step.value_or(0);
    for (; step < end; ++step) {
      owe(phase.plan.ShareOf(step, PlaceOf(phase, gone->rank)), false);
    }
    step = 0;
  }
  auto next = plan.From(std::move(start), static_cast<uint32_t>(ranks.size()));
  if (!next.ok()) return next.status();
  if (next->max_share_rows(0) > shape_.rows_max) {
    return AbortedError(
        "rank {} died, and those left ({}) would need batches of {} rows; a "
        "job is given memory to shrink to half of its ranks",
        gone->rank, ranks.size(), next->max_share_rows(0));
  }
  last.end_step = boundary;
  for (uint32_t i = 0; i < shape_.slots_per_lane; ++i) {
    Slot& slot = slots_[lane.first_slot + i];
    if (slot.state == SlotState::kFilling || slot.state == SlotState::kReady) {
      Abandon(&slot);
    }
  }
  for (const Entry& entry : gone->backlog) {
    Slot& slot = slots_[entry.slot];
    --slot.holders;  // not completed: it is owed
    FreeIfUnheld(&slot);
  }
  gone->backlog.clear();
  lane.out = lane.opened;
  new_phases_.push_back({ranks, boundary, next->start()});
  phases_.push_back({*std::move(next), ranks, {}});
  const Phase& now = phases_.back();
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.place != Place::kAttached) continue;
    ranks_changed_.push_back(
        {consumer.seat, static_cast<uint32_t>(phases_.size() - 1),
         PlaceOf(now, rank), static_cast<uint32_t>(ranks.size()),
         now.plan.start()});
  }
  consumers_.erase(gone->rank);
  return OkStatus();
}

// ---- questions
// --------------------------------------------------------------

std::vector<uint64_t> Delivery::HeldOfFormerLives() const {
  std::vector<uint64_t> steps;
  for (const auto& [rank, consumer] : consumers_) {
    if (consumer.former == nullptr) continue;
    for (const FormerBatch& batch : FormerBatches(*consumer.former)) {
      if (!batch.released) steps.push_back(batch.step);
    }
  }
  return steps;
}

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
      const Plan::Share& rows = slot.share.rows;
      const auto pooled = std::find_if(
          pool_.begin(), pool_.end(),
          [&](const Entry& entry) { return entry.slot == slot.share.slot; });
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
                            phases_[0].plan.ShareOf(*step, 0).global_rows,
                            redelivered});
    };
    for (const Again& again : lane.again) {
      owe(PositionOfStep(again.step), again.redelivered || broadcast());
    }
    for (const uint64_t step : HeldOfFormerLives()) {
      owe(PositionOfStep(step), true);
    }
  } else {
    // Steps that some rank did not release are all to be made again: which rows
    // of them the others released is lost with the number of ranks.
    state.position = UINT64_MAX;
    const auto before = [&](uint64_t position) {
      state.position = std::min(state.position, position);
    };
    for (const Slot& slot : slots_) {
      if (slot.state == SlotState::kFree || slot.share.abandoned ||
          (slot.state == SlotState::kOut && slot.holders == 0)) {
        continue;
      }
      before(slot.share.rows.position);
    }
    for (uint32_t i = 0; i < lanes_.size(); ++i) {
      const Lane& lane = lanes_[i];
      // Its rank is gone for good: what it had to do is owed to the others.
      if (i < lanes_taken_ &&
          std::none_of(consumers_.begin(), consumers_.end(),
                       [i](const auto& it) { return it.second.lane == i; })) {
        continue;
      }
      for (const Again& again : lane.again) {
        before(PositionOfStep(again.step));
      }
      const Phase& phase = phases_[lane.phase];
      before(phase.plan.PositionOf(
          std::max<uint64_t>(lane.next_step, phase.plan.start().owed.size())));
    }
    for (const uint64_t step : HeldOfFormerLives()) {
      before(PositionOfStep(step));
    }
    for (const Phase& phase : phases_) {
      for (const RowRange& range : phase.plan.start().owed) {
        if (range.position >= state.position) continue;
        // What of it is behind the position is reached anyway.
        state.owed.push_back(
            {range.position,
             std::min(range.rows, state.position - range.position), true});
      }
    }
  }
  std::sort(state.owed.begin(), state.owed.end(),
            [](const RowRange& a, const RowRange& b) {
              return a.position < b.position;
            });
  // A range on the far side of the position is reached anyway.
  std::erase_if(state.owed, [&](const RowRange& range) {
    return range.position >= state.position;
  });
  return state;
}

std::vector<Delivery::RankStatus> Delivery::Ranks() {
  std::vector<RankStatus> ranks;
  for (auto& [rank, consumer] : consumers_) {
    RankStatus& status = ranks.emplace_back();
    status.rank = rank;
    status.skipped = consumer.skipped_all;
    status.position = consumer.position;
    if (consumer.place != Place::kAttached) {
      status.state = consumer.place == Place::kGone ? "gone" : "finished";
      continue;
    }
    Feed& feed = FeedOf(consumer);
    status.seat = consumer.seat;
    status.ready = feed.untaken();
    status.held = feed.out() > status.ready ? feed.out() - status.ready : 0;
    status.taken = feed.published() - status.ready;
    status.waits = feed.waits();
    status.wait_ns = feed.wait_ns();
    status.state = !feed.finished()    ? (feed.open() ? "attached" : "closed")
                   : status.ready == 0 ? "finished"
                                       : "attached";
  }
  return ranks;
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
  return counts;
}

}  // namespace penstock
