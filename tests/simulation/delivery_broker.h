// The simulation of delivery: the broker, what its control thread and a worker
// do, in turns.
#ifndef TESTS_SIMULATION_DELIVERY_BROKER_H_
#define TESTS_SIMULATION_DELIVERY_BROKER_H_

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/delivery_world.h"

namespace penstock::delivery_simulation {

class Broker {
 public:
  Broker(World* of, int instance)
      : world_(*of), run_(of->run), instance_(instance), plan_(of->MakePlan()) {
    MakeDelivery();
  }

  void MakeDelivery() {
    const Config& config = world_.config;
    Delivery::Shape shape;
    shape.options = config.options;
    const bool split = config.options.mode == DeliveryMode::kSplit;
    shape.world_size = split ? config.world / config.replicas : 1;
    shape.consumers_max = config.world;
    shape.replicas = shape.local_replicas = config.replicas;
    shape.start_with = config.world;
    shape.in_order = config.in_order;
    shape.lanes = shape.world_size;
    shape.slots_per_lane = config.slots;
    shape.leases = config.leases;
    shape.rows_max = config.batch;
    shape.slots_offset = 0;
    shape.slot_stride = 1;
    std::vector<Ring*> rings;
    for (Ring& ring : world_.segments[instance_].rings) rings.push_back(&ring);
    delivery_ = std::make_unique<Delivery>(shape, plan_, std::move(rings),
                                           &world_.kept);
    delivery_->SetUsableSlots(config.slots);
    slots_ = shape.lanes * config.slots;
    if (world_.kept.delivered) delivery_->PlaceAtEnd();
  }

  // Before the exploration begins, so without interleavings.
  void AttachAtOnce(int rank) {
    Session& session = SessionOf(rank);
    session.requested = true;
    Attach(rank);
    session.page.position.store(session.begins_at);
  }

  void Run() {
    if (instance_ > 0 && !world_.kept.delivered) Restore();
    for (;;) {
      HandleNews();
      Make();
      if (AllGone()) break;
      if (delivery_->CountSlots().ready > 0) world_.idle = instance_;
      run_.WaitUntil([this] { return News(); });
      world_.idle.reset();
    }
    const Delivery::SlotCounts counts = delivery_->CountSlots();
    run_.Check(counts.quarantined == 0 && !delivery_->AnySeatTaken(),
               "all are gone, and {} slots are in quarantine",
               counts.quarantined);
    // Batches of a gone rank wait for a replacement, unless there is none.
    const DeliveryOptions& options = world_.config.options;
    if (!world_.broadcast() || options.on_rank_death == OnRankDeath::kWait) {
      return;
    }
    run_.Check(counts.out == 0, "all are gone, and {} slots are not free",
               counts.out);
  }

 private:
  Session& SessionOf(int rank) { return world_.sessions[instance_][rank]; }
  bool split() const {
    return world_.config.options.mode == DeliveryMode::kSplit;
  }

  // ---- broker instances

  std::vector<FormerProcess> FormerProcesses() {
    std::vector<FormerProcess> processes;
    for (const auto& [attach, former] : former_) {
      const bool given_up = world_.kept.attaches.at(attach).given_up;
      const bool gone =
          given_up || run_.gone(world_.rank_process[former.process]);
      run_.Observe(gone);
      // Knowing of the death implies knowing what was done before.
      if (gone && !given_up) {
        (void)SessionOf(former.process).to_broker.Wait();
      }
      const auto reconnected = reconnected_.find(former.number);
      const bool reconnects = reconnected != reconnected_.end() &&
                              attach >= own_since_.at(former.number);
      processes.push_back({former.number, former.from, former.page,
                           !gone && !former.left, former.left, reconnects});
    }
    return processes;
  }

  void Restore() {
    former_ = world_.kept.attaches;
    handed_over_ = world_.kept.handed_over;
    for (const FormerPhase& phase : world_.kept.phases) {
      run_.Check(delivery_->RestorePhase(phase).ok(), "phase is refused");
    }
    delivery_->BeginRecovery();
  }

  // As in JobTable.
  void RestoreDead() {
    if (!split() || instance_ == 0) return;
    for (const Delivery::FormerConsumer& rank :
         RestoreRanks(FormerProcesses(), handed_over_, plan_)) {
      delivery_->RestoreRank(rank);
    }
  }

  // As in JobTable.
  void FinishFormer() {
    if (!delivery_->Unsettled() || delivery_->gathering()) return;
    const std::vector<FormerProcess> processes = FormerProcesses();
    RestoreDead();
    for (const FormerProcess& process : processes) {
      if (process.may_live && !delivery_->Knows(process.rank) &&
          !delivery_->GoesOnWithout(process.rank)) {
        return;
      }
    }
    world_.NoteDone();
    if (!delivery_->FinishRecovery(true).ok()) Fail();
    NoteExpelled();
    SendRanksChanged();
  }

  void TryGather() {
    if (!delivery_->gathering()) return;
    const std::vector<FormerProcess> processes = FormerProcesses();
    for (const FormerProcess& process : processes) {
      if (process.may_live && reconnected_.count(process.rank) == 0) return;
    }
    const Kept& kept = world_.kept;
    delivery_->TakeOverSteps(
        GatherSteps({world_.config.options, kept.opened, plan_.start().position,
                     kept.completed, handed_over_},
                    plan_, processes, reconnected_));
  }

  // ---- news

  std::optional<int> ProcessOf(uint32_t number) {
    for (int rank = 0; rank < world_.ranks; ++rank) {
      if (seat_[rank] && delivery_->RankAt(*seat_[rank]) == number) return rank;
    }
    return std::nullopt;
  }

  bool AllGone() const {
    return std::all_of(gone_.begin(), gone_.begin() + world_.ranks,
                       [](bool gone) { return gone; });
  }

  bool News() {
    for (int rank = 0; rank < world_.ranks; ++rank) {
      if (!gone_[rank] && SessionOf(rank).to_broker.readable()) return true;
    }
    return world_.evict_requested && !evict_done_;
  }

  void HandleNews() {
    for (int rank = 0; rank < world_.ranks; ++rank) {
      Session& session = SessionOf(rank);
      const bool readable = !gone_[rank] && session.to_broker.readable();
      run_.Observe(readable);
      if (!readable) continue;
      if (!session.to_broker.Wait()) {
        Gone(rank);
      } else {
        if (seat_[rank]) delivery_->Heard(*seat_[rank]);
        heard_[rank] = session.requested;
      }
    }
    // Another may have waited for this one.
    while (AnswerSome()) {
    }
    const bool evict = world_.evict_requested && !evict_done_;
    run_.Observe(evict);
    if (evict) {
      evict_done_ = true;
      world_.NoteDone();
      const std::optional<int> process = ProcessOf(0);
      if (process == 0) {
        for (Returned& each : world_.returned) each.settled = each.released;
        world_.evicted_processes.insert(0);
      }
      // Nobody would replace the replacement.
      const Status status = process == 0 ? delivery_->Evict(0, "asked for")
                                         : NotFoundError("it is gone");
      if (status.ok()) world_.evicted = true;
      NoteExpelled();
      if (!status.ok() && status.code() != StatusCode::kNotFound) Fail();
      SendRanksChanged();
    }
    TryGather();
    FinishFormer();
    Sweep();
  }

  // True: one more has an answer.
  bool AnswerSome() {
    bool any = false;
    for (int rank = 0; rank < world_.ranks; ++rank) {
      Session& session = SessionOf(rank);
      if (gone_[rank] || !heard_[rank] || session.answered) continue;
      run_.Observe(session.number);
      run_.Observe(session.position.value_or(~uint64_t{0}));
      run_.Observe(session.phase);
      for (const uint64_t step : session.owed) run_.Observe(step);
      if (Attach(rank)) session.to_rank.Send();
      session.answered = session.answered || answers_;
      any |= session.answered;
    }
    return any;
  }

  // As in JobTable: whether this number may be given to another process.
  bool MayReplace(uint32_t number) {
    bool may_live = false;
    bool came_before = false;
    for (const FormerProcess& process : FormerProcesses()) {
      if (process.rank != number) continue;
      may_live = process.may_live;
      came_before = true;
    }
    if (may_live) return false;  // it may reconnect
    // Its first batch is unknown until the positions of all are known.
    TryGather();
    if (delivery_->gathering()) return false;
    RestoreDead();  // it may have died since the last call
    // One that the job has shrunk by is told so.
    run_.Check(!split() || !came_before || delivery_->Knows(number) ||
                   delivery_->GoesOnWithout(number),
               "where rank {} was is not known", number);
    return true;
  }

  // True: there is an answer.
  bool Attach(int rank) {
    Session& session = SessionOf(rank);
    answers_ = false;
    if (session.position) {
      reconnected_[session.number] = {session.former, *session.position};
      for (const auto& [attach, former] : former_) {
        if (former.page == session.former) {
          own_since_[session.number] = attach;
        }
      }
    }
    if (world_.config.impatient && !session.position &&
        world_.kept.launch.HasLeft(session.number)) {
      session.refused = true;  // JobTable: it begins another incarnation
      return answers_ = true;
    }
    RestoreDead();
    if (instance_ > 0 && !session.position &&
        !(split() && delivery_->Knows(session.number))) {
      run_.Step("asks whether the last process is dead");
      if (!MayReplace(session.number)) return false;
    }
    Delivery::Joining joining;
    joining.rank = session.number;
    joining.cursor = std::shared_ptr<const CursorPage>(std::shared_ptr<void>(),
                                                       &session.page);
    joining.wake_socket = SocketOf(instance_, rank);
    joining.position = session.position;
    joining.phase = session.phase;
    joining.owed = session.owed;
    if (session.former != nullptr) {
      joining.former = std::shared_ptr<const CursorPage>(
          std::shared_ptr<void>(), session.former);
    }
    const auto joined = delivery_->Attach(std::move(joining));
    if (!joined.ok()) {
      // The death of its predecessor is about to be noticed.
      if (joined.status().code() == StatusCode::kAlreadyExists) return false;
      run_.Check(!delivery_->Finished(session.number) || Left(session.number),
                 "a dead rank is reported as finished");
      session.refused = true;
      return answers_ = true;
    }
    Kept& kept = world_.kept;
    run_.Check(!kept.launch.HasLeft(session.number),
               "rank {} left and gets the end again", session.number);
    kept.launch.Attached(session.number);
    attach_[rank] = kept.next_attach++;
    kept.attaches[attach_[rank]] = {session.number, rank, joined->position,
                                    &session.page, false};
    seat_[rank] = joined->seat;
    if (!delivery_->gathering()) RetireFormer(session.number);
    TryGather();
    FinishFormer();
    session.seat = joined->seat;
    session.begins_at = joined->position;
    session.answered_phase = joined->phase;
    for (const Delivery::OwedStep& each : joined->owed) {
      session.owed_left[each.id] = each.rows;
    }
    SendRanksChanged();
    return answers_ = true;
  }

  // As in JobTable.
  void RetireFormer(uint32_t number) {
    std::erase_if(former_, [&](const auto& item) {
      if (item.second.number != number) return false;
      retired_.push_back(item.first);
      return true;
    });
  }

  void Gone(int rank) {
    gone_[rank] = true;
    if (!seat_[rank]) return;
    const bool is_rank = delivery_->RankAt(*seat_[rank]).has_value();
    world_.NoteDone();
    const Status status = world_.left_orderly[rank]
                              ? delivery_->Leave(*seat_[rank])
                              : delivery_->Died(*seat_[rank]);
    run_.Observe(world_.left_orderly[rank]);
    if (world_.left_orderly[rank] && is_rank) {
      world_.kept.attaches.at(attach_[rank]).left = true;
      const uint32_t number = world_.kept.attaches.at(attach_[rank]).number;
      world_.kept.launch.Left(number, delivery_->Finished(number));
    }
    seat_[rank].reset();
    retired_.push_back(attach_[rank]);
    if (!status.ok()) Fail();
    NoteExpelled();
    SendRanksChanged();
    if (!delivery_->AnyAttached()) Deserted();
  }

  // Processes that go with another one of their rank.
  void NoteExpelled() {
    for (int rank = 0; rank < world_.ranks; ++rank) {
      if (seat_[rank] && delivery_->GoesOnWithout(SessionOf(rank).number)) {
        world_.evicted_processes.insert(rank);
      }
    }
  }

  // As in JobTable: an incarnation whose data are all delivered is given up,
  // and opened once more for ranks that have not been told.
  void Deserted() {
    if (failed_ || world_.kept.launch.Complete() || delivery_->AnySeatTaken() ||
        !delivery_->AllDelivered()) {
      return;
    }
    world_.kept.delivered = true;
    former_.clear();
    reconnected_.clear();
    retired_.clear();
    MakeDelivery();
  }

  // The last process of this rank has detached.
  bool Left(uint32_t number) const {
    bool left = true;
    for (const auto& [attach, each] : world_.kept.attaches) {
      if (each.number == number) left = each.left;
    }
    return left;
  }

  void Fail() {
    failed_ = true;
    delivery_->Close(Closed::kFailed, AbortedError("failed"));
  }

  // The workers.
  void Make() {
    Advance();
    while (OpenBatch* share = delivery_->Claimable()) {
      if (world_.config.in_order && !share->rows.extra) {
        const std::pair row(share->rows.position, share->rows.first_row);
        run_.Check(last_claimed_ < row, "{} is claimed after a later batch",
                   row.second);
        last_claimed_ = row;
      }
      Fill(share);
      Advance();
    }
  }

  // As in ControlServer, for which the workers do not wait.
  void SendRanksChanged() {
    const auto changes = delivery_->TakeRanksChanged();
    if (!changes.empty()) Make();
    for (const Delivery::RanksChanged& change : changes) {
      for (int rank = 0; rank < world_.ranks; ++rank) {
        if (seat_[rank] != change.seat) continue;
        Session& session = SessionOf(rank);
        session.known_phase = std::max(session.known_phase, change.phase);
        session.owed_in[change.phase] = change.start.owed;
      }
      delivery_->RanksAnnounced(change.seat, change.phase);
    }
  }

  void Sweep() {
    std::erase_if(retired_, [&](uint64_t attach) {
      const auto found = world_.kept.attaches.find(attach);
      if (delivery_->OwesPredecessor(found->second.number)) return false;
      if (world_.config.options.mode != DeliveryMode::kDynamic) {
        bool superseded = false;
        for (const auto& [other, kept] : world_.kept.attaches) {
          superseded |= other > attach && kept.number == found->second.number &&
                        Supersedes(*kept.page, *found->second.page, plan_);
        }
        if (!superseded) return false;
      }
      world_.kept.attaches.erase(found);
      return true;
    });
  }

  // ---- batches

  // As in Job::AdvanceLocked.
  void Advance() {
    if (failed_) return;
    do {
      delivery_->Advance();
      while (OpenBatch* share = delivery_->Open()) {
        if (share->rows.rows > 0) continue;
        Fill(share);
      }
      run_.Check(delivery_->TakeCorrupt().empty(), "a rank is found corrupt");
    } while (delivery_->MustAdvance());
    const std::string error = delivery_->IndexError();
    run_.Check(error.empty(), "{}", error);
    CheckSlots();
    CheckWhereWeightsMayChange();
  }

  // As in Job::ChangeWeights: from there on no rank has a row. A consumer that
  // is gone for good is none.
  void CheckWhereWeightsMayChange() {
    if (delivery_->Unsettled()) return;
    const uint64_t first = delivery_->FirstNotOpened();
    const bool broadcast =
        world_.config.options.mode == DeliveryMode::kBroadcast;
    for (const Returned& each : world_.returned) {
      if (broadcast && !delivery_->Knows(each.number)) continue;
      run_.Check(each.content.position < first,
                 "a rank has a batch from where weights may change");
    }
  }

  void Fill(OpenBatch* share) {
    const Plan::RankBatch& rows = share->rows;
    share->claimed = rows.rows;
    share->valid_rows = share->shape_rows = rows.rows;
    SimulatedPlain<uint64_t>& slot =
        world_.segments[instance_].slots[share->slot];
    slot.store(kHalfFilled);
    // While a worker runs, the control thread goes on.
    if (rows.rows > 0) {
      const bool news = News();
      run_.Observe(news);
      if (news) HandleNews();
    }
    slot.store(Content{rows.position,
                       rows.epoch * plan_.rows_per_epoch() + rows.first_row,
                       rows.rows}
                   .Word());
    share->finished = share->claimed;
    delivery_->Filled(share);
  }

  void CheckSlots() {
    const Delivery::SlotCounts counts = delivery_->CountSlots();
    run_.Check(counts.free + counts.filling + counts.ready + counts.out +
                       counts.quarantined ==
                   slots_,
               "slots are lost");
    if (instance_ > 0 || world_.broadcast()) return;
    // A job begun at this state would miss nothing.
    const PlanStart state = delivery_->State();
    for (uint64_t row = 0; row < state.position; ++row) {
      const bool owed = std::any_of(state.owed.begin(), state.owed.end(),
                                    [&](const RowRange& range) {
                                      return row - range.position < range.rows;
                                    });
      const bool owed_before =
          std::any_of(plan_.start().owed.begin(), plan_.start().owed.end(),
                      [&](const RowRange& range) {
                        return row - range.position < range.rows;
                      });
      if (owed || (row < plan_.start().position && !owed_before)) continue;
      run_.Check(world_.Done(row), "the state passes over row {}", row);
    }
  }

  World& world_;
  simulation::Run& run_;
  const int instance_;
  const Plan plan_;
  std::unique_ptr<Delivery> delivery_;
  uint32_t slots_ = 0;
  std::map<uint64_t, Kept::Attach> former_;
  HandedOverSteps handed_over_;
  std::map<uint32_t, ReconnectedRank> reconnected_;
  std::map<uint32_t, uint64_t> own_since_;  // when their page attached
  std::array<std::optional<uint32_t>, kRanksMax> seat_;
  std::array<uint64_t, kRanksMax> attach_{};
  std::array<bool, kRanksMax> gone_{};
  std::array<bool, kRanksMax> heard_{};  // has read its request
  std::vector<uint64_t> retired_;
  // in_order: the position and first row of the last batch in turn.
  std::optional<std::pair<uint64_t, uint64_t>> last_claimed_;
  bool answers_ = false;
  bool evict_done_ = false;
  bool failed_ = false;
};

}  // namespace penstock::delivery_simulation
#endif  // TESTS_SIMULATION_DELIVERY_BROKER_H_
