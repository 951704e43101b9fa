// Promise: an incarnation of a job belongs to its launch. Each rank number is
// told the end of the data once; a rank that attaches late, or in the place of
// a dead one, gets the rest and then the end, and no row comes twice. Only
// ranks that were told the end, or ask for it (another job name, a state, a
// stopped job), begin anew. Method: a real broker, and ranks of every mode that
// come late, are killed and are replaced; all rows are counted.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/delivery_fixture.h"
#include "tests/system/kept_broker.h"

namespace penstock::late_rank_test {

using testing::HasSubstr;

constexpr int kRecords = 103;
constexpr int kEpochs = 2;

class LateRankTest : public DeliveryTest,
                     public testing::WithParamInterface<const char*> {
 protected:
  static std::string Spec(int records = kRecords) {
    return RangeSpec(std::to_string(records),
                     "shuffle: {seed: 3}\nbatch: {size: 8}\nepochs: " +
                         std::to_string(kEpochs) + "\n");
  }
  Options OptionsOf(int rank, int world_size, const char* delivery) {
    Options options = OptionsFor(Spec(), rank, world_size);
    options.delivery = delivery;
    return options;
  }
  // Attaches, runs to the end and leaves.
  static Course RunOnce(const Options& options) {
    Reader reader(options);
    return RunToTheEnd(reader);
  }
};

class LateDynamicTest : public LateRankTest {};

TEST_F(LateDynamicTest, RanksThatComeOneAfterTheOtherGetEveryRowOnce) {
  Rows rows;
  for (int rank = 0; rank < 4; ++rank) {
    const Course course = RunOnce(OptionsOf(rank, 4, "dynamic"));
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, uint64_t{kEpochs});
    Append(course.taken, &rows);
  }
  EXPECT_EQ(Sorted(rows), Numbers(kRecords, kEpochs));
}

TEST_F(LateDynamicTest, RanksThatStartTogetherGetEveryRowOnce) {
  for (int round = 0; round < 5; ++round) {
    std::vector<Options> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back(OptionsOf(rank, 4, "dynamic"));
      ranks.back().job = "round " + std::to_string(round);
    }
    Rows rows;
    for (const Course& course : RunAll(ranks)) {
      EXPECT_EQ(course.code, 0) << course.error;
      Append(course.taken, &rows);
    }
    EXPECT_EQ(Sorted(rows), Numbers(kRecords, kEpochs));
  }
}

TEST_F(LateDynamicTest, RanksOfTheJobWithoutANameToo) {
  unsetenv("PENSTOCK_JOB");
  Rows rows;
  for (int rank = 0; rank < 3; ++rank) {
    Options options = OptionsOf(rank, 3, "dynamic");
    options.job.clear();
    Append(RunOnce(options).taken, &rows);
  }
  EXPECT_EQ(Sorted(rows), Numbers(kRecords, kEpochs));
}

TEST_F(LateDynamicTest, NextRoundBeginsForThoseThatWereToldTheEnd) {
  EXPECT_EQ(RunOnce(OptionsOf(0, 2, "dynamic")).taken.size(), 26u);
  // Rank 0 was told the end and attaches again, while rank 1 never attached.
  Rows rows;
  Append(RunOnce(OptionsOf(0, 2, "dynamic")).taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(kRecords, kEpochs));
  // Rank 1 is told the end of both rounds, one after the other, and then begins
  // one.
  for (int round = 1; round <= 2; ++round) {
    Reader reader(OptionsOf(1, 2, "dynamic"));
    EXPECT_EQ(reader.incarnation(), static_cast<uint64_t>(round));
    const Course course = RunToTheEnd(reader);
    EXPECT_TRUE(course.taken.empty());
    EXPECT_EQ(course.epoch_ends, uint64_t{kEpochs});
  }
  Reader reader(OptionsOf(1, 2, "dynamic"));
  EXPECT_EQ(reader.incarnation(), 3u);
  EXPECT_EQ(RunToTheEnd(reader).taken.size(), 26u);
}

TEST_F(LateDynamicTest, RankThatIsMissingAtTheEndOfARoundIsToldItInThatRound) {
  // Round 1 goes on with rank 1 while rank 0 is already in round 2.
  RankProcess slow(OptionsOf(1, 3, "dynamic"));
  ASSERT_EQ(slow.Attached().at("incarnation"), 1);
  const RankProcess::Event held = slow.Next();
  ASSERT_EQ(held.what, RankProcess::What::kBatch);
  Rows rows = held.taken.rows;
  RankProcess fast(OptionsOf(0, 3, "dynamic"));
  ASSERT_EQ(fast.Attached().at("incarnation"), 1);
  fast.Run();
  slow.Release(1);
  slow.Run();
  for (RankProcess* rank : {&fast, &slow}) {
    const Course course = rank->Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    Append(course.taken, &rows);
  }
  fast.Detach();
  RankProcess again(OptionsOf(0, 3, "dynamic"));
  EXPECT_EQ(again.Attached().at("incarnation"), 2);
  // Rank 2 never attached: it belongs to the first round.
  RankProcess late(OptionsOf(2, 3, "dynamic"));
  EXPECT_EQ(late.Attached().at("incarnation"), 1);
  late.Run();
  Append(late.Finished().taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(kRecords, kEpochs));
}

TEST_F(LateDynamicTest, RanksThatAllLeaveEarlyBeginAnewTogether) {
  for (int round = 1; round <= 3; ++round) {
    for (int rank = 0; rank < 2; ++rank) {
      Reader reader(OptionsOf(rank, 2, "dynamic"));
      EXPECT_EQ(reader.incarnation(), static_cast<uint64_t>(round));
      Batch batch;
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    }
  }
}

TEST_F(LateDynamicTest, RankThatLeftEarlyAndComesBackAloneBeginsAnew) {
  for (int round = 1; round <= 3; ++round) {
    Reader reader(OptionsOf(0, 2, "dynamic"));
    EXPECT_EQ(reader.incarnation(), static_cast<uint64_t>(round));
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    EXPECT_EQ(batch.epoch(), 0u);
    EXPECT_EQ(batch.step(), 0u);
  }
}

TEST_F(LateDynamicTest, StoppedJobIsForgotten) {
  RunOnce(OptionsOf(0, 2, "dynamic"));
  Ask({{"op", "stop"}, {"job", OptionsOf(0, 2, "dynamic").job}});
  EXPECT_EQ(RunOnce(OptionsOf(1, 2, "dynamic")).taken.size(), 26u);
}

// local_world_size is 1, and two attach.
TEST_F(LateRankTest, ConsumerBeyondThoseOfThisHostIsToldTheEndToo) {
  Options options[] = {OptionsOf(0, 2, "broadcast"),
                       OptionsOf(1, 2, "broadcast")};
  for (Options& each : options) each.local_world_size = 1;
  RankProcess first(options[0]);
  first.Attached();
  RankProcess killed(options[1]);
  killed.Attached();
  killed.Kill();
  first.Run();
  ASSERT_EQ(first.Finished().code, 0);
  first.Detach();
  Reader reader(options[1]);
  EXPECT_EQ(reader.incarnation(), 1u);
  EXPECT_EQ(RunToTheEnd(reader).code, 0);
}

// All take the steps that any of them was given, whichever are dead meanwhile.
TEST_F(LateRankTest, StoppedJobKeepsWhatADeadRankIsOwed) {
  Options options[] = {OptionsOf(0, 2, "split"), OptionsOf(1, 2, "split")};
  for (Options& each : options) each.on_rank_death = "wait";
  RankProcess other(options[0]);
  RankProcess killed(options[1]);
  other.Attached();
  killed.Attached();
  const RankProcess::Event held = killed.Next();
  killed.Kill();
  Ask({{"op", "stop"}, {"job", options[0].job}});
  other.Run();
  const Course course = other.Finished();
  ASSERT_EQ(course.code, 0) << course.error;
  other.Detach();
  const Course back = RunOnce(options[1]);
  EXPECT_EQ(back.code, 0) << back.error;
  ASSERT_EQ(back.taken.size(), course.taken.size());
  EXPECT_EQ(back.taken.front().rows, held.taken.rows);
  EXPECT_TRUE(back.taken.front().redelivered);
}

TEST_F(LateRankTest, StoppedJobKeepsWhatARankIsOwedThatHasNotCome) {
  RankProcess first(OptionsOf(0, 2, "split"));
  first.Attached();
  first.Next();
  Ask({{"op", "stop"}, {"job", OptionsOf(0, 2, "split").job}});
  first.Run();
  const Course course = first.Finished();
  ASSERT_EQ(course.code, 0) << course.error;
  first.Detach();
  EXPECT_EQ(RunOnce(OptionsOf(1, 2, "split")).taken.size(),
            course.taken.size() + 1);
}

TEST_F(LateDynamicTest, RanksThatDisagreeAreAnotherLaunch) {
  RunOnce(OptionsOf(0, 2, "dynamic"));
  EXPECT_EQ(RunOnce(OptionsOf(1, 3, "dynamic")).taken.size(), 26u);
}

TEST_F(LateDynamicTest, LaunchOverSeveralHostsIsRefusedUnlessEachIsToHaveAll) {
  Options options = OptionsOf(0, 4, "dynamic");
  options.local_world_size = 2;
  int code = 0;
  const std::string error = AttachError(options, &code);
  EXPECT_EQ(code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(error, HasSubstr("2 of 4 ranks"));
  EXPECT_THAT(error, HasSubstr("split"));
  EXPECT_THAT(error, HasSubstr("per_host"));
  Rows rows;
  for (const int rank : {2, 3}) {
    options.rank = rank;
    options.per_host = true;
    Append(RunOnce(options).taken, &rows);
  }
  EXPECT_EQ(Sorted(rows), Numbers(kRecords, kEpochs));
}

// ---- a rank that is killed at the end and started again

class KilledAtTheEndTest : public LateRankTest {};

TEST_P(KilledAtTheEndTest, IsToldTheEndWhenTheOthersAreGone) {
  const std::string mode = GetParam();
  Options options[] = {OptionsOf(0, 2, GetParam()),
                       OptionsOf(1, 2, GetParam())};
  Rows rows;
  {
    RankProcess killed(options[0]);
    RankProcess other(options[1]);
    for (RankProcess* rank : {&killed, &other}) rank->Attached();
    for (RankProcess* rank : {&killed, &other}) rank->Run();
    for (RankProcess* rank : {&killed, &other}) {
      const Course course = rank->Finished();
      ASSERT_EQ(course.code, 0) << course.error;
      Append(course.taken, &rows);
    }
    other.Detach();
  }
  const int times =
      mode == "split" || mode == "dynamic" ? kEpochs : 2 * kEpochs;
  EXPECT_EQ(Sorted(rows), Numbers(kRecords, times));
  const Course replacement = RunOnce(options[0]);
  EXPECT_EQ(replacement.code, 0) << replacement.error;
  EXPECT_TRUE(replacement.taken.empty());
  // Now that both have left, it begins anew.
  Reader reader(options[0]);
  EXPECT_EQ(reader.incarnation(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Modes, KilledAtTheEndTest,
                         testing::Values("split", "dynamic", "broadcast",
                                         "independent"));

class KilledInTheMiddleTest : public LateRankTest {};

TEST_P(KilledInTheMiddleTest, GetsWhatIsLeftAndThenTheEnd) {
  Options options[] = {OptionsOf(0, 2, GetParam()),
                       OptionsOf(1, 2, GetParam())};
  for (Options& each : options) {
    if (std::string(GetParam()) != "dynamic") each.on_rank_death = "wait";
  }
  Rows unmarked;
  Rows marked;
  const auto count = [&](const std::vector<Taken>& taken) {
    for (const Taken& each : taken) {
      Append({each}, each.redelivered ? &marked : &unmarked);
    }
  };
  RankProcess killed(options[0]);
  RankProcess other(options[1]);
  for (RankProcess* rank : {&killed, &other}) rank->Attached();
  const RankProcess::Event first = killed.Next();
  count({first.taken});
  other.Run();
  killed.Kill();
  if (std::string(GetParam()) == "broadcast") {
    // The other ranks wait for it.
    RankProcess back(options[0]);
    back.Attached();
    back.Run();
    count(back.Finished().taken);
    count(other.Finished().taken);
    back.Detach();
    other.Detach();
    EXPECT_EQ(Sorted(unmarked), Numbers(kRecords, 2 * kEpochs));
  } else {
    count(other.Finished().taken);
    other.Detach();
    const Course back = RunOnce(options[0]);
    EXPECT_EQ(back.code, 0) << back.error;
    count(back.taken);
    EXPECT_EQ(Sorted(unmarked), Numbers(kRecords, kEpochs));
  }
  EXPECT_EQ(Sorted(marked), Sorted(first.taken.rows));
}

INSTANTIATE_TEST_SUITE_P(Modes, KilledInTheMiddleTest,
                         testing::Values("split", "dynamic", "broadcast"));

// ---- across a death of the broker

class LateAfterBrokerDeathTest : public testing::Test {
 protected:
  Options OptionsOf(int rank, const char* delivery) const {
    Options options;
    options.spec =
        "dataset: numbers\nsource: {range: 103}\nshuffle: {seed: 3}\n"
        "batch: {size: 8}\nepochs: 2\n";
    options.rank = rank;
    options.world_size = 3;
    options.socket = broker_.socket();
    options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
    options.delivery = delivery;
    options.timeout_s = 60;
    return options;
  }
  KeptBroker broker_;
};

TEST_F(LateAfterBrokerDeathTest, DeliveredJobIsRememberedByTheNextBroker) {
  Rows rows;
  {
    Reader reader(OptionsOf(0, "dynamic"));
    Append(RunToTheEnd(reader).taken, &rows);
  }
  EXPECT_EQ(Sorted(rows), Numbers(103, 2));
  for (const int rank : {1, 2}) {
    broker_.Kill();
    Reader reader(OptionsOf(rank, "dynamic"));
    EXPECT_EQ(reader.incarnation(), 1u);
    EXPECT_TRUE(RunToTheEnd(reader).taken.empty());
  }
  broker_.Kill();
  Reader reader(OptionsOf(1, "dynamic"));
  Append(RunToTheEnd(reader).taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(103, 4));
}

// The same process does too.
TEST_F(LateAfterBrokerDeathTest, WhoLeavesUnheardWasToldTheEnd) {
  for (const char* delivery : {"dynamic", "independent"}) {
    std::vector<std::unique_ptr<Reader>> readers;
    for (const uint64_t incarnation : {1, 2}) {
      Rows rows;
      for (const int rank : {0, 1, 2}) {
        Options options = OptionsOf(rank, delivery);
        options.job += delivery;
        readers.push_back(std::make_unique<Reader>(options));
        EXPECT_EQ(readers.back()->incarnation(), incarnation) << delivery;
        Append(RunToTheEnd(*readers.back()).taken, &rows);
      }
      EXPECT_EQ(Sorted(rows),
                Numbers(103, std::string(delivery) == "dynamic" ? 2 : 6));
      broker_.Kill();
      readers.clear();
    }
  }
}

TEST_F(LateAfterBrokerDeathTest, RanksThatAllLeftEarlyBeginAnew) {
  for (const char* delivery : {"dynamic", "broadcast"}) {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<Reader>> readers;
      for (const int rank : {0, 1, 2}) {
        Options options = OptionsOf(rank, delivery);
        options.job += delivery;
        readers.push_back(std::make_unique<Reader>(options));
      }
      Batch batch;
      ASSERT_EQ(readers[0]->next(&batch), Reader::Result::kBatch);
      EXPECT_EQ(batch.epoch(), 0u) << delivery;
      EXPECT_LT(batch.step(), 3u)
          << delivery;  // the others may have the first two
      EXPECT_FALSE(batch.redelivered()) << delivery;
      batch.release();
      readers.clear();
      broker_.Kill();
    }
  }
}

TEST_F(LateAfterBrokerDeathTest, WhoLeftBeforeTheDeathBeginsAnewAfterIt) {
  RankProcess slow(OptionsOf(1, "dynamic"));
  slow.Attached();
  ASSERT_EQ(slow.Next().what, RankProcess::What::kBatch);
  {
    RankProcess early(OptionsOf(2, "dynamic"));
    early.Attached();
    early.Run();
    slow.Release(1);
    slow.Run();
    slow.Finished();
    early.Finished();
    early.Detach();
  }
  broker_.Kill();
  slow.Kill();
  RankProcess again(OptionsOf(2, "dynamic"));
  EXPECT_EQ(again.Attached().at("incarnation"), 2);
  RankProcess late(OptionsOf(0, "dynamic"));
  EXPECT_EQ(late.Attached().at("incarnation"), 1);
  late.Run();
  EXPECT_TRUE(late.Finished().taken.empty());
}

}  // namespace penstock::late_rank_test
