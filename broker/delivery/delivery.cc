#include "broker/delivery/delivery.h"

#include <algorithm>
#include <cassert>

#include "common/kill_point.h"
#include "common/quantity.h"
#include "common/ring.h"

namespace penstock {

Delivery::Delivery(const Shape& shape, Plan plan, std::vector<Ring*> rings,
                   DeliveryRecord* record)
    : shape_(shape),
      mode_(shape.options.mode),
      rings_(std::move(rings)),
      record_(record),
      bank_nodes_(shape.bank_nodes),
      slots_(shape.lanes * shape.slots_per_lane),
      lanes_(shape.lanes),
      feeds_(rings_.size()),
      rank_at_(rings_.size()) {
  Phase& first = phases_.emplace_back(Phase{std::move(plan), {}, {}});
  if (split()) {
    for (uint32_t rank = 0; rank < shape.world_size; ++rank) {
      first.ranks.push_back(rank);
    }
  }
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    slots_[i].lane = i / shape.slots_per_lane;
    slots_[i].batch.slot = i;
    lanes_[slots_[i].lane].free.push(i);
  }
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].first_slot = i * shape.slots_per_lane;
  }
}

// ---- lookups

Delivery::Consumer* Delivery::Find(uint32_t rank) {
  const auto found = consumers_.find(rank);
  return found == consumers_.end() ? nullptr : &found->second;
}

Delivery::Consumer* Delivery::AtSeat(uint32_t seat) {
  Consumer* const consumer = Find(rank_at_[seat]);
  const bool is_there = consumer != nullptr &&
                        consumer->state == ConsumerState::kAttached &&
                        consumer->seat == seat;
  return is_there ? consumer : nullptr;
}

const Delivery::Consumer* Delivery::OfLane(uint32_t lane) const {
  if (!lanes_[lane].rank) return nullptr;
  const auto found = consumers_.find(*lanes_[lane].rank);
  return found == consumers_.end() ? nullptr : &found->second;
}

uint32_t Delivery::RankIndexOf(const Phase& phase, uint32_t rank) const {
  if (!split()) return 0;
  // Ranks are sorted: the first phase has all, each later one fewer.
  const auto found =
      std::lower_bound(phase.ranks.begin(), phase.ranks.end(), rank);
  assert(found != phase.ranks.end() && *found == rank);
  return static_cast<uint32_t>(found - phase.ranks.begin());
}

// Lanes were made for the local ranks in turn, each on the node expected for
// its rank. With one node all lanes are alike.
std::optional<uint32_t> Delivery::FreeLane(uint32_t rank,
                                           std::optional<uint32_t> node) const {
  std::optional<uint32_t> best;
  int best_fit = -1;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].taken) continue;
    int fit = 0;
    if (!bank_nodes_.empty()) {
      fit = (node && bank_nodes_[i] == *node ? 2 : 0) +
            (i == rank % lanes_.size() ? 1 : 0);
    }
    if (fit <= best_fit) continue;
    best = i;
    best_fit = fit;
  }
  return best;
}

uint32_t Delivery::TakeLane(uint32_t rank, std::optional<uint32_t> node) {
  if (!split()) return 0;
  const std::optional<uint32_t> lane = FreeLane(rank, node);
  assert(lane.has_value());
  lanes_[*lane].taken = true;
  lanes_[*lane].rank = rank;
  return *lane;
}

// ---- attach

uint64_t Delivery::LanePosition(const Lane& lane) const {
  // The oldest batch that has not left the lane, else the next to be opened.
  for (const uint32_t number : lane.in_turn) {
    const OpenBatch& batch = slots_[number].batch;
    if (!batch.abandoned && !batch.rows.extra) return batch.rows.position;
  }
  uint64_t step = lane.next_step;
  const Plan& plan = phases_[lane.phase].plan;
  step = std::max<uint64_t>(step, plan.start().owed.size());
  return plan.PositionOf(step);
}

uint64_t Delivery::NextPosition(const Consumer& consumer) const {
  for (const Entry& entry : consumer.backlog) {
    const OpenBatch& batch = slots_[entry.slot].batch;
    if (!batch.rows.extra) return batch.rows.position;
  }
  const Lane& lane = lanes_[consumer.lane];
  if (mode_ != DeliveryMode::kBroadcast && !lane.redo.empty()) {
    return PositionOfStep(lane.redo.front().step);
  }
  return LanePosition(lane);
}

Status Delivery::CheckJoining(const Joining& joining) const {
  const auto known = consumers_.find(joining.rank);
  const bool replaces = known != consumers_.end();
  if (replaces && known->second.state == ConsumerState::kAttached) {
    return AlreadyExistsError(
        "rank {} is already attached: give each process its own rank, or "
        "another job name",
        joining.rank);
  }
  if (replaces && known->second.state == ConsumerState::kFinished) {
    return FailedPreconditionError("rank {} has taken all of its data",
                                   joining.rank);
  }
  if (GoesOnWithout(joining.rank)) {
    return FailedPreconditionError(
        "rank {} died, and its share went to the others (on_rank_death: "
        "shrink){}",
        joining.rank,
        AnyAttached() ? ""
                      : ", none of which is attached: restart those, or begin "
                        "all ranks at a state");
  }
  if (!replaces && consumers_.size() >= shape_.consumers_max) {
    return ResourceExhaustedError("all {} local ranks are attached",
                                  shape_.consumers_max);
  }
  if (broadcast() && !replaces && joining.position &&
      shape_.options.lag != Lag::kSkip) {
    if (const uint64_t missed = MissedSince(*joining.position); missed > 0) {
      return AbortedError(
          "rank {} was away while the broker restarted, and the others "
          "continued without it: it missed {}; attach again to "
          "continue without",
          joining.rank, Counted(missed, "batch", "batches"));
    }
  }
  if (std::find(feeds_.begin(), feeds_.end(), nullptr) == feeds_.end()) {
    return ResourceExhaustedError(
        "no seat is left: processes that were evicted are still alive");
  }
  return OkStatus();
}

void Delivery::AddConsumer(const Joining& joining, Joined* joined) {
  Consumer& consumer = consumers_[joining.rank];
  consumer.rank = joining.rank;
  consumer.lane = TakeLane(joining.rank, joining.node);
  if (split() && !bank_nodes_.empty() && joining.node &&
      bank_nodes_[consumer.lane] != *joining.node) {
    // Nobody has had a batch of this lane: move its bank to the rank's node.
    bank_nodes_[consumer.lane] = *joining.node;
    joined->moved_bank = consumer.lane;
  }
  if (joining.position) PlaceReconnected(&consumer, joining);
  consumer.former = joining.former;
  if (joining.full_epoch && broadcast()) {
    consumer.epochs_from =
        joining.epochs_from.value_or(LanePosition(lanes_[consumer.lane]));
  }
}

void Delivery::ReplaceConsumer(const Joining& joining, Joined* joined) {
  joined->replaces = true;
  if (!joining.position || !split()) return;
  // A restored consumer: the same process reconnects and knows its position
  // better, except for its predecessors' batches.
  Consumer& consumer = consumers_.at(joining.rank);
  const Lane& lane = lanes_[consumer.lane];
  if (lane.opened == 0 && *joining.position > LanePosition(lane)) {
    PlaceReconnected(&consumer, joining);
  }
  consumer.former = joining.former;
  joined->replaces = false;
}

StatusOr<Delivery::Joined> Delivery::Attach(Joining joining) {
  if (joining.rank == kAnyRank) {
    joining.rank = 0;
    while (Knows(joining.rank)) ++joining.rank;
  }
  PENSTOCK_RETURN_IF_ERROR(CheckJoining(joining));
  Joined joined;
  joined.rank = joining.rank;
  if (Knows(joining.rank)) {
    ReplaceConsumer(joining, &joined);
  } else {
    AddConsumer(joining, &joined);
  }
  Consumer& consumer = consumers_.at(joining.rank);
  if (consumer.former != nullptr) formers_.insert(consumer.rank);
  const auto seat = std::find(feeds_.begin(), feeds_.end(), nullptr);
  joined.seat = static_cast<uint32_t>(seat - feeds_.begin());
  consumer.state = ConsumerState::kAttached;
  consumer.node = joining.node;
  consumer.node_from = joining.node_from;
  consumer.seat = joined.seat;
  consumer.taken_before = joining.taken;
  rank_at_[joined.seat] = consumer.rank;
  *seat =
      std::make_unique<Feed>(rings_[joined.seat], std::move(joining.cursor),
                             shape_.leases, joining.wake_socket, &any_corrupt_);
  // The rank gets the ring only after this, so no wake can be missed.
  (*seat)->RequestWakes(false);
  deaf_.erase(joined.seat);
  touched_.insert(consumer.rank);
  openable_.insert(consumer.lane);
  TellWhereItBegins(&consumer, &joined);
  return joined;
}

void Delivery::TellWhereItBegins(Consumer* joining, Joined* joined) {
  Consumer& consumer = *joining;
  joined->backlog = static_cast<uint32_t>(consumer.backlog.size());
  // During recovery the lane has no position yet; the consumer reported its
  // own.
  joined->position = std::max(consumer.from, NextPosition(consumer));
  joined->phase = consumer.backlog.empty()
                      ? lanes_[consumer.lane].phase
                      : slots_[consumer.backlog.front().slot].phase;
  const Phase& phase = phases_[joined->phase];
  joined->rank_index = RankIndexOf(phase, consumer.rank);
  joined->ranks = static_cast<uint32_t>(phase.ranks.size());
  joined->owed = OwedLeft(consumer, joined->phase);
  consumer.known_phase = joined->phase;
  MarkPhases(consumer);
  for (uint32_t i = joined->phase + 1; i < phases_.size(); ++i) {
    ranks_changed_.push_back({joined->seat, i,
                              RankIndexOf(phases_[i], consumer.rank),
                              static_cast<uint32_t>(phases_[i].ranks.size()),
                              phases_[i].plan.start()});
  }
}

// The slots were marked for the predecessor.
void Delivery::MarkPhases(const Consumer& consumer) {
  if (!split()) return;
  Lane& lane = lanes_[consumer.lane];
  uint32_t phase = consumer.known_phase;
  const auto mark = [&phase](Slot& slot) {
    slot.ranks_changed = slot.phase > phase;
    phase = std::max(phase, slot.phase);
  };
  for (const Entry& entry : consumer.backlog) mark(slots_[entry.slot]);
  for (const uint32_t number : lane.in_turn) mark(slots_[number]);
  lane.phase_begins = lane.phase > phase;
}

// ---- handing out

Delivery::Slot* Delivery::NextReady(uint32_t number) {
  const Lane& lane = lanes_[number];
  if (lane.in_turn.empty()) return nullptr;
  Slot& slot = slots_[lane.in_turn.front()];
  return slot.state == SlotState::kReady ? &slot : nullptr;
}

void Delivery::Free(Slot* slot) {
  slot->state = SlotState::kFree;
  lanes_[slot->lane].free.push(slot->batch.slot);
  openable_.insert(slot->lane);
}

void Delivery::FreeIfUnheld(Slot* slot) {
  if (slot->state == SlotState::kOut && slot->holders == 0 &&
      slot->quarantine == 0) {
    Free(slot);
  }
}

void Delivery::OpenAll() {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) openable_.insert(lane);
}

void Delivery::TouchAll() {
  for (const auto& [rank, consumer] : consumers_) touched_.insert(rank);
}

void Delivery::HeardAll() {
  for (uint32_t seat = 0; seat < feeds_.size(); ++seat) {
    if (feeds_[seat] != nullptr) Heard(seat);
  }
}

// One holder has finished with the slot.
void Delivery::Release(uint32_t index) {
  Slot& slot = slots_[index];
  if (!invariants_.Hold(slot.state == SlotState::kOut && slot.holders > 0,
                        "D1: a batch is released once by each that has it")) {
    return;
  }
  --slot.holders;
  if (slot.holders == 0 && record_ != nullptr) {
    if (mode_ == DeliveryMode::kDynamic) {
      RecordCompleted(slot.batch.rows.position);
    } else if (split() && slot.handed_over) {
      record_->HandedOver(slot.for_rank, IdOf(slot));
    }
    KillPoint("delivery.recorded");
  }
  FreeIfUnheld(&slot);
}

// Only steps that are not owed are followed by the next one in order.
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
  if (!invariants_.Hold(slot.quarantine > 0,
                        "D4: an evicted process reads a slot until it ends")) {
    return;
  }
  --slot.quarantine;
  FreeIfUnheld(&slot);
}

Cell Delivery::CellOf(const Consumer& consumer, const Entry& entry) {
  const Slot& slot = slots_[entry.slot];
  const OpenBatch& batch = slot.batch;
  const Plan::RankBatch& rows = batch.rows;
  const bool redelivered = entry.redelivered || rows.redelivered;
  Cell cell{};
  cell.slot_offset =
      shape_.slots_offset + SlotOffset(shape_.bank_slots, shape_.slot_stride,
                                       SegmentSlot(batch, CopyFor(consumer)));
  cell.flags = (rows.last_of_epoch ? kLastOfEpoch : 0u) |
               (redelivered ? kRedelivered : 0u) |
               (redelivered || rows.extra ? kExtra : 0u) |
               (slot.ranks_changed ? kRanksChanged : 0u) |
               (rows.part ? *rows.part + 1 : 0u) << kPartShift |
               slot.phase << kPhaseShift;
  cell.rows = static_cast<uint32_t>(batch.shape_rows);
  cell.valid_rows = static_cast<uint32_t>(batch.valid_rows);
  cell.global_rows = static_cast<uint32_t>(rows.global_rows);
  cell.skipped = entry.skipped;
  cell.epoch = rows.epoch;
  cell.step_in_epoch = rows.step_in_epoch;
  cell.position = rows.position;
  if (consumer.epochs_from) CountEpochs(*consumer.epochs_from, &cell);
  return cell;
}

void Delivery::CountEpochs(uint64_t from, Cell* cell) const {
  const Plan& plan = this->plan();
  const uint64_t per_epoch = plan.steps_per_epoch();
  const uint64_t first = plan.StepAt(from);
  const uint64_t step = std::max(plan.StepAt(cell->position), first) - first;
  cell->epoch = from / plan.rows_per_epoch() + step / per_epoch;
  cell->step_in_epoch = step % per_epoch;
  cell->flags &= ~uint32_t{kLastOfEpoch};
  if (cell->step_in_epoch + 1 == per_epoch) cell->flags |= kLastOfEpoch;
}

// Requires an open feed with a free lease.
void Delivery::Give(Consumer* consumer, const Entry& entry) {
  const Slot& slot = slots_[entry.slot];
  const Cell cell = CellOf(*consumer, entry);
  Feed& feed = FeedOf(*consumer);
  const bool marked = (cell.flags & kExtra) != 0;
  if (!invariants_.Hold(broadcast() || slot.holders == 1,
                        "D2: one may still deliver a batch") ||
      !invariants_.Hold(broadcast() || marked || !slot.handed_over,
                        "D3: a batch that was handed over says so") ||
      !invariants_.Hold(slot.state == SlotState::kOut,
                        "D4: a slot that is filled has no readers") ||
      !invariants_.Hold(feed.open() && feed.HasFreeLease(),
                        "I3: a lease is in one outstanding cell")) {
    return;
  }
  feed.Publish(entry.slot, entry.redelivered, cell);
  if ((cell.flags & kRedelivered) != 0) ++redelivered_;
  consumer->position =
      std::max(consumer->position,
               slot.batch.rows.position + slot.batch.rows.global_rows);
}

// Publishes the backlog while there are free leases.
void Delivery::Flush(Consumer* consumer) {
  while (consumer->state == ConsumerState::kAttached &&
         !consumer->backlog.empty()) {
    Feed& feed = FeedOf(*consumer);
    const Slot& slot = slots_[consumer->backlog.front().slot];
    if (slot.ranks_changed && slot.phase > consumer->known_phase) break;
    if (!feed.open() || feed.corrupt() || !feed.HasFreeLease()) break;
    Give(consumer, consumer->backlog.front());
    consumer->backlog.pop_front();
  }
}

// consumer: nullptr if the process was evicted.
void Delivery::ReleaseLease(const Consumer* consumer,
                            const Feed::Batch& lease) {
  if (consumer == nullptr) {
    Unquarantine(lease.slot);
    return;
  }
  const Slot& slot = slots_[lease.slot];
  if (record_ != nullptr && mode_ == DeliveryMode::kBroadcast &&
      shape_.options.on_rank_death == OnRankDeath::kWait &&
      (lease.redelivered || slot.batch.rows.extra)) {
    record_->HandedOver(consumer->rank, IdOf(slot));
  }
  Release(lease.slot);
}

bool Delivery::Reclaim(uint32_t seat) {
  if (feeds_[seat] == nullptr) return false;
  ++checks_;
  std::vector<Feed::Batch> released;
  feeds_[seat]->Reclaim(&released);
  const Consumer* consumer = AtSeat(seat);
  for (const Feed::Batch& each : released) ReleaseLease(consumer, each);
  return !released.empty();
}

void Delivery::DeliverSplit(Consumer* consumer) {
  if (consumer->state == ConsumerState::kAttached) Reclaim(consumer->seat);
  while (Slot* slot = NextReady(consumer->lane)) {
    slot->state = SlotState::kOut;
    slot->holders = 1;
    slot->for_rank = consumer->rank;
    lanes_[consumer->lane].in_turn.pop_front();
    consumer->backlog.push_back({slot->batch.slot, false});
  }
  Flush(consumer);
  FinishIfOver(consumer);
}

bool Delivery::IsHungry(const Consumer& consumer) {
  ++checks_;
  if (consumer.state != ConsumerState::kAttached) return false;
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
Delivery::Consumer* Delivery::NextHungry() {
  while (!hungry_.empty()) {
    auto next = hungry_.upper_bound(last_given_);
    if (next == hungry_.end()) next = hungry_.begin();
    Consumer* const consumer = Find(*next);
    if (consumer != nullptr && IsHungry(*consumer)) return consumer;
    hungry_.erase(next);
  }
  return nullptr;
}

void Delivery::DeliverDynamic() {
  while (Slot* slot = NextReady(0)) {
    slot->state = SlotState::kOut;
    slot->holders = 1;
    lanes_[0].in_turn.pop_front();
    pool_.push_back({slot->batch.slot, false});
  }
  while (!pool_.empty()) {
    Consumer* const next = NextHungry();
    if (next == nullptr) break;
    Give(next, pool_.front());
    last_given_ = next->rank;
    pool_.pop_front();
  }
}

std::optional<bool> Delivery::Wants(const Consumer& consumer,
                                    const Slot& slot) const {
  if (consumer.state == ConsumerState::kFinished ||
      (consumer.state == ConsumerState::kAttached &&
       !feeds_[consumer.seat]->open())) {
    return std::nullopt;
  }
  const auto redo = consumer.redo.find(IdOf(slot));
  if (redo != consumer.redo.end()) return redo->second;
  const Plan::RankBatch& rows = slot.batch.rows;
  if (slot.is_redo || (!rows.extra && rows.position < consumer.from)) {
    return std::nullopt;
  }
  return false;
}

bool Delivery::IsAsleep(const Consumer& consumer) {
  return consumer.state == ConsumerState::kAttached &&
         FeedOf(consumer).open() && FeedOf(consumer).waiting();
}

bool Delivery::HasRoom(const Consumer& consumer) {
  ++checks_;
  size_t behind = consumer.backlog.size();
  if (consumer.state != ConsumerState::kAttached) {
    return behind < shape_.options.window;
  }
  Feed& feed = FeedOf(consumer);
  // In this order: a consumer that was less than a window behind then has a
  // lease once its releases are seen.
  behind += feed.untaken();
  if (feed.corrupt() || behind >= shape_.options.window) return false;
  if (Reclaim(consumer.seat) && !consumer.backlog.empty()) {
    touched_.insert(consumer.rank);
  }
  return feed.HasFreeLease() && !feed.corrupt();
}

void Delivery::NoteRoom(Consumer* consumer) {
  bool has_room = HasRoom(*consumer);
  bool asleep = false;
  if (consumer->state == ConsumerState::kAttached) {
    // Sleepers matter only where a consumer may be left behind.
    const bool block = shape_.options.lag == Lag::kBlock;
    FeedOf(*consumer).RequestWakes(!has_room || !block);  // E8
    asleep = !block && IsAsleep(*consumer);
    if (!has_room) has_room = HasRoom(*consumer);
  }
  has_room ? (void)without_.erase(consumer->rank)
           : (void)without_.insert(consumer->rank);
  asleep ? (void)asleep_.insert(consumer->rank)
         : (void)asleep_.erase(consumer->rank);
}

// A rank seen asleep may have been interrupted since.
bool Delivery::OneSleeps() {
  while (!asleep_.empty()) {
    const Consumer* const consumer = Find(*asleep_.begin());
    if (consumer != nullptr && IsAsleep(*consumer)) return true;
    asleep_.erase(asleep_.begin());
  }
  return false;
}

// Whether the batch has to wait, as far as can be told without walking over all
// consumers.
bool Delivery::IsHeldUp(const Slot& slot) {
  for (const uint32_t rank : std::exchange(unsure_, {})) {
    if (Consumer* const consumer = Find(rank)) {
      NoteRoom(consumer);
    } else {
      without_.erase(rank);
    }
  }
  const bool block = shape_.options.lag == Lag::kBlock;
  const bool one_holds_it_up =
      std::any_of(without_.begin(), without_.end(), [&](uint32_t rank) {
        const Consumer* const consumer = Find(rank);
        return consumer != nullptr && Wants(*consumer, slot) &&
               (block || consumer->skipped == 0);
      });
  // A consumer is newly left behind only after another has taken a whole window
  // more and sleeps: consumers of similar speed lose nothing.
  return one_holds_it_up && (block || !OneSleeps());
}

bool Delivery::GiveToAll(Slot* slot) {
  std::vector<Consumer*> with_room;
  std::vector<Consumer*> without;
  bool anyone = false;
  bool one_is_ahead = false;  // since a former instance: awaits later steps
  for (auto& [rank, consumer] : consumers_) {
    anyone |= consumer.state == ConsumerState::kAttached;
    if (!Wants(consumer, *slot)) {
      one_is_ahead |= !slot->is_redo &&
                      consumer.state == ConsumerState::kAttached &&
                      FeedOf(consumer).open();
      continue;
    }
    // Redone steps do not count as lag. A consumer in without_ is checked once
    // more after another was seen asleep, which still sleeps: so both were true
    // at one time.
    const bool is_behind =
        !slot->is_redo && without_.count(rank) > 0 && !HasRoom(consumer);
    (is_behind ? without : with_room).push_back(&consumer);
  }
  if (anyone && with_room.empty() && without.empty()) {
    // It was redone for a consumer that is gone for good, or all have it.
    lanes_[0].in_turn.pop_front();
    Free(slot);
    if (Exhausted(lanes_[0])) TouchAll();
    return true;
  }
  if (!anyone || (with_room.empty() && !one_is_ahead)) return false;
  slot->state = SlotState::kOut;
  lanes_[0].in_turn.pop_front();
  slot->holders = static_cast<uint32_t>(with_room.size());
  for (Consumer* consumer : with_room) {
    Entry entry{slot->batch.slot, *Wants(*consumer, *slot)};
    if (!slot->is_redo) entry.skipped = std::exchange(consumer->skipped, 0);
    consumer->redo.erase(IdOf(*slot));
    if (consumer->state == ConsumerState::kGone || !consumer->backlog.empty() ||
        !FeedOf(*consumer).HasFreeLease()) {
      consumer->backlog.push_back(entry);
    } else {
      Give(consumer, entry);
    }
    unsure_.insert(consumer->rank);
  }
  // Ranks are told the end, once they have what was theirs.
  if (Exhausted(lanes_[0])) TouchAll();
  for (Consumer* consumer : without) {
    if (shape_.options.lag == Lag::kSkip) {
      ++consumer->skipped;
      ++consumer->skipped_all;
      consumer->redo.erase(IdOf(*slot));
    } else if (consumer->state == ConsumerState::kGone) {
      Drop(consumer);
    } else {
      (void)EvictSeat(
          consumer, Closed::kFailed,
          Format("{} rank {} fell more than {} behind (lag: fail; window: {})",
                 static_cast<int>(StatusCode::kAborted), consumer->rank,
                 Counted(shape_.options.window, "batch", "batches"),
                 shape_.options.window),
          false);
    }
  }
  FreeIfUnheld(slot);  // nobody got it: only a consumer that is ahead goes on
  return true;
}

void Delivery::DeliverBroadcast() {
  if (!started_) {
    if (consumers_.size() < shape_.start_with) return;
    started_ = true;
  }
  while (Slot* slot = NextReady(0)) {
    if (!slot->is_redo && IsHeldUp(*slot)) return;
    if (!GiveToAll(slot)) return;
  }
}

void Delivery::FinishIfOver(Consumer* consumer) {
  if (recovery_ == Recovery::kPositions ||
      consumer->state != ConsumerState::kAttached ||
      !FeedOf(*consumer).open() || !consumer->backlog.empty() ||
      !Exhausted(lanes_[consumer->lane])) {
    return;
  }
  FeedOf(*consumer).Finish(consumer->skipped);
}

bool Delivery::IsAtWork(const Consumer& consumer) {
  if (consumer.state != ConsumerState::kAttached) return false;
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
void Delivery::FinishDynamic() {
  if (recovery_ == Recovery::kPositions || !pool_.empty() ||
      !Exhausted(lanes_[0]))
    return;
  // The rank that was at work last time probably still is.
  const auto from = consumers_.lower_bound(at_work_);
  const auto is_at_work = [this](const auto& item) {
    return IsAtWork(item.second);
  };
  auto found = std::find_if(from, consumers_.end(), is_at_work);
  if (found == consumers_.end()) {
    found = std::find_if(consumers_.begin(), from, is_at_work);
    if (found == from) {
      for (auto& [rank, consumer] : consumers_) FinishIfOver(&consumer);
      return;
    }
  }
  at_work_ = found->first;
}

// Stops wakes for takes from ranks that no batch waits for. unknown: ranks of
// which D5 does not need them.
void Delivery::ForgoTakes(const std::set<uint32_t>& ranks,
                          const std::set<uint32_t>& unknown) {
  for (const uint32_t rank : ranks) {
    const Consumer* const consumer = Find(rank);
    if (consumer != nullptr && consumer->state == ConsumerState::kAttached &&
        unknown.count(rank) > 0) {
      FeedOf(*consumer).RequestWakes(false);
    }
  }
}

void Delivery::Advance() {
  if (closed_) return;
  heard_.insert(deaf_.begin(), deaf_.end());
  for (const uint32_t seat : std::exchange(heard_, {})) {
    const Consumer* const consumer = AtSeat(seat);
    if (consumer != nullptr) touched_.insert(consumer->rank);
    // DeliverSplit reclaims by itself.
    if (consumer == nullptr || !split()) Reclaim(seat);
  }
  for (const uint32_t rank : std::set<uint32_t>(formers_)) {
    Consumer* const consumer = Find(rank);
    if (consumer == nullptr || consumer->former == nullptr) {
      formers_.erase(rank);
    } else {
      ReclaimFormer(consumer);
    }
  }
  const std::set<uint32_t> touched = std::exchange(touched_, {});
  switch (mode_) {
    case DeliveryMode::kDynamic:
      hungry_.insert(touched.begin(), touched.end());
      DeliverDynamic();
      if (pool_.empty()) ForgoTakes(touched, hungry_);
      FinishDynamic();
      break;
    case DeliveryMode::kBroadcast:
      for (const uint32_t rank : touched) {
        if (Consumer* const consumer = Find(rank)) Flush(consumer);
        unsure_.insert(rank);
      }
      DeliverBroadcast();
      if (NextReady(0) == nullptr) ForgoTakes(touched, unsure_);
      for (const uint32_t rank : touched) {
        if (Consumer* const consumer = Find(rank)) FinishIfOver(consumer);
      }
      break;
    default:
      for (const uint32_t rank : touched) {
        if (Consumer* const consumer = Find(rank)) DeliverSplit(consumer);
      }
      break;
  }
}

void Delivery::Drain() {
  if (draining_ || closed_) return;
  draining_ = true;
  Phase& phase = phases_.back();
  // Steps that no rank was given are not waited for: one of their rows may take
  // as long as a function may.
  uint64_t end = 0;
  for (const Lane& lane : lanes_) {
    if (lane.phase + 1 != phases_.size()) continue;
    end = std::max(end, lane.next_step - StepsNotGiven(lane));
  }
  for (Lane& lane : lanes_) {
    for (uint64_t left = StepsNotGiven(lane); left > 0 && lane.next_step > end;
         --left) {
      Abandon(&slots_[lane.in_turn.back()]);
      lane.in_turn.pop_back();
      --lane.next_step;
    }
  }
  if (const auto total = phase.plan.total_steps()) end = std::min(end, *total);
  phase.end_step = end;
  TouchAll();
}

uint64_t Delivery::StepsNotGiven(const Lane& lane) const {
  const auto last = std::find_if(
      lane.in_turn.rbegin(), lane.in_turn.rend(), [this](uint32_t slot) {
        return slots_[slot].is_redo || slots_[slot].phase + 1 != phases_.size();
      });
  return static_cast<uint64_t>(last - lane.in_turn.rbegin());
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

void Delivery::Mute(uint32_t seat) {
  if (feeds_[seat] == nullptr) return;
  feeds_[seat]->Mute();
  deaf_.insert(seat);
}

}  // namespace penstock
