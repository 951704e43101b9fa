// Invariants: D1 to D4 of broker/delivery/delivery.h; a restarted broker loses
// and doubles nothing, and marks nothing that nobody can have had. Method:
// delivery.cc, feed.cc, restore.cc and plan.cc, a process of an exploration
// (explorer.h) per broker instance, with ranks that run ring.h. All
// interleavings up to a number of preemptions, then random ones; deaths and
// evictions at every step; journal and descriptor store survive.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "broker/delivery/delivery.h"
#include "broker/job/launch.h"
#include "broker/plan/mix.h"
#include "broker/plan/shard_steps.h"
#include "broker/recovery/restore.h"
#include "common/format.h"
#include "common/ring.h"
#include "common/wake.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/explorer.h"

namespace penstock {
namespace {

using simulation::Explore;
using simulation::ExploreRandomly;
using simulation::Memory;
using simulation::Mortality;
using simulation::Options;
using simulation::Result;
using simulation::Run;
using simulation::Scenario;
using simulation::WakePipe;

constexpr uint32_t kSeats = 5;
constexpr uint32_t kSlots = 6;
constexpr uint32_t kLeases = 2;
constexpr int kInstancesMax = 4;
constexpr int kRanksMax = 5;  // processes
constexpr uint64_t kHalfFilled = ~uint64_t{0};

struct Config {
  DeliveryOptions options;
  bool in_order = false;
  uint32_t world = 2;  // numbers: ranks times replicas
  uint32_t replicas = 1;
  uint64_t records = 4;
  uint64_t batch = 2;  // global
  // `shard: file`: rows of each rank's files, which add up to records.
  std::vector<uint64_t> shards;
  // batch.by_part: rows of a batch of each part of a mix, which has two of
  // each; they add up to records.
  std::vector<uint64_t> by_part;
  PlanStart start;
  uint32_t slots = 2;  // of a lane
  uint32_t leases = kLeases;
  size_t hold = 1;
  // Broker instances: the broker dies at most instances - 1 times.
  int instances = 1;
  // The first processes, each at most once: ranks, then replacements.
  uint32_t may_die = 0;
  // Number of processes that replace dead or evicted ones.
  uint32_t replacements = 0;
  // One of them asks for the place of rank 0 at any time, dead or not.
  bool impatient = false;
  // The last ranks, this many, attach at any time: first, in between, or after
  // the others have left.
  uint32_t late = 0;
  // The eviction of rank 0 is requested once.
  bool evict = false;
};

// ---- what processes share

// One broker instance.
struct Segment {
  std::array<Ring, kSeats> rings{};
  std::array<SimulatedPlain<uint64_t>, kSlots> slots;
};

// The connection between a rank's process and one broker instance.
struct Session {
  CursorPage page{};
  WakePipe to_rank;
  WakePipe to_broker;
  // The request, before the first wake to the broker.
  bool requested = false;
  uint32_t number = 0;
  std::optional<uint64_t> position;  // it reconnects
  uint32_t phase = 0;
  std::vector<uint64_t> owed;  // StepIds
  CursorPage* former = nullptr;
  // The answer.
  bool answered = false;
  bool refused = false;
  uint32_t seat = 0;
  uint64_t begins_at = 0;
  uint32_t answered_phase = 0;
  uint32_t known_phase = 0;  // the last phase whose ranks it knows
  std::map<uint64_t, RowRange> owed_left;  // by StepId
  // What it was told of the phases that it knows.
  std::map<uint32_t, std::vector<RowRange>> owed_in;
};

// The content of a batch's slot.
struct Content {
  uint64_t position = 0;
  uint64_t row = 0;  // over all epochs
  uint64_t rows = 0;

  uint64_t Word() const { return position << 32 | row << 16 | rows; }
  static Content Of(uint64_t word) {
    return {word >> 32, word >> 16 & 0xffff, word & 0xffff};
  }
};

// A batch a trainer was given.
struct Returned {
  int process = 0;
  uint32_t number = 0;
  bool marked = false;
  bool release_begun = false;
  bool released = false;
  bool settled = false;  // released before the eviction of its process
  Content content;
};

struct World;
World* world = nullptr;  // the running scenario, for SendWake

// What survives a broker: its journal and the descriptor store.
struct Kept : public DeliveryRecord {
  struct Attach {
    uint32_t number;
    int process;
    uint64_t from;
    const CursorPage* page;
    bool given_up;  // its process was not told and is gone
    bool left = false;
  };
  std::map<uint64_t, Attach> attaches;
  uint64_t next_attach = 1;
  std::set<uint64_t> completed;
  uint64_t opened = 0;
  HandedOverSteps handed_over;
  std::vector<FormerPhase> phases;
  Launch launch;
  bool delivered = false;  // the job ended, and some ranks were not told

  void Completed(uint64_t position, uint64_t) override {
    completed.insert(position);
  }
  void HandedOver(uint32_t rank, uint64_t step) override {
    handed_over.insert({rank, step});
  }
  void PhaseBegun(const FormerPhase& phase) override {
    phases.push_back(phase);
  }
  void Opened(uint64_t position) override {
    opened = std::max(opened, position);
  }
};

struct World {
  World(Run* run, const Config& config) : run(*run), config(config) {}

  Run& run;
  const Config config;
  std::array<Segment, kInstancesMax> segments;
  std::array<std::array<Session, kRanksMax>, kInstancesMax> sessions;
  std::array<int, kRanksMax> rank_process{};
  std::array<int, kInstancesMax> broker_process{};
  int ranks = 0;  // processes
  Kept kept;
  bool evict_requested = false;
  bool evicted = false;  // by a broker

  // Noted for the checks.
  std::deque<Returned> returned;    // in order
  std::set<uint64_t> marked_first;  // positions without a known holder
  std::set<uint64_t> done;          // rows done when somebody left or died
  std::map<uint32_t, std::set<uint64_t>> steps;  // rank number -> positions
  std::map<uint32_t, uint64_t> missed;           // rank number -> skipped
  std::set<uint32_t> finished;                   // numbers
  std::set<int> evicted_processes;
  std::map<uint32_t, int> holders;  // number -> the last to be started as it
  std::array<bool, kRanksMax> left_orderly{};
  // This broker instance sleeps until an event, and has batches ready.
  std::optional<int> idle;
  // It works on a batch, and has checked whether the broker waits for takes.
  std::array<const Ring*, kRanksMax> works_on{};

  bool broadcast() const {
    return config.options.mode == DeliveryMode::kBroadcast;
  }
  uint32_t RankOf(uint32_t number) const { return number / config.replicas; }
  // All replicas of some rank have released the row, or begun to.
  bool Done(uint64_t row, bool wholly = false) const {
    std::map<uint32_t, std::set<uint32_t>> by_rank;
    for (const Returned& each : returned) {
      if ((wholly ? each.settled : each.release_begun) &&
          row - each.content.row < each.content.rows) {
        by_rank[RankOf(each.number)].insert(each.number);
      }
    }
    return std::any_of(by_rank.begin(), by_rank.end(), [this](const auto& of) {
      return of.second.size() == config.replicas;
    });
  }
  // Before somebody's batches go to others.
  void NoteDone() {
    if (config.replicas == 1) return;
    for (Returned& each : returned) {
      each.settled |=
          each.released && !evicted_processes.contains(each.process);
    }
    for (uint64_t row = 0; row < config.records; ++row) {
      if (Done(row, true)) done.insert(row);
    }
  }
  // To be called at the end: whether some process may have been given the batch
  // at this position, because it died or was evicted in between.
  bool CountsAsTaken(uint64_t position) const {
    for (int instance = 0; instance < config.instances; ++instance) {
      for (int i = 0; i < ranks; ++i) {
        const CursorPage& page = sessions[instance][i].page;
        for (uint32_t lease = 0; lease < kLeases; ++lease) {
          const LeaseRecord& record = page.leases[lease];
          const uint64_t generation = record.generation.load();
          const uint64_t begin = PositionOfStep(record.step.load());
          // A part of it, after its rows were divided anew.
          if (generation > 0 && generation <= page.taken.load() &&
              begin <= position && position < begin + config.batch) {
            return true;
          }
        }
      }
    }
    return false;
  }
  // dynamic: a rank that works on a batch finds another, if one is ready.
  void CheckNextIsAtHand() const {
    if (!idle || run.dead(broker_process[*idle])) return;
    const auto& of_instance = sessions[*idle];
    const auto told = [](const Session& each) {
      return each.to_broker.readable();
    };
    if (std::any_of(of_instance.begin(), of_instance.begin() + ranks, told))
      return;
    for (int i = 0; i < ranks; ++i) {
      run.Check(
          works_on[i] == nullptr || run.dead(rank_process[i]) ||
              AnyUntaken(*works_on[i], of_instance[i].page),
          "a batch is ready, rank {} has none untaken, and the broker sleeps",
          of_instance[i].number);
    }
  }
  Plan MakePlan() const {
    PlanSpec spec;
    spec.batch.size = config.batch;
    spec.epochs = 1;
    const bool split = config.options.mode == DeliveryMode::kSplit;
    const uint32_t ranks_of_plan = split ? config.world / config.replicas : 1;
    std::unique_ptr<Order> order = AllRecords(config.records);
    if (!config.shards.empty()) {
      std::vector<Shard> shards;
      uint64_t first = 0;
      for (const uint64_t rows : config.shards) {
        shards.push_back({{{first, 0}}, rows});
        first += rows;
      }
      order = InShards(std::move(order), std::move(shards), config.batch);
    }
    if (!config.by_part.empty()) {
      std::vector<std::unique_ptr<Order>> parts;
      uint64_t first = 0;
      for (const uint64_t rows : config.by_part) {
        parts.push_back(AllRecords(2 * rows, first));
        first += 2 * rows;
      }
      const std::vector<uint32_t> weights(parts.size(), 1);
      const auto mix =
          *Mix(std::move(parts), {{0, weights}}, WhenOut::kDrop, {});
      order = *mix->mix()->InBatches(config.by_part, {});
    }
    auto plan = Plan::Make(spec, std::move(order), ranks_of_plan);
    return *plan->From(config.start, ranks_of_plan);
  }
};

int SocketOf(int instance, int rank) { return instance * kRanksMax + rank; }

}  // namespace

// This program's version of common/wake.h.
void SendWake(int socket) {
  world->sessions[socket / kRanksMax][socket % kRanksMax].to_rank.Send();
}

namespace {

// ---- the broker: what its control thread and a worker do, in turns

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

// ---- a rank, as Reader and a trainer do it

class Rank {
 public:
  Rank(World* of, int rank) : world_(*of), run_(of->run), rank_(rank) {}

  void Run(uint32_t number) {
    number_ = number;
    ReadAnswer();
    Loop();
  }

  void RunLate(uint32_t number) {
    number_ = number;
    if (Request(std::nullopt)) Loop();
  }

  // Replaces the first that dies.
  void RunAsReplacement() {
    const auto process_of = [this](uint32_t number) {
      return world_.holders.try_emplace(number, number).first->second;
    };
    const auto missing = [&]() -> std::optional<uint32_t> {
      for (uint32_t i = 0; i < world_.config.world; ++i) {
        const int holder = process_of(i);
        if (run_.dead(world_.rank_process[holder]) ||
            (holder == 0 && (world_.evicted || world_.config.impatient))) {
          return i;
        }
      }
      return std::nullopt;
    };
    const auto all_gone = [&] {
      for (uint32_t i = 0; i < world_.config.world; ++i) {
        if (!run_.gone(world_.rank_process[process_of(i)])) return false;
      }
      return true;
    };
    run_.WaitUntil([&] { return missing() || all_gone(); });
    const std::optional<uint32_t> number = missing();
    run_.Observe(number.value_or(99));
    if (!number) return;
    world_.holders[*number] = rank_;
    number_ = *number;
    if (Request(std::nullopt)) Loop();
  }

 private:
  struct Held {
    Cell cell;
    int instance;
    Returned* returned;
  };

  Session& session(int instance) { return world_.sessions[instance][rank_]; }
  Session& session() { return session(instance_); }
  Ring& ring(int instance) {
    return world_.segments[instance].rings[session(instance).seat];
  }

  void Loop() {
    for (;;) {
      while (held_.size() >= world_.config.hold) ReleaseOldest();
      Cell cell;
      switch (TryTake(ring(instance_), session().page, &cell)) {
        case TakeResult::kTaken:
          Taken(cell);
          if (BrokerWaitsForTakes(ring(instance_))) session().to_broker.Send();
          Work();
          continue;
        case TakeResult::kClosed:
          if (Over()) return;
          continue;
        case TakeResult::kCorrupt:
          run_.Fail("corrupt cell");
        case TakeResult::kEmpty:
          break;
      }
      const bool sleep = ArmWait(ring(instance_), session().page);
      if (sleep) {
        if (BrokerWaitsForTakes(ring(instance_))) session().to_broker.Send();
        if (!session().to_rank.Wait() && NothingLeft()) {
          DisarmWait(session().page);
          if (!Reconnect()) return;
          continue;
        }
      }
      DisarmWait(session().page);
    }
  }

  // The trainer's work between two calls.
  void Work() {
    if (world_.config.options.mode != DeliveryMode::kDynamic) return;
    if (held_.size() < world_.config.leases) {
      world_.works_on[rank_] = &ring(instance_);
    }
    run_.Step("works on a batch");
    world_.works_on[rank_] = nullptr;
  }

  // The ring is closed: true.
  bool Over() {
    const auto closed = static_cast<Closed>(
        ring(instance_).closed.load(std::memory_order_acquire));
    for (const Held& held : held_) CheckSlot(held);
    if (closed == Closed::kFinished) {
      world_.missed[number_] += ring(instance_).skipped;
      run_.Check(!HasState() || owed_.empty(),
                 "the data are over, and the state owes the step {:x}",
                 owed_.empty() ? 0 : owed_.begin()->first);
      while (!held_.empty()) ReleaseOldest();
      world_.left_orderly[rank_] = true;
      world_.finished.insert(number_);
      return true;
    }
    // The broker may have died before it noticed.
    if (closed == Closed::kRecalled) world_.evicted = true;
    // It may continue to read the batches it holds.
    if (!held_.empty()) ReleaseOldest();
    run_.Step("reads what it holds");
    for (const Held& held : held_) CheckSlot(held);
    return true;
  }

  void ReadAnswer() {
    position_ = session().begins_at;
    phase_ = session().answered_phase;
    owed_ = session().owed_left;
  }

  // Its own progress tells what it is yet to get. (In dynamic nobody's does; of
  // what it is to miss nobody knows yet.)
  bool HasState() const {
    return world_.config.options.mode != DeliveryMode::kDynamic &&
           world_.config.options.lag == Lag::kBlock;
  }

  bool NothingLeft() {
    return !AnyUntaken(ring(instance_), session().page) &&
           ring(instance_).closed.load(std::memory_order_acquire) ==
               static_cast<uint32_t>(Closed::kOpen);
  }

  bool Reconnect() {
    // As in RankReader: of the former instance only, not of one before that.
    while (!held_.empty() && held_.front().instance != instance_)
      ReleaseOldest();
    CursorPage* const former = &session().page;
    ++instance_;
    return Request(former);
  }

  // False: refused, or there is no broker any more.
  bool Request(std::optional<CursorPage*> former) {
    for (; instance_ < world_.config.instances; ++instance_) {
      Session& to = session();
      to.number = number_;
      if (former) {
        to.position = position_;
        to.phase = phase_;
        for (const auto& [step, rows] : owed_) to.owed.push_back(step);
        to.former = *former;
      }
      to.requested = true;
      to.to_broker.Send();
      while (!to.answered && to.to_rank.Wait()) {
      }
      run_.Observe(to.answered);
      if (!to.answered) {
        // Its program ends with an error and is restarted.
        for (auto& [attach, kept] : world_.kept.attaches) {
          if (!former && kept.page == &to.page) kept.given_up = true;
        }
        continue;
      }
      run_.Observe(to.refused);
      if (to.refused) return false;
      run_.Observe(to.seat);
      run_.Observe(to.begins_at);
      run_.Observe(to.answered_phase);
      for (const auto& [step, rows] : to.owed_left) run_.Observe(step);
      ReadAnswer();
      to.page.position.store(position_, std::memory_order_relaxed);
      return true;
    }
    return false;
  }

  void Taken(const Cell& cell) {
    const uint64_t word =
        world_.segments[instance_].slots[cell.slot_offset].load();
    const Content content = Content::Of(word);
    run_.Check(word != kHalfFilled && content.position == cell.position &&
                   content.rows == cell.rows,
               "the slot of the batch at {} holds {:x}", cell.position, word);
    const bool marked = (cell.flags & kRedelivered) != 0;
    bool came_before = false;
    for (uint64_t row = content.row; row < content.row + content.rows; ++row) {
      run_.Check(world_.done.count(row) == 0,
                 "row {} comes again, which all replicas released", row);
    }
    // Checks D3, and that done batches stay done.
    for (const Returned& before : world_.returned) {
      const bool same_rank =
          world_.RankOf(before.number) == world_.RankOf(number_);
      const bool same =
          world_.broadcast()
              ? before.number == number_ &&
                    before.content.position == content.position
              : (before.number == number_ || !same_rank) &&
                    before.content.row < content.row + content.rows &&
                    content.row < before.content.row + before.content.rows;
      if (!same) continue;
      came_before = true;
      run_.Check(marked, "rows from {} on come again, unmarked", content.row);
      // Other replicas of that rank may not have released it.
      if (!same_rank && world_.config.replicas > 1) continue;
      run_.Check(!before.released ||
                     (world_.evicted_processes.contains(before.process) &&
                      !before.settled),
                 "rows from {} on were released and come again", content.row);
    }
    if (marked && !came_before) world_.marked_first.insert(cell.position);
    world_.returned.push_back(
        {rank_, number_, marked, false, false, false, content});
    held_.push_back({cell, instance_, &world_.returned.back()});
    world_.steps[number_].insert(cell.position);
    world_.missed[number_] += cell.skipped;
    // As in the client.
    if ((cell.flags & kRanksChanged) != 0) {
      phase_ = cell.flags >> kPhaseShift;
      run_.Check(session().known_phase >= phase_,
                 "a batch of phase {} comes before its ranks are known",
                 phase_);
      for (const RowRange& range : session().owed_in[phase_]) {
        std::erase_if(owed_,
                      [&](const auto& item) { return item.second == range; });
        owed_[StepId(range.position, phase_)] = range;
      }
    }
    const bool is_owed =
        owed_.erase(StepId(cell.position, cell.flags >> kPhaseShift)) > 0;
    // A job begun at its state would have missed and repeated nothing.
    run_.Check(!HasState() || is_owed || cell.position == position_ ||
                   (cell.rows == 0 && marked),
               "the state says position {}, and the batch at {} comes",
               position_, cell.position);
    if (!is_owed) {
      position_ = std::max(position_, cell.position + cell.global_rows);
    }
  }

  void CheckSlot(const Held& held) {
    const uint64_t word =
        world_.segments[held.instance].slots[held.cell.slot_offset].load();
    run_.Check(word == held.returned->content.Word(),
               "the slot of the batch at {}, which we hold, has {:x}",
               held.cell.position, word);
  }

  void ReleaseOldest() {
    const Held held = held_.front();
    held_.pop_front();
    CheckSlot(held);  // the last read
    held.returned->release_begun = true;
    const bool wake = Release(ring(held.instance), session(held.instance).page,
                              held.cell.lease, held.cell.generation);
    held.returned->released = true;
    if (wake && held.instance == instance_)
      session(held.instance).to_broker.Send();
  }

  World& world_;
  simulation::Run& run_;
  const int rank_;
  uint32_t number_ = 0;
  int instance_ = 0;
  uint64_t position_ = 0;
  uint32_t phase_ = 0;
  std::map<uint64_t, RowRange> owed_;  // by StepId
  std::deque<Held> held_;
};

// ---- scenarios

void CheckEnd(World& world) {
  Run& run = world.run;
  for (const uint64_t position : world.marked_first) {
    const auto& owed = world.config.start.owed;
    const bool owed_marked =
        std::any_of(owed.begin(), owed.end(), [&](const RowRange& range) {
          return range.redelivered && range.position == position;
        });
    run.Check(owed_marked || world.CountsAsTaken(position),
              "the batch at {} was marked, but no process had it", position);
  }
  const Config& config = world.config;
  const Plan plan = world.MakePlan();
  const bool shrink = config.options.on_rank_death == OnRankDeath::kShrink;
  std::set<uint32_t> numbers;
  for (uint32_t i = 0; i < config.world; ++i) numbers.insert(i);
  for (uint32_t i = config.world - config.late; i < config.world; ++i) {
    run.Check(world.finished.contains(i), "rank {} did not get the end", i);
  }
  if (world.broadcast()) {
    std::set<uint64_t> all;
    for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
      all.insert(plan.PositionOf(step));
    }
    if (shrink) {
      // Positions are given up: a replacement joins where the others are.
      std::map<int, uint64_t> next;  // process -> position
      for (const Returned& each : world.returned) {
        const uint64_t position = each.content.position;
        const auto expected = next.emplace(each.process, position).first;
        run.Check(position == expected->second,
                  "a consumer got the batch at {}, not {}", position,
                  expected->second);
        expected->second += config.batch;
      }
      if (config.world > 1) return;
      for (const uint64_t position : all) {
        const bool had = std::any_of(
            world.steps.begin(), world.steps.end(),
            [&](const auto& of) { return of.second.contains(position); });
        run.Check(had || world.CountsAsTaken(position),
                  "no consumer was given the batch at {}", position);
      }
      return;
    }
    for (const uint32_t number : numbers) {
      const size_t count = world.steps[number].size();
      // A rank that dies after taking all need not be told the end.
      if (!world.finished.contains(number) && count < all.size()) {
        run.Check(config.options.lag == Lag::kFail,
                  "consumer {} did not get the end", number);
        continue;
      }
      run.Check(count + world.missed[number] == all.size(),
                "consumer {} got {} batches and missed {} of {}", number, count,
                world.missed[number], all.size());
      run.Check(config.options.lag == Lag::kSkip || world.missed[number] == 0,
                "consumer {} missed {}", number, world.missed[number]);
    }
    run.Check(!world.finished.empty(), "nobody finished");
    return;
  }
  for (uint64_t row = 0; row < config.records; ++row) {
    const auto has = [&](const RowRange& range) {
      return row - range.position < range.rows;
    };
    if (row < config.start.position &&
        std::none_of(config.start.owed.begin(), config.start.owed.end(), has)) {
      continue;
    }
    run.Check(world.Done(row), "row {} is lost", row);
  }
  if (config.options.mode == DeliveryMode::kSplit && !shrink) {
    for (const uint32_t number : numbers) {
      run.Check(world.steps[number].size() == *plan.total_steps(),
                "rank {} took {} steps of {}", number,
                world.steps[number].size(), *plan.total_steps());
    }
  }
}

Scenario TheWorld(const Config& config) {
  return [=](Run& run) {
    auto of = std::make_shared<World>(&run, config);
    world = of.get();
    World* const w = world;
    for (int instance = 0; instance < config.instances; ++instance) {
      const auto broker = std::make_shared<std::unique_ptr<Broker>>();
      w->broker_process[instance] = run.AddProcess(
          Format("broker {}", instance + 1),
          [=, &run] {
            if (instance > 0) {
              const auto all_before = [=](const auto& are) {
                return std::all_of(w->broker_process.begin(),
                                   w->broker_process.begin() + instance, are);
              };
              run.WaitUntil([&] {
                return all_before([&](int each) { return run.gone(each); });
              });
              const bool dead =
                  all_before([&](int each) { return run.dead(each); });
              run.Observe(dead);
              if (!dead) return;
              *broker = std::make_unique<Broker>(w, instance);
            }
            (*broker)->Run();
          },
          instance + 1 < config.instances ? Mortality::kMayDie
                                          : Mortality::kNeverDies);
      if (instance == 0) {
        w->kept.launch = Launch(config.world, config.world);
        *broker = std::make_unique<Broker>(w, 0);
      }
      if (instance == 0) {
        w->ranks = static_cast<int>(config.world + config.replacements);
        for (int i = 0; i < w->ranks; ++i) {
          const bool replaces = i >= static_cast<int>(config.world);
          w->rank_process[i] = run.AddProcess(
              replaces ? "replacement" : Format("rank {}", i),
              [=] {
                (void)of;
                Rank rank(w, i);
                const auto number = static_cast<uint32_t>(i);
                if (replaces) {
                  rank.RunAsReplacement();
                } else if (number + config.late >= config.world) {
                  rank.RunLate(number);
                } else {
                  rank.Run(number);
                }
              },
              i < static_cast<int>(config.may_die) ? Mortality::kMayDie
                                                   : Mortality::kNeverDies);
        }
        for (uint32_t i = 0; i < config.world - config.late; ++i) {
          w->sessions[0][i].number = i;
          (*broker)->AttachAtOnce(static_cast<int>(i));
          w->sessions[0][i].answered = true;
        }
      }
    }
    if (config.evict) {
      run.AddProcess("operator", [=, &run] {
        run.Step("asks for an eviction");
        w->evict_requested = true;
      });
    }
    for (int instance = 0; instance < config.instances; ++instance) {
      const int broker = w->broker_process[instance];
      Segment& segment = w->segments[instance];
      for (uint32_t i = 0; i < kSeats; ++i) {
        run.Share(&segment.rings[i], sizeof(Ring), broker);
        run.Name(&segment.rings[i].cells[0].generation, "cell 0 generation");
        run.Name(&segment.rings[i].cells[1].generation, "cell 1 generation");
        run.Name(&segment.rings[i].closed, "closed");
        run.Name(&segment.rings[i].broker_waiting, "broker_waiting");
      }
      run.Share(&segment.slots, sizeof(segment.slots), broker);
      for (int i = 0; i < w->ranks; ++i) {
        Session& session = w->sessions[instance][i];
        const int rank = w->rank_process[i];
        session.to_rank.Connect(&run, broker, rank);
        session.to_broker.Connect(&run, rank, broker);
        CursorPage& page = session.page;
        constexpr size_t kUnusedLeases = kLeasesMax - kLeases;
        run.Share(&page,
                  offsetof(CursorPage, released) + kLeases * sizeof(uint64_t),
                  rank);
        run.ShareConstant(&page.released[kLeases],
                          kUnusedLeases * sizeof(uint64_t));
        run.Share(&page.leases, kLeases * sizeof(LeaseRecord), rank);
        run.ShareConstant(&page.leases[kLeases],
                          kUnusedLeases * sizeof(LeaseRecord));
        run.Name(&page.taken, "taken");
        run.Name(&page.position, "position");
        run.Name(&page.waiting, "waiting");
        for (uint32_t lease = 0; lease < kLeases; ++lease) {
          LeaseRecord& record = page.leases[lease];
          run.Name(&page.released[lease], "released");
          run.Name(&record.generation, "generation");
          run.Name(&record.step, "lease's step");
        }
      }
    }
    if (config.options.mode == DeliveryMode::kDynamic) {
      run.Always([=] { w->CheckNextIsAtHand(); });
    }
    run.AtEnd([=] {
      (void)of;
      CheckEnd(*w);
    });
  };
}

// ---- the tests

class DeliverySimulationTest : public testing::Test {
 protected:
  static void Say(const std::string& name, const Result& result) {
    Print(stdout, "{:<34} {:>8} states {:>8} runs {:>9} steps\n", name,
          result.states, result.runs, result.steps);
  }
  // All interleavings with this many preemptions.
  static void NeverFails(const std::string& name, const Config& config,
                         Options options) {
    const Result result = Explore(options, TheWorld(config));
    Say(name, result);
    EXPECT_FALSE(result.failed) << name << ": " << result.message;
    EXPECT_TRUE(result.exhausted) << name;
  }
  // This many random interleavings.
  static void NeverFailsAtRandom(const std::string& name, const Config& config,
                                 uint64_t runs, int deaths) {
    // For a long manual search.
    if (const char* times = std::getenv("PENSTOCK_SIMULATION_TIMES")) {
      runs *= std::strtoull(times, nullptr, 10);
    }
    for (const Memory memory : {Memory::kTso, Memory::kCpp}) {
      Options options;
      options.memory = memory;
      options.deaths_max = deaths;
      const Result result = ExploreRandomly(options, TheWorld(config), 1, runs);
      Say(name + (memory == Memory::kTso ? ", random (TSO)" : ", random (C++)"),
          result);
      EXPECT_FALSE(result.failed) << name << ": " << result.message;
    }
  }
};

Config Split() {
  Config config;
  return config;
}

Config Dynamic() {
  Config config;
  config.options.mode = DeliveryMode::kDynamic;
  config.records = 3;
  config.batch = 1;
  config.slots = 3;
  config.leases = 2;
  return config;
}

Config Broadcast(Lag lag) {
  Config config;
  config.options.mode = DeliveryMode::kBroadcast;
  config.options.lag = lag;
  config.options.window = 1;
  config.records = 3;
  config.batch = 1;
  config.slots = lag == Lag::kSkip ? 4 : 3;
  config.leases = 2;
  return config;
}

// ---- split

TEST_F(DeliverySimulationTest, SplitRanksTakeAllOnceAndEqualSteps) {
  NeverFails("split", Split(), {.preemptions_max = 1});
  Config config = Split();
  config.records = 5;  // the last step has nothing for rank 1
  config.hold = 2;
  NeverFailsAtRandom("split, short last step", config, 1'000, 0);
}

TEST_F(DeliverySimulationTest, SplitRankThatDiesIsReplacedWithoutLoss) {
  Config config = Split();
  config.may_die = 1;
  config.replacements = 1;
  NeverFails("split, rank dies", config,
             {.deaths_max = 1, .preemptions_max = 0});
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("split, rank dies", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, SplitInOrderClaimsTheBatchesInTurn) {
  Config config = Split();
  config.in_order = true;
  config.records = 7;  // the last step has nothing for rank 1
  NeverFails("split in order", config, {.preemptions_max = 1});
  config.hold = 2;
  config.late = 1;
  config.may_die = 1;
  config.replacements = 1;
  config.instances = 2;
  NeverFailsAtRandom("split in order, rank and broker die", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, SplitRankThatIsEvictedIsReplacedWithoutLoss) {
  Config config = Split();
  config.evict = true;
  config.replacements = 1;
  NeverFails("split, eviction", config, {.preemptions_max = 0});
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("split, eviction", config, 2'000, 0);
}

TEST_F(DeliverySimulationTest, SplitRankThatIsEvictedAndDiesIsReplaced) {
  Config config = Split();
  config.may_die = 1;
  config.evict = true;
  config.replacements = 1;
  config.hold = 2;
  NeverFailsAtRandom("split, eviction and death", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, SplitGoesOnAfterADeathOfTheBroker) {
  Config config = Split();
  config.instances = 2;
  config.records = 2;
  NeverFails("split, broker dies", config,
             {.deaths_max = 1, .preemptions_max = 0});
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("split, broker dies", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, SplitRankAndBrokerDie) {
  Config config = Split();
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("split, both die", config, 6'000, 2);
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("split, both die, two held", config, 4'000, 2);
}

// The first rank has 4 rows, the second 2: steps of 2, 2, 1 and 1.
TEST_F(DeliverySimulationTest, FilesOfRanksAreTakenOnceInEqualSteps) {
  Config config = Split();
  config.records = 6;
  config.shards = {4, 2};
  NeverFailsAtRandom("files", config, 1'000, 0);
  config.start.position = 4;
  NeverFailsAtRandom("files, resumed", config, 500, 0);
  config.start = {};
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  config.hold = 2;
  NeverFailsAtRandom("files, both die", config, 4'000, 2);
}

// Steps of 3, 1, 3 and 1 rows.
TEST_F(DeliverySimulationTest, BatchesOfPartsAreTakenOnce) {
  Config config = Split();
  config.records = 8;
  config.batch = 3;
  config.by_part = {3, 1};
  NeverFailsAtRandom("by part", config, 1'000, 0);
  config.start = {4, {{1, 2, true}, {3, 1, false}}};
  NeverFailsAtRandom("by part, owed", config, 500, 0);
  config.start = {};
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  config.hold = 2;
  NeverFailsAtRandom("by part, both die", config, 3'000, 2);
  config = Dynamic();
  config.records = 8;
  config.batch = 3;
  config.by_part = {3, 1};
  config.may_die = 1;
  NeverFailsAtRandom("by part, dynamic, rank dies", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, OwedStepsComeFirstAndOnce) {
  Config config = Split();
  config.records = 6;
  config.start = {4, {{0, 2, true}, {2, 1, false}}};
  NeverFailsAtRandom("owed", config, 1'000, 0);
  config.instances = 2;
  NeverFailsAtRandom("owed, broker dies", config, 2'000, 1);
  config.instances = 1;
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("owed, rank dies", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, ShrinkLosesNothing) {
  Config config = Split();
  config.options.on_rank_death = OnRankDeath::kShrink;
  // When the others have finished, it waits for a replacement.
  config.may_die = 1;
  config.replacements = 1;
  NeverFails("shrink", config, {.deaths_max = 1, .preemptions_max = 0});
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("shrink", config, 3'000, 1);
}

TEST_F(DeliverySimulationTest, SplitEvictionAndDeathOfTheBroker) {
  Config config = Split();
  config.instances = 2;
  config.evict = true;
  config.replacements = 1;
  config.hold = 2;
  NeverFailsAtRandom("split, eviction, broker dies", config, 3'000, 1);
}

TEST_F(DeliverySimulationTest, ShrinkWhenRankAndBrokerDie) {
  Config config = Split();
  config.options.on_rank_death = OnRankDeath::kShrink;
  config.may_die = 1;
  config.replacements = 1;
  config.hold = 2;
  config.records = 6;
  config.instances = 2;
  NeverFailsAtRandom("shrink, both die", config, 4'000, 2);
  config.evict = true;
  NeverFailsAtRandom("shrink, eviction, both die", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, ShrinkTwiceAndDeathOfTheBroker) {
  Config config = Split();
  config.options.on_rank_death = OnRankDeath::kShrink;
  config.world = 3;
  config.batch = 3;
  config.records = 9;
  config.may_die = 2;
  config.replacements = 2;
  config.hold = 2;
  NeverFailsAtRandom("shrink twice", config, 2'000, 2);
  config.instances = 2;
  NeverFailsAtRandom("shrink twice, broker dies", config, 4'000, 3);
}

// ---- split, ranks of two replicas

Config Replicas(uint32_t ranks) {
  Config config;
  config.world = 2 * ranks;
  config.replicas = 2;
  config.batch = ranks;
  config.records = 3 * ranks;
  // All may hold different batches while they wait for the next.
  config.slots = 3;
  return config;
}

TEST_F(DeliverySimulationTest, ReplicasTakeTheSameBatches) {
  Config config = Replicas(1);
  config.records = 2;
  NeverFails("replicas", config, {.preemptions_max = 1});
  config = Replicas(2);
  config.records = 5;  // the last step has nothing for rank 1
  config.hold = 2;
  NeverFailsAtRandom("replicas, short last step", config, 1'000, 0);
  config.in_order = true;
  config.late = 1;
  NeverFailsAtRandom("replicas, in order, one late", config, 2'000, 0);
}

TEST_F(DeliverySimulationTest, ReplicaThatDiesOrIsEvictedIsReplaced) {
  Config config = Replicas(1);
  config.records = 2;
  config.may_die = 1;
  config.replacements = 1;
  NeverFails("replicas, one dies", config,
             {.deaths_max = 1, .preemptions_max = 0});
  config = Replicas(2);
  config.may_die = 2;
  config.replacements = 1;
  config.hold = 2;
  NeverFailsAtRandom("replicas, one dies", config, 3'000, 1);
  config.evict = true;
  config.may_die = 1;
  NeverFailsAtRandom("replicas, eviction and death", config, 3'000, 1);
}

// More batches of its predecessor than it may hold at once.
TEST_F(DeliverySimulationTest, ReplicaThatDiesLeavesMoreThanItsLeases) {
  Config config = Replicas(1);
  config.leases = 1;
  config.slots = 4;
  config.records = 5;
  config.may_die = 2;
  config.replacements = 2;
  NeverFailsAtRandom("replicas, one lease", config, 3'000, 2);
}

TEST_F(DeliverySimulationTest, ReplicasGoOnAfterADeathOfTheBroker) {
  Config config = Replicas(1);
  config.instances = 2;
  config.records = 2;
  NeverFails("replicas, broker dies", config,
             {.deaths_max = 1, .preemptions_max = 0});
  config = Replicas(2);
  config.instances = 2;
  config.hold = 2;
  NeverFailsAtRandom("replicas, broker dies", config, 3'000, 1);
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("replicas, both die", config, 3'000, 2);
  config.late = 1;
  NeverFailsAtRandom("replicas, one late, both die", config, 2'000, 2);
  config.late = 0;
  config.impatient = true;
  NeverFailsAtRandom("replicas, asks early, both die", config, 2'000, 2);
  config.impatient = false;
  config.evict = true;
  NeverFailsAtRandom("replicas, eviction, both die", config, 2'000, 2);
}

TEST_F(DeliverySimulationTest, ReplicasAndTwoDeathsOfTheBroker) {
  Config config = Replicas(1);
  config.may_die = 2;
  config.replacements = 2;
  config.hold = 2;
  config.instances = 3;
  NeverFailsAtRandom("replicas, two brokers die", config, 3'000, 4);
}

TEST_F(DeliverySimulationTest, ReplicasOweStepsWhenOneAndTheBrokerDie) {
  Config config = Replicas(2);
  config.records = 6;
  config.start = {4, {{0, 2, true}, {2, 1, false}}};
  NeverFailsAtRandom("replicas, owed", config, 1'000, 0);
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("replicas, owed, both die", config, 2'000, 2);
}

TEST_F(DeliverySimulationTest, ShrinkByARankOfReplicasLosesNothing) {
  Config config = Replicas(2);
  config.options.on_rank_death = OnRankDeath::kShrink;
  // When the others have finished, it waits for a replacement.
  config.may_die = 1;
  config.replacements = 1;
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("replicas, shrink", config, 2'000, 1);
  config.instances = 2;
  NeverFailsAtRandom("replicas, shrink, both die", config, 3'000, 2);
  config.evict = true;
  NeverFailsAtRandom("replicas, shrink, eviction, both die", config, 3'000, 2);
}

// ---- dynamic

TEST_F(DeliverySimulationTest, DynamicGivesEachBatchToOne) {
  Config config = Dynamic();
  config.records = 2;
  NeverFails("dynamic", config, {.preemptions_max = 1});
  // More batches than ranks without one: a rank that takes is given another.
  config.records = 3;
  NeverFails("dynamic, three", config, {.preemptions_max = 1});
  config.records = 4;
  config.hold = 2;
  config.leases = 2;
  NeverFailsAtRandom("dynamic", config, 1'000, 0);
}

TEST_F(DeliverySimulationTest, DynamicRankThatDiesLeavesItsBatchToTheOther) {
  Config config = Dynamic();
  config.may_die = 1;
  config.records = 2;
  NeverFails("dynamic, rank dies", config,
             {.deaths_max = 1, .preemptions_max = 0});
  config.records = 4;
  NeverFailsAtRandom("dynamic, rank dies", config, 2'000, 1);
}

TEST_F(DeliverySimulationTest, DynamicEvictionLeavesBatchesToTheOther) {
  Config config = Dynamic();
  config.evict = true;
  config.records = 2;
  NeverFails("dynamic, eviction", config, {.preemptions_max = 0});
  config.records = 4;
  config.hold = 2;
  NeverFailsAtRandom("dynamic, eviction", config, 2'000, 0);
}

TEST_F(DeliverySimulationTest, DynamicRankAndBrokerDie) {
  Config config = Dynamic();
  config.instances = 2;
  NeverFailsAtRandom("dynamic, broker dies", config, 3'000, 1);
  config.may_die = 1;
  config.replacements = 1;
  config.records = 4;
  NeverFailsAtRandom("dynamic, both die", config, 5'000, 2);
  config.hold = 2;
  NeverFailsAtRandom("dynamic, both die, two held", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, DynamicOwedStepsWhenRankAndBrokerDie) {
  Config config = Dynamic();
  config.records = 4;
  config.start = {2, {{0, 1, true}, {1, 1, false}}};
  NeverFailsAtRandom("dynamic, owed", config, 1'000, 0);
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("dynamic, owed, both die", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, DynamicRankThatComesLateIsToldTheEnd) {
  Config config = Dynamic();
  config.late = 1;
  config.records = 2;
  NeverFails("dynamic, one late", config, {.preemptions_max = 0});
  Config death = config;
  death.may_die = 1;
  NeverFails("dynamic, one late, the other dies", death,
             {.deaths_max = 1, .preemptions_max = 0});
  config.records = 4;
  NeverFailsAtRandom("dynamic, one late", config, 2'000, 0);
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("dynamic, one late, one dies", config, 4'000, 1);
  config.instances = 2;
  NeverFailsAtRandom("dynamic, one late, both die", config, 6'000, 2);
  config.world = 3;
  config.late = 2;
  config.slots = 4;
  NeverFailsAtRandom("dynamic, two late, both die", config, 6'000, 2);
}

TEST_F(DeliverySimulationTest, SplitAndBroadcastRankThatComesLate) {
  for (Config config : {Split(), Broadcast(Lag::kBlock)}) {
    const std::string name =
        config.options.mode == DeliveryMode::kSplit ? "split" : "block";
    config.late = 1;
    NeverFailsAtRandom(name + ", one late", config, 2'000, 0);
    config.may_die = 1;
    config.replacements = 1;
    config.instances = 2;
    NeverFailsAtRandom(name + ", one late, both die", config, 6'000, 2);
  }
}

// ---- broadcast

TEST_F(DeliverySimulationTest, BroadcastGivesAllToAllOrSaysWhatIsMissed) {
  for (const Lag lag : {Lag::kBlock, Lag::kSkip, Lag::kFail}) {
    const std::string name(kLagNames[static_cast<size_t>(lag)]);
    NeverFails(name, Broadcast(lag), {.preemptions_max = 0});
    NeverFailsAtRandom(name, Broadcast(lag), 1'500, 0);
  }
}

TEST_F(DeliverySimulationTest, BroadcastConsumerIsReplacedWithoutLoss) {
  Config config = Broadcast(Lag::kBlock);
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("block, one dies", config, 3'000, 1);
  // More batches of its predecessor than it may hold at once.
  Config more = config;
  more.options.window = 2;
  more.leases = 1;
  more.slots = 4;
  more.records = 5;
  NeverFailsAtRandom("block, one dies, one lease", more, 3'000, 1);
  config.may_die = 0;
  config.replacements = 0;
  config.instances = 2;
  for (const Lag lag : {Lag::kBlock, Lag::kSkip, Lag::kFail}) {
    config.options.lag = lag;
    NeverFailsAtRandom(
        Format("{}, broker dies", kLagNames[static_cast<size_t>(lag)]), config,
        3'000, 1);
  }
}

TEST_F(DeliverySimulationTest, BroadcastWhoseConsumersAllDieGoesOn) {
  Config config = Broadcast(Lag::kBlock);
  config.options.on_rank_death = OnRankDeath::kShrink;
  config.world = 1;
  config.may_die = 1;
  config.replacements = 1;
  NeverFails("block, shrink, the only one dies", config,
             {.deaths_max = 1, .preemptions_max = 0});
  config.world = 2;
  config.may_die = 2;
  config.replacements = 2;
  config.records = 4;
  NeverFailsAtRandom("block, shrink, both die", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, OwedStepsWhenRankAndBrokerDie) {
  Config config = Split();
  config.records = 6;
  config.start = {4, {{0, 2, true}, {2, 1, false}}};
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("owed, both die", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, BroadcastWhenConsumerAndBrokerDie) {
  for (const Lag lag : {Lag::kBlock, Lag::kSkip}) {
    Config config = Broadcast(lag);
    config.may_die = 1;
    config.replacements = 1;
    config.instances = 2;
    NeverFailsAtRandom(
        Format("{}, both die", kLagNames[static_cast<size_t>(lag)]), config,
        4'000, 2);
  }
}

TEST_F(DeliverySimulationTest, BroadcastOwedStepsWhenConsumerAndBrokerDie) {
  Config config = Broadcast(Lag::kBlock);
  config.records = 4;
  config.start = {2, {{0, 1, true}, {1, 1, false}}};
  NeverFailsAtRandom("block, owed", config, 1'000, 0);
  config.instances = 2;
  config.may_die = 1;
  config.replacements = 1;
  NeverFailsAtRandom("block, owed, both die", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, DynamicAndBroadcastTwoDeathsOfTheBroker) {
  for (Config config : {Dynamic(), Broadcast(Lag::kBlock)}) {
    config.may_die = 1;
    config.replacements = 1;
    config.hold = 2;
    config.instances = 3;
    NeverFailsAtRandom(config.options.mode == DeliveryMode::kDynamic
                           ? "dynamic, two brokers die"
                           : "block, two brokers die",
                       config, 4'000, 3);
  }
}

TEST_F(DeliverySimulationTest, TwoDeathsOfTheBroker) {
  Config config = Split();
  config.may_die = 1;
  config.replacements = 1;
  config.hold = 2;
  config.records = 6;
  config.instances = 3;
  NeverFailsAtRandom("split, rank and two brokers die", config, 6'000, 3);
}

TEST_F(DeliverySimulationTest, SplitReplacementThatAsksBeforeTheDeath) {
  Config config = Split();
  config.may_die = 1;
  config.replacements = 1;
  config.impatient = true;
  config.instances = 2;
  NeverFailsAtRandom("split, asks before the death", config, 6'000, 2);
  config.hold = 2;
  config.records = 6;
  NeverFailsAtRandom("split, asks early, two held", config, 4'000, 2);
}

TEST_F(DeliverySimulationTest, ReplacementsAndThreeBrokersDie) {
  for (Config config : {Split(), Dynamic(), Broadcast(Lag::kBlock)}) {
    config.world = 1;
    config.replacements = 3;
    config.may_die = 3;
    config.hold = 2;
    config.records = 3 * config.batch;
    config.instances = 4;
    NeverFailsAtRandom(
        Format("{}, all but the last die",
               kDeliveryModeNames[static_cast<size_t>(config.options.mode)]),
        config, 2'000, 6);
  }
}

TEST_F(DeliverySimulationTest, SeedGivesTheRunAgain) {
  Config config = Split();
  config.may_die = 1;  // and nobody replaces it
  const Options options{.deaths_max = 1};
  const Result found = ExploreRandomly(options, TheWorld(config), 1, 1'000);
  ASSERT_TRUE(found.failed);
  const Result again =
      simulation::RunSeed(options, TheWorld(config), found.seed);
  EXPECT_EQ(again.message, found.message);
}

}  // namespace
}  // namespace penstock
