// Invariants: D1 to D4 of broker/delivery/delivery.h; a restarted broker loses
// and doubles nothing, and marks nothing that nobody can have had. Method:
// delivery.cc, feed.cc, restore.cc and plan.cc, a process of an exploration
// (explorer.h) per broker instance, with ranks that run ring.h. All
// interleavings up to a number of preemptions, then random ones; deaths and
// evictions at every step; journal and descriptor store survive.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "common/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/delivery_scenario.h"
#include "tests/simulation/explorer.h"

namespace penstock::delivery_simulation {
namespace {

using simulation::Explore;
using simulation::ExploreRandomly;
using simulation::Memory;
using simulation::Options;
using simulation::Result;

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
  config.may_die = 1;
  config.replacements = 1;
  config.slow = true;
  NeverFailsAtRandom("replicas, a slow one, two brokers die", config, 3'000, 3);
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
}  // namespace penstock::delivery_simulation
