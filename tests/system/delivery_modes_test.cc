// Promise: dynamic, broadcast and independent hand out each batch as
// documented, and make it as often as documented. Method: a penstockd process
// and ranks of this one; ranks become unequally fast by waiting for each
// other's progress, never for time.
#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::delivery_modes_test {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class DeliveryModesTest : public DeliveryTest {
 protected:
  Options Mode(const std::string& mode, const std::string& spec, int rank,
               int world_size) {
    Options options = OptionsFor(spec, rank, world_size);
    options.delivery = mode;
    return options;
  }
  Options Broadcast(const std::string& spec) {
    Options options = Mode("broadcast", spec, -1, 0);
    options.window = 3;
    return options;
  }
  // Takes the next result, which must be a batch.
  static Taken TakeOne(Reader& reader) {
    Batch batch;
    EXPECT_EQ(reader.next(&batch), Reader::Result::kBatch);
    return TakenOf(reader, batch);
  }
  static bool NothingIsReady(Reader& reader) {
    penstock_batch* batch = nullptr;
    const int code = penstock_next_within(reader.c_reader(), 0, &batch);
    penstock_release(batch);
    return code == PENSTOCK_DEADLINE_EXCEEDED;
  }
  std::string Name() const {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
};

class DynamicTest : public DeliveryModesTest {};
class BroadcastTest : public DeliveryModesTest {};
class IndependentTest : public DeliveryModesTest {};

// ---- dynamic

// The slow rank takes its next batch only after the others took ten more.
TEST_F(DynamicTest, SlowRankGetsFewerAndEveryBatchGoesToExactlyOne) {
  const std::string spec =
      RangeSpec("1000", "batch: {size: 7}\nshuffle: {seed: 5}\nepochs: 2");
  constexpr int kBatches = 2 * 143;
  std::atomic<int> all{0};
  std::atomic<int> of_others{0};
  std::vector<Course> courses(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Reader reader(Mode("dynamic", spec, rank, 3));
      courses[rank] = RunToTheEnd(reader, 1, [&](const Taken&) {
        ++all;
        if (rank != 0) {
          ++of_others;
          return;
        }
        // One more may wait untaken, for this rank.
        const int seen = of_others;
        while (of_others < seen + 10 && all < kBatches - 1) {
          std::this_thread::yield();
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<uint64_t, Rows> epochs;
  for (const Course& course : courses) {
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, 2u);
    for (const Taken& taken : course.taken) {
      EXPECT_FALSE(taken.redelivered);
      EXPECT_LE(taken.rows.size(), 7u);
      Append({taken}, &epochs[taken.epoch]);
    }
  }
  EXPECT_EQ(all, kBatches);
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(Sorted(epochs[0]), Numbers(1000));
  EXPECT_EQ(Sorted(epochs[1]), Numbers(1000));
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_LE(courses[0].taken.size(), kBatches / 10 + 3u);
}

TEST_F(DynamicTest, OneThatWaitsForTheEndIsToldWhoHasTheLastBatch) {
  const std::string spec = RangeSpec("20", "batch: {size: 1}");
  Options patient = Mode("dynamic", spec, 0, 2);
  patient.timeout_s = 1.5;
  Reader reader(patient);
  Reader idle(Mode("dynamic", spec, 1, 2));
  try {
    for (Batch batch; reader.next(&batch) == Reader::Result::kBatch;) {
      batch.release();
    }
    ADD_FAILURE() << "it was told the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_DEADLINE_EXCEEDED);
    EXPECT_THAT(error.what(), HasSubstr("which rank 1 has not released"));
  }
}

TEST_F(DynamicTest, RankThatNeverAsksAgainKeepsOneUntakenAndBlocksNobody) {
  const std::string spec = RangeSpec("40", "batch: {size: 2}");
  auto stuck = std::make_unique<Reader>(Mode("dynamic", spec, 0, 2));
  Reader other(Mode("dynamic", spec, 1, 2));
  Batch held;
  ASSERT_EQ(stuck->next(&held), Reader::Result::kBatch);
  Rows rows = TakenOf(*stuck, held).rows;
  for (int i = 0; i < 18; ++i) Append({TakeOne(other)}, &rows);
  const nlohmann::json status = RankOf(JobStatus(Name()), 0);
  EXPECT_EQ(status.at("ready"), 1);
  EXPECT_EQ(status.at("held"), 1);
  EXPECT_TRUE(NothingIsReady(other));
  // The batch it held is delivered; the one it did not take goes to another.
  held.release();
  stuck.reset();
  const Taken last = TakeOne(other);
  EXPECT_FALSE(last.redelivered);
  Append({last}, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(40));
  Batch none;
  EXPECT_EQ(other.next(&none), Reader::Result::kEndOfEpoch);
  EXPECT_EQ(other.next(&none), Reader::Result::kEndOfData);
}

// Each rank waits for its next batch while it holds one.
TEST_F(DynamicTest, RanksThatHoldTwoReachTheEnd) {
  const std::string spec = RangeSpec("300", "batch: {size: 2}\nepochs: 2");
  std::vector<Options> options;
  for (int rank = 0; rank < 3; ++rank) {
    options.push_back(Mode("dynamic", spec, rank, 3));
  }
  Rows rows;
  for (const Course& course : RunAll(options, 2)) {
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, 2u);
    Append(course.taken, &rows);
  }
  EXPECT_EQ(Sorted(rows), Numbers(300, 2));
}

// A trainer validates at the end of each epoch, on all ranks alike.
TEST_F(DynamicTest, RankThatGotNothingOfAnEpochIsToldOfItsEndAllTheSame) {
  const std::string spec = RangeSpec("8", "batch: {size: 2}\nepochs: 3");
  Reader idle(Mode("dynamic", spec, 0, 2));
  Reader busy(Mode("dynamic", spec, 1, 2));
  WaitUntilReady(Name(), 0, 1);
  Rows rows;
  for (int i = 0, ends = 0; i < 11; ++i) {
    Batch batch;
    while (busy.next(&batch) == Reader::Result::kEndOfEpoch) ++ends;
    Append({TakenOf(busy, batch)}, &rows);
    EXPECT_EQ(batch.epoch(), static_cast<uint64_t>(ends));
  }
  std::thread other([&] {
    const Course course = RunToTheEnd(busy);
    EXPECT_EQ(course.code, 0) << course.error;
    Append(course.taken, &rows);
  });
  const Course course = RunToTheEnd(idle);
  other.join();
  Append(course.taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(8, 3));
  EXPECT_EQ(course.epoch_ends, 3u);
  EXPECT_EQ(idle.epoch(), 3u);
}

// ---- broadcast

TEST_F(BroadcastTest, EveryConsumerGetsTheSameBatchesAndEachIsMadeOnce) {
  const std::string spec =
      RangeSpec("500", "batch: {size: 5}\nshuffle: {seed: 2}\nepochs: 2");
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::make_unique<Reader>(Broadcast(spec)));
    EXPECT_EQ(readers.back()->rank(), i);
  }
  std::vector<Course> courses(readers.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < readers.size(); ++i) {
    threads.emplace_back([&, i] { courses[i] = RunToTheEnd(*readers[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  // The first got the batches published before the last joined, at most a
  // window.
  ASSERT_EQ(courses[0].taken.size(), 200u);
  for (const Course& course : courses) {
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, 2u);
    ASSERT_GE(course.taken.size(), 197u);
    const size_t late = 200 - course.taken.size();
    for (size_t i = 0; i < course.taken.size(); ++i) {
      EXPECT_EQ(course.taken[i].rows, courses[0].taken[late + i].rows);
      EXPECT_EQ(course.taken[i].skipped, 0u);
    }
  }
  Rows rows;
  Append(courses[0].taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(500, 2));
  EXPECT_EQ(broker_.RowsMade(), 1000u);
}

TEST_F(BroadcastTest, OneWithOtherOptionsIsRefusedWithoutANumberItNeverHad) {
  const std::string spec = RangeSpec("60", "batch: {size: 2}");
  Reader first(Broadcast(spec));
  Options other = Broadcast(spec);
  other.window = 5;
  try {
    Reader reader(other);
    ADD_FAILURE() << "it was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_FAILED_PRECONDITION);
    EXPECT_THAT(error.what(), HasSubstr("a consumer disagrees with the ranks"));
  }
}

TEST_F(BroadcastTest, LateJoinerBeginsAtThePresent) {
  const std::string spec = RangeSpec("60", "batch: {size: 2}\nepochs: 2");
  Reader first(Broadcast(spec));
  for (uint64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(TakeOne(first).step, step);
  }
  WaitUntilReady(Name(), 0, 3);
  Reader late(Broadcast(spec));
  EXPECT_EQ(late.epoch(), 0u);
  std::map<int64_t, uint64_t> seen;
  std::vector<Taken> of_late;
  std::thread other([&] { of_late = RunToTheEnd(late).taken; });
  const std::vector<Taken> rest = RunToTheEnd(first).taken;
  other.join();
  ASSERT_EQ(rest.size(), 40u);
  // 20 were taken, and three waited for the first alone.
  ASSERT_EQ(of_late.size(), 37u);
  EXPECT_EQ(of_late[0].step, 23u);
  EXPECT_EQ(of_late[0].epoch, 0u);
  for (size_t i = 0; i < of_late.size(); ++i) {
    EXPECT_EQ(of_late[i].rows, rest[3 + i].rows);
    EXPECT_EQ(of_late[i].epoch, rest[3 + i].epoch);
  }
}

TEST_F(BroadcastTest, FullEpochJoinerGetsAsManyStepsAsAnEpochHas) {
  const std::string spec =
      RangeSpec("10", "batch: {size: 2}\nshuffle: {seed: 1}\nepochs: forever");
  Reader first(Broadcast(spec));
  for (int i = 0; i < 7; ++i) {
    Batch batch;
    if (first.next(&batch) != Reader::Result::kBatch) --i;
  }
  Options options = Broadcast(spec);
  options.full_epoch = true;
  Reader late(options);
  std::atomic<bool> stop{false};
  std::thread drain([&] {
    Batch batch;
    while (!stop) first.next(&batch);
  });
  for (uint64_t epoch = late.epoch(), end = epoch + 2; epoch < end; ++epoch) {
    Rows rows;
    for (uint64_t step = 0; step < 5; ++step) {
      const Taken taken = TakeOne(late);
      EXPECT_EQ(taken.step, step);
      EXPECT_EQ(taken.epoch, epoch);
      Append({taken}, &rows);
    }
    EXPECT_EQ(rows.size(), 10u);
    Batch none;
    EXPECT_EQ(late.next(&none), Reader::Result::kEndOfEpoch);
    EXPECT_EQ(late.epoch(), epoch + 1);
  }
  stop = true;
  // The other waits for this one, so it must go on taking.
  std::thread end([&] {
    Batch batch;
    try {
      for (;;) late.next(&batch);
    } catch (const Error&) {
    }
  });
  drain.join();
  penstock_stop_job(first.c_reader(), 1);
  end.join();
}

TEST_F(BroadcastTest, ConsumerThatLeavesEarlyDoesNotStopTheOthers) {
  const std::string spec = RangeSpec("100", "batch: {size: 2}");
  Reader stays(Broadcast(spec));
  WaitUntilReady(Name(), 0, 3);
  auto leaves = std::make_unique<Reader>(Broadcast(spec));
  for (int i = 0; i < 8; ++i) {
    TakeOne(stays);
    if (i >= 3) TakeOne(*leaves);
  }
  WaitUntilReady(Name(), 1, 3);
  leaves.reset();
  const Course course = RunToTheEnd(stays);
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(course.taken.size(), 42u);
}

TEST_F(BroadcastTest, NumberOfAConsumerThatLeftIsGivenAgain) {
  const std::string spec = RangeSpec("100", "batch: {size: 2}");
  Reader stays(Broadcast(spec));
  for (int round = 0; round < 3; ++round) {
    Reader leaves(Broadcast(spec));
    EXPECT_EQ(leaves.rank(), 1);
  }
}

// Two consumers that see the same batches from some batch on.
struct Pair {
  std::unique_ptr<Reader> fast;
  std::unique_ptr<Reader> slow;
  uint64_t begin;  // first batch of the slow one
};

class LagTest : public BroadcastTest {
 protected:
  Pair MakePair(const std::string& lag, const std::string& spec) {
    Options options = Broadcast(spec);
    options.lag = lag;
    Pair pair;
    pair.fast = std::make_unique<Reader>(options);
    WaitUntilReady(Name(), 0, 3);
    pair.slow = std::make_unique<Reader>(options);
    pair.begin = 3;
    return pair;
  }
};

TEST_F(LagTest, BlockLetsNobodyGoFurtherAheadThanTheWindow) {
  Pair pair = MakePair("block", RangeSpec("100", "batch: {size: 2}"));
  uint64_t fast = 0;
  const auto take_all = [&] {
    // Published to the slow one: later batches are published to both.
    while (fast < pair.begin + 3) {
      EXPECT_EQ(TakeOne(*pair.fast).step, fast);
      ++fast;
    }
    EXPECT_TRUE(NothingIsReady(*pair.fast));
  };
  take_all();
  WaitUntilReady(Name(), 1, 3);
  for (uint64_t slow = 3; slow < 20; ++slow) {
    EXPECT_EQ(TakeOne(*pair.slow).step, slow);
    ++pair.begin;
    take_all();
  }
}

TEST_F(LagTest, SkipTellsTheSlowOneHowManyItMissed) {
  Pair pair = MakePair("skip", RangeSpec("400", "batch: {size: 2}"));
  uint64_t next = pair.begin;
  uint64_t missed = 0;
  uint64_t received = 0;
  const auto take_slow = [&] {
    const Taken taken = TakeOne(*pair.slow);
    next += taken.skipped;
    missed += taken.skipped;
    EXPECT_EQ(taken.step, next);
    ++next;
    ++received;
  };
  for (uint64_t fast = 0; fast < 200; ++fast) {
    const Taken taken = TakeOne(*pair.fast);
    EXPECT_EQ(taken.step, fast);
    EXPECT_EQ(taken.skipped, 0u);
    if (fast % 5 == 4) take_slow();
  }
  const Course rest = RunToTheEnd(*pair.slow);
  for (const Taken& taken : rest.taken) missed += taken.skipped;
  received += rest.taken.size();
  EXPECT_EQ(rest.code, 0) << rest.error;
  EXPECT_EQ(rest.epoch_ends, 1u);
  EXPECT_LT(received, 50u);
  // No batch followed the last missed ones.
  EXPECT_LE(missed + received + pair.begin, 200u);
  EXPECT_EQ(pair.slow->stats().skipped + received + pair.begin, 200u);
  EXPECT_EQ(pair.fast->stats().skipped, 0u);
}

// They take turns, and are never further apart than the window.
TEST_F(LagTest, ConsumersThatKeepUpMissNothing) {
  for (const char* lag : {"skip", "fail"}) {
    const Pair pair = MakePair(lag, RangeSpec("400", "batch: {size: 2}"));
    for (uint64_t step = 0; step < pair.begin; ++step) {
      EXPECT_EQ(TakeOne(*pair.fast).step, step);
    }
    for (uint64_t step = pair.begin; step < 200;) {
      const uint64_t end = std::min<uint64_t>(step + 1 + step % 3, 200);
      for (Reader* reader : {pair.fast.get(), pair.slow.get()}) {
        for (uint64_t each = step; each < end; ++each) {
          const Taken taken = TakeOne(*reader);
          ASSERT_EQ(taken.step, each) << lag;
          ASSERT_EQ(taken.skipped, 0u);
        }
      }
      step = end;
    }
  }
}

// No batch follows that could count them.
TEST_F(LagTest, WhatIsMissedAtTheVeryEndIsInTheCountToo) {
  Pair pair = MakePair("skip", RangeSpec("40", "batch: {size: 2}"));
  EXPECT_EQ(RunToTheEnd(*pair.fast).taken.size(), 20u);
  const Course slow = RunToTheEnd(*pair.slow);
  EXPECT_EQ(slow.code, 0) << slow.error;
  EXPECT_EQ(slow.taken.size(), 3u);
  EXPECT_EQ(slow.epoch_ends, 1u);
  EXPECT_EQ(pair.slow->stats().skipped, 14u);
}

TEST_F(LagTest, FailTakesOffTheSlowOneAndTellsItTheWindow) {
  Pair pair = MakePair("fail", RangeSpec("100", "batch: {size: 2}"));
  const Course fast = RunToTheEnd(*pair.fast);
  EXPECT_EQ(fast.code, 0) << fast.error;
  EXPECT_EQ(fast.taken.size(), 50u);
  const Course slow = RunToTheEnd(*pair.slow);
  EXPECT_EQ(slow.code, PENSTOCK_ABORTED);
  EXPECT_THAT(slow.error, AllOf(HasSubstr("lag: fail"), HasSubstr("window: 3"),
                                HasSubstr("rank 1")));
}

TEST_F(BroadcastTest, MoreConsumersThanAgreedAreRefused) {
  Options options = Broadcast(RangeSpec("100", "batch: {size: 2}"));
  options.consumers = 2;
  Reader first(options);
  auto second = std::make_unique<Reader>(options);
  int code = 0;
  EXPECT_THAT(AttachError(options, &code), HasSubstr("2"));
  EXPECT_EQ(code, PENSTOCK_RESOURCE_EXHAUSTED);
  second.reset();
  WaitUntil("a free place",
            [&] { return RankOf(JobStatus(Name()), 1).is_null(); });
  EXPECT_EQ(AttachError(options), "");
}

TEST_F(BroadcastTest, FewerConsumersThanTheFirstBatchWaitsForAreRefused) {
  Options options = Broadcast(RangeSpec("100", "batch: {size: 2}"));
  options.world_size = 4;
  options.local_world_size = 4;
  options.consumers = 2;
  EXPECT_THAT(AttachError(options),
              HasSubstr("consumers is 2, but the first batch waits for the 4 "
                        "ranks of this host"));
}

// ---- independent

TEST_F(IndependentTest, EachConsumerHasTheWholeDatasetInAnOrderOfItsOwn) {
  const std::string spec =
      RangeSpec("100", "batch: {size: 10}\nshuffle: {seed: 4}\nepochs: 2");
  const auto order_of = [&](int rank) {
    Options options = Mode("independent", spec, rank, 3);
    options.job += std::to_string(rank);  // another broker job each time
    Reader reader(options);
    EXPECT_EQ(reader.rank(), rank);
    Rows rows;
    const Course course = RunToTheEnd(reader);
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.epoch_ends, 2u);
    Append(course.taken, &rows);
    return rows;
  };
  std::vector<Rows> orders;
  for (int rank = 0; rank < 3; ++rank) orders.push_back(order_of(rank));
  for (const Rows& rows : orders) EXPECT_EQ(Sorted(rows), Numbers(100, 2));
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[0], orders[2]);
  EXPECT_NE(orders[1], orders[2]);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(order_of(rank), orders[rank]);
}

// One takes nothing and delays nobody.
TEST_F(IndependentTest, ConsumersWithoutNumbersGetThemAndDoNotWaitForAnother) {
  const std::string spec = RangeSpec("100", "batch: {size: 10}");
  std::vector<std::unique_ptr<Reader>> readers;
  std::set<int> ranks;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(
        std::make_unique<Reader>(Mode("independent", spec, -1, 0)));
    ranks.insert(readers.back()->rank());
  }
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1, 2));
  for (int i = 1; i < 3; ++i) {
    Rows rows;
    Append(RunToTheEnd(*readers[i]).taken, &rows);
    EXPECT_EQ(Sorted(rows), Numbers(100));
  }
}

// Each consumer is seat 0 of a job of its own, and all jobs have one name.
TEST_F(IndependentTest, StatusNamesTheProcessOfEachConsumer) {
  const std::string spec = RangeSpec("100", "batch: {size: 10}");
  std::vector<RankProcess> ranks;
  std::map<int, pid_t> processes;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(Mode("independent", spec, rank, 2));
    ASSERT_EQ(ranks.back().Attached().value("rank", -1), rank);
    processes[rank] = ranks.back().pid();
  }
  std::map<int, pid_t> reported;
  for (const nlohmann::json& job : Jobs()) {
    for (const nlohmann::json& rank : job.at("ranks")) {
      reported[rank.at("rank").get<int>()] = rank.at("pid").get<pid_t>();
    }
  }
  EXPECT_EQ(reported, processes);
}

}  // namespace penstock::delivery_modes_test
