// Promise: in a mix with a batch size for each part, each step has rows of one
// part, as many as its size; of any number of steps each part has its share,
// less than one more or less; rows of a part come in the order of the part, all
// but those that fill no batch; and a plan begins at any step, with any number
// of ranks. Method: against a plain count of turns, on random mixes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/plan/plan.h"
#include "tests/unit/plan_rows.h"

namespace penstock::batches_by_part_test {

using testing::HasSubstr;

using Sizes = std::vector<uint64_t>;

std::unique_ptr<Order> MixOf(const Sizes& records,
                             std::vector<MixWeights> schedule,
                             WhenOut when_out) {
  std::vector<std::unique_ptr<Order>> parts;
  uint64_t first = 0;
  for (const uint64_t size : records) {
    parts.push_back(AllRecords(size, first));
    first += size;
  }
  auto mix = Mix(std::move(parts), std::move(schedule), when_out, {});
  EXPECT_TRUE(mix.ok()) << mix.status().message();
  return *std::move(mix);
}

StatusOr<Plan> PlanOf(const Sizes& records, std::vector<MixWeights> schedule,
                      WhenOut when_out, const Sizes& batches, PlanSpec spec,
                      uint32_t ranks = 1) {
  const auto mix = MixOf(records, std::move(schedule), when_out);
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Order> order,
                            mix->mix()->InBatches(batches, {}));
  spec.batch.by_part = batches;
  return Plan::Make(spec, std::move(order), ranks);
}

PlanSpec SpecOf(std::optional<uint64_t> steps = std::nullopt,
                bool shuffle = true) {
  PlanSpec spec;
  spec.epochs = 3;
  spec.steps_per_epoch = steps;
  if (shuffle) spec.shuffle = ShuffleSpec{.seed = 7};
  return spec;
}

size_t PartOf(const Sizes& records, uint64_t record) {
  size_t part = 0;
  for (; record >= records[part]; ++part) record -= records[part];
  return part;
}

TEST(BatchesByPartTest, EachStepIsOfOnePartAndAllHaveTheirShares) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t parts = 1 + random() % 4;
    const auto when_out = static_cast<WhenOut>(round % 3);
    Sizes records, batches;
    std::vector<uint32_t> weights;
    for (size_t i = 0; i < parts; ++i) {
      batches.push_back(1 + random() % 7);
      records.push_back(batches[i] + random() % 60);
      weights.push_back(static_cast<uint32_t>(1 + random() % 5));
    }
    const auto plan = PlanOf(records, {{0, weights}}, when_out, batches,
                             SpecOf(std::nullopt, round % 2 == 0), 3);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto period =
        std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    Shuffles shuffles;
    std::map<uint64_t, uint64_t> turns;           // of each part
    std::map<uint64_t, std::set<uint64_t>> seen;  // records
    bool all_last = true;
    uint64_t row = 0;
    for (uint64_t step = 0; step < plan->steps_per_epoch(); ++step) {
      const Plan::RankBatch batch = plan->RankBatchOf(step, 0);
      ASSERT_TRUE(batch.part.has_value());
      ASSERT_EQ(batch.global_rows, batches[*batch.part]);
      ASSERT_EQ(batch.position, row);
      ASSERT_EQ(batch.step_in_epoch, step);
      ASSERT_EQ(batch.last_of_epoch, step + 1 == plan->steps_per_epoch());
      row += batch.global_rows;
      const std::vector<Plan::Row> rows = RowsOf(*plan, step, &shuffles);
      ASSERT_EQ(rows.size(), batch.global_rows);
      for (const Plan::Row& each : rows) {
        ASSERT_EQ(PartOf(records, each.record), *batch.part);
        if (when_out != WhenOut::kRepeat) {
          ASSERT_TRUE(seen[*batch.part].insert(each.record).second);
        }
      }
      ++turns[*batch.part];
      for (size_t i = 0; i < parts; ++i) {
        all_last &= turns[i] < records[i] / batches[i];
        if (when_out == WhenOut::kDrop && !all_last) continue;
        const double share = static_cast<double>((step + 1) * weights[i]) /
                             static_cast<double>(period);
        ASSERT_LT(std::abs(static_cast<double>(turns[i]) - share), 1);
      }
    }
    ASSERT_EQ(row, plan->rows_per_epoch());
    for (size_t i = 0; i < parts; ++i) {
      const uint64_t whole = records[i] / batches[i];
      if (when_out != WhenOut::kRepeat) {
        ASSERT_LE(turns[i], whole);
      }
      if (when_out != WhenOut::kStop) {
        ASSERT_GE(turns[i], whole);
      }
    }
  }
}

TEST(BatchesByPartTest, APlanBeginsAtAnyStepWithAnyRanks) {
  const Sizes records = {40, 17, 25};
  const Sizes batches = {6, 4, 1};
  for (const std::optional<uint64_t> steps :
       {std::optional<uint64_t>(), std::optional<uint64_t>(5),
        std::optional<uint64_t>(61)}) {
    const auto plan = PlanOf(records, {{0, {2, 1, 3}}}, WhenOut::kDrop, batches,
                             SpecOf(steps));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    Shuffles shuffles;
    std::vector<std::vector<Plan::Row>> whole;
    for (uint64_t step = 0; step < *plan->total_steps(); ++step) {
      whole.push_back(RowsOf(*plan, step, &shuffles));
    }
    ASSERT_EQ(whole.size(), 3 * plan->steps_per_epoch());
    for (uint64_t step = 0; step <= whole.size(); ++step) {
      const uint64_t position = plan->PositionOf(step);
      EXPECT_EQ(plan->StepAt(position), step);
      for (const uint32_t ranks : {1u, 2u, 5u}) {
        const auto rest = plan->From({.position = position}, ranks);
        ASSERT_TRUE(rest.ok()) << rest.status().message();
        ASSERT_EQ(*rest->total_steps(), whole.size() - step);
        for (uint64_t i = 0; i < *rest->total_steps(); ++i) {
          ASSERT_EQ(RowsOf(*rest, i, &shuffles), whole[step + i]);
          ASSERT_EQ(rest->StepFrom(rest->PositionOf(i)), i);
        }
      }
      if (step == whole.size() || whole[step].size() == 1) continue;
      const auto within = plan->From({.position = position + 1}, 1);
      EXPECT_THAT(within.status().message(),
                  HasSubstr("with batch.by_part a job resumes where a step "
                            "begins"));
      // A part of a step is owed.
      PlanStart start = {.position = plan->PositionOf(step + 1)};
      start.owed = {{position + 1, whole[step].size() - 1, true}};
      const auto owed = plan->From(start, 1);
      ASSERT_TRUE(owed.ok()) << owed.status().message();
      const Plan::RankBatch batch = owed->RankBatchOf(0, 0);
      EXPECT_EQ(batch.part, plan->RankBatchOf(step, 0).part);
      EXPECT_EQ(batch.global_rows, whole[step].size() - 1);
      EXPECT_EQ(
          RowsOf(*owed, 0, &shuffles),
          std::vector<Plan::Row>(whole[step].begin() + 1, whole[step].end()));
      if (step + 1 == whole.size() ||
          plan->PositionOf(step + 1) % plan->rows_per_epoch() == 0) {
        continue;
      }
      start.owed = {{position, whole[step].size() + 1, true}};
      start.position = plan->PositionOf(step + 2);
      EXPECT_FALSE(plan->From(start, 1).ok());
    }
  }
}

TEST(BatchesByPartTest, AnEpochOfMoreStepsGoesOnWithTheNextPass) {
  const Sizes records = {12, 5};
  const auto plan = PlanOf(records, {{0, {1, 1}}}, WhenOut::kDrop, {4, 2},
                           SpecOf(12, /*shuffle=*/false));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // A pass: 4 of the first, 2 of the second, 4, 2, 4; one record is left out.
  EXPECT_EQ(plan->records(), 16u);
  EXPECT_EQ(plan->rows_per_epoch(), 16u + 16u + 6u);
  Shuffles shuffles;
  const std::vector<Plan::Row> second = RowsOf(*plan, 5, &shuffles);
  ASSERT_EQ(second.size(), 4u);
  EXPECT_EQ(second[0].record, 0u);
  EXPECT_EQ(second[0].pass, 1u);
}

TEST(BatchesByPartTest, AScheduleTakesEffectWithTheNextStep) {
  const auto plan =
      PlanOf({1000, 1000}, {{0, {1, 0}}, {10, {1, 1}}, {41, {0, 1}}},
             WhenOut::kStop, {4, 6}, SpecOf(std::nullopt, false));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<uint32_t> parts;
  for (uint64_t step = 0; step < 12; ++step) {
    parts.push_back(*plan->RankBatchOf(step, 0).part);
  }
  // From row 12 on by turns, from row 42 on the second.
  EXPECT_EQ(parts, (std::vector<uint32_t>{0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(plan->PositionOf(9), 42u);
}

TEST(BatchesByPartTest, ASubstituteIsOfTheSameStep) {
  const auto plan =
      PlanOf({40, 30}, {{0, {1, 2}}}, WhenOut::kDrop, {7, 4}, SpecOf());
  ASSERT_TRUE(plan.ok());
  Shuffles shuffles;
  for (uint64_t step = 0; step < plan->steps_per_epoch(); ++step) {
    const std::vector<Plan::Row> rows = RowsOf(*plan, step, &shuffles);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t k = 0; k < 9; ++k) {
        EXPECT_EQ(plan->Following(rows[i], k, &shuffles),
                  rows[(i + k) % rows.size()]);
      }
    }
  }
}

TEST(BatchesByPartTest, PaddingFillsTheBatchOfThePart) {
  PlanSpec spec = SpecOf();
  spec.batch.last = LastBatch::kPad;
  const auto plan =
      PlanOf({40, 30}, {{0, {1, 1}}}, WhenOut::kDrop, {7, 3}, spec, 2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->max_batch_rows(0), 4u);
  EXPECT_EQ(plan->RankBatchOf(0, 0).shape_rows, 4u);
  EXPECT_EQ(plan->RankBatchOf(0, 1).shape_rows, 3u);
  EXPECT_EQ(plan->RankBatchOf(1, 0).shape_rows, 2u);
  EXPECT_EQ(plan->RankBatchOf(1, 1).shape_rows, 1u);
}

TEST(BatchesByPartTest, WhatCannotBeIsAnError) {
  const auto error = [](const StatusOr<Plan>& plan) {
    return plan.status().message();
  };
  EXPECT_EQ(
      error(PlanOf({40, 3}, {{0, {1, 1}}}, WhenOut::kDrop, {7, 4}, SpecOf())),
      "parts[1]: has 3 records, less than a batch of it, 4: leave the "
      "part out, or give it a smaller one");
  const auto plan =
      PlanOf({40, 30}, {{0, {1, 1}}}, WhenOut::kDrop, {7, 3}, SpecOf());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(error(plan->WithWeights({0, 7, {1, 2}}, {})),
              HasSubstr("with batch.by_part other weights would give other "
                        "steps"));
  PlanSpec endless = SpecOf(uint64_t{1} << 40);
  EXPECT_THAT(error(PlanOf({uint64_t{1} << 40, 30}, {{0, {1, 1}}},
                           WhenOut::kRepeat, {1 << 20, 3}, endless)),
              HasSubstr("rows in an epoch"));
}

}  // namespace penstock::batches_by_part_test
