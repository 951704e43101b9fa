// Promise: the plan divides rows into steps and rank batches as documented, the
// same from any resume point and for any number of ranks. Method: the pure plan
// against hand-made examples, and against itself from every step and row.
#include "broker/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace penstock::plan_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Records = std::vector<uint64_t>;

// A dataset of n records in batches of `batch`, with other options set by the
// test.
struct PlanTest : testing::Test {
  PlanSpec spec;
  uint64_t n = 0;

  void Dataset(uint64_t records, uint64_t batch,
               LastBatch last = LastBatch::kPartial) {
    spec = {};
    spec.batch = {.size = batch, .last = last};
    n = records;
  }

  Plan Make(uint32_t world_size) {
    StatusOr<Plan> plan = Plan::Make(spec, n, world_size);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return *std::move(plan);
  }

  std::string MakeError(uint32_t world_size) {
    const StatusOr<Plan> plan = Plan::Make(spec, n, world_size);
    if (plan.ok()) return "";
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    return plan.status().message();
  }

  static std::vector<Plan::Row> RowsOf(const Plan& plan, uint64_t step,
                                       uint32_t rank) {
    const Plan::RankBatch share = plan.RankBatchOf(step, rank);
    std::vector<Plan::Row> rows(share.rows);
    plan.Rows(share.epoch, share.first_row, share.rows, rows.data());
    return rows;
  }

  // The rows of this rank in this step.
  static Records Batch(const Plan& plan, uint64_t step, uint32_t rank = 0) {
    Records records;
    for (const Plan::Row& row : RowsOf(plan, step, rank)) {
      records.push_back(row.record);
    }
    return records;
  }

  // All ranks' rows of a step, in the order of the ranks.
  static std::vector<Plan::Row> GlobalBatch(const Plan& plan, uint64_t step) {
    std::vector<Plan::Row> rows;
    for (uint32_t rank = 0; rank < plan.world_size(); ++rank) {
      for (const Plan::Row& row : RowsOf(plan, step, rank)) {
        rows.push_back(row);
      }
    }
    return rows;
  }

  static Records EpochRecords(const Plan& plan, uint64_t epoch) {
    std::vector<Plan::Row> rows(plan.rows_per_epoch());
    plan.Rows(epoch, 0, rows.size(), rows.data());
    Records records;
    for (const Plan::Row& row : rows) records.push_back(row.record);
    return records;
  }

  static std::vector<uint64_t> StepSizes(const Plan& plan) {
    std::vector<uint64_t> sizes;
    for (uint64_t step = 0; step < plan.steps_per_epoch(); ++step) {
      sizes.push_back(plan.RankBatchOf(step, 0).global_rows);
    }
    return sizes;
  }
};

// ---- the documented examples of tf.data and tf.distribute -------------------

TEST_F(PlanTest, Range6InBatchesOf4OnOneAndTwoRanks) {
  Dataset(6, 4);
  const Plan one = Make(1);
  EXPECT_EQ(one.total_steps(), 2u);
  EXPECT_THAT(Batch(one, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Batch(one, 1), ElementsAre(4, 5));
  const Plan two = Make(2);
  EXPECT_EQ(two.total_steps(), 2u);
  EXPECT_THAT(Batch(two, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(Batch(two, 1, 0), ElementsAre(4));
  EXPECT_THAT(Batch(two, 0, 1), ElementsAre(2, 3));
  EXPECT_THAT(Batch(two, 1, 1), ElementsAre(5));
}

TEST_F(PlanTest, FourRowsOnFiveRanksLeaveTheLastOneEmpty) {
  Dataset(4, 4);
  const Plan plan = Make(5);
  EXPECT_EQ(plan.total_steps(), 1u);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(Batch(plan, 0, rank), ElementsAre(rank));
    EXPECT_EQ(plan.max_batch_rows(rank), 1u);
  }
  EXPECT_THAT(Batch(plan, 0, 4), IsEmpty());
  EXPECT_EQ(plan.max_batch_rows(4), 0u);
}

TEST_F(PlanTest, Range8InBatchesOf4OnThreeRanksGivesTheFirstRankMore) {
  Dataset(8, 4);
  const Plan one = Make(1);
  EXPECT_THAT(Batch(one, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Batch(one, 1), ElementsAre(4, 5, 6, 7));
  const Plan three = Make(3);
  EXPECT_EQ(three.total_steps(), 2u);
  EXPECT_THAT(Batch(three, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(Batch(three, 1, 0), ElementsAre(4, 5));
  EXPECT_THAT(Batch(three, 0, 1), ElementsAre(2));
  EXPECT_THAT(Batch(three, 1, 1), ElementsAre(6));
  EXPECT_THAT(Batch(three, 0, 2), ElementsAre(3));
  EXPECT_THAT(Batch(three, 1, 2), ElementsAre(7));
}

TEST_F(PlanTest, Range9InBatchesOf4OnTwoRanksEndsWithAnEmptyBatch) {
  Dataset(9, 4);
  const Plan plan = Make(2);
  EXPECT_EQ(plan.total_steps(), 3u);
  EXPECT_THAT(Batch(plan, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(Batch(plan, 0, 1), ElementsAre(2, 3));
  EXPECT_THAT(Batch(plan, 1, 0), ElementsAre(4, 5));
  EXPECT_THAT(Batch(plan, 1, 1), ElementsAre(6, 7));
  EXPECT_THAT(Batch(plan, 2, 0), ElementsAre(8));
  EXPECT_THAT(Batch(plan, 2, 1), IsEmpty());
  EXPECT_TRUE(plan.RankBatchOf(2, 1).last_of_data);
}

TEST_F(PlanTest, HundredRowsInBatchesOf16) {
  Dataset(100, 16);
  EXPECT_THAT(StepSizes(Make(1)), ElementsAre(16, 16, 16, 16, 16, 16, 4));
  const Plan two = Make(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (uint64_t step = 0; step < 6; ++step) {
      EXPECT_EQ(two.RankBatchOf(step, rank).rows, 8u);
    }
    EXPECT_EQ(two.RankBatchOf(6, rank).rows, 2u);
  }
}

TEST_F(PlanTest, TenEpochsOfFiveFixedStepsAreFiftyStepsEachEpochRestarting) {
  Dataset(100, 16);
  spec.epochs = 10;
  spec.steps_per_epoch = 5;
  const Plan plan = Make(1);
  EXPECT_EQ(plan.total_steps(), 50u);
  for (uint64_t step = 0; step < 50; ++step) {
    const Records batch = Batch(plan, step);
    EXPECT_EQ(batch.size(), 16u);
    EXPECT_EQ(batch.front(), step % 5 * 16);
    EXPECT_EQ(RowsOf(plan, step, 0).front().pass, step / 5);
  }
}

// ---- the last batch ---------------------------------------------------------

TEST_F(PlanTest, PartialEndsWithTheRowsThatAreLeft) {
  Dataset(10, 4, LastBatch::kPartial);
  const Plan plan = Make(3);
  EXPECT_EQ(plan.steps_per_epoch(), 3u);
  EXPECT_EQ(plan.rows_per_epoch(), 10u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const Plan::RankBatch share = plan.RankBatchOf(2, rank);
    EXPECT_EQ(share.rows, rank < 2 ? 1u : 0u);
    EXPECT_EQ(share.shape_rows, share.rows);
    EXPECT_EQ(share.global_rows, 2u);
  }
}

TEST_F(PlanTest, PadKeepsTheShapeOfAFullBatch) {
  Dataset(10, 4, LastBatch::kPad);
  const Plan plan = Make(3);
  EXPECT_EQ(plan.steps_per_epoch(), 3u);
  EXPECT_EQ(plan.rows_per_epoch(), 10u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (uint64_t step = 0; step < 3; ++step) {
      const Plan::RankBatch share = plan.RankBatchOf(step, rank);
      EXPECT_EQ(share.shape_rows, rank == 0 ? 2u : 1u);
      EXPECT_EQ(share.shape_rows, plan.max_batch_rows(rank));
      EXPECT_LE(share.rows, share.shape_rows);
    }
    EXPECT_EQ(plan.RankBatchOf(2, rank).rows, rank < 2 ? 1u : 0u);
  }
}

TEST_F(PlanTest, DropLeavesTheRestOfTheShuffledOrderOut) {
  Dataset(10, 4, LastBatch::kDrop);
  spec.shuffle = ShuffleSpec{.seed = 3};
  spec.epochs = 50;
  const Plan plan = Make(1);
  EXPECT_EQ(plan.steps_per_epoch(), 2u);
  EXPECT_EQ(plan.rows_per_epoch(), 8u);
  std::set<uint64_t> left_out;
  for (uint64_t epoch = 0; epoch < 50; ++epoch) {
    Records records = EpochRecords(plan, epoch);
    std::sort(records.begin(), records.end());
    for (uint64_t record = 0; record < 10; ++record) {
      if (!std::binary_search(records.begin(), records.end(), record)) {
        left_out.insert(record);
      }
    }
  }
  EXPECT_EQ(left_out.size(), 10u);  // others every epoch
}

TEST_F(PlanTest, DropWithoutAFullBatchIsAnErrorThatSaysTheWayOut) {
  Dataset(3, 4, LastBatch::kDrop);
  EXPECT_THAT(MakeError(1), HasSubstr("3 records"));
  EXPECT_THAT(MakeError(1), HasSubstr("last: partial"));
  spec.steps_per_epoch = 2;
  EXPECT_EQ(MakeError(1), "");
}

TEST_F(PlanTest, ABatchLargerThanTheDataHasTheDatasRows) {
  Dataset(3, 1000);
  const Plan plan = Make(2);
  EXPECT_EQ(plan.steps_per_epoch(), 1u);
  EXPECT_EQ(plan.max_batch_rows(0), 2u);
  EXPECT_EQ(plan.max_batch_rows(1), 1u);
  spec.batch.last = LastBatch::kPad;
  EXPECT_EQ(Make(2).max_batch_rows(0), 500u);
}

// ---- steps_per_epoch --------------------------------------------------------

TEST_F(PlanTest, AsManyFixedStepsAsThereAreDoNotGoRound) {
  Dataset(100, 16);
  spec.steps_per_epoch = 7;
  const Plan plan = Make(1);
  EXPECT_THAT(StepSizes(plan), ElementsAre(16, 16, 16, 16, 16, 16, 4));
  EXPECT_EQ(plan.rows_per_epoch(), 100u);
}

TEST_F(PlanTest, OneStepMoreGoesRoundWithFullBatchesAcrossTheSeam) {
  for (const LastBatch last :
       {LastBatch::kPartial, LastBatch::kDrop, LastBatch::kPad}) {
    Dataset(100, 16, last);
    spec.steps_per_epoch = 8;
    spec.epochs = 2;
    const Plan plan = Make(1);
    EXPECT_THAT(StepSizes(plan), ElementsAre(16, 16, 16, 16, 16, 16, 16, 16));
    EXPECT_THAT(Batch(plan, 6), ElementsAre(96, 97, 98, 99, 0, 1, 2, 3, 4, 5, 6,
                                            7, 8, 9, 10, 11));
    const std::vector<Plan::Row> seam = RowsOf(plan, 6, 0);
    EXPECT_EQ(seam[3], (Plan::Row{99, 0, 99, 0}));
    EXPECT_EQ(seam[4], (Plan::Row{0, 1, 0, 1}));
    // The next epoch begins a pass of its own.
    EXPECT_EQ(RowsOf(plan, 8, 0)[0], (Plan::Row{0, 2, 0, 2}));
    EXPECT_EQ(plan.RankBatchOf(8, 0).epoch, 1u);
  }
}

TEST_F(PlanTest, DropGoesRoundOnlyPastItsFullBatches) {
  Dataset(100, 16, LastBatch::kDrop);
  spec.steps_per_epoch = 6;
  EXPECT_EQ(Make(1).rows_per_epoch(), 96u);
  spec.steps_per_epoch = 7;
  EXPECT_EQ(Make(1).rows_per_epoch(), 112u);
}

TEST_F(PlanTest, EveryPassOfAnEpochHasEveryRecordInAnOrderOfItsOwn) {
  Dataset(10, 7);
  spec.shuffle = ShuffleSpec{.seed = 42};
  spec.steps_per_epoch = 5;  // 35 rows: 3.5 passes
  const Plan plan = Make(1);
  std::set<Records> orders;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    const Records records = EpochRecords(plan, epoch);
    ASSERT_EQ(records.size(), 35u);
    for (size_t pass = 0; pass < 3; ++pass) {
      Records order(records.begin() + pass * 10,
                    records.begin() + pass * 10 + 10);
      EXPECT_TRUE(orders.insert(order).second);
      std::sort(order.begin(), order.end());
      EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    }
  }
}

// ---- the order --------------------------------------------------------------

TEST_F(PlanTest, WithoutShuffleEveryEpochIsTheSourcesOrder) {
  Dataset(5, 2);
  spec.epochs = 3;
  const Plan plan = Make(1);
  EXPECT_THAT(EpochRecords(plan, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(EpochRecords(plan, 2), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(PlanTest, ShuffleIsThePermutationOfThePass) {
  Dataset(1000, 100);
  spec.shuffle = ShuffleSpec{.seed = 42};
  spec.epochs = 5;
  const Records records = EpochRecords(Make(1), 3);
  const Permutation order(1000, 42, 3);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(records[i], order(i));
}

TEST_F(PlanTest, OneOrderForAllEpochsStillHasPassesOfItsOwn) {
  Dataset(300, 100);
  spec.shuffle = ShuffleSpec{.seed = 42, .each_epoch = false};
  spec.epochs = 5;
  const Plan plan = Make(1);
  EXPECT_EQ(EpochRecords(plan, 0), EpochRecords(plan, 4));
  EXPECT_EQ(RowsOf(plan, 0, 0)[0].pass, 0u);
  EXPECT_EQ(RowsOf(plan, 12, 0)[0].pass, 4u);
}

TEST_F(PlanTest, TheGlobalBatchDoesNotDependOnTheNumberOfRanks) {
  for (const LastBatch last :
       {LastBatch::kPartial, LastBatch::kDrop, LastBatch::kPad}) {
    for (const uint64_t steps_per_epoch : {0, 3, 20}) {
      Dataset(331, 37, last);
      spec.shuffle = ShuffleSpec{.seed = 7};
      spec.epochs = 2;
      if (steps_per_epoch > 0) spec.steps_per_epoch = steps_per_epoch;
      const Plan one = Make(1);
      for (const uint32_t world_size : {2, 3, 4, 5, 8, 64}) {
        const Plan plan = Make(world_size);
        ASSERT_EQ(plan.total_steps(), one.total_steps());
        for (uint64_t step = 0; step < *one.total_steps(); ++step) {
          ASSERT_EQ(GlobalBatch(plan, step), GlobalBatch(one, step))
              << world_size << " ranks, step " << step;
        }
      }
    }
  }
}

TEST_F(PlanTest, SharesAreContiguousAndDifferByOneRowAtMost) {
  Dataset(331, 37);
  spec.epochs = 2;
  for (const uint32_t world_size : {1, 2, 5, 8, 64}) {
    const Plan plan = Make(world_size);
    for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
      uint64_t next = plan.RankBatchOf(step, 0).first_row;
      EXPECT_EQ(next, step % plan.steps_per_epoch() * 37);
      uint64_t previous = plan.RankBatchOf(step, 0).rows;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        const Plan::RankBatch share = plan.RankBatchOf(step, rank);
        EXPECT_EQ(share.first_row, next);
        EXPECT_TRUE(share.rows == previous || share.rows + 1 == previous);
        EXPECT_LE(share.shape_rows, plan.max_batch_rows(rank));
        next += share.rows;
        previous = share.rows;
      }
    }
  }
}

TEST_F(PlanTest, RowsInPiecesWithAKeptOrderAreTheRowsAtOnce) {
  Dataset(300, 64);
  spec.shuffle = ShuffleSpec{.seed = 1};
  spec.epochs = 3;
  spec.steps_per_epoch = 12;
  const Plan plan = Make(1);
  Shuffles cache;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<Plan::Row> at_once(768);
    plan.Rows(epoch, 0, 768, at_once.data());
    std::vector<Plan::Row> in_pieces(768);
    for (uint64_t first = 0; first < 768; first += 7) {
      plan.Rows(epoch, first, std::min<uint64_t>(7, 768 - first), &cache,
                &in_pieces[first]);
    }
    EXPECT_EQ(in_pieces, at_once);
  }
}

// ---- marks, sizes, limits ---------------------------------------------------

TEST_F(PlanTest, TheLastStepOfAnEpochAndOfAllDataIsMarked) {
  Dataset(10, 4);
  spec.epochs = 2;
  const Plan plan = Make(2);
  std::vector<uint64_t> last_of_epoch;
  std::vector<uint64_t> last_of_data;
  for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
    if (plan.RankBatchOf(step, 1).last_of_epoch) last_of_epoch.push_back(step);
    if (plan.RankBatchOf(step, 1).last_of_data) last_of_data.push_back(step);
  }
  EXPECT_THAT(last_of_epoch, ElementsAre(2, 5));
  EXPECT_THAT(last_of_data, ElementsAre(5));
}

TEST_F(PlanTest, ForeverHasEpochsWithoutEnd) {
  Dataset(10, 4);
  spec.epochs = std::nullopt;
  const Plan plan = Make(1);
  EXPECT_EQ(plan.epochs(), std::nullopt);
  EXPECT_EQ(plan.total_steps(), std::nullopt);
  const Plan::RankBatch share = plan.RankBatchOf(3'000'000'002, 0);
  EXPECT_EQ(share.epoch, 1'000'000'000u);
  EXPECT_EQ(share.rows, 2u);
  EXPECT_TRUE(share.last_of_epoch);
  EXPECT_FALSE(share.last_of_data);
}

TEST_F(PlanTest, PerRankBatchesMultiplyByTheWorldSize) {
  Dataset(100, 8);
  spec.batch.per_rank = true;
  const Plan plan = Make(3);
  EXPECT_EQ(plan.global_batch(), 24u);
  EXPECT_EQ(plan.max_batch_rows(2), 8u);
  EXPECT_THAT(StepSizes(plan), ElementsAre(24, 24, 24, 24, 4));
}

TEST_F(PlanTest, NoRecordsAndNoRanksAreErrors) {
  Dataset(0, 4);
  EXPECT_THAT(MakeError(1), HasSubstr("no records"));
  Dataset(4, 4);
  EXPECT_THAT(MakeError(0), HasSubstr("world size"));
  spec.batch.size = 0;
  EXPECT_THAT(MakeError(1), HasSubstr("batch: 0 rows"));
}

TEST_F(PlanTest, PositionsNearTheirMaximumDoNotWrap) {
  constexpr uint64_t kMax = Plan::kTotalRowsMax;
  Dataset(kMax, 3);
  spec.shuffle = ShuffleSpec{.seed = 1};
  const Plan plan = Make(7);
  EXPECT_EQ(plan.rows_per_epoch(), kMax);
  EXPECT_EQ(plan.steps_per_epoch(), kMax / 3 + 1);
  const uint64_t last = *plan.total_steps() - 1;
  const Plan::RankBatch share = plan.RankBatchOf(last, 0);
  EXPECT_EQ(share.global_rows, kMax % 3);
  EXPECT_EQ(share.first_row, kMax - kMax % 3);
  EXPECT_LT(Batch(plan, last)[0], kMax);

  spec.steps_per_epoch = kMax / 3 + 1;  // the natural number: no wrap
  EXPECT_EQ(Make(1).rows_per_epoch(), kMax);
  spec.steps_per_epoch = kMax / 3 + 2;
  EXPECT_THAT(MakeError(1), HasSubstr("steps_per_epoch"));

  Dataset(kMax + 1, 1);
  EXPECT_THAT(MakeError(1), HasSubstr("records"));
  Dataset(kMax, 1);
  spec.epochs = 2;
  EXPECT_THAT(MakeError(1), HasSubstr("epochs: 2 of"));
  Dataset(10, kMax);
  EXPECT_EQ(Make(4'000'000'000).rows_per_epoch(), 10u);
  spec.batch.per_rank = true;
  EXPECT_THAT(MakeError(2), HasSubstr("batch"));
  Dataset(1, 1);
  spec.epochs = kMax;
  EXPECT_EQ(Make(1).total_steps(), kMax);
  spec.epochs = kMax + 1;
  EXPECT_THAT(MakeError(1), HasSubstr("epochs"));
}

// ---- begun elsewhere -------------------------------------------------------

// All global rows of a plan as positions, step by step.
std::vector<std::vector<uint64_t>> PositionsOf(const Plan& plan) {
  std::vector<std::vector<uint64_t>> steps;
  for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
    std::vector<uint64_t>& rows = steps.emplace_back();
    for (uint32_t rank = 0; rank < plan.world_size(); ++rank) {
      const Plan::RankBatch share = plan.RankBatchOf(step, rank);
      for (uint64_t i = 0; i < share.rows; ++i) {
        rows.push_back(share.epoch * plan.rows_per_epoch() + share.first_row +
                       i);
      }
    }
    EXPECT_EQ(plan.RankBatchOf(step, 0).position, plan.PositionOf(step));
  }
  return steps;
}

TEST(PlanFromTest, EveryStepBoundaryResumesWithTheIdenticalGlobalBatches) {
  for (const LastBatch last :
       {LastBatch::kPartial, LastBatch::kPad, LastBatch::kDrop}) {
    PlanSpec spec;
    spec.batch.size = 4;
    spec.batch.last = last;
    spec.epochs = 3;
    const Plan whole = Plan::Make(spec, 10, 2).value();
    const auto all = PositionsOf(whole);
    for (uint64_t step = 0; step <= all.size(); ++step) {
      for (const uint32_t world : {1u, 2u, 3u, 7u}) {
        const Plan rest =
            whole.From({whole.PositionOf(step), {}}, world).value();
        EXPECT_EQ(PositionsOf(rest), std::vector(all.begin() + step, all.end()))
            << "step " << step << " world " << world;
        EXPECT_EQ(whole.StepAt(whole.PositionOf(step)), step);
      }
    }
  }
}

TEST(PlanFromTest, AnyRowResumesWithoutLosingOrRepeatingOne) {
  PlanSpec spec;
  spec.batch.size = 4;
  spec.epochs = 2;
  const Plan whole = Plan::Make(spec, 10, 2).value();
  for (uint64_t position = 0; position <= 20; ++position) {
    const Plan rest = whole.From({position, {}}, 3).value();
    uint64_t next = position;
    for (const auto& step : PositionsOf(rest)) {
      for (const uint64_t row : step) EXPECT_EQ(row, next++);
    }
    EXPECT_EQ(next, 20u);
  }
}

TEST(PlanFromTest, OwedRowsComeFirstEachAStepOfItsOwn) {
  PlanSpec spec;
  spec.batch.size = 4;
  const Plan whole = Plan::Make(spec, 12, 2).value();
  const Plan rest = whole.From({8, {{1, 2, true}, {4, 3, false}}}, 2).value();
  EXPECT_EQ(PositionsOf(rest), (std::vector<std::vector<uint64_t>>{
                                   {1, 2}, {4, 5, 6}, {8, 9, 10, 11}}));
  EXPECT_TRUE(rest.RankBatchOf(0, 1).redelivered);
  EXPECT_TRUE(rest.RankBatchOf(1, 0).extra);
  EXPECT_FALSE(rest.RankBatchOf(1, 0).redelivered);
  EXPECT_FALSE(rest.RankBatchOf(2, 0).extra);
  EXPECT_TRUE(rest.RankBatchOf(2, 0).last_of_epoch);
  EXPECT_EQ(rest.StepAt(8), 2u);
}

TEST(PlanFromTest, ImpossibleStartsAreRefused) {
  PlanSpec spec;
  spec.batch.size = 4;
  const Plan whole = Plan::Make(spec, 10, 2).value();
  EXPECT_FALSE(whole.From({11, {}}, 2).ok());
  EXPECT_FALSE(whole.From({8, {{7, 2, false}}}, 2).ok());
  EXPECT_FALSE(whole.From({8, {{0, 0, false}}}, 2).ok());
  EXPECT_FALSE(whole.From({8, {{0, 5, false}}}, 2).ok());
  EXPECT_TRUE(whole.From({10, {}}, 2).ok());
}

}  // namespace penstock::plan_test
