// Promise: whichever ranks die, at any point, the others go on or are told, no
// row is lost, none comes twice unmarked, and the memory comes back. Method: a
// penstockd process, and each rank a process that is told what to do and is
// killed where the test wants it; the broker's status shows when it has
// noticed.
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "common/message.h"
#include "common/ring.h"
#include "common/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::rank_death_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using What = RankProcess::What;

class RankDeathTest : public DeliveryTest {
 protected:
  std::string Name() const {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  static std::string Spec(int rows, const std::string& rest = "") {
    return RangeSpec(std::to_string(rows), "batch: {size: 8}\nprefetch: 3\n" +
                                               std::string("hold: 4\n") + rest);
  }
  RankProcess Start(const Options& options) {
    RankProcess rank(options);
    const nlohmann::json answer = rank.Attached();
    if (answer.contains("error")) {
      throw std::runtime_error(answer.at("error").get<std::string>());
    }
    EXPECT_EQ(answer.at("rank"), options.rank);
    return rank;
  }
  // All ranks of a job of this test.
  std::vector<RankProcess> StartAll(
      const std::string& spec, int world_size,
      const std::function<void(Options*)>& with = [](Options*) {}) {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      Options options = OptionsFor(spec, rank, world_size);
      with(&options);
      ranks.push_back(Start(options));
    }
    return ranks;
  }
  static std::vector<Taken> TakeSome(RankProcess& rank, int count) {
    std::vector<Taken> taken;
    while (static_cast<int>(taken.size()) < count) {
      const RankProcess::Event event = rank.Next();
      if (event.what == What::kEndOfEpoch) continue;
      EXPECT_EQ(event.what, What::kBatch) << event.error;
      if (event.what != What::kBatch) break;
      taken.push_back(event.taken);
    }
    return taken;
  }
  void WaitUntilGone(int rank) {
    WaitUntil("the death is noticed", [&] {
      const nlohmann::json status = RankOf(JobStatus(Name()), rank);
      return status.is_null() || status.at("state") != "attached";
    });
  }

  // The rows that all ranks got, dead ones too: of unmarked and of marked
  // batches.
  struct Account {
    Rows unmarked;
    Rows marked;
    void Add(const std::vector<Taken>& taken) {
      for (const Taken& each : taken) {
        Append({each}, each.redelivered ? &marked : &unmarked);
      }
    }
  };
};

// ---- split: a rank of the same number goes on

TEST_F(RankDeathTest, ReplacementGetsWhatWasHeldMarkedAndTheRestUnmarked) {
  const std::string spec = Spec(160, "shuffle: {seed: 3}\nepochs: 2");
  const SampleSteps undisturbed = TakeAll(spec, 2)[1];
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  SampleSteps steps;
  std::vector<Taken> before = TakeSome(ranks[1], 4);
  ranks[1].Release(2);
  WaitUntilReady(Name(), 1, 3);
  ranks[1].Kill();
  // The other rank does not wait for it.
  ranks[0].Run();
  const Course other = ranks[0].Finished();
  EXPECT_EQ(other.code, 0) << other.error;
  EXPECT_EQ(other.taken.size(), 40u);
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  replacement.Run();
  const Course after = replacement.Finished();
  EXPECT_EQ(after.code, 0) << after.error;
  EXPECT_EQ(after.epoch_ends, 2u);
  ASSERT_EQ(after.taken.size(), 38u);
  for (size_t i = 0; i < after.taken.size(); ++i) {
    EXPECT_EQ(after.taken[i].redelivered, i < 2) << i;
    EXPECT_EQ(after.taken[i].rows, undisturbed[2 + i]);
  }
  EXPECT_EQ(StepsOf(before),
            SampleSteps(undisturbed.begin(), undisturbed.begin() + 4));
}

TEST_F(RankDeathTest, SecondReplacementGetsWhatBothPredecessorsHeld) {
  const std::string spec = Spec(160);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  TakeSome(ranks[1], 3);
  ranks[1].Kill();
  RankProcess second = Start(OptionsFor(spec, 1, 2));
  // Takes two of the three that its predecessor held, and releases the second.
  std::vector<Taken> taken = TakeSome(second, 2);
  EXPECT_TRUE(taken[0].redelivered && taken[1].redelivered);
  second.Release(1);
  WaitUntilReady(Name(), 1, 5);
  second.Kill();
  RankProcess third = Start(OptionsFor(spec, 1, 2));
  third.Run();
  const Course course = third.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  ASSERT_EQ(course.taken.size(), 19u);
  for (size_t i = 0; i < course.taken.size(); ++i) {
    EXPECT_EQ(course.taken[i].step, i + 1);
    EXPECT_EQ(course.taken[i].redelivered, i < 2) << i;
  }
}

// The launcher of several hosts goes on without some of them, or numbers ranks
// anew, from the checkpoint that the launch before began at.
TEST_F(RankDeathTest, ALaunchOfOtherRanksBeginsAtTheStateOfOneThatIsDead) {
  const std::string spec = Spec(160);
  const auto options_of = [&](int rank, int world_size) {
    Options options = OptionsFor(spec, rank, world_size);
    options.local_world_size = 2;
    options.state = R"({"epoch": 0, "row": 16})";
    return options;
  };
  struct Case {
    std::vector<int> came;  // before they died
    int world_size;
  };
  const std::vector<Case> cases = {
      {{2, 3}, 2}, {{2, 3}, 4}, {{3}, 2}, {{3}, 4}};
  for (const auto& [came, world_size] : cases) {
    std::vector<RankProcess> ranks;
    for (const int rank : came) {
      ranks.push_back(Start(options_of(rank, 4)));
      TakeSome(ranks.back(), 1);
    }
    for (RankProcess& rank : ranks) rank.Kill();
    ranks.clear();
    for (const int rank : came) WaitUntilGone(rank);
    Rows rows;
    for (const int rank : {0, 1}) {
      ranks.push_back(Start(options_of(rank, world_size)));
      Append(TakeSome(ranks.back(), 1), &rows);
    }
    Rows wanted(static_cast<size_t>(16 / world_size));
    std::iota(wanted.begin(), wanted.end(), 16);
    EXPECT_EQ(rows, wanted);
    ranks.clear();
    for (const int rank : {0, 1}) WaitUntilGone(rank);
  }
}

TEST_F(RankDeathTest, StateOfAReplacementOwesWhatItsPredecessorHeld) {
  const std::string spec = Spec(160);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  Rows rows;
  for (int step = 0; step < 4; ++step) {
    Append(TakeSome(ranks[0], 1), &rows);
    ranks[0].Release(1);
  }
  Append({TakeSome(ranks[1], 4)[0]}, &rows);
  ranks[1].Release(1);
  WaitUntilReady(Name(), 1, 3);
  ranks[1].Kill();
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  Append(TakeSome(replacement, 1), &rows);
  const nlohmann::json state = nlohmann::json::parse(replacement.State());
  EXPECT_EQ(state.at("row"), 4 * 8);
  EXPECT_EQ(state.at("owed"),
            nlohmann::json::parse("[[0, 20, 4, true], [0, 28, 4, true]]"));
  Options options = OptionsFor(spec, 0, 1);
  options.state = state.dump();
  options.job += "again";
  Reader reader(options);
  const Course rest = RunToTheEnd(reader);
  EXPECT_EQ(rest.code, 0) << rest.error;
  Append(rest.taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(160));
}

// At any point of an epoch, and between two epochs, the sum is the same.
TEST_F(RankDeathTest, OneThatHadAllAndDiedIsReplacedByOneThatIsToldTheEnd) {
  const std::string spec = Spec(64);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  EXPECT_EQ(TakeSome(ranks[1], 4).size(), 4u);
  ranks[1].Release(4);
  EXPECT_EQ(TakeSome(ranks[1], 4).size(), 4u);
  ranks[1].Release(4);
  WaitUntil("all is released",
            [&] { return RankOf(JobStatus(Name()), 1).at("held") == 0; });
  ranks[1].Kill();
  WaitUntilGone(1);
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  replacement.Run();
  const Course course = replacement.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_THAT(course.taken, IsEmpty());
  ranks[0].Run();
  EXPECT_EQ(ranks[0].Finished().taken.size(), 8u);
}

TEST_F(RankDeathTest, ReplacementComesWhereItIsMissingNotWhereOthersAreAhead) {
  const std::string spec = Spec(64);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  TakeSome(ranks[1], 2);
  ranks[1].Kill();
  WaitUntilGone(1);
  ranks[0].Run();
  EXPECT_EQ(ranks[0].Finished().taken.size(), 8u);
  ranks[0].Detach();
  // The job is run once more; its first rank attaches before the rank that the
  // first run waits for is back.
  RankProcess again = Start(OptionsFor(spec, 0, 2));
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  replacement.Run();
  const Course course = replacement.Finished();
  EXPECT_EQ(course.taken.size(), 8u);
  EXPECT_TRUE(!course.taken.empty() && course.taken[0].redelivered);
  RankProcess other = Start(OptionsFor(spec, 1, 2));
  other.Run();
  const Course second = other.Finished();
  EXPECT_EQ(second.taken.size(), 8u);
  EXPECT_TRUE(!second.taken.empty() && !second.taken[0].redelivered);
}

TEST_F(RankDeathTest, DeathAfterAnyNumberOfBatchesLosesNothing) {
  const std::string spec = Spec(40, "epochs: 2");
  const SampleSteps undisturbed = TakeAll(spec, 2)[1];
  for (int taken = 0; taken <= 10; ++taken) {
    // A rank that had everything and released it has finished.
    for (int held = taken == 10 ? 1 : 0; held <= std::min(taken, 2); ++held) {
      const auto with = [&](Options* options) {
        options->job += std::to_string(taken) + "/" + std::to_string(held);
      };
      std::vector<RankProcess> ranks = StartAll(spec, 2, with);
      for (int i = 0; i < taken; ++i) {
        TakeSome(ranks[1], 1);
        if (i < taken - held) ranks[1].Release(1);
      }
      ranks[1].Kill();
      Options options = OptionsFor(spec, 1, 2);
      with(&options);
      RankProcess replacement = Start(options);
      replacement.Run();
      const Course course = replacement.Finished();
      ASSERT_EQ(course.code, 0) << course.error;
      ASSERT_EQ(
          StepsOf(course.taken),
          SampleSteps(undisturbed.begin() + taken - held, undisturbed.end()))
          << taken << " taken, " << held << " held";
      for (size_t i = 0; i < course.taken.size(); ++i) {
        EXPECT_EQ(course.taken[i].redelivered, i < static_cast<size_t>(held));
      }
    }
  }
}

TEST_F(RankDeathTest, OrderlyDetachCountsWhatWasHeldAndHandsOnTheRest) {
  const std::string spec = Spec(160);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  TakeSome(ranks[1], 2);
  WaitUntilReady(Name(), 1, 3);
  ranks[1].Detach();
  RankProcess successor = Start(OptionsFor(spec, 1, 2));
  successor.Run();
  const Course course = successor.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  ASSERT_EQ(course.taken.size(), 18u);
  for (size_t i = 0; i < course.taken.size(); ++i) {
    EXPECT_EQ(course.taken[i].step, i + 2);
    EXPECT_FALSE(course.taken[i].redelivered);
  }
}

TEST_F(RankDeathTest, ChildThatKeepsTheSocketsDoesNotHideTheDeathOfItsParent) {
  const std::string spec = Spec(160);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  TakeSome(ranks[1], 1);
  ranks[1].ForkChild();
  ranks[1].Kill();
  WaitUntilGone(1);
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  EXPECT_TRUE(TakeSome(replacement, 1)[0].redelivered);
}

// ---- dynamic: the others go on

TEST_F(RankDeathTest, DynamicGivesTheBatchesOfADeadRankToTheOthers) {
  const std::string spec = Spec(400, "epochs: 2");
  std::vector<RankProcess> ranks = StartAll(
      spec, 3, [](Options* options) { options->delivery = "dynamic"; });
  Account account;
  const std::vector<Taken> of_dead = TakeSome(ranks[1], 3);
  account.Add(of_dead);
  ranks[1].Release(1);
  WaitUntilReady(Name(), 1, 1);
  ranks[1].Kill();
  for (const int rank : {0, 2}) ranks[rank].Run();
  for (const int rank : {0, 2}) {
    const Course course = ranks[rank].Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, 2u);
    account.Add(course.taken);
  }
  EXPECT_EQ(Sorted(account.unmarked), Numbers(400, 2));
  Rows held;
  Append({of_dead[1], of_dead[2]}, &held);
  EXPECT_EQ(Sorted(account.marked), Sorted(held));
}

// No rank is told the end before the last batch is released.
TEST_F(RankDeathTest, DynamicDeathWithTheVeryLastBatchLeavesItToAnother) {
  std::vector<RankProcess> ranks = StartAll(
      Spec(16), 2, [](Options* options) { options->delivery = "dynamic"; });
  const Taken first = TakeSome(ranks[0], 1)[0];
  const Taken last = TakeSome(ranks[1], 1)[0];
  ranks[0].Release(1);
  ranks[0].Run();
  WaitUntil("it sleeps at the end",
            [&] { return RankOf(JobStatus(Name()), 0).at("held") == 0; });
  ranks[1].Kill();
  const Course course = ranks[0].Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  ASSERT_EQ(course.taken.size(), 1u);
  EXPECT_TRUE(course.taken[0].redelivered);
  EXPECT_EQ(course.taken[0].rows, last.rows);
  EXPECT_EQ(course.epoch_ends, 1u);
}

// ---- on_rank_death: fail, shrink

TEST_F(RankDeathTest, BroadcastWhoseConsumersAllDieGoesOnWhereTheFurthestWas) {
  const auto broadcast = [](Options* options) {
    options->delivery = "broadcast";
    options->consumers = 2;
    options->window = 4;
  };
  // The furthest dies first, the other while batches are being made.
  for (const int32_t rows : {800, 8 * 6}) {
    const std::string job = Name() + std::to_string(rows);
    const auto with = [&](Options* options) {
      broadcast(options);
      options->job = job;
    };
    std::vector<RankProcess> ranks = StartAll(Spec(rows), 2, with);
    Account account;
    TakeSome(ranks[0], 1);
    account.Add(TakeSome(ranks[1], 3));
    WaitUntilReady(job, 1, 1);
    for (const int rank : {1, 0}) {
      ranks[rank].Kill();
      WaitUntil("the death is noticed", [&] {
        const nlohmann::json status = RankOf(JobStatus(job), rank);
        return status.is_null() || status.at("state") != "attached";
      });
    }
    Options options = OptionsFor(Spec(rows), 0, 2);
    with(&options);
    RankProcess next = Start(options);
    next.Run();
    const Course course = next.Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    account.Add(course.taken);
    EXPECT_EQ(account.unmarked, Numbers(rows));
  }
}

TEST_F(RankDeathTest, FailTellsEveryRankWhoDied) {
  std::vector<RankProcess> ranks =
      StartAll(Spec(80'000, "epochs: forever"), 3,
               [](Options* options) { options->on_rank_death = "fail"; });
  TakeSome(ranks[2], 1);
  for (const int rank : {0, 1}) ranks[rank].Run();
  ranks[2].Kill();
  for (const int rank : {0, 1}) {
    const Course course = ranks[rank].Finished();
    EXPECT_EQ(course.code, PENSTOCK_ABORTED);
    EXPECT_THAT(course.error, AllOf(HasSubstr("rank 2 died"),
                                    HasSubstr("on_rank_death: fail")));
  }
}

class ShrinkTest : public RankDeathTest {
 protected:
  static void Shrink(Options* options) { options->on_rank_death = "shrink"; }

  // Runs the survivors to the end; `account` has what all took before. Expects
  // equal steps, the same world at each, and an even division; each row
  // unmarked once, and exactly the rows of `held` marked.
  void CheckSurvivors(std::vector<RankProcess*> survivors, Account account,
                      std::vector<std::vector<Taken>> before, const Rows& held,
                      int64_t rows, int epochs,
                      const std::vector<int>& world_sizes) {
    for (RankProcess* rank : survivors) rank->Run();
    for (size_t i = 0; i < survivors.size(); ++i) {
      const Course course = survivors[i]->Finished();
      EXPECT_EQ(course.code, 0) << course.error;
      before[i].insert(before[i].end(), course.taken.begin(),
                       course.taken.end());
    }
    std::vector<int> seen;
    for (size_t step = 0; step < before[0].size(); ++step) {
      const int world_size = before[0][step].world_size;
      if (seen.empty() || seen.back() != world_size) seen.push_back(world_size);
      uint64_t sum = 0;
      for (const std::vector<Taken>& each : before) {
        ASSERT_EQ(each.size(), before[0].size());
        EXPECT_EQ(each[step].world_size, world_size) << "step " << step;
        EXPECT_EQ(each[step].global_rows, before[0][step].global_rows);
        EXPECT_EQ(each[step].redelivered, before[0][step].redelivered);
        sum += each[step].rows.size();
        const uint64_t even = each[step].global_rows / world_size;
        EXPECT_GE(each[step].rows.size(), even);
        EXPECT_LE(each[step].rows.size(), even + 1);
      }
      if (world_size == static_cast<int>(survivors.size())) {
        EXPECT_EQ(sum, before[0][step].global_rows) << "step " << step;
      }
    }
    EXPECT_EQ(seen, world_sizes);
    for (const std::vector<Taken>& each : before) account.Add(each);
    EXPECT_EQ(Sorted(account.unmarked), Numbers(rows, epochs));
    EXPECT_EQ(Sorted(account.marked), Sorted(held));
  }
};

TEST_F(ShrinkTest, SurvivorsDivideTheRowsAndTakeEqualSteps) {
  std::vector<RankProcess> ranks =
      StartAll(Spec(240, "shuffle: {seed: 1}\nepochs: 2"), 4, Shrink);
  Account account;
  std::vector<std::vector<Taken>> before;
  for (const int rank : {0, 2, 3}) {
    before.push_back(TakeSome(ranks[rank], rank));
    ranks[rank].Release(rank);
  }
  const std::vector<Taken> of_dead = TakeSome(ranks[1], 3);
  account.Add(of_dead);
  ranks[1].Release(1);
  Rows held;
  Append({of_dead[1], of_dead[2]}, &held);
  WaitUntilReady(Name(), 1, 3);
  ranks[1].Kill();
  CheckSurvivors({&ranks[0], &ranks[2], &ranks[3]}, account, before, held, 240,
                 2, {4, 3});
}

TEST_F(ShrinkTest, TwoDeathsOneAfterTheOther) {
  std::vector<RankProcess> ranks = StartAll(Spec(240), 4, Shrink);
  Account account;
  std::vector<std::vector<Taken>> before(2);
  std::vector<Taken> of_dead = TakeSome(ranks[1], 1);
  account.Add(of_dead);
  Rows held;
  Append(of_dead, &held);
  ranks[1].Kill();
  WaitUntilGone(1);
  // Runs until the world of three has begun for all of them.
  int world_size = 4;
  for (int step = 0; world_size == 4; ++step) {
    for (const int rank : {0, 2, 3}) {
      const Taken taken = TakeSome(ranks[rank], 1)[0];
      world_size = taken.world_size;
      if (rank == 2) {
        account.Add({taken});
        continue;
      }
      before[rank == 0 ? 0 : 1].push_back(taken);
      ranks[rank].Release(1);
    }
    if (world_size == 4) ranks[2].Release(1);
    ASSERT_LT(step, 30);
  }
  // The second dies with batches it got from the first.
  const Rows first_held = held;
  ranks[2].Kill();
  WaitUntilGone(2);
  for (RankProcess* rank : {&ranks[0], &ranks[3]}) rank->Run();
  for (const int rank : {0, 3}) {
    const Course course = ranks[rank].Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    std::vector<Taken>& all = before[rank == 0 ? 0 : 1];
    all.insert(all.end(), course.taken.begin(), course.taken.end());
  }
  ASSERT_EQ(before[0].size(), before[1].size());
  std::vector<int> seen;
  for (size_t step = 0; step < before[0].size(); ++step) {
    EXPECT_EQ(before[0][step].world_size, before[1][step].world_size);
    if (seen.empty() || seen.back() != before[0][step].world_size) {
      seen.push_back(before[0][step].world_size);
    }
  }
  EXPECT_EQ(seen, std::vector<int>({4, 3, 2}));
  for (const std::vector<Taken>& each : before) account.Add(each);
  // No row twice unmarked, none lost.
  EXPECT_EQ(Sorted(account.unmarked), Numbers(240));
  for (const int64_t row : held) {
    EXPECT_THAT(account.marked, testing::Contains(row));
  }
}

// It ends before the world of three has begun.
TEST_F(ShrinkTest, TwoDeathsAtOnce) {
  std::vector<RankProcess> ranks = StartAll(Spec(240), 4, Shrink);
  Account account;
  Rows held;
  for (const int rank : {1, 2}) {
    const std::vector<Taken> taken = TakeSome(ranks[rank], 1);
    account.Add(taken);
    Append(taken, &held);
  }
  for (int rank = 0; rank < 4; ++rank) {
    WaitUntilReady(Name(), rank, 3);
  }
  for (const int rank : {1, 2}) {
    ranks[rank].Kill();
    WaitUntilGone(rank);
  }
  CheckSurvivors({&ranks[0], &ranks[3]}, account, {{}, {}}, held, 240, 1,
                 {4, 2});
}

TEST_F(ShrinkTest, StateOfAShrunkJobIsGoneOnWith) {
  const std::string spec = Spec(240);
  Rows rows;
  std::string state;
  {
    std::vector<RankProcess> ranks = StartAll(spec, 3, Shrink);
    WaitUntilReady(Name(), 2, 3);
    ranks[2].Kill();
    WaitUntilGone(2);
    for (int step = 0; step < 13; ++step) {
      for (const int rank : {0, 1}) {
        Append(TakeSome(ranks[rank], 1), &rows);
        ranks[rank].Release(1);
      }
    }
    EXPECT_EQ(ranks[0].State(), ranks[1].State());
    state = ranks[0].State();
  }
  Options options = OptionsFor(spec, 0, 1);
  options.state = state;
  options.job += "again";
  Reader reader(options);
  const Course rest = RunToTheEnd(reader);
  EXPECT_EQ(rest.code, 0) << rest.error;
  Append(rest.taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(240));
}

// The answers of `penstock status` and `penstock state`.
TEST_F(ShrinkTest, StatusOfAShrunkJobGoesOn) {
  std::vector<RankProcess> ranks = StartAll(Spec(240), 2, Shrink);
  ranks[1].Kill();
  WaitUntilGone(1);
  TakeSome(ranks[0], 1);
  ranks[0].Release(1);
  for (int step = 0; step < 25; ++step) {
    TakeSome(ranks[0], 1);
    ranks[0].Release(1);
  }
  const nlohmann::json status = JobStatus(Name());
  EXPECT_GT(status.at("step"), 15);
  EXPECT_THAT(status.at("missing"), IsEmpty());
  const nlohmann::json state =
      Ask({{"op", "state"}, {"job", Name()}}).at("state");
  EXPECT_GT(state.at("row"), 8 * 15);
}

TEST_F(ShrinkTest, TooFewToHaveTheMemoryIsAnErrorThatNamesTheDead) {
  std::vector<RankProcess> ranks =
      StartAll(Spec(80'000, "epochs: forever"), 4, Shrink);
  for (const int rank : {1, 2, 3}) {
    ranks[rank].Kill();
    WaitUntilGone(rank);
  }
  ranks[0].Run();
  const Course course = ranks[0].Finished();
  EXPECT_EQ(course.code, PENSTOCK_ABORTED);
  EXPECT_THAT(course.error,
              AllOf(HasSubstr("rank 3 died"), HasSubstr("half of its ranks")));
}

TEST_F(ShrinkTest, DeadRankThatComesBackIsToldWhetherAnyOtherIsThere) {
  const std::string spec = Spec(80'000, "epochs: forever");
  std::vector<RankProcess> ranks = StartAll(spec, 2, Shrink);
  const auto comes_back = [&] {
    Options options = OptionsFor(spec, 1, 2);
    Shrink(&options);
    return AttachError(options);
  };
  ranks[1].Kill();
  WaitUntilGone(1);
  EXPECT_THAT(comes_back(),
              AllOf(HasSubstr("rank 1 died, and its share went to the others"),
                    Not(HasSubstr("attached"))));
  ranks[0].Kill();
  WaitUntilGone(0);
  EXPECT_THAT(comes_back(), HasSubstr("none of which is attached"));
}

// Any thread that sees it evicts it; if a worker does, the others must be told
// too.
TEST_F(ShrinkTest, RankThatWritesImpossibleValuesIsShrunkAway) {
  const std::string spec = Spec(240);
  Options options = OptionsFor(spec, 0, 2);
  Shrink(&options);
  RankProcess good = Start(options);
  auto cursor = CreateCursor();
  ASSERT_TRUE(cursor.ok());
  const auto socket = ConnectControl(broker_.socket());
  ASSERT_TRUE(socket.ok());
  const auto answer = Request(socket->get(),
                              {{"op", "attach"},
                               {"spec", spec},
                               {"file", "spec"},
                               {"base", "/"},
                               {"job", Name()},
                               {"rank", 1},
                               {"world_size", 2},
                               {"local_world_size", 2},
                               {"on_rank_death", "shrink"}},
                              {cursor->fd.get()});
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  WaitUntilReady(Name(), 1, 1);
  // Without a wake the next tick finds it.
  for (auto& released : cursor->page().released) released.store(0xdeadbeef);
  WaitUntil("the rank is evicted",
            [&] { return RankOf(JobStatus(Name()), 1).is_null(); });
  good.Run();
  const Course course = good.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(240));
  ASSERT_FALSE(course.taken.empty());
  EXPECT_EQ(course.taken.back().world_size, 1);
}

// ---- ranks that do not come

TEST_F(RankDeathTest, RanksThatNeverComeAreNamedAfterTheWait) {
  Options options = OptionsFor(Spec(80'000, "epochs: forever"), 1, 4);
  options.wait_s = 0.5;
  RankProcess rank = Start(options);
  rank.Run();
  const Course course = rank.Finished();
  EXPECT_EQ(course.code, PENSTOCK_DEADLINE_EXCEEDED);
  EXPECT_THAT(course.error, AllOf(HasSubstr("ranks 0, 2 and 3 of 4"),
                                  HasSubstr("wait_s"), HasSubstr(Name())));
}

TEST_F(RankDeathTest, RankThatDiedAndIsNotReplacedIsNamedAfterTheWait) {
  for (const char* delivery : {"split", "broadcast"}) {
    std::vector<RankProcess> ranks =
        StartAll(Spec(80'000, "epochs: forever"), 3, [&](Options* options) {
          options->delivery = delivery;
          options->on_rank_death = "wait";
          options->wait_s = 0.5;
        });
    EXPECT_THAT(JobStatus(Name()).at("missing"), IsEmpty());
    ranks[1].Kill();
    WaitUntilGone(1);
    EXPECT_THAT(JobStatus(Name()).at("state"), HasSubstr("waiting for rank 1"));
    for (const int rank : {0, 2}) ranks[rank].Run();
    for (const int rank : {0, 2}) {
      const Course course = ranks[rank].Finished();
      EXPECT_EQ(course.code, PENSTOCK_DEADLINE_EXCEEDED);
      EXPECT_THAT(course.error, HasSubstr("rank 1 of 3 left or died"));
      ranks[rank].Detach();
    }
  }
}

TEST_F(RankDeathTest, OptionsThatSayNothingInAModeAreRefused) {
  const auto error = [&](const std::function<void(Options*)>& with) {
    Options options = OptionsFor(Spec(16), 0, 1);
    with(&options);
    return RankProcess(options).Attached().value("error", "attached");
  };
  EXPECT_THAT(error([](Options* options) { options->lag = "skip"; }),
              HasSubstr("'lag' is an option of broadcast; delivery is split"));
  EXPECT_THAT(error([](Options* options) {
                options->delivery = "independent";
                options->full_epoch = true;
              }),
              HasSubstr("'full_epoch' is an option of broadcast"));
  EXPECT_THAT(error([](Options* options) {
                options->delivery = "dynamic";
                options->on_rank_death = "wait";
              }),
              HasSubstr("wait is not offered in dynamic"));
  for (int Options::*const field :
       {&Options::world_size, &Options::local_world_size, &Options::window,
        &Options::consumers}) {
    EXPECT_THAT(error([field](Options* options) { options->*field = -3; }),
                HasSubstr(" is -3; wanted 1 or more, or 0 for the default"));
  }
  EXPECT_THAT(error([](Options* options) { options->rank = -3; }),
              HasSubstr("rank is -3; wanted 0 or more, or -1"));
  EXPECT_THAT(error([](Options* options) { options->job = "a\nb"; }),
              HasSubstr("must not contain control characters"));
}

TEST_F(RankDeathTest, NamedJobAllOfWhoseRanksDiedIsGoneOnWith) {
  const std::string spec = Spec(160);
  Account account;
  Rows held;
  {
    std::vector<RankProcess> ranks = StartAll(spec, 2);
    for (RankProcess& rank : ranks) {
      const std::vector<Taken> taken = TakeSome(rank, 3);
      account.Add(taken);
      rank.Release(2);
      Append({taken[2]}, &held);
      rank.Kill();
    }
  }
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  for (RankProcess& rank : ranks) rank.Run();
  for (RankProcess& rank : ranks) {
    const Course course = rank.Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.taken.size(), 18u);
    account.Add(course.taken);
  }
  EXPECT_EQ(Sorted(account.unmarked), Numbers(160));
  EXPECT_EQ(Sorted(account.marked), Sorted(held));
}

TEST_F(RankDeathTest, JobWithoutANameGoesOnWithItsRanksToo) {
  unsetenv("PENSTOCK_JOB");
  const auto no_name = [](Options* options) { options->job.clear(); };
  Rows rows;
  {
    std::vector<RankProcess> ranks = StartAll(Spec(160), 2, no_name);
    Append(TakeSome(ranks[0], 3), &rows);
    ranks[0].Release(3);
  }
  std::vector<RankProcess> ranks = StartAll(Spec(160), 2, no_name);
  for (RankProcess& rank : ranks) rank.Run();
  for (RankProcess& rank : ranks) {
    const Course course = rank.Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    Append(course.taken, &rows);
  }
  EXPECT_EQ(Sorted(rows), Numbers(160));
}

TEST_F(RankDeathTest, OneRankWithoutANameForItsJobBeginsAnew) {
  unsetenv("PENSTOCK_JOB");
  const auto no_name = [](Options* options) { options->job.clear(); };
  {
    std::vector<RankProcess> ranks = StartAll(Spec(160), 1, no_name);
    TakeSome(ranks[0], 3);
  }
  WaitUntil("the job is over", [&] { return Jobs().empty(); });
  std::vector<RankProcess> ranks = StartAll(Spec(160), 1, no_name);
  ranks[0].Run();
  const Course course = ranks[0].Finished();
  ASSERT_EQ(course.taken.size(), 20u) << course.error;
  EXPECT_FALSE(course.taken[0].redelivered);
}

// ---- nobody is left

TEST_F(RankDeathTest, AJobWhoseRanksAreAllDeadSaysSo) {
  const std::string spec = Spec(160);
  const auto with = [](Options* options) { options->delivery = "dynamic"; };
  std::vector<RankProcess> ranks = StartAll(spec, 2, with);
  TakeSome(ranks[0], 1);
  EXPECT_EQ(JobStatus(Name()).at("state"), "running");
  EXPECT_FALSE(JobStatus(Name()).contains("kept_s"));
  for (RankProcess& rank : ranks) rank.Kill();
  WaitUntil("the deaths are noticed",
            [&] { return JobStatus(Name()).contains("kept_s"); });
  for (const char* const op : {"status", "jobs"}) {
    const nlohmann::json job = Ask({{"op", op}}).at("jobs").at(0);
    EXPECT_THAT(job.at("state").get<std::string>(),
                AllOf(HasSubstr("all ranks are gone: kept "),
                      HasSubstr(" s for replacements of ranks 0 and 1")));
    EXPECT_EQ(job.at("waits_for"), nlohmann::json({0, 1}));
    EXPECT_GT(job.at("kept_s"), 200);
    EXPECT_LE(job.at("kept_s"), 300);
  }
  // A rank that attaches continues it.
  Options options = OptionsFor(spec, 0, 2);
  with(&options);
  RankProcess replacement = Start(options);
  TakeSome(replacement, 1);
  EXPECT_EQ(JobStatus(Name()).at("state"), "running");
}

// A rank that is missing for wait_s ends the job before that.
TEST_F(RankDeathTest, AJobWhoseRanksAreAllDeadIsKeptAsLongAsItWaits) {
  std::vector<RankProcess> ranks =
      StartAll(Spec(160), 2, [](Options* options) { options->wait_s = 100; });
  for (RankProcess& rank : ranks) rank.Kill();
  WaitUntil("the deaths are noticed",
            [&] { return JobStatus(Name()).contains("kept_s"); });
  EXPECT_LE(JobStatus(Name()).at("kept_s"), 100);
}

// ---- eviction

TEST_F(RankDeathTest, EvictedRankIsToldAndItsSlotsAreLeftAloneUntilItIsGone) {
  const std::string spec = Spec(160);
  std::vector<RankProcess> ranks = StartAll(spec, 2);
  TakeSome(ranks[1], 2);
  WaitUntilReady(Name(), 1, 3);
  Ask({{"op", "evict"}, {"job", Name()}, {"rank", 1}});
  const RankProcess::Event event = ranks[1].Next();
  EXPECT_EQ(event.code, PENSTOCK_ABORTED);
  EXPECT_THAT(event.error, HasSubstr("evicted by user"));
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  std::vector<Taken> taken = TakeSome(replacement, 2);
  EXPECT_TRUE(taken[0].redelivered && taken[1].redelivered);
  EXPECT_FALSE(TakeSome(replacement, 1)[0].redelivered);
  // One has released them, the other may still read them.
  replacement.Release(3);
  EXPECT_EQ(TakeSome(replacement, 1)[0].step, 3u);
  EXPECT_EQ(JobStatus(Name()).at("slots").at("quarantined"), 2);
  replacement.Release(1);
  replacement.Run();
  const Course course = replacement.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(course.taken.size(), 16u);
  EXPECT_EQ(JobStatus(Name()).at("slots").at("quarantined"), 2);
  ranks[1].Kill();
  WaitUntil("the slots are free", [&] {
    return JobStatus(Name()).at("slots").at("quarantined") == 0;
  });
}

TEST_F(RankDeathTest, EvictOfARankThatIsNotThereIsRefused) {
  std::vector<RankProcess> ranks = StartAll(Spec(160), 1);
  EXPECT_THROW(Ask({{"op", "evict"}, {"job", Name()}, {"rank", 1}}),
               std::runtime_error);
  EXPECT_THROW(Ask({{"op", "evict"}, {"job", "nobody's"}, {"rank", 0}}),
               std::runtime_error);
  EXPECT_EQ(TakeSome(ranks[0], 1)[0].step, 0u);
}

TEST_F(RankDeathTest, EvictedRankOfADynamicJobLeavesItsBatchesToTheOthers) {
  std::vector<RankProcess> ranks = StartAll(
      Spec(160), 2, [](Options* options) { options->delivery = "dynamic"; });
  const std::vector<Taken> held = TakeSome(ranks[1], 2);
  WaitUntilReady(Name(), 1, 1);
  Ask({{"op", "evict"}, {"job", Name()}, {"rank", 1}});
  Account account;
  account.Add(held);
  ranks[0].Run();
  const Course course = ranks[0].Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  account.Add(course.taken);
  EXPECT_EQ(Sorted(account.unmarked), Numbers(160));
  Rows rows;
  Append(held, &rows);
  EXPECT_EQ(Sorted(account.marked), Sorted(rows));
}

// It closes its connection and reads on: its batches go to no other rank before
// it is dead.
TEST_F(RankDeathTest, ProcessThatHangsUpAndLivesOnKeepsItsSlotsUntilItsDeath) {
  const std::string spec = Spec(160);
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const std::string job = Name();
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    auto cursor = CreateCursor();
    auto socket = ConnectControl(broker_.socket());
    auto answer = Request(socket->get(),
                          {{"op", "attach"},
                           {"spec", spec},
                           {"file", "spec"},
                           {"base", "/"},
                           {"job", job},
                           {"named", true},
                           {"rank", 1},
                           {"world_size", 2},
                           {"local_world_size", 2}},
                          {cursor->fd.get()});
    if (!answer.ok()) _exit(1);
    const auto view = SegmentView::Open(answer->fds[0].get(), 1);
    const Ring& ring = (*view)->ring(answer->json.at("seat").get<uint32_t>());
    Cell cell{};
    while (TryTake(ring, cursor->page(), &cell) != TakeResult::kTaken) {
      std::this_thread::yield();
    }
    socket->Reset();
    // Waits until the batch has gone to another rank, then checks that it is
    // unchanged.
    char byte = 0;
    (void)!send(pair[1], &byte, 1, 0);
    (void)!recv(pair[1], &byte, 1, 0);
    const auto* values =
        reinterpret_cast<const int64_t*>((*view)->feature(cell, 0));
    byte = values[0] == 4 && values[3] == 7;
    (void)!send(pair[1], &byte, 1, 0);
    for (;;) pause();
  }
  close(pair[1]);
  char byte = 0;
  ASSERT_EQ(recv(pair[0], &byte, 1, 0), 1);
  WaitUntilGone(1);
  EXPECT_EQ(JobStatus(job).at("slots").at("quarantined"), 1);
  RankProcess first = Start(OptionsFor(spec, 0, 2));
  RankProcess replacement = Start(OptionsFor(spec, 1, 2));
  replacement.Run();
  const Course course = replacement.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  ASSERT_EQ(course.taken.size(), 20u);
  EXPECT_TRUE(course.taken[0].redelivered);
  EXPECT_FALSE(course.taken[1].redelivered);
  EXPECT_EQ(JobStatus(job).at("slots").at("quarantined"), 1);
  ASSERT_EQ(send(pair[0], &byte, 1, 0), 1);
  ASSERT_EQ(recv(pair[0], &byte, 1, 0), 1);
  EXPECT_EQ(byte, 1) << "its batch was overwritten";
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  close(pair[0]);
  WaitUntil("the slot is free",
            [&] { return JobStatus(job).at("slots").at("quarantined") == 0; });
}

// ---- memory

TEST_F(RankDeathTest, MemoryComesBackWhenAllHaveLeft) {
  const std::string spec =
      "dataset: large\nsource: {synthetic: {records: 1000, features: {x: "
      "{dtype: uint8, shape: [65536]}}}}\nbatch: {size: 64}\nepochs: forever";
  const auto shared_kib = [&] {
    std::ifstream status("/proc/" + std::to_string(broker_.pid()) + "/status");
    std::string word;
    uint64_t kib = 0;
    while (status >> word && word != "RssShmem:") {
    }
    status >> kib;
    return kib;
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      Options options = OptionsFor(spec, rank, 3);
      options.job.clear();
      ranks.push_back(Start(options));
    }
    WaitUntil("the memory is populated", [&] { return shared_kib() > 4096; });
    ranks[0].Kill();
    ranks[1].Detach();
    Ask({{"op", "evict"}, {"job", "default"}, {"rank", 2}});
    EXPECT_EQ(Jobs().size(), 1u);
    ranks[2].Kill();
    Ask({{"op", "stop"}, {"job", "default"}});
    WaitUntil("the job is gone", [&] { return Jobs().empty(); });
    WaitUntil("its memory, too", [&] { return shared_kib() < 1024; });
  }
}

}  // namespace penstock::rank_death_test
