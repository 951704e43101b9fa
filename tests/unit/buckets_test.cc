// Promise: with buckets each step has rows of one bucket, as many as its size
// but for the last of the bucket; a pass has each row once; no row is longer
// than its bucket says; steps begin at the same rows in each pass, whose order
// differs; and a plan begins at any step, with any number of ranks. Method:
// random lengths, all rows of several passes.
#include "broker/plan/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/plan/plan.h"
#include "tests/unit/plan_rows.h"

namespace penstock::buckets_test {

using testing::ElementsAre;
using testing::HasSubstr;

using Lengths = std::vector<int64_t>;

Lengths RandomLengths(uint64_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  Lengths lengths(rows);
  for (int64_t& length : lengths) {
    length = std::uniform_int_distribution<int64_t>(1, 500)(random);
  }
  return lengths;
}

SelectContext ContextOf(const Lengths& lengths) {
  SelectContext context;
  context.columns.push_back({"tokens.length", [&lengths](uint64_t record) {
                               return ColumnValue(lengths[record]);
                             }});
  context.columns.push_back(
      {"name", [](uint64_t) { return ColumnValue(std::string("x")); }});
  return context;
}

StatusOr<std::shared_ptr<const Buckets>> BucketsOf(
    const Lengths& lengths, std::vector<uint64_t> boundaries,
    uint32_t count = 8) {
  return Buckets::Make({.by = "tokens.length",
                        .count = count,
                        .boundaries = std::move(boundaries)},
                       *AllRecords(lengths.size()), ContextOf(lengths));
}

StatusOr<Plan> PlanOf(const Lengths& lengths,
                      const std::shared_ptr<const Buckets>& buckets,
                      BatchSpec batch, bool shuffle, uint32_t ranks = 1,
                      std::optional<uint64_t> steps = std::nullopt) {
  PlanSpec spec;
  spec.epochs = 3;
  spec.steps_per_epoch = steps;
  if (shuffle) spec.shuffle = ShuffleSpec{.seed = 7};
  spec.batch = batch;
  PENSTOCK_ASSIGN_OR_RETURN(
      std::unique_ptr<Order> order,
      InBuckets(AllRecords(lengths.size()), buckets, batch,
                batch.per_rank ? ranks : 1,
                spec.shuffle ? &*spec.shuffle : nullptr, {}));
  return Plan::Make(spec, std::move(order), ranks);
}

TEST(BucketsTest, EachPassHasEachRowOnceInBatchesOfOneBucket) {
  for (const uint64_t count : {1, 7, 63, 64, 1000}) {
    for (const bool shuffle : {false, true}) {
      const Lengths lengths = RandomLengths(count, count);
      const auto buckets = *BucketsOf(lengths, {}, 5);
      const Plan plan = *PlanOf(lengths, buckets, {.size = 12}, shuffle, 3);
      Shuffles shuffles;
      std::vector<std::vector<uint64_t>> passes(3);
      std::vector<std::set<uint64_t>> short_ones(3);
      for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
        const Plan::RankBatch batch = plan.RankBatchOf(step, 0);
        ASSERT_TRUE(batch.part);
        const std::vector<Plan::Row> rows = RowsOf(plan, step, &shuffles);
        ASSERT_EQ(rows.size(), batch.global_rows);
        ASSERT_LE(rows.size(), 12u);
        if (rows.size() < std::min<uint64_t>(12, buckets->Rows(*batch.part))) {
          EXPECT_TRUE(short_ones[batch.epoch].insert(*batch.part).second);
        }
        for (const Plan::Row& row : rows) {
          const auto length = static_cast<uint64_t>(lengths[row.record]);
          EXPECT_LE(length, buckets->longest(*batch.part));
          if (*batch.part > 0) {
            EXPECT_GT(length, buckets->longest(*batch.part - 1));
          }
          passes[batch.epoch].push_back(row.record);
        }
      }
      const std::vector<uint64_t> first = passes[0];
      for (std::vector<uint64_t>& pass : passes) {
        if (count > 60) {
          EXPECT_EQ(pass == first, &pass == &passes[0] || !shuffle);
        }
        std::sort(pass.begin(), pass.end());
        EXPECT_EQ(pass.size(), count);
        EXPECT_EQ(std::set<uint64_t>(pass.begin(), pass.end()).size(), count);
      }
    }
  }
}

TEST(BucketsTest, WithoutAShuffleRowsComeInTheirOrderFromTheShortest) {
  const Lengths lengths = {9, 1, 8, 2, 30, 3};
  const auto buckets = *BucketsOf(lengths, {4, 16});
  const Plan plan = *PlanOf(lengths, buckets, {.size = 2}, false);
  Shuffles shuffles;
  std::vector<uint64_t> records;
  for (uint64_t step = 0; step < 4; ++step) {
    for (const Plan::Row& row : RowsOf(plan, step, &shuffles)) {
      records.push_back(row.record);
    }
  }
  EXPECT_THAT(records, ElementsAre(1, 3, 5, 0, 2, 4));
  EXPECT_EQ(buckets->boundary(0), 4u);
  EXPECT_EQ(buckets->boundary(2), 0u);
  EXPECT_EQ(buckets->longest(2), 30u);
}

TEST(BucketsTest, BeginsAtAnyStepWithAnyNumberOfRanks) {
  const Lengths lengths = RandomLengths(501, 3);
  const auto buckets = *BucketsOf(lengths, {});
  const Plan whole = *PlanOf(lengths, buckets, {.size = 16}, true);
  Shuffles shuffles;
  for (uint64_t step = 0; step < *whole.total_steps(); step += 7) {
    for (const uint32_t ranks : {1, 3, 4}) {
      const auto rest = whole.From({.position = whole.PositionOf(step)}, ranks);
      ASSERT_TRUE(rest.ok()) << rest.status().message();
      Shuffles others;
      for (uint64_t i = step; i < *whole.total_steps(); ++i) {
        ASSERT_EQ(RowsOf(*rest, i - step, &others),
                  RowsOf(whole, i, &shuffles));
      }
    }
  }
  const auto within = whole.From({.position = 3}, 1);
  EXPECT_THAT(
      within.status().message(),
      HasSubstr("with batch.buckets a job resumes where a step begins"));
}

TEST(BucketsTest, AnEpochMayHaveMoreStepsThanAPass) {
  const Lengths lengths = RandomLengths(100, 5);
  const auto buckets = *BucketsOf(lengths, {}, 4);
  const Plan plan =
      *PlanOf(lengths, buckets, {.size = 8}, true, 2, /*steps=*/50);
  Shuffles shuffles;
  uint64_t rows = 0;
  for (uint64_t step = 0; step < 50; ++step) {
    rows += RowsOf(plan, step, &shuffles).size();
    EXPECT_EQ(plan.RankBatchOf(step, 0).last_of_epoch, step == 49);
  }
  EXPECT_EQ(rows, plan.rows_per_epoch());
  EXPECT_GT(rows, 300u);
}

TEST(BucketsTest, DropLeavesOutTheShortOnesAndPadFillsThem) {
  const Lengths lengths = RandomLengths(203, 6);
  const auto buckets = *BucketsOf(lengths, {}, 4);
  const Plan drop =
      *PlanOf(lengths, buckets, {.size = 16, .last = LastBatch::kDrop}, true);
  Shuffles shuffles;
  std::set<uint64_t> seen;
  for (uint64_t step = 0; step < *drop.total_steps(); ++step) {
    const auto rows = RowsOf(drop, step, &shuffles);
    EXPECT_EQ(rows.size(), 16u);
    for (const Plan::Row& row : rows) seen.insert(row.record);
  }
  // Three passes leave out other rows each.
  EXPECT_GT(seen.size(), drop.rows_per_epoch());
  const Plan pad =
      *PlanOf(lengths, buckets, {.size = 16, .last = LastBatch::kPad}, true);
  for (uint64_t step = 0; step < pad.steps_per_epoch(); ++step) {
    EXPECT_EQ(pad.RankBatchOf(step, 0).shape_rows, 16u);
  }
  EXPECT_EQ(pad.rows_per_epoch(), 203u);
  // No slot needs room for more rows than a bucket has.
  const Lengths rare = {1, 1, 1, 1, 9};
  const auto two = *BucketsOf(rare, {1});
  const Plan full =
      *PlanOf(rare, two, {.size = 3, .last = LastBatch::kDrop}, true);
  EXPECT_EQ(full.steps_per_epoch(), 1u);
  EXPECT_EQ(full.max_batch_rows(0, 0), 3u);
  EXPECT_EQ(full.max_batch_rows(0, 1), 1u);
  const Plan tokens =
      *PlanOf(rare, two, {.size = 1 << 20, .tokens = true}, true);
  EXPECT_EQ(tokens.global_batch(), 4u);
  EXPECT_THAT(
      PlanOf(lengths, buckets, {.size = 1000, .last = LastBatch::kDrop}, true)
          .status()
          .message(),
      HasSubstr("no bucket of 4 fills a batch"));
}

TEST(BucketsTest, TokensAreRowsTimesTheLongestOfTheBucket) {
  const Lengths lengths = RandomLengths(4000, 8);
  const auto buckets = *BucketsOf(lengths, {}, 16);
  for (const uint32_t ranks : {1u, 4u}) {
    const Plan plan =
        *PlanOf(lengths, buckets,
                {.size = 4096, .per_rank = true, .tokens = true}, true, ranks);
    uint64_t short_ones = 0;
    for (uint64_t step = 0; step < plan.steps_per_epoch(); ++step) {
      const uint32_t bucket = *plan.RankBatchOf(step, 0).part;
      const uint64_t wanted = 4096 / buckets->longest(bucket);
      EXPECT_LE(plan.RankBatchOf(step, 0).rows, wanted);
      if (plan.RankBatchOf(step, 0).global_rows < wanted * ranks) {
        ++short_ones;
        continue;
      }
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(plan.RankBatchOf(step, rank).rows, wanted);
      }
      EXPECT_EQ(plan.max_batch_rows(0, bucket), wanted);
    }
    EXPECT_LE(short_ones, buckets->size());
  }
  EXPECT_THAT(PlanOf(lengths, buckets, {.size = 100, .tokens = true}, true)
                  .status()
                  .message(),
              HasSubstr("batch.tokens: 100, and rows have up to"));
  // The longest row, although a bucket before it is too wide as well.
  const Lengths few = {6, 1, 8};
  EXPECT_THAT(
      PlanOf(few, *BucketsOf(few, {1, 6}), {.size = 5, .tokens = true}, true)
          .status()
          .message(),
      HasSubstr("batch.tokens: 5, and rows have up to 8:"));
}

TEST(BucketsTest, EqualLengthsAreOneBucketAndEmptyRowsAreRows) {
  const Lengths same(50, 7);
  EXPECT_EQ((*BucketsOf(same, {}))->size(), 1u);
  const Lengths empty(50, 0);
  const auto buckets = *BucketsOf(empty, {});
  EXPECT_EQ(buckets->longest(0), 0u);
  const Plan plan = *PlanOf(empty, buckets, {.size = 64, .tokens = true}, true);
  EXPECT_EQ(plan.steps_per_epoch(), 1u);
}

TEST(BucketsTest, WidthsMakeTheFewestTokens) {
  // Against all choices of widths of a few lengths.
  std::mt19937_64 random(4);
  for (int turn = 0; turn < 50; ++turn) {
    Lengths lengths(40);
    for (int64_t& length : lengths) {
      length = std::uniform_int_distribution<int64_t>(0, 9)(random) *
               std::uniform_int_distribution<int64_t>(0, 9)(random);
    }
    const auto tokens = [&](const std::vector<uint64_t>& widths) {
      const auto buckets = *BucketsOf(lengths, widths);
      uint64_t all = 0;
      for (size_t i = 0; i < buckets->size(); ++i) {
        if (buckets->Rows(i) < lengths.size() / 3 / 4) return UINT64_MAX;
        all += buckets->Rows(i) * buckets->longest(i);
      }
      return all;
    };
    uint64_t fewest = UINT64_MAX;
    for (uint64_t first = 1; first <= 80; ++first) {
      for (uint64_t second = first + 1; second <= 81; ++second) {
        fewest = std::min(fewest, tokens({first, second}));
      }
    }
    const auto chosen = *BucketsOf(lengths, {}, 3);
    uint64_t all = 0;
    for (size_t i = 0; i < chosen->size(); ++i) {
      all += chosen->Rows(i) * chosen->longest(i);
      EXPECT_GE(chosen->Rows(i), 3u);
    }
    EXPECT_EQ(all, fewest);
  }
}

TEST(BucketsTest, SaysWhatItCannotGoBy) {
  const Lengths lengths = {1, -2, 3};
  const auto make = [&](const std::string& by, const Order& order) {
    return std::string(Buckets::Make({.by = by}, order, ContextOf(lengths))
                           .status()
                           .message());
  };
  EXPECT_THAT(make("length", *AllRecords(3)),
              HasSubstr("no column 'length'; it has name, tokens.length"));
  EXPECT_THAT(make("words.length", *AllRecords(3)),
              HasSubstr("a list that `map` makes is no column"));
  EXPECT_THAT(make("name", *AllRecords(3)), HasSubstr("'name' is text"));
  EXPECT_THAT(make("tokens.length", *AllRecords(3)),
              HasSubstr("is -2 in record 1"));
  std::vector<std::unique_ptr<Order>> parts;
  parts.push_back(AllRecords(1));
  parts.push_back(AllRecords(2, 1));
  const auto mix = Mix(std::move(parts), {{0, {1, 1}}}, WhenOut::kRepeat, {});
  EXPECT_THAT(make("tokens.length", **mix),
              HasSubstr("use a `concat` of the parts, or `batch.by_part`"));
}

}  // namespace penstock::buckets_test
