// Promise: an order made of others has the rows that its description says, and
// any position is reached directly; a mix keeps its proportions over any number
// of rows. Method: against the same made one after the other, in plain lists.
#include "broker/plan/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "broker/plan/file_runs.h"
#include "broker/plan/mix.h"
#include "broker/plan/orders.h"
#include "broker/plan/plan.h"
#include "broker/plan/select.h"

namespace penstock::order_test {

using testing::ElementsAre;
using testing::HasSubstr;
using Orders = std::vector<std::unique_ptr<Order>>;

std::vector<uint64_t> Records(const Order& order, uint64_t pass = 0,
                              const ShuffleSpec* shuffle = nullptr) {
  Shuffles last;
  std::vector<uint64_t> records;
  for (uint64_t i = 0; i < order.size(); ++i) {
    records.push_back(order.At(i, pass, {shuffle, &last}).record);
  }
  return records;
}

// Parts of these sizes, of consecutive records.
Orders PartsOf(const std::vector<uint64_t>& sizes) {
  Orders parts;
  uint64_t first = 0;
  for (const uint64_t size : sizes) {
    parts.push_back(AllRecords(size, first));
    first += size;
  }
  return parts;
}

TEST(OrderTest, SliceTakesSkipsAndShards) {
  EXPECT_THAT(Records(*Slice(AllRecords(10), 2, 3)), ElementsAre(2, 3, 4));
  EXPECT_THAT(Records(*Slice(AllRecords(10), 1, 3, 4)), ElementsAre(1, 5, 9));
  EXPECT_THAT(Records(*Slice(Slice(AllRecords(10), 1, 5, 2), 1, 2, 2)),
              ElementsAre(3, 7));
}

TEST(OrderTest, PickFindsTheRowsThatAreKept) {
  std::mt19937_64 random(1);
  for (const uint64_t size : {1u, 63u, 64u, 511u, 512u, 513u, 5000u}) {
    for (const double share : {0.001, 0.3, 0.5, 0.999, 1.0}) {
      std::vector<bool> kept;
      std::vector<uint64_t> wanted;
      for (uint64_t i = 0; i < size; ++i) {
        kept.push_back(static_cast<double>(random() % 1000) < share * 1000);
        if (kept[i]) wanted.push_back(i);
      }
      const auto picked =
          Pick(AllRecords(size), [&](uint64_t i) { return kept[i]; }, {});
      if (wanted.empty()) {
        EXPECT_EQ(picked.status().code(), StatusCode::kInvalidArgument);
        continue;
      }
      const Order* const order = picked->get();
      EXPECT_EQ(Records(*order), wanted) << size << " " << share;
      EXPECT_LE(order->memory_bytes(), (size + 1024) / 6 + 64);
    }
  }
}

TEST(OrderTest, RepeatedRowsHavePassesOfTheirOwn) {
  const auto order = *Repeat(AllRecords(3), 2);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (uint64_t pass = 0; pass < 3; ++pass) {
    for (uint64_t i = 0; i < 6; ++i) {
      const Order::Row row = order->At(i, pass, {});
      EXPECT_EQ(row.record, i % 3);
      EXPECT_TRUE(seen.insert({row.record, row.pass}).second);
    }
  }
  EXPECT_THAT(Repeat(AllRecords(uint64_t{1} << 40), 1 << 20).status().message(),
              HasSubstr("more than"));
}

TEST(OrderTest, PartsComeOneAfterTheOther) {
  Orders parts = PartsOf({2, 1, 3});
  parts[2] = Slice(std::move(parts[2]), 1, 2);
  EXPECT_THAT(Records(**Concatenate(std::move(parts))),
              ElementsAre(0, 1, 2, 4, 5));
}

// ---- windows of files -------------------------------------------------------

std::vector<uint64_t> EndsOf(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> ends;
  uint64_t rows = 0;
  for (const uint64_t size : sizes) ends.push_back(rows += size);
  return ends;
}

std::function<bool(uint64_t, uint64_t)> SameFile(
    const std::vector<uint64_t>& ends) {
  return [ends](uint64_t record, uint64_t other) {
    const auto file = [&](uint64_t each) {
      return std::upper_bound(ends.begin(), ends.end(), each);
    };
    return file(record) == file(other);
  };
}

TEST(WindowsTest, RunsAreThoseOfTheFiles) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 40; ++i) {
    std::vector<uint64_t> sizes;
    for (size_t file = 0; file < 1 + random() % 30; ++file) {
      sizes.push_back(1 + random() % (i % 2 == 0 ? 3 : 700));
    }
    const std::vector<uint64_t> ends = EndsOf(sizes);
    EXPECT_EQ(*FileRuns(*AllRecords(ends.back()), SameFile(ends), {}), ends);
    // The runs of every third record.
    const auto third =
        Slice(AllRecords(ends.back()), 0, (ends.back() + 2) / 3, 3);
    std::vector<uint64_t> wanted;
    for (uint64_t row = 1; row < third->size(); ++row) {
      if (!SameFile(ends)(3 * row, 3 * row - 3)) wanted.push_back(row);
    }
    wanted.push_back(third->size());
    EXPECT_EQ(*FileRuns(*third, SameFile(ends), {}), wanted);
  }
  EXPECT_THAT(FileRuns(**Repeat(AllRecords(4), 2), SameFile({4}), {})
                  .status()
                  .message(),
              HasSubstr("goes with no repeat"));
}

TEST(WindowsTest, AWindowIsReadBeforeTheNextBegins) {
  std::mt19937_64 random(6);
  const ShuffleSpec shuffle = {.seed = 3};
  for (const uint64_t files : {1u, 3u, 7u, 50u}) {
    std::vector<uint64_t> sizes;
    for (int file = 0; file < 40; ++file) sizes.push_back(1 + random() % 300);
    const std::vector<uint64_t> ends = EndsOf(sizes);
    const auto order = *ShuffleWindows(AllRecords(ends.back()), ends, files);
    EXPECT_EQ(Records(*order), Records(*AllRecords(ends.back())));
    std::set<std::vector<uint64_t>> passes;
    for (uint64_t pass = 0; pass < 3; ++pass) {
      const std::vector<uint64_t> records = Records(*order, pass, &shuffle);
      EXPECT_TRUE(passes.insert(records).second);
      std::vector<uint64_t> sorted = records;
      std::sort(sorted.begin(), sorted.end());
      EXPECT_EQ(sorted, Records(*AllRecords(ends.back())));
      // A window: files until all of their records have come.
      std::map<size_t, uint64_t> open;
      std::set<size_t> seen;
      uint64_t in_window = 0;
      for (const uint64_t record : records) {
        const auto file = static_cast<size_t>(
            std::upper_bound(ends.begin(), ends.end(), record) - ends.begin());
        if (seen.insert(file).second) {
          open[file] = sizes[file];
          ASSERT_LE(++in_window, files);
        }
        if (--open[file] == 0) open.erase(file);
        if (open.empty() && in_window == files) in_window = 0;
      }
      // Any row is reached directly.
      for (uint64_t row = 0; row < records.size(); row += 101) {
        Shuffles none;
        EXPECT_EQ(order->At(row, pass, {&shuffle, &none}).record, records[row]);
      }
    }
  }
  const ShuffleSpec same = {.seed = 3, .each_epoch = false};
  const auto order = *ShuffleWindows(AllRecords(900), EndsOf({300, 600}), 1);
  EXPECT_EQ(Records(*order, 0, &same), Records(*order, 1, &same));
  // Within a file the records are not as they were.
  EXPECT_FALSE(std::is_sorted(Records(*order, 0, &same).begin(),
                              Records(*order, 0, &same).begin() + 300));
}

TEST(WindowsTest, InterleavedFilesTakeTurns) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 60; ++i) {
    std::vector<uint64_t> sizes;
    for (size_t file = 0; file < 1 + random() % 12; ++file) {
      sizes.push_back(1 + random() % 40);
    }
    const uint64_t files = 1 + random() % 5;
    const uint64_t block = 1 + random() % 6;
    const std::vector<uint64_t> ends = EndsOf(sizes);
    std::vector<uint64_t> wanted;
    for (size_t first = 0; first < sizes.size(); first += files) {
      const size_t last = std::min<size_t>(first + files, sizes.size());
      std::vector<uint64_t> taken(last, 0);
      for (bool any = true; any;) {
        any = false;
        for (size_t file = first; file < last; ++file) {
          for (uint64_t n = 0; n < block && taken[file] < sizes[file]; ++n) {
            wanted.push_back(ends[file] - sizes[file] + taken[file]++);
            any = true;
          }
        }
      }
    }
    EXPECT_EQ(Records(*Interleave(AllRecords(ends.back()), ends, files, block)),
              wanted);
  }
}

// ---- mix -------------------------------------------------------------------

uint32_t PartOf(const std::vector<uint64_t>& sizes, uint64_t record) {
  uint32_t part = 0;
  while (record >= sizes[part]) record -= sizes[part++];
  return part;
}

TEST(OrderTest, AMixOfBlocksIsAMixOfWholeBlocks) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 90; ++i) {
    const uint64_t block = 1 + random() % 9;
    const std::vector<uint64_t> sizes = {
        block + random() % 90, block + random() % 90, block + random() % 20};
    const std::vector<MixWeights> blocks = {{0, {2, 1, 1}}, {7, {1, 3, 1}}};
    std::vector<MixWeights> rows = blocks;
    rows[1].from *= block;
    const WhenOut when_out =
        std::array{WhenOut::kStop, WhenOut::kDrop, WhenOut::kRepeat}[i % 3];
    std::vector<uint64_t> whole;
    for (const uint64_t size : sizes) whole.push_back(size / block);
    const auto of_blocks = *Mix(PartsOf(whole), blocks, when_out, {});
    const auto mix = *Mix(PartsOf(sizes), rows, when_out, {}, block);
    ASSERT_EQ(mix->size(), of_blocks->size() * block);
    for (uint64_t row = 0; row < mix->size(); ++row) {
      uint64_t number = of_blocks->At(row / block, 3, {}).record;
      uint64_t first = 0;
      for (size_t part = 0; number >= whole[part]; ++part) {
        number -= whole[part];
        first += sizes[part];
      }
      const Order::Row found = mix->At(row, 3, {});
      ASSERT_EQ(found.record, first + number * block + row % block);
      ASSERT_EQ(found.pass, of_blocks->At(row / block, 3, {}).pass);
    }
  }
}

TEST(OrderTest, AMixKeepsItsProportionsOverAnyNumberOfRows) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 60; ++i) {
    const size_t count = 1 + random() % 9;
    std::vector<uint32_t> weights;
    std::vector<uint64_t> sizes(count, 5000);
    uint64_t sum = 0;
    for (size_t part = 0; part < count; ++part) {
      weights.push_back(
          1 + static_cast<uint32_t>(random() % (i % 3 == 0 ? 5 : 1000)));
      sum += weights.back();
    }
    const auto mix = *Mix(PartsOf(sizes), {{0, weights}}, WhenOut::kStop, {});
    std::vector<uint64_t> taken(count, 0);
    for (uint64_t row = 0; row < std::min<uint64_t>(mix->size(), 4000); ++row) {
      ++taken[PartOf(sizes, mix->At(row, 0, {}).record)];
      for (size_t part = 0; part < count; ++part) {
        const double due = static_cast<double>(row + 1) * weights[part] /
                           static_cast<double>(sum);
        ASSERT_LT(std::abs(static_cast<double>(taken[part]) - due), 1)
            << "row " << row << " part " << part;
      }
    }
  }
}

TEST(OrderTest, AMixStopsDropsOrRepeats) {
  const std::vector<uint64_t> sizes = {10, 100, 37};
  const std::vector<MixWeights> weights = {{0, {3, 1, 2}}};
  const auto count = [&](const Order& order, uint64_t pass = 0,
                         const ShuffleSpec* shuffle = nullptr) {
    std::map<uint64_t, uint64_t> times;
    for (const uint64_t record : Records(order, pass, shuffle)) ++times[record];
    return times;
  };
  // Ten of the first part, then the next one is due.
  const auto stop = *Mix(PartsOf(sizes), weights, WhenOut::kStop, {});
  EXPECT_GE(stop->size(), 18u);
  EXPECT_LE(stop->size(), 22u);
  for (const auto& [record, times] : count(*stop)) EXPECT_EQ(times, 1u);
  EXPECT_EQ(count(*stop).count(9), 1u);

  const ShuffleSpec shuffle = {.seed = 3};
  const auto drop = *Mix(PartsOf(sizes), weights, WhenOut::kDrop, {});
  EXPECT_EQ(drop->size(), 147u);
  for (const ShuffleSpec* each :
       {static_cast<const ShuffleSpec*>(nullptr), &shuffle}) {
    const auto times = count(*drop, 1, each);
    EXPECT_EQ(times.size(), 147u);
    for (const auto& [record, number] : times) EXPECT_EQ(number, 1u);
  }

  const auto repeat = *Mix(PartsOf(sizes), weights, WhenOut::kRepeat, {});
  const auto times = count(*repeat);
  EXPECT_EQ(times.size(), 147u);
  // The pass ends with the 100th row of the second part: a sixth of all.
  EXPECT_NEAR(static_cast<double>(repeat->size()), 600, 6);
  for (uint64_t record = 10; record < 110; ++record) {
    EXPECT_EQ(times.at(record), 1u);
  }
  for (uint64_t record = 0; record < 10; ++record) {
    EXPECT_NEAR(static_cast<double>(times.at(record)), 30, 1);
  }
  // Each time of a part has random numbers of its own, in the next pass too.
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (uint64_t pass = 0; pass < 2; ++pass) {
    for (uint64_t i = 0; i < repeat->size(); ++i) {
      const Order::Row row = repeat->At(i, pass, {});
      EXPECT_TRUE(seen.insert({row.record, row.pass}).second);
    }
  }
}

TEST(OrderTest, WeightsChangeAtTheirRow) {
  const std::vector<uint64_t> sizes = {1000, 1000};
  const auto mix =
      *Mix(PartsOf(sizes), {{0, {1, 0}}, {100, {1, 1}}, {301, {1, 4}}},
           WhenOut::kStop, {});
  const auto share = [&](uint64_t from, uint64_t to) {
    uint64_t second = 0;
    for (uint64_t row = from; row < to; ++row) {
      second += mix->At(row, 0, {}).record >= 1000;
    }
    return second;
  };
  EXPECT_EQ(share(0, 100), 0u);
  EXPECT_EQ(share(100, 300), 100u);
  EXPECT_EQ(share(301, 401), 80u);
  // No record is left out or comes twice where the weights change.
  std::vector<uint64_t> records = Records(*mix);
  std::sort(records.begin(), records.end());
  EXPECT_EQ(std::adjacent_find(records.begin(), records.end()), records.end());
}

TEST(OrderTest, APartWithoutWeightInTheEndIsLeftOut) {
  for (const WhenOut when_out :
       {WhenOut::kStop, WhenOut::kDrop, WhenOut::kRepeat}) {
    const auto mix =
        *Mix(PartsOf({10, 10, 10}), {{0, {1, 0, 1}}}, when_out, {});
    std::vector<uint64_t> records = Records(*mix);
    std::sort(records.begin(), records.end());
    ASSERT_EQ(records.size(), 20u);
    for (uint64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(records[i], i < 10 ? i : i + 10);
    }
    EXPECT_EQ(mix->At(0, 1, {}).pass, 1u);
  }
  // All others are complete when it is left out; the pass ends there.
  const std::vector<MixWeights> later = {{0, {1, 1}}, {10, {1, 0}}};
  EXPECT_EQ((*Mix(PartsOf({5, 50}), later, WhenOut::kRepeat, {}))->size(), 10u);
  EXPECT_EQ((*Mix(PartsOf({5, 50}), later, WhenOut::kDrop, {}))->size(), 10u);
  EXPECT_EQ((*Mix(PartsOf({8, 50}), later, WhenOut::kRepeat, {}))->size(), 13u);
  EXPECT_EQ((*Mix(PartsOf({8, 50}), later, WhenOut::kDrop, {}))->size(), 13u);
  // None was complete in the stretch before.
  EXPECT_EQ((*Mix(PartsOf({5, 50}), {{0, {1, 0}}, {4, {0, 1}}, {8, {1, 0}}},
                  WhenOut::kRepeat, {}))
                ->size(),
            9u);
}

TEST(OrderTest, MixesOfMixesShuffleEachPartAlone) {
  Orders inner = PartsOf({40, 60});
  auto mixed = *Mix(std::move(inner), {{0, {1, 1}}}, WhenOut::kDrop, {});
  Orders outer;
  outer.push_back(std::move(mixed));
  outer.push_back(AllRecords(50, 100));
  const auto mix = *Mix(std::move(outer), {{0, {1, 1}}}, WhenOut::kDrop, {});
  const ShuffleSpec shuffle = {.seed = 9};
  const std::vector<uint64_t> first = Records(*mix, 0, &shuffle);
  std::vector<uint64_t> sorted = first;
  std::sort(sorted.begin(), sorted.end());
  for (uint64_t i = 0; i < 150; ++i) EXPECT_EQ(sorted[i], i);
  EXPECT_NE(first, Records(*mix, 1, &shuffle));
  // Positions in any order, with one set of kept permutations.
  Shuffles last;
  for (uint64_t i = 0; i < 150; ++i) {
    const uint64_t row = i * 67 % 150;
    EXPECT_EQ(mix->At(row, 0, {&shuffle, &last}).record, first[row]);
  }
}

TEST(OrderTest, MixesThatCannotBeAreRefused) {
  const auto error = [](const std::vector<uint64_t>& sizes,
                        std::vector<MixWeights> weights, WhenOut when_out) {
    return std::string(Mix(PartsOf(sizes), std::move(weights), when_out, {})
                           .status()
                           .message());
  };
  EXPECT_THAT(error({3, 0}, {{0, {1, 1}}}, WhenOut::kStop),
              HasSubstr("parts[1]: has no records"));
  EXPECT_THAT(error({3, 3}, {{0, {1, 1 << 21}}}, WhenOut::kStop),
              HasSubstr("round them"));
  EXPECT_THAT(error({3, 3}, {{0, {1, 0}}, {10, {1, 1}}}, WhenOut::kDrop),
              HasSubstr("no part with a weight has records from row 3 on"));
}

TEST(OrderTest, SizesAndWeightsWithoutBoundsEnd) {
  // Products of them exceed 64 bits.
  const uint64_t large = uint64_t{1} << 52;
  for (const WhenOut when_out :
       {WhenOut::kStop, WhenOut::kDrop, WhenOut::kRepeat}) {
    std::vector<std::unique_ptr<Order>> parts;
    parts.push_back(AllRecords(18'446'725'626'984));
    parts.push_back(AllRecords(large));
    const auto mix = Mix(std::move(parts), {{0, {1, 1'000'000}}}, when_out, {});
    if (mix.ok()) {
      EXPECT_GT((*mix)->size(), large / 2);
    } else {
      EXPECT_THAT(mix.status().message(), HasSubstr("rows in a pass"));
    }
  }
}

TEST(OrderTest, AMixEndsWithTheLastRecordWhateverItsSchedule) {
  const auto mix =
      *Mix(PartsOf({50, 60}), {{0, {1, 1}}, {100, {0, 1}}, {200, {1, 1}}},
           WhenOut::kDrop, {});
  EXPECT_EQ(mix->size(), 110u);
}

TEST(OrderTest, SmallWeightsAreNotLost) {
  EXPECT_EQ(*WholeWeights({0.7, 0.3}), (std::vector<uint32_t>{7, 3}));
  EXPECT_EQ(*WholeWeights({1, 1e-6}), (std::vector<uint32_t>{1'000'000, 1}));
  EXPECT_FALSE(WholeWeights({1, 1e-7}).ok());
  EXPECT_THAT(WholeWeights({1.0 / 3, 2.0 / 3}).status().message(),
              HasSubstr("[1, 2]"));
}

TEST(SelectTest, WhatRepeatsOrMixesIsNotDivided) {
  const SplitStep split = {{{"a", 0.5}, {"b", 0.5}}, "a"};
  EXPECT_THAT(Select({RepeatStep{2}, split}, AllRecords(20)).status().message(),
              HasSubstr("put `split` before what repeats it"));
  auto mix = *Mix(PartsOf({30, 30}), {{0, {1, 1}}}, WhenOut::kDrop, {});
  EXPECT_THAT(Select({FoldStep{}}, std::move(mix)).status().message(),
              HasSubstr("put `fold` into the `select` of each part"));
}

// ---- select, and a plan of it ----------------------------------------------

TEST(SelectTest, StepsFollowEachOther) {
  const auto order =
      *Select({SkipStep{10}, TakeStep{20}, ShardStep{1, 4, ""}, RepeatStep{2}},
              AllRecords(100));
  EXPECT_THAT(Records(*order),
              ElementsAre(11, 15, 19, 23, 27, 11, 15, 19, 23, 27));
  EXPECT_THAT(
      Select({TakeStep{5}, SkipStep{5}}, AllRecords(100)).status().message(),
      HasSubstr("select[1].skip: nothing is left of 5 records"));
}

TEST(SelectTest, PartsOfASplitHaveAllRecordsAndNoneTwice) {
  for (const uint64_t size : {10u, 1000u, 12345u}) {
    std::vector<uint64_t> all;
    for (const char* const part : {"train", "validation", "test"}) {
      const SplitStep split = {
          {{"train", 0.8}, {"validation", 0.1}, {"test", 0.1}}, part, "", 5};
      const auto order = *split.Apply(AllRecords(size), {});
      EXPECT_NEAR(static_cast<double>(order->size()),
                  static_cast<double>(size) * (part[1] == 'r' ? 0.8 : 0.1), 1);
      const auto records = Records(*order);
      EXPECT_TRUE(std::is_sorted(records.begin(), records.end()));
      all.insert(all.end(), records.begin(), records.end());
    }
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all.size(), size);
    for (uint64_t i = 0; i < size; ++i) EXPECT_EQ(all[i], i);
  }
}

TEST(SelectTest, EveryRecordIsInOneFold) {
  std::vector<uint64_t> all;
  for (uint32_t number = 0; number < 5; ++number) {
    FoldStep fold = {number, 5, FoldStep::Part::kValidation, "", 7};
    const auto validation = Records(**fold.Apply(AllRecords(103), {}));
    EXPECT_NEAR(static_cast<double>(validation.size()), 20.6, 1);
    all.insert(all.end(), validation.begin(), validation.end());
    fold.part = FoldStep::Part::kTrain;
    EXPECT_EQ((*fold.Apply(AllRecords(103), {}))->size(),
              103 - validation.size());
  }
  std::sort(all.begin(), all.end());
  for (uint64_t i = 0; i < 103; ++i) EXPECT_EQ(all[i], i);
}

// ---- by columns

SelectContext Context() {
  return {{{"label", [](uint64_t record) { return int64_t(record % 3); }},
           {"file",
            [](uint64_t record) { return "f" + std::to_string(record / 10); }}},
          {}};
}

TEST(SelectTest, FiltersByColumns) {
  const auto filtered = [](const FilterStep& filter) {
    const auto order = Select({filter}, AllRecords(30), Context());
    return order.ok() ? Records(**order) : std::vector<uint64_t>();
  };
  EXPECT_THAT(filtered({.column = "label", .in = {"1"}, .max = 0.0}),
              ElementsAre());
  EXPECT_EQ(filtered({.column = "label", .in = {"1", "2"}}).size(), 20u);
  EXPECT_EQ(filtered({.column = "label", .except = {"1"}}).size(), 20u);
  EXPECT_EQ(filtered({.column = "label", .min = 1.5}).front(), 2u);
  EXPECT_EQ(filtered({.column = "file", .matches = "f[12]"}).size(), 20u);
  EXPECT_THAT(Select({FilterStep{.column = "size", .min = 1.0}}, AllRecords(30),
                     Context())
                  .status()
                  .message(),
              HasSubstr("select[0].filter: this source has no column 'size'; "
                        "it has file, label"));
  EXPECT_THAT(Select({FilterStep{.column = "file", .min = 1.0}}, AllRecords(30),
                     Context())
                  .status()
                  .message(),
              HasSubstr("is text"));
}

TEST(SelectTest, SplitsAndShardsKeepAValueTogether) {
  std::set<uint64_t> all;
  for (const char* const part : {"a", "b"}) {
    const auto order =
        Select({SplitStep{{{"a", 0.5}, {"b", 0.5}}, part, "file"}},
               AllRecords(1000), Context());
    ASSERT_TRUE(order.ok()) << order.status().message();
    std::map<uint64_t, int> of_file;
    for (const uint64_t record : Records(**order)) {
      EXPECT_TRUE(all.insert(record).second);
      ++of_file[record / 10];
    }
    for (const auto& [file, records] : of_file) EXPECT_EQ(records, 10);
    EXPECT_NEAR(static_cast<double>(of_file.size()), 50, 20);
  }
  EXPECT_EQ(all.size(), 1000u);
  EXPECT_THAT(Records(**Select({ShardStep{1, 2, "file"}, ShardStep{0, 5, ""}},
                               AllRecords(40), Context())),
              ElementsAre(10, 15, 30, 35));
}

TEST(SelectTest, BalanceGivesEachValueItsShare) {
  // 20 of label 0, 10 of label 1.
  SelectContext context = Context();
  context.columns[0].value = [](uint64_t record) {
    return int64_t{record >= 20};
  };
  const auto even =
      *Select({BalanceStep{.by = "label"}}, AllRecords(30), context);
  EXPECT_NEAR(static_cast<double>(even->size()), 40, 1);  // label 1 twice
  const ShuffleSpec shuffle = {.seed = 1};
  std::map<uint64_t, int> times;
  for (const uint64_t record : Records(*even, 0, &shuffle)) ++times[record];
  for (uint64_t i = 0; i < 30; ++i) {
    EXPECT_NEAR(times[i], i < 20 ? 1 : 2, i < 20 ? 0 : 1) << i;
  }
  const auto weighted =
      *Select({BalanceStep{"label", {{"1", 3}}, WhenOut::kStop}},
              AllRecords(30), context);
  uint64_t ones = 0;
  for (uint64_t i = 0; i < 12; ++i) ones += weighted->At(i, 0, {}).record >= 20;
  EXPECT_EQ(ones, 9u);
  EXPECT_THAT(
      Select({BalanceStep{"label", {{"7", 3}}}}, AllRecords(30), context)
          .status()
          .message(),
      HasSubstr("no record has '7' in column 'label'; it has '"));
}

TEST(SelectTest, ASampleIsDrawnByWeightAndWithReplacement) {
  SelectContext context = Context();
  context.columns.push_back(
      {"weight", [](uint64_t record) { return record < 10 ? 0.5 : 2.0; }});
  for (const SampleStep& step :
       {SampleStep{.rows = 60'000, .weight = "weight", .seed = 1},
        SampleStep{.rows = 60'000,
        .by = "file",
        .weights = {{"f1", 4}, {"f2", 4}},
        .seed = 1}}) {
    const auto order = *Select({step}, AllRecords(30), context);
    ASSERT_EQ(order->size(), 60'000u);
    EXPECT_TRUE(order->repeats());
    std::map<uint64_t, int> times;
    std::set<std::pair<uint64_t, uint64_t>> keys;
    for (uint64_t i = 0; i < order->size(); ++i) {
      const Order::Row row = order->At(i, 1, {});
      ++times[row.record];
      EXPECT_TRUE(keys.insert({row.record, row.pass}).second);
    }
    // Expected 667 and 2667; six standard deviations.
    for (uint64_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(times[i], i < 10 ? 667 : 2667, i < 10 ? 155 : 302) << i;
    }
    EXPECT_NE(order->At(0, 0, {}).record * 900 +
                  order->At(1, 0, {}).record * 30 + order->At(2, 0, {}).record,
              order->At(0, 1, {}).record * 900 +
                  order->At(1, 1, {}).record * 30 + order->At(2, 1, {}).record);
  }
  // Weights of many magnitudes, and none.
  const auto weight_of = [](uint64_t record) {
    return record % 7 == 3 ? 0.0 : std::pow(1.7, record % 30) * 1e-9;
  };
  double sum = 0;
  for (uint64_t i = 0; i < 200; ++i) sum += weight_of(i);
  context.columns.back().value = weight_of;
  const auto steep = *Select({SampleStep{.rows = 400'000, .weight = "weight"}},
                             AllRecords(200), context);
  std::map<uint64_t, int> of_steep;
  for (const uint64_t record : Records(*steep)) ++of_steep[record];
  for (uint64_t i = 0; i < 200; ++i) {
    const double expected = 400'000 * weight_of(i) / sum;
    EXPECT_NEAR(of_steep[i], expected, 6 * std::sqrt(expected) + 3) << i;
    if (weight_of(i) == 0) {
      EXPECT_EQ(of_steep[i], 0);
    }
  }
  const auto even = *Select({SampleStep{.rows = 30'000}}, AllRecords(30), {});
  std::map<uint64_t, int> times;
  for (const uint64_t record : Records(*even)) ++times[record];
  for (uint64_t i = 0; i < 30; ++i) EXPECT_NEAR(times[i], 1000, 190) << i;
  const auto wrong = [&](const SampleStep& step) {
    return Select({step}, AllRecords(30), context).status().message();
  };
  EXPECT_THAT(wrong({.weight = "file"}),
              HasSubstr("give `by` and `weights` instead"));
  EXPECT_THAT(wrong({.by = "label", .weights = {{"0", 0}, {"1", 0}, {"2", 0}}}),
              HasSubstr("all weights are 0"));
  EXPECT_THAT(wrong({.by = "label", .weights = {{"9", 1}}}),
              HasSubstr("no record has '9'"));
  context.columns.back().value = [](uint64_t) { return 1e-300; };
  EXPECT_THAT(wrong({.weight = "weight"}), HasSubstr("multiply them"));
  context.columns.back().value = [](uint64_t) { return -1.0; };
  EXPECT_THAT(wrong({.weight = "weight"}), HasSubstr("wanted 0 or more"));
}

TEST(SelectTest, ASampleWithoutReplacementHasEachRecordOnce) {
  SelectContext context = Context();
  context.columns.push_back(
      {"weight", [](uint64_t record) { return record < 10 ? 0.5 : 2.0; }});
  const std::vector<SampleStep> steps = {
      {.weight = "weight", .replacement = false, .seed = 1},
      {.by = "file",
       .weights = {{"f0", 0.5}, {"f1", 2}, {"f2", 2}},
       .replacement = false,
       .seed = 1}};
  for (SampleStep step : steps) {
    const auto all = *Select({step}, AllRecords(30), context);
    EXPECT_THAT(Records(*all), testing::WhenSorted(testing::ElementsAreArray(
                                   Records(*AllRecords(30)))));
    // The light ones have a ninth of the rows until the others run out.
    step.rows = 9;
    const auto few = *Select({step}, AllRecords(30), context);
    EXPECT_FALSE(few->repeats());
    EXPECT_TRUE(few->draws());
    constexpr int kPasses = 6'000;
    std::map<uint64_t, int> times;
    std::set<std::vector<uint64_t>> passes;
    for (uint64_t pass = 0; pass < kPasses; ++pass) {
      std::set<uint64_t> records;
      int light = 0;
      for (uint64_t i = 0; i < few->size(); ++i) {
        const Order::Row row = few->At(i, pass, {});
        EXPECT_EQ(row.pass, pass);
        EXPECT_TRUE(records.insert(row.record).second);
        light += row.record < 10;
        ++times[row.record];
      }
      EXPECT_EQ(light, 1);
      passes.insert({records.begin(), records.end()});
    }
    EXPECT_GT(passes.size(), kPasses * 9 / 10);
    // Six standard deviations.
    for (uint64_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(times[i], i < 10 ? 600 : 2400, i < 10 ? 140 : 228) << i;
    }
  }
  const auto even = *Select({SampleStep{.rows = 10, .replacement = false}},
                            AllRecords(30), {});
  std::map<uint64_t, int> times;
  for (uint64_t pass = 0; pass < 3'000; ++pass) {
    for (uint64_t i = 0; i < 10; ++i) ++times[even->At(i, pass, {}).record];
  }
  for (uint64_t i = 0; i < 30; ++i) EXPECT_NEAR(times[i], 1000, 155) << i;
  const auto wrong = [&](const SampleStep& step) {
    return Select({step}, AllRecords(30), context).status().message();
  };
  EXPECT_THAT(wrong({.rows = 31, .replacement = false}),
              HasSubstr("rows: 31 of 30 records with a weight, without "
                        "replacement: give at most as many"));
  EXPECT_THAT(wrong({.rows = 21,
                     .by = "file",
                     .weights = {{"f0", 0}},
                     .replacement = false}),
              HasSubstr("rows: 21 of 20 records"));
  EXPECT_THAT(wrong({.weight = "file", .replacement = false}),
              HasSubstr("give `by` and `weights` instead"));
  EXPECT_THAT(
      wrong({.by = "label", .weights = {{"9", 1}}, .replacement = false}),
      HasSubstr("no record has '9'"));
  context.columns.back().value = [](uint64_t) { return 0.0; };
  EXPECT_THAT(wrong({.weight = "weight", .replacement = false}),
              HasSubstr("all weights are 0"));
  context.columns.back().value = [](uint64_t) { return -1.0; };
  EXPECT_THAT(wrong({.weight = "weight", .replacement = false}),
              HasSubstr("wanted 0 or more"));
}

TEST(SelectTest, MemoryIsAskedForBeforeItIsTaken) {
  SelectContext context = Context();
  context.budget.reserve = [](uint64_t bytes) {
    return bytes > 1'000'000 ? ResourceExhaustedError("full") : OkStatus();
  };
  const uint64_t many = uint64_t{1} << 53;
  for (const SelectSpec& step : std::vector<SelectSpec>{
           SplitStep{{{"a", 0.5}}, "a"}, FoldStep{},
           FilterStep{.column = "label", .in = {"1"}}, ShardStep{0, 2, "file"},
           BalanceStep{.by = "label"}, SampleStep{.by = "label"},
           InterleaveStep{}}) {
    EXPECT_EQ(Select({step}, AllRecords(many), context).status().code(),
              StatusCode::kResourceExhausted);
  }
  context.budget = {};
  context.budget.cancelled = [] { return true; };
  EXPECT_EQ(Select({FoldStep{}}, AllRecords(1 << 20), context).status().code(),
            StatusCode::kCancelled);
}

TEST(SelectTest, APlanOfAMixResumesAtAnyRow) {
  PlanSpec spec;
  spec.shuffle = ShuffleSpec{.seed = 4};
  spec.batch = {.size = 8};
  spec.epochs = 3;
  const Plan plan = *Plan::Make(
      spec,
      std::shared_ptr<const Order>(
          *Mix(PartsOf({30, 50, 11}), {{0, {2, 1, 1}}}, WhenOut::kRepeat, {})),
      2);
  std::vector<Plan::Row> at_once(plan.rows_per_epoch());
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    plan.Rows(epoch, 0, at_once.size(), at_once.data());
    for (uint64_t first = 0; first < at_once.size(); first += 7) {
      Plan::Row row;
      plan.Rows(epoch, first, 1, &row);
      EXPECT_EQ(row, at_once[first]);
      Shuffles shuffles;
      const Plan::Row next = plan.Following(row, 1, &shuffles);
      EXPECT_EQ(next.place, (row.place + 1) % plan.records());
    }
  }
}

}  // namespace penstock::order_test
