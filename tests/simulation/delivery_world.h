// The simulation of delivery: what its processes share, and what is noted for
// the checks.
#ifndef TESTS_SIMULATION_DELIVERY_WORLD_H_
#define TESTS_SIMULATION_DELIVERY_WORLD_H_

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "broker/delivery/delivery.h"
#include "broker/job/launch.h"
#include "broker/plan/mix.h"
#include "broker/plan/shard_steps.h"
#include "broker/recovery/restore.h"
#include "common/ring.h"
#include "tests/simulation/explorer.h"

namespace penstock::delivery_simulation {

using simulation::Run;
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
  // The last rank connects to another broker when all others wait: perhaps one
  // that came and died meanwhile.
  bool slow = false;
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
              evicted_processes.contains(i) ||
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

inline int SocketOf(int instance, int rank) {
  return instance * kRanksMax + rank;
}

}  // namespace penstock::delivery_simulation
#endif  // TESTS_SIMULATION_DELIVERY_WORLD_H_
