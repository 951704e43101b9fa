// Promise: under `shard: file` each file belongs to one rank, as tf.data deals
// files; every record comes once in a pass, all ranks take equally many steps,
// and a job goes on at any step with any number of ranks in the same sequence.
// Method: beside the same made with plain lists, for random sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "broker/plan/orders.h"
#include "broker/plan/plan.h"
#include "broker/plan/select.h"
#include "broker/plan/shard_steps.h"

namespace penstock::shard_by_file_test {

using testing::ElementsAre;
using testing::HasSubstr;

// Files of so many records, numbered through.
struct Files {
  std::vector<uint64_t> sizes;

  uint64_t records() const {
    uint64_t sum = 0;
    for (const uint64_t size : sizes) sum += size;
    return sum;
  }
  size_t FileOf(uint64_t record) const {
    size_t file = 0;
    while (record >= sizes[file]) record -= sizes[file++];
    return file;
  }
  SelectContext Context() const {
    return {{{"file",
              [this](uint64_t record) {
                return "f" + std::to_string(FileOf(record));
              }}},
            {}};
  }
  // The records of a shard, in order.
  std::vector<uint64_t> Of(uint32_t shard, uint32_t shards) const {
    std::vector<uint64_t> records;
    uint64_t record = 0;
    for (size_t file = 0; file < sizes.size(); ++file) {
      for (uint64_t i = 0; i < sizes[file]; ++i, ++record) {
        if (file % shards == shard) records.push_back(record);
      }
    }
    return records;
  }
};

StatusOr<Plan> MakePlan(const Files& files, uint32_t shards, uint64_t batch,
                        PlanSpec spec = {}) {
  PENSTOCK_ASSIGN_OR_RETURN(
      std::unique_ptr<Order> order,
      ShardByFile(AllRecords(files.records()), shards, batch,
                  spec.shuffle ? &*spec.shuffle : nullptr, files.Context()));
  spec.batch.size = batch;
  return Plan::Make(spec, std::move(order), shards);
}

std::vector<uint64_t> RecordsOf(const Plan& plan, uint64_t step,
                                uint32_t rank) {
  const Plan::RankBatch share = plan.RankBatchOf(step, rank);
  std::vector<Plan::Row> rows(share.rows);
  plan.Rows(share.epoch, share.first_row, share.rows, rows.data());
  std::vector<uint64_t> records;
  for (const Plan::Row& row : rows) records.push_back(row.record);
  return records;
}

std::vector<uint64_t> RecordsOf(const Plan& plan, uint64_t step) {
  std::vector<uint64_t> records;
  for (uint32_t rank = 0; rank < plan.world_size(); ++rank) {
    const std::vector<uint64_t> more = RecordsOf(plan, step, rank);
    records.insert(records.end(), more.begin(), more.end());
  }
  return records;
}

class RandomFiles {
 public:
  uint64_t Draw(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random_);
  }
  Files Make(uint64_t count) {
    Files files;
    for (uint64_t i = 0; i < count; ++i) files.sizes.push_back(Draw(1, 30));
    return files;
  }

 private:
  std::mt19937_64 random_{7};
};

TEST(ShardByFileTest, EachRankGetsTheRecordsOfItsFilesInOrder) {
  const Plan plan = *MakePlan({{6, 6}}, 2, 4);
  ASSERT_EQ(plan.total_steps(), 3u);
  EXPECT_THAT(RecordsOf(plan, 0, 0), ElementsAre(0, 1));
  EXPECT_THAT(RecordsOf(plan, 0, 1), ElementsAre(6, 7));
  EXPECT_THAT(RecordsOf(plan, 2, 0), ElementsAre(4, 5));
  EXPECT_THAT(RecordsOf(plan, 2, 1), ElementsAre(10, 11));
}

TEST(ShardByFileTest, AnySizesGiveWhatListsGive) {
  RandomFiles random;
  for (int round = 0; round < 300; ++round) {
    const auto shards = static_cast<uint32_t>(random.Draw(1, 5));
    const Files files = random.Make(random.Draw(shards, 9));
    const uint64_t batch = random.Draw(shards, 40);
    PlanSpec spec;
    spec.epochs = 2;
    const Plan plan = *MakePlan(files, shards, batch, spec);
    std::vector<std::vector<uint64_t>> left;
    for (uint32_t i = 0; i < shards; ++i) left.push_back(files.Of(i, shards));
    uint64_t position = 0;
    uint64_t step = 0;
    for (; step < plan.steps_per_epoch(); ++step) {
      EXPECT_EQ(plan.PositionOf(step), position);
      EXPECT_EQ(plan.StepAt(position), step);
      EXPECT_EQ(plan.StepFrom(position), step);
      EXPECT_EQ(plan.StepFrom(plan.rows_per_epoch() + position),
                plan.steps_per_epoch() + step);
      EXPECT_EQ(plan.StepOfEpoch(position), step);
      uint64_t rows = 0;
      for (uint32_t rank = 0; rank < shards; ++rank) {
        const uint64_t block = batch / shards + (rank < batch % shards);
        std::vector<uint64_t>& of_rank = left[rank];
        const size_t count = std::min<size_t>(block, of_rank.size());
        EXPECT_EQ(
            RecordsOf(plan, step, rank),
            std::vector<uint64_t>(of_rank.begin(), of_rank.begin() + count));
        of_rank.erase(of_rank.begin(), of_rank.begin() + count);
        EXPECT_LE(count, plan.max_batch_rows(rank));
        EXPECT_LE(plan.max_batch_rows(rank), plan.max_batch_rows(0));
        rows += count;
      }
      const Plan::RankBatch share = plan.RankBatchOf(step, 0);
      EXPECT_EQ(share.global_rows, rows);
      EXPECT_EQ(share.last_of_epoch, step + 1 == plan.steps_per_epoch());
      EXPECT_EQ(share.step_in_epoch, step);
      EXPECT_GT(rows, 0u);
      position += rows;
      if (rows > 1) {
        EXPECT_EQ(plan.StepFrom(position - 1), std::nullopt);
      }
    }
    EXPECT_EQ(position, files.records());
    EXPECT_EQ(plan.PositionOf(step), position);
    EXPECT_EQ(RecordsOf(plan, step), RecordsOf(plan, 0)) << "the next epoch";
  }
}

TEST(ShardByFileTest, AJobGoesOnAtAnyStepWithAnyNumberOfRanks) {
  RandomFiles random;
  for (int round = 0; round < 30; ++round) {
    const auto shards = static_cast<uint32_t>(random.Draw(1, 5));
    const Files files = random.Make(random.Draw(shards, 9));
    PlanSpec spec;
    spec.shuffle = ShuffleSpec{.seed = 5};
    if (round % 2 == 1) {
      spec.shuffle->window_files = random.Draw(1, files.sizes.size() / shards);
    }
    spec.epochs = 2;
    const Plan whole = *MakePlan(files, shards, random.Draw(shards, 20), spec);
    std::vector<std::vector<uint64_t>> steps;
    for (uint64_t step = 0; step < *whole.total_steps(); ++step) {
      steps.push_back(RecordsOf(whole, step));
    }
    EXPECT_NE(steps[0], steps[whole.steps_per_epoch()]) << "another order";
    for (uint64_t first = 0; first <= steps.size(); ++first) {
      for (uint32_t ranks = 1; ranks < 8; ++ranks) {
        const Plan rest = *whole.From({whole.PositionOf(first), {}}, ranks);
        ASSERT_EQ(rest.total_steps(), steps.size() - first);
        std::map<size_t, std::set<uint32_t>> ranks_of_file;
        for (uint64_t step = 0; step < *rest.total_steps(); ++step) {
          EXPECT_EQ(rest.PositionOf(step), whole.PositionOf(first + step));
          EXPECT_EQ(rest.StepAt(rest.PositionOf(step)), step);
          EXPECT_EQ(RecordsOf(rest, step), steps[first + step]);
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const auto records = RecordsOf(rest, step, rank);
            EXPECT_LE(records.size(), rest.max_batch_rows(rank));
            for (const uint64_t record : records) {
              ranks_of_file[files.FileOf(record)].insert(rank);
            }
          }
        }
        for (const auto& [file, of] : ranks_of_file) {
          if (ranks <= shards) {
            EXPECT_EQ(of.size(), 1u) << "file " << file;
          }
        }
      }
    }
  }
}

TEST(ShardByFileTest, ShuffledShardsHaveTheirRecordsOncePerEpoch) {
  const Files files = {{20, 31, 7, 50}};
  PlanSpec spec;
  spec.shuffle = ShuffleSpec{.seed = 1};
  const Plan plan = *MakePlan(files, 2, 8, spec);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    std::vector<uint64_t> records;
    for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
      const auto more = RecordsOf(plan, step, rank);
      records.insert(records.end(), more.begin(), more.end());
    }
    EXPECT_FALSE(std::is_sorted(records.begin(), records.end()));
    std::sort(records.begin(), records.end());
    EXPECT_EQ(records, files.Of(rank, 2));
  }
}

TEST(ShardByFileTest, WindowsAreOfTheFilesOfEachShardAlone) {
  RandomFiles random;
  for (int round = 0; round < 50; ++round) {
    const auto shards = static_cast<uint32_t>(random.Draw(1, 5));
    const Files files = random.Make(random.Draw(2 * shards, 40));
    PlanSpec spec;
    spec.epochs = 2;
    spec.shuffle = ShuffleSpec{.seed = 1};
    spec.shuffle->window_files = random.Draw(1, files.sizes.size() / shards);
    const Plan plan = *MakePlan(files, shards, random.Draw(shards, 99), spec);
    for (uint32_t rank = 0; rank < shards; ++rank) {
      std::vector<uint64_t> ends;
      for (size_t i = rank; i < files.sizes.size(); i += shards) {
        ends.push_back(files.sizes[i] + (ends.empty() ? 0 : ends.back()));
      }
      const std::vector<uint64_t> own = files.Of(rank, shards);
      const auto alone = *ShuffleWindows(AllRecords(own.size()), ends,
                                         *spec.shuffle->window_files);
      Shuffles shuffles;
      std::vector<uint64_t> records;
      for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
        const auto more = RecordsOf(plan, step, rank);
        records.insert(records.end(), more.begin(), more.end());
      }
      ASSERT_EQ(records.size(), 2 * own.size());
      for (size_t i = 0; i < records.size(); ++i) {
        const Order::Shuffling shuffling = {&*spec.shuffle, &shuffles,
                                            rank + 1};
        ASSERT_EQ(
            records[i],
            own[alone->At(i % own.size(), i / own.size(), shuffling).record]);
      }
    }
  }
}

TEST(ShardByFileTest, TheLastBatchIsDroppedOrPaddedOnAllRanksAlike) {
  PlanSpec spec;
  spec.batch.last = LastBatch::kDrop;
  const Plan drop = *MakePlan({{9, 5}}, 2, 4, spec);
  EXPECT_EQ(drop.total_steps(), 2u);
  EXPECT_EQ(drop.rows_per_epoch(), 8u);
  EXPECT_TRUE(drop.RankBatchOf(1, 1).last_of_data);
  spec.batch.last = LastBatch::kPad;
  const Plan pad = *MakePlan({{9, 5}}, 2, 4, spec);
  ASSERT_EQ(pad.total_steps(), 5u);
  for (uint64_t step = 0; step < 5; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(pad.RankBatchOf(step, rank).shape_rows, 2u);
    }
  }
  EXPECT_EQ(pad.RankBatchOf(3, 1).rows, 0u);
  spec.steps_per_epoch = 2;
  spec.epochs = 3;
  const Plan cut = *MakePlan({{9, 5}}, 2, 4, spec);
  EXPECT_EQ(cut.rows_per_epoch(), 8u);
  EXPECT_EQ(cut.total_steps(), 6u);
  EXPECT_THAT(RecordsOf(cut, 2, 1), ElementsAre(9, 10));
}

TEST(ShardByFileTest, ASubstituteIsOfTheSameFiles) {
  const Files files = {{5, 8, 3, 2}};
  PlanSpec windows;
  windows.shuffle = ShuffleSpec{.seed = 1};
  windows.shuffle->window_files = 1;
  for (const PlanSpec& spec : {PlanSpec(), windows}) {
    const Plan plan = *MakePlan(files, 2, 6, spec);
    Shuffles shuffles;
    for (uint64_t row = 0; row < plan.records(); ++row) {
      Plan::Row here;
      plan.Rows(0, row, 1, &here);
      const size_t shard = files.FileOf(here.record) % 2;
      std::set<uint64_t> others;
      for (uint64_t i = 1; i <= 16; ++i) {
        const uint64_t other = plan.Following(here, i, &shuffles).record;
        EXPECT_EQ(files.FileOf(other) % 2, shard);
        others.insert(other);
      }
      EXPECT_EQ(others.size(), files.Of(shard, 2).size());
    }
  }
}

// Files are known by their records.
TEST(ShardByFileTest, SelectedRecordsStayWithTheirFiles) {
  const Files files = {{4, 4, 4}};
  const SelectContext context = files.Context();
  auto order = *ShardByFile(
      *Select({SkipStep{5}, InterleaveStep{2, 1}}, AllRecords(12), context), 2,
      2, nullptr, context);
  EXPECT_EQ(order->steps()->Begin(3), 6u);
  std::vector<uint64_t> records;
  for (uint64_t i = 0; i < order->size(); ++i) {
    records.push_back(order->At(i, 0, {}).record);
  }
  EXPECT_THAT(records, ElementsAre(5, 8, 6, 9, 7, 10, 11));
}

TEST(ShardByFileTest, ManyRecordsStayArithmetic) {
  const uint64_t many = uint64_t{1} << 50;
  const ShardSteps steps({many, many / 3, 17}, 1000);
  for (const uint64_t step :
       {uint64_t{0}, uint64_t{1}, many / 1001, many / 334 - 1, many / 334}) {
    EXPECT_EQ(steps.StepAt(steps.Begin(step)), step);
    const auto [shard, index] = steps.Find(steps.Begin(step));
    EXPECT_EQ(shard, 0u);
    EXPECT_EQ(index, step * 334);
    EXPECT_EQ(steps.RowOf({shard, index}), steps.Begin(step));
  }
  EXPECT_EQ(steps.Begin(steps.count()), many + many / 3 + 17);
}

std::string ErrorOf(const Files& files, uint32_t shards, uint64_t batch,
                    const PlanSpec& spec = {}) {
  const auto plan = MakePlan(files, shards, batch, spec);
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  return plan.status().message();
}

TEST(ShardByFileTest, WhatCannotHoldIsAnErrorWithTheWayOut) {
  EXPECT_THAT(ErrorOf({{12}}, 2, 4),
              AllOf(HasSubstr("1 file for 2 ranks"),
                    HasSubstr("split the data into 2 files or more"),
                    HasSubstr("shard: data")));
  PlanSpec windows;
  windows.shuffle = ShuffleSpec{.seed = 1};
  windows.shuffle->window_files = 2;
  EXPECT_THAT(ErrorOf({{5, 5, 5}}, 2, 4, windows),
              AllOf(HasSubstr("shuffle.window_files: of the files of one of 2 "
                              "ranks (shard: file): windows of 2 files"),
                    HasSubstr("there are 1: give fewer")));
  EXPECT_THAT(ErrorOf({{1, 1, 1}}, 1000000, 1000000),
              HasSubstr("3 files for 1000000 ranks"));
  EXPECT_THAT(ErrorOf({{3, 3, 3}}, 3, 2),
              HasSubstr("a batch of 2 rows has no row for some of 3 ranks"));
  PlanSpec spec;
  spec.batch.last = LastBatch::kDrop;
  EXPECT_THAT(ErrorOf({{9, 1}}, 2, 4, spec), HasSubstr("last: partial"));
  spec.batch.last = LastBatch::kPartial;
  spec.steps_per_epoch = 6;
  EXPECT_THAT(ErrorOf({{9, 1}}, 2, 4, spec),
              HasSubstr("the files of 2 ranks give 5 steps"));
  const Files files = {{6, 6}};
  SelectContext none;
  EXPECT_THAT(
      ShardByFile(AllRecords(12), 2, 4, nullptr, none).status().message(),
      HasSubstr("come from no files"));
  std::vector<std::unique_ptr<Order>> parts;
  parts.push_back(AllRecords(6));
  parts.push_back(AllRecords(6, 6));
  auto mix = *Mix(std::move(parts), {{0, {1, 1}}}, WhenOut::kDrop, {});
  EXPECT_THAT(ShardByFile(std::move(mix), 2, 4, nullptr, files.Context())
                  .status()
                  .message(),
              HasSubstr("no repeat, sample, balance or mix"));
}

TEST(ShardByFileTest, AJobBeginsAtAStepWithNothingOwed) {
  const Plan plan = *MakePlan({{6, 6}}, 2, 4);
  EXPECT_THAT(plan.From({3, {}}, 2).status().message(),
              HasSubstr("where a step begins"));
  EXPECT_THAT(plan.From({4, {{0, 2, true}}}, 2).status().message(),
              HasSubstr("nothing owed"));
}

TEST(ShardByFileTest, MemoryIsAskedForBeforeItIsTaken) {
  const Files files = {{1000, 1000}};
  SelectContext context = files.Context();
  context.budget.reserve = [](uint64_t) {
    return ResourceExhaustedError("full");
  };
  EXPECT_EQ(
      ShardByFile(AllRecords(2000), 2, 4, nullptr, context).status().code(),
      StatusCode::kResourceExhausted);
  context.budget = {};
  context.budget.cancelled = [] { return true; };
  EXPECT_EQ(
      ShardByFile(AllRecords(2000), 2, 4, nullptr, context).status().code(),
      StatusCode::kCancelled);
}

}  // namespace penstock::shard_by_file_test
