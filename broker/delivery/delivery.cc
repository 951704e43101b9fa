#include "broker/delivery/delivery.h"

#include <algorithm>

#include "common/kill_point.h"
#include "common/quantity.h"
#include "common/ring.h"

namespace penstock {

Delivery::Delivery(const Shape& shape, Plan plan, std::vector<Ring*> rings,
                   DeliveryRecord* record)
    : shape_(shape),
      shared_(shape.options.mode != DeliveryMode::kSplit),
      rings_(std::move(rings)),
      record_(record),
      bank_nodes_(shape.bank_nodes),
      phases_(std::move(plan)),
      slots_(shape.lanes * shape.slots_per_lane),
      consumers_(rings_.size(), shape.replicas) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    slots_[i].lane = i / shape.slots_per_lane;
    slots_[i].batch.slot = i;
  }
  lanes_.reserve(shape.lanes);
  for (uint32_t i = 0; i < shape.lanes; ++i) {
    lanes_.emplace_back(
        std::span(slots_).subspan(i * shape.slots_per_lane,
                                  shape.slots_per_lane),
        shared_ ? std::nullopt : std::optional(shape.local_replicas),
        shape.options.mode == DeliveryMode::kDynamic);
  }
}

// Lanes were made for the local ranks in turn, each on the node expected for
// its rank. With one node all lanes are alike.
std::optional<uint32_t> Delivery::FreeLane(uint32_t rank,
                                           std::optional<uint32_t> node) const {
  std::optional<uint32_t> best;
  int best_fit = -1;
  const uint32_t plan_rank = rank / shape_.replicas;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const bool has_place = lanes_[i].HasPlaceFor(plan_rank);
    if (divided() && lanes_[i].IsOf(plan_rank)) {
      return has_place ? std::optional(i) : std::nullopt;
    }
    if (!has_place) continue;
    int fit = 0;
    if (!bank_nodes_.empty()) {
      fit = (node && bank_nodes_[i] == *node ? 2 : 0) +
            (i == plan_rank % lanes_.size() ? 1 : 0);
    }
    if (fit <= best_fit) continue;
    best = i;
    best_fit = fit;
  }
  return best;
}

Consumer* Delivery::AddToLane(uint32_t rank, std::optional<uint32_t> node) {
  Consumer* const consumer = consumers_.Add(rank);
  consumer->lane = FreeLane(rank, node).value();
  LaneOf(*consumer).Add(consumer);
  if (divided()) consumer->account->from = LaneOf(*consumer).next();
  return consumer;
}

// ---- attach

Status Delivery::CheckJoining(const Joining& joining) const {
  const Consumer* const known = consumers_.Find(joining.rank);
  const bool replaces = known != nullptr;
  if (replaces && known->attached()) {
    return AlreadyExistsError(
        "rank {} is already attached: close its reader or loader first "
        "(`reader.close()`), give each process its own rank{}, or another job "
        "name",
        NameOf(joining.rank), shape_.replicas > 1 ? " and replica" : "");
  }
  if (replaces && known->state == ConsumerState::kFinished) {
    return FailedPreconditionError("rank {} has taken all of its data",
                                   NameOf(joining.rank));
  }
  if (GoesOnWithout(joining.rank)) {
    return FailedPreconditionError(
        "rank {} died{}, and its share went to the others (on_rank_death: "
        "shrink){}",
        joining.rank / shape_.replicas,
        shape_.replicas > 1 ? ", with one of its replicas" : "",
        AnyAttached() ? ""
                      : ", none of which is attached: restart those, or begin "
                        "all ranks at a state");
  }
  if (!replaces && consumers_.size() >= shape_.consumers_max) {
    return ResourceExhaustedError("all {} local ranks are attached",
                                  shape_.consumers_max);
  }
  const auto lane = FreeLane(joining.rank, joining.node);
  if (!replaces && !lane) {
    return ResourceExhaustedError(
        "rank {} is one too many for this host, which has {} replicas "
        "(`local_replicas`) of {} (`local_world_size`)",
        NameOf(joining.rank), shape_.local_replicas,
        Counted(lanes_.size(), "rank"));
  }
  if (!replaces && joining.position && shared_ && lanes_[*lane].in_step() &&
      shape_.options.lag != Lag::kSkip) {
    if (const uint64_t missed =
            MissedSince(lanes_[*lane], phases_.Place(*joining.position, 0));
        missed > 0) {
      return AbortedError(
          "rank {} was away while the broker restarted, and the others "
          "continued without it: it missed {}; attach again to "
          "continue without",
          joining.rank, Counted(missed, "batch", "batches"));
    }
  }
  if (!consumers_.FreeSeat()) {
    return ResourceExhaustedError(
        "no seat is left: processes that were evicted are still alive");
  }
  return OkStatus();
}

void Delivery::AddConsumer(const Joining& joining, Joined* joined) {
  Consumer& consumer = *AddToLane(joining.rank, joining.node);
  if (divided() && !bank_nodes_.empty() && joining.node &&
      bank_nodes_[consumer.lane] != *joining.node &&
      LaneOf(consumer).members().size() == 1) {
    // Nobody has had a batch of this lane: move its bank to the rank's node.
    bank_nodes_[consumer.lane] = *joining.node;
    joined->moved_bank = consumer.lane;
  }
  if (joining.position) {
    PlaceReconnected(&consumer, joining);
  } else if (divided()) {
    PlaceLane(&LaneOf(consumer));
  }
  consumer.former = joining.former;
  const Lane& lane = LaneOf(consumer);
  if (joining.full_epoch && lane.in_step()) {
    consumer.epochs_from = joining.epochs_from.value_or(lane.Position(phases_));
  }
}

void Delivery::ReplaceConsumer(const Joining& joining, Joined* joined) {
  joined->replaces = true;
  if (!joining.position || shared_) return;
  // A restored consumer: the same process reconnects and knows its position
  // better, except for its predecessors' batches.
  Consumer& consumer = *consumers_.Find(joining.rank);
  if (LaneOf(consumer).opened() == 0 &&
      *joining.position > phases_.PositionOf(consumer.account->from)) {
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
  Consumer& consumer = *consumers_.Find(joining.rank);
  if (consumer.former != nullptr) formers_.insert(consumer.rank);
  joined.seat = *consumers_.FreeSeat();
  consumer.node = joining.node;
  consumer.node_from = joining.node_from;
  consumer.taken_before = joining.taken;
  auto feed =
      std::make_unique<Feed>(rings_[joined.seat], std::move(joining.cursor),
                             shape_.leases, joining.wake_socket, &any_corrupt_);
  // The rank gets the ring only after this, so no wake can be missed.
  feed->RequestWakes(false);
  consumers_.Attach(&consumer, joined.seat, std::move(feed));
  deaf_.erase(joined.seat);
  touched_.insert(consumer.rank);
  openable_.insert(consumer.lane);
  TellWhereItBegins(&consumer, &joined);
  return joined;
}

std::map<uint64_t, bool> Delivery::StepsAhead(const Consumer& consumer) const {
  const Account& account = *consumer.account;
  std::map<uint64_t, bool> ahead = account.lacks;
  for (const Entry& entry : account.backlog) {
    ahead[slots_[entry.slot].id()] = entry.redelivered;
  }
  for (const Slot* slot : LaneOf(consumer).in_turn()) {
    if (const auto marked = account.Wants(*slot)) ahead[slot->id()] = *marked;
  }
  return ahead;
}

void Delivery::TellWhereItBegins(Consumer* joining, Joined* joined) {
  Consumer& consumer = *joining;
  const Lane& lane = LaneOf(consumer);
  // During recovery the lane has no position yet; the consumer reported its
  // own.
  const PhaseStep begin = std::max(consumer.account->from, lane.next());
  joined->position = phases_.PositionOf(begin);
  joined->phase = begin.phase;
  // Steps that no predecessor had come in order, with no gap to those that are
  // not opened; before, between or after them those that one had.
  const std::map<uint64_t, bool> ahead = StepsAhead(consumer);
  for (const auto& [id, redelivered] : ahead) {
    if (lane.to_one()) break;  // any rank may get them
    const std::optional<PhaseStep> step = phases_.StepOf(id);
    if (!step) continue;
    const Plan::RankBatch rows = phases_.RankBatchOf(*step, consumer.plan_rank);
    if (rows.extra) continue;  // see OwedLeft
    if (redelivered) {
      if (rows.rows > 0) joined->owed.push_back({id, RangeOf(rows, true)});
    } else if (rows.position < joined->position) {
      joined->position = rows.position;
      joined->phase = step->phase;
    }
  }
  for (uint32_t phase = 0; phase <= joined->phase; ++phase) {
    for (const RowRange& range : OwedLeft(consumer, phase, ahead)) {
      joined->owed.push_back({StepId(range.position, phase), range});
    }
  }
  if (lane.to_one()) {
    // It may get whatever the others have not released: its epochs begin with
    // the oldest of that.
    const PlanStart state = State();
    joined->position =
        state.owed.empty() ? state.position : state.owed[0].position;
  } else {
    joined->backlog = static_cast<uint32_t>(consumer.account->backlog.size());
  }
  const auto ranks = [this](uint32_t phase) {
    return static_cast<uint32_t>(phases_[phase].ranks.size());
  };
  joined->rank_index = phases_.RankIndexOf(joined->phase, consumer.plan_rank);
  joined->ranks = ranks(joined->phase);
  consumer.known_phase = consumer.given_phase = joined->phase;
  for (uint32_t i = joined->phase + 1; i < phases_.size(); ++i) {
    ranks_changed_.push_back(
        {joined->seat,
         i,
         phases_.RankIndexOf(i, consumer.plan_rank),
         ranks(i),
         {phases_[i].plan.start().position, OwedLeft(consumer, i, ahead)}});
  }
}

// ---- handing out

bool Delivery::IsNextOfLane(uint32_t slot) const {
  const Lane& lane = lanes_[slots_[slot].lane];
  if (lane.in_turn().empty() || lane.in_turn().front() != &slots_[slot]) {
    return false;
  }
  const std::vector<Account*> accounts = lane.Accounts();
  return std::all_of(accounts.begin(), accounts.end(),
                     [](const Account* each) { return each->backlog.empty(); });
}

void Delivery::BeDue(uint32_t lane) {
  if (!std::exchange(lanes_[lane].due, true)) due_.push_back(lane);
}

void Delivery::Free(Slot* slot) {
  lanes_[slot->lane].Free(slot);
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
  for (uint32_t seat = 0; seat < consumers_.seats(); ++seat) {
    if (consumers_.FeedAt(seat) != nullptr) Heard(seat);
  }
}

void Delivery::LetGo(uint32_t index) {
  Slot& slot = slots_[index];
  if (!invariants_.Hold(slot.state == SlotState::kOut && slot.holders > 0,
                        "D1: a batch is released once by each that has it")) {
    return;
  }
  --slot.holders;
  FreeIfUnheld(&slot);
}

void Delivery::Release(const Consumer& consumer, const Feed::Batch& batch) {
  const Slot& slot = slots_[batch.slot];
  if (record_ != nullptr) {
    if (LaneOf(consumer).to_one()) {
      RecordCompleted(slot.batch.rows.position);
    } else if (batch.redelivered || slot.batch.rows.extra) {
      record_->HandedOver(consumer.rank, slot.id());
    }
    KillPoint("delivery.recorded");
  }
  LetGo(batch.slot);
}

// Only steps that are not owed are followed by the next one in order.
void Delivery::RecordCompleted(uint64_t position) {
  if (record_ == nullptr || !plan().StepFrom(position)) return;
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
               (slot.at.phase > consumer.given_phase ? kRanksChanged : 0u) |
               (rows.part ? *rows.part + 1 : 0u) << kPartShift |
               slot.at.phase << kPhaseShift;
  cell.rows = static_cast<uint32_t>(batch.shape_rows);
  cell.valid_rows = static_cast<uint32_t>(batch.valid_rows);
  cell.global_rows = static_cast<uint32_t>(rows.global_rows);
  cell.skipped = entry.skipped;
  cell.left_out = static_cast<uint16_t>(
      std::min<uint64_t>(batch.left_out.size(), kLeftOutMax));
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
  const bool in_step = lanes_[slot.lane].in_step();
  if (!invariants_.Hold(in_step || slot.holders == 1,
                        "D2: one may still deliver a batch") ||
      !invariants_.Hold(in_step || marked || !slot.handed_over,
                        "D3: a batch that was handed over says so") ||
      !invariants_.Hold(slot.state == SlotState::kOut,
                        "D4: a slot that is filled has no readers") ||
      !invariants_.Hold(feed.open() && feed.HasFreeLease(),
                        "I3: a lease is in one outstanding cell")) {
    return;
  }
  feed.Publish(entry.slot, entry.redelivered, cell);
  consumer->given_phase = std::max(consumer->given_phase, slot.at.phase);
  if ((cell.flags & kRedelivered) != 0) ++redelivered_;
  consumer->position =
      std::max(consumer->position,
               slot.batch.rows.position + slot.batch.rows.global_rows);
}

void Delivery::Flush(Consumer* consumer) {
  std::deque<Entry>& backlog = consumer->account->backlog;
  while (consumer->attached() && !backlog.empty()) {
    Feed& feed = FeedOf(*consumer);
    const Slot& slot = slots_[backlog.front().slot];
    if (slot.at.phase > consumer->known_phase) break;
    if (!feed.open() || feed.corrupt() || !feed.HasFreeLease()) break;
    Give(consumer, backlog.front());
    backlog.pop_front();
  }
}

// consumer: nullptr if the process was evicted.
bool Delivery::ReclaimFrom(Feed* feed, const Consumer* consumer) {
  std::vector<Feed::Batch> released;
  feed->Reclaim(&released);
  for (const Feed::Batch& each : released) {
    if (consumer != nullptr) {
      Release(*consumer, each);
    } else {
      Unquarantine(each.slot);
    }
  }
  return !released.empty();
}

bool Delivery::Reclaim(uint32_t seat) {
  Feed* const feed = consumers_.FeedAt(seat);
  if (feed == nullptr) return false;
  ++checks_;
  return ReclaimFrom(feed, consumers_.AtSeat(seat));
}

void Delivery::Advance() {
  if (closed_) return;
  heard_.insert(deaf_.begin(), deaf_.end());
  // What a rank has released without a wake makes room for what is ready now:
  // else it would be woken for each batch, and would wake the broker.
  for (const uint32_t number : due_) {
    if (lanes_[number].shared()) continue;
    for (const auto& [rank, consumer] : lanes_[number].members()) {
      if (consumer->attached()) heard_.insert(consumer->seat);
    }
  }
  for (const uint32_t seat : std::exchange(heard_, {})) {
    const Consumer* const consumer = consumers_.AtSeat(seat);
    if (consumer != nullptr) touched_.insert(consumer->rank);
    Feed* const feed = consumers_.FeedAt(seat);
    if (feed == nullptr) continue;
    ++checks_;
    ReclaimFrom(feed, consumer);
  }
  for (const uint32_t rank : std::set<uint32_t>(formers_)) {
    Consumer* const consumer = consumers_.Find(rank);
    if (consumer == nullptr || consumer->former == nullptr) {
      formers_.erase(rank);
    } else {
      ReclaimFormer(consumer);
    }
  }
  const std::set<uint32_t> touched = std::exchange(touched_, {});
  for (const uint32_t rank : touched) {
    Consumer* const consumer = consumers_.Find(rank);
    if (consumer == nullptr) continue;
    Lane& lane = LaneOf(*consumer);
    BeDue(consumer->lane);
    if (shared_) lane.unsure.insert(rank);
    if (!lane.to_one()) Flush(consumer);
  }
  now_.swap(due_);
  for (const uint32_t number : now_) {
    Lane& lane = lanes_[number];
    lane.due = false;
    if (lane.to_one()) {
      DeliverToOne(&lane);
    } else {
      DeliverToAll(&lane);
    }
  }
  for (const uint32_t rank : touched) {
    Consumer* const consumer = consumers_.Find(rank);
    if (consumer == nullptr) continue;
    if (shared_) ForgoTakes(*consumer);
    if (!LaneOf(*consumer).to_one()) FinishIfOver(consumer);
  }
  // After ForgoTakes: it asks for takes.
  for (const uint32_t number : now_) {
    if (lanes_[number].to_one()) FinishToOne(&lanes_[number]);
  }
  now_.clear();
}

void Delivery::Drain() {
  if (draining_ || closed_) return;
  draining_ = true;
  // Steps that no rank was given are not waited for: one of their rows may take
  // as long as a function may.
  uint64_t end = 0;
  for (const Lane& lane : lanes_) {
    if (!phases_.IsLast(lane.next().phase)) continue;
    end = std::max(end, lane.next().step - lane.StepsNotGiven(phases_));
  }
  for (const auto& [rank, consumer] : consumers_) {
    const PhaseStep from = consumer.account->from;
    if (phases_.IsLast(from.phase)) end = std::max(end, from.step);
  }
  for (Lane& lane : lanes_) {
    for (uint64_t left = lane.StepsNotGiven(phases_);
         left > 0 && lane.next().step > end; --left) {
      Abandon(lane.PopLast());
    }
  }
  phases_.EndLastAt(end);
  ForgetPastEnd();
  TouchAll();
}

void Delivery::Close(Closed why, const Status& status) {
  if (closed_) return;
  closed_ = true;
  for (uint32_t seat = 0; seat < consumers_.seats(); ++seat) {
    if (Feed* const feed = consumers_.FeedAt(seat)) feed->Close(why, status);
  }
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::kFilling) Abandon(&slot);
  }
}

void Delivery::Mute(uint32_t seat) {
  Feed* const feed = consumers_.FeedAt(seat);
  if (feed == nullptr) return;
  feed->Mute();
  deaf_.insert(seat);
}

}  // namespace penstock
