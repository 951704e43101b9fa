// Promise: when the weights of a mix change while a job runs, rows before are
// what they were, to the bit; from the change on each part has its share of any
// number of rows, less than one row more or less; parts go on where they were;
// epochs keep their rows; no row has the random numbers of another; and the
// same changes give the same rows however they came about. What a plan says of
// its parts at a position is what came before it. A mix that goes on with other
// parts takes each up where it was. Method: against the same schedule in the
// spec, a plain count of rows, and each part's order alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/plan/plan.h"
#include "common/job_state.h"

namespace penstock::weights_test {

using testing::HasSubstr;

const std::vector<uint64_t> kSizes = {300, 500, 400};

std::unique_ptr<Order> MixOf(std::vector<MixWeights> schedule, WhenOut when_out,
                             uint64_t block = 1) {
  std::vector<std::unique_ptr<Order>> parts;
  uint64_t first = 0;
  for (const uint64_t size : kSizes) {
    parts.push_back(AllRecords(size, first));
    first += size;
  }
  auto mix = Mix(std::move(parts), std::move(schedule), when_out, {}, block);
  EXPECT_TRUE(mix.ok()) << mix.status().message();
  return *std::move(mix);
}

size_t PartOf(uint64_t record) {
  size_t part = 0;
  for (; record >= kSizes[part]; ++part) record -= kSizes[part];
  return part;
}

Plan PlanOf(std::unique_ptr<Order> order, std::optional<uint64_t> steps,
            bool shuffle = true, uint64_t batch = 8) {
  PlanSpec spec;
  spec.batch.size = batch;
  spec.epochs = 4;
  spec.steps_per_epoch = steps;
  if (shuffle) spec.shuffle = ShuffleSpec{.seed = 7};
  auto plan = Plan::Make(spec, std::move(order), 1);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}

std::vector<Plan::Row> RowsOf(const Plan& plan, uint64_t epochs = 4) {
  std::vector<Plan::Row> rows;
  Shuffles shuffles;
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    const size_t before = rows.size();
    rows.resize(before + plan.rows_per_epoch());
    plan.Rows(epoch, 0, plan.rows_per_epoch(), &shuffles, &rows[before]);
  }
  return rows;
}

Plan Changed(Plan plan, const std::vector<WeightsChange>& changes) {
  for (const WeightsChange& change : changes) {
    auto changed = plan.WithWeights(change, {});
    EXPECT_TRUE(changed.ok()) << changed.status().message();
    plan = *std::move(changed);
  }
  return plan;
}

TEST(WeightsTest, AChangeIsWhatTheSameScheduleIs) {
  for (const WhenOut when_out :
       {WhenOut::kStop, WhenOut::kDrop, WhenOut::kRepeat}) {
    for (const uint64_t block : {1u, 8u}) {
      for (const uint64_t row : {8u, 80u, 240u}) {
        const Plan by_hand =
            Changed(PlanOf(MixOf({{0, {1, 1, 2}}}, when_out, block), 50),
                    {{0, row, {5, 1, 1}}});
        const Plan by_spec = PlanOf(
            MixOf({{0, {1, 1, 2}}, {row, {5, 1, 1}}}, when_out, block), 50);
        EXPECT_EQ(RowsOf(by_hand, 1), RowsOf(by_spec, 1)) << row;
      }
    }
  }
}

TEST(WeightsTest, RowsBeforeStayAndSharesAreExactAfterwards) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    const auto when_out = static_cast<WhenOut>(round % 3);
    const uint64_t block = round % 2 == 0 ? 1 : 4;
    // The steps of an epoch: a part of a pass, or several.
    const std::optional<uint64_t> steps =
        round % 5 == 0 ? std::nullopt
                       : std::optional<uint64_t>(20 + random() % 500);
    Plan plan =
        PlanOf(MixOf({{0, {1, 2, 1}}, {40, {2, 1, 1}}}, when_out, block), steps,
               round % 4 != 0);
    const uint64_t rows_per_epoch = plan.rows_per_epoch();
    std::vector<WeightsChange> changes;
    std::vector<Plan::Row> before = RowsOf(plan);
    const auto weight = [&] {
      return static_cast<uint32_t>((when_out == WhenOut::kStop ? 0 : 1) +
                                   random() % 5);
    };
    for (uint64_t at = random() % (rows_per_epoch + 1);
         at < before.size() && changes.size() < 6;
         at += random() % (2 * rows_per_epoch)) {
      WeightsChange change = {at / rows_per_epoch,
                              at % rows_per_epoch,
                              {weight(), weight(), weight()}};
      change.weights[random() % 3] += 1;
      const auto next = plan.WithWeights(change, {});
      ASSERT_TRUE(next.ok()) << next.status().message();
      plan = *next;
      changes.push_back(change);
      const std::vector<Plan::Row> after = RowsOf(plan);
      ASSERT_EQ(plan.rows_per_epoch(), rows_per_epoch);
      ASSERT_TRUE(std::equal(before.begin(),
                             before.begin() + static_cast<ptrdiff_t>(at),
                             after.begin()));
      // Until a part may run out, or the epoch ends.
      const uint64_t begin = (at + block - 1) / block * block;
      std::vector<uint64_t> count(3);
      const double sum =
          change.weights[0] + change.weights[1] + change.weights[2];
      const uint64_t end =
          std::min({begin + 60, (change.epoch + 1) * rows_per_epoch,
                    static_cast<uint64_t>(after.size())});
      bool whole = true;  // no other pass begins
      for (uint64_t i = at; i < end; ++i) {
        whole &= after[i].pass_of_order == after[at].pass_of_order;
      }
      // A part that has run out has no share of it.
      if (whole && when_out == WhenOut::kStop && block == 1) {
        for (uint64_t i = begin; i < end; ++i) {
          ++count[PartOf(after[i].record)];
          for (size_t part = 0; part < 3; ++part) {
            const double share =
                static_cast<double>(i + 1 - begin) * change.weights[part] / sum;
            ASSERT_LT(std::abs(static_cast<double>(count[part]) - share), 1)
                << part << " of row " << i;
          }
        }
      }
      before = after;
    }
    // All at once, as at a resume.
    Plan again =
        PlanOf(MixOf({{0, {1, 2, 1}}, {40, {2, 1, 1}}}, when_out, block), steps,
               round % 4 != 0);
    EXPECT_EQ(RowsOf(Changed(std::move(again), changes)), before);
    // The random numbers of a row are its own.
    std::set<std::pair<uint64_t, uint64_t>> seen;
    for (const Plan::Row& row : before) {
      ASSERT_TRUE(seen.insert({row.record, row.pass}).second)
          << "record " << row.record << " in pass " << row.pass;
    }
    // Any part of an epoch is the same by itself.
    for (int i = 0; i < 20; ++i) {
      const uint64_t first = random() % before.size();
      const uint64_t row = first % rows_per_epoch;
      std::vector<Plan::Row> some(
          std::min<uint64_t>(rows_per_epoch - row, 1 + random() % 50));
      plan.Rows(first / rows_per_epoch, row, some.size(), some.data());
      ASSERT_TRUE(std::equal(some.begin(), some.end(),
                             before.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
}

TEST(WeightsTest, APartGoesOnWhereItWas) {
  const Plan plan =
      Changed(PlanOf(MixOf({{0, {1, 1, 1}}}, WhenOut::kStop), 60),
              {{0, 100, {1, 3, 1}}, {0, 200, {2, 0, 1}}, {0, 304, {1, 1, 1}}});
  std::map<size_t, std::set<uint64_t>> of_part;
  for (const Plan::Row& row : RowsOf(plan, 1)) {
    EXPECT_TRUE(of_part[PartOf(row.record)].insert(row.record).second)
        << row.record << " twice before its part was complete";
  }
  // Without a shuffle: one after the other.
  const Plan in_order =
      Changed(PlanOf(MixOf({{0, {1, 1, 1}}}, WhenOut::kStop), 60, false),
              {{0, 100, {1, 3, 1}}, {0, 200, {2, 0, 1}}, {0, 304, {1, 1, 1}}});
  std::vector<uint64_t> next = {0, 300, 800};
  for (const Plan::Row& row : RowsOf(in_order, 1)) {
    EXPECT_EQ(row.record, next[PartOf(row.record)]++);
  }
}

TEST(WeightsTest, TheLastAtOneRowHolds) {
  const auto plan = [] {
    return PlanOf(MixOf({{0, {1, 1, 2}}}, WhenOut::kRepeat), 50);
  };
  EXPECT_EQ(RowsOf(Changed(plan(), {{1, 0, {1, 9, 1}}, {1, 0, {3, 1, 1}}})),
            RowsOf(Changed(plan(), {{1, 0, {3, 1, 1}}})));
}

TEST(WeightsTest, ASubstituteGoesByTheWeightsOfItsRow) {
  const Plan plan = PlanOf(MixOf({{0, {1, 1, 2}}}, WhenOut::kStop), 50);
  const Plan changed = Changed(plan, {{0, 104, {9, 0, 1}}});
  std::vector<Plan::Row> last(1);
  changed.Rows(0, 103, 1, last.data());
  Shuffles of_plan;
  Shuffles of_changed;
  for (uint64_t i = 1; i < 16; ++i) {
    EXPECT_EQ(changed.Following(last[0], i, &of_changed),
              plan.Following(last[0], i, &of_plan));
  }
}

// What a plan says of its parts, counted. ends: of the records of each.
void CheckParts(const Plan& plan, const std::vector<uint64_t>& ends) {
  const std::vector<Plan::Row> rows = RowsOf(plan);
  std::vector<uint64_t> count(ends.size());
  for (uint64_t i = 0; i <= rows.size(); ++i) {
    const auto parts = plan.PartsAt(i);
    ASSERT_EQ(parts.size(), ends.size());
    double shares = 0;
    for (size_t part = 0; part < parts.size(); ++part) {
      ASSERT_EQ(parts[part].rows, count[part]) << part << " at " << i;
      shares += parts[part].share;
      // The next row of it.
      const auto next =
          std::find_if(rows.begin() + static_cast<ptrdiff_t>(i), rows.end(),
                       [&](const Plan::Row& row) {
                         return row.record < ends[part] &&
                                (part == 0 || row.record >= ends[part - 1]);
                       });
      if (next == rows.end() || next->pass_of_order != rows[i].pass_of_order) {
        continue;
      }
      const uint64_t size = ends[part] - (part == 0 ? 0 : ends[part - 1]);
      ASSERT_EQ(parts[part].place.pass + parts[part].place.rows / size,
                next->pass);
    }
    ASSERT_NEAR(shares, 1, 1e-9);
    if (i == rows.size()) break;
    ++count[static_cast<size_t>(
        std::upper_bound(ends.begin(), ends.end(), rows[i].record) -
        ends.begin())];
  }
}

TEST(WeightsTest, PartsAreCountedAtAnyPosition) {
  const std::vector<uint64_t> ends = {300, 800, 1200};
  for (const WhenOut when_out :
       {WhenOut::kStop, WhenOut::kDrop, WhenOut::kRepeat}) {
    for (const uint64_t block : {1u, 4u}) {
      for (const std::optional<uint64_t> steps :
           {std::optional<uint64_t>(), std::optional<uint64_t>(90)}) {
        Plan plan = PlanOf(
            MixOf({{0, {1, 1, 2}}, {40, {2, 1, 1}}}, when_out, block), steps);
        CheckParts(plan, ends);
        plan = Changed(
            std::move(plan),
            {{0, 100, {3, 1, 1}}, {1, 0, {1, 1, 5}}, {1, 404, {1, 1, 1}}});
        CheckParts(plan, ends);
      }
    }
  }
}

TEST(WeightsTest, AMixGoesOnWithOtherPartsEachWhereItWas) {
  const ShuffleSpec shuffle{.seed = 7};
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto when_out = static_cast<WhenOut>(round % 3);
    const uint64_t block = round % 2 == 0 ? 1 : 4;
    // Sizes of all parts that there ever are; the number of each is that of its
    // shuffle, and says which records it has.
    const std::vector<uint64_t> sizes = {96, 60, 200, 44, 120};
    std::vector<PartPlace> places(sizes.size());
    for (uint32_t i = 0; i < places.size(); ++i) places[i].shuffle = i;
    std::vector<std::vector<std::pair<uint64_t, uint64_t>>> got(sizes.size());
    uint64_t epoch = 0;
    uint64_t row = 0;
    for (int resume = 0; resume < 6; ++resume) {
      std::vector<size_t> used(sizes.size());
      std::iota(used.begin(), used.end(), size_t{0});
      std::shuffle(used.begin(), used.end(), random);
      used.resize(1 + random() % sizes.size());
      std::vector<std::unique_ptr<Order>> orders;
      std::vector<uint32_t> weights;
      std::vector<PartPlace> begin;
      for (const size_t part : used) {
        orders.push_back(AllRecords(sizes[part], 1000 * part));
        weights.push_back(static_cast<uint32_t>(1 + random() % 4));
        begin.push_back(places[part]);
      }
      PlanSpec spec;
      spec.batch.size = 4;
      spec.epochs = std::nullopt;
      if (round % 4 != 0) spec.shuffle = shuffle;
      auto mix =
          Mix(std::move(orders), {{0, std::vector<uint32_t>(used.size(), 1)}},
              when_out, {}, block);
      ASSERT_TRUE(mix.ok());
      auto plan = Plan::Make(spec, *std::move(mix), 1, 640);
      ASSERT_TRUE(plan.ok());
      plan = plan->BegunAt(epoch, row, begin, weights, {});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ASSERT_EQ(plan->rows_per_epoch(), 640u);
      const uint64_t first = epoch * 640 + row;
      ASSERT_EQ(plan->first_known(), first);
      if (resume % 2 == 1) {  // also by hand
        for (uint32_t& weight : weights) {
          weight = static_cast<uint32_t>(1 + random() % 4);
        }
        const uint64_t at = first + random() % 300 / 4 * 4;
        plan = plan->WithWeights({at / 640, at % 640, weights}, {});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
      }
      const uint64_t count = (4 + random() % 900) / 4 * 4;
      for (uint64_t i = 0; i < count; ++i) {
        Plan::Row one;
        plan->Rows((first + i) / 640, (first + i) % 640, 1, &one);
        const size_t part = one.record / 1000;
        got[part].push_back({one.pass, one.record % 1000});
      }
      const auto parts = plan->PartsAt(first + count);
      for (size_t i = 0; i < used.size(); ++i) {
        places[used[i]] = parts[i].place;
        ASSERT_EQ(parts[i].place.shuffle, used[i]);
        if (when_out != WhenOut::kRepeat) {
          ASSERT_LE(parts[i].place.rows, sizes[used[i]]);
        }
        // As where it comes back later.
        if (random() % 2 == 0) {
          places[used[i]].pass += parts[i].place.rows / sizes[used[i]];
          places[used[i]].rows %= sizes[used[i]];
        }
      }
      epoch = (first + count) / 640;
      row = (first + count) % 640;
    }
    for (size_t part = 0; part < sizes.size(); ++part) {
      uint64_t pass = 0;
      uint64_t index = 0;
      for (const auto& [in_pass, record] : got[part]) {
        if (in_pass != pass) {
          // `stop` leaves a pass where another part is out, an epoch where it
          // ends.
          ASSERT_GT(in_pass, pass);
          pass = in_pass;
          index = 0;
        }
        ASSERT_LT(index, sizes[part]);
        uint64_t wanted = index;
        if (round % 4 != 0) {
          wanted = Permutation(sizes[part],
                               shuffle.SeedOf(1 + static_cast<uint32_t>(part)),
                               pass)(index);
        }
        ASSERT_EQ(record, wanted) << part << " at " << index << " of " << pass;
        ++index;
      }
    }
  }
}

TEST(WeightsTest, APassOfWhichNothingIsLeftIsOver) {
  // The first part is out, and the new weights want it first.
  for (const WhenOut when_out : {WhenOut::kStop, WhenOut::kDrop}) {
    std::vector<std::unique_ptr<Order>> orders;
    orders.push_back(AllRecords(10));
    orders.push_back(AllRecords(20, 100));
    auto mix = Mix(std::move(orders), {{0, {1, 1}}}, when_out, {});
    PlanSpec spec;
    spec.epochs = std::nullopt;
    auto plan = Plan::Make(spec, *std::move(mix), 1, 30);
    const std::vector<PartPlace> places = {
        {0, 4, 10}, {1, 2, when_out == WhenOut::kStop ? 15u : 20u}};
    const auto begun = plan->BegunAt(3, 9, places, {5, 1}, {});
    ASSERT_TRUE(begun.ok()) << begun.status().message();
    Plan::Row row;
    begun->Rows(3, 9, 1, &row);
    EXPECT_EQ(row.record, 0u);
    EXPECT_EQ(row.pass, 5u);
    const auto changed = begun->WithWeights({3, 9, {1, 5}}, {});
    ASSERT_TRUE(changed.ok()) << changed.status().message();
    changed->Rows(3, 9, 1, &row);
    EXPECT_EQ(row.record, 100u);
    EXPECT_EQ(row.pass, 3u);
    EXPECT_THAT(begun->WithWeights({3, 8, {1, 5}}, {}).status().message(),
                HasSubstr("row 8 of epoch 3 is before the mix began"));
    EXPECT_THAT(plan->BegunAt(0, 0, {{0, 0, 11}, {1, 0, 0}}, {1, 1}, {})
                    .status()
                    .message(),
                HasSubstr("parts[0]: has 10 rows, and 11 were taken"));
    EXPECT_THAT(plan->BegunAt(0, 0, {{1, 0, 0}, {1, 0, 0}}, {1, 1}, {})
                    .status()
                    .message(),
                HasSubstr("two parts have the number of one shuffle"));
  }
}

TEST(WeightsTest, WhatCannotBeIsRefused) {
  const Plan plan = PlanOf(MixOf({{0, {1, 1, 2}}}, WhenOut::kRepeat), 50);
  EXPECT_THAT(plan.WithWeights({0, 8, {1, 1}}, {}).status().message(),
              HasSubstr("2 weights for 3 parts: give one for each"));
  EXPECT_THAT(PlanOf(AllRecords(100), 10)
                  .WithWeights({0, 8, {1}}, {})
                  .status()
                  .message(),
              HasSubstr("where the source is a mix"));
}

TEST(WeightsTest, AStateHasItsParts) {
  JobState state;
  state.dataset = "d";
  state.epoch = 2;
  state.mix = JobState::Mix{
      .begin = {1, 0.5},
      .spec = {1, 4},
      .rule = "12",
      .parts = {{"ab", "tokens a", 900, 0, 1, 2, 902}, {"cd", "range 7", 7, 1}},
      .shuffles = 3,
      .from = JobState::MixFrom{1, 8},
      .gone = {{"ef", "", 12, 2, 0, 3, 3}}};
  const auto again = ParseJobState(JobStateToJson(state).dump());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, state);
  const std::pair<const char*, const char*> wrongs[] = {
      {"parts", "{}"},
      {"parts", "[1, 2]"},
      {"parts",
       R"([{"part": "ab", "name": "", "records": 900, "shuffle": 0}])"},
      {"parts", R"([{"part": 1, "name": "", "records": 9, "shuffle": 0}, {}])"},
      {"gone", R"([{"part": "ab", "name": "", "records": 0, "shuffle": 0}])"},
      {"gone",
       R"([{"part": "ab", "name": "", "records": 9, "shuffle": 65536}])"},
      {"gone",
       R"([{"part": "ab", "name": "", "records": 9, "shuffle": 1, "pass": -1}])"},
      {"gone",
       R"([{"part": "a", "name": "", "records": 18014398509481984, "shuffle": 1}])"},
      {"from", "[1]"},
      {"from", "[2, 1]"},
      {"shuffles", "65537"},
      {"rule", "7"}};
  for (const auto& [key, wrong] : wrongs) {
    nlohmann::json json = JobStateToJson(state);
    json["mix"][key] = nlohmann::json::parse(wrong);
    const auto refused = ParseJobState(json.dump());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(refused.status().message(), HasSubstr("state: ")) << wrong;
  }
}

TEST(WeightsTest, AStateHasThem) {
  JobState state;
  state.dataset = "d";
  state.weights = {{0, 8, {1, 4}}, {2, 0, {0, 1}}};
  const auto again = ParseJobState(JobStateToJson(state).dump());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, state);
  for (const char* wrong :
       {"[1]", "[[0, 8]]", "[[0, 8, 0, 0]]", "[[0, 8, -1, 2]]", "{}",
        "[[0, 8, 1.5, 2]]", "[[0, 8, 1, 2000000]]", "[[1, 0, 1], [0, 9, 1]]",
        "[[\"0\", 8, 1]]", "[[0, 8, [1, 4]]]"}) {
    nlohmann::json json = JobStateToJson(state);
    json["weights"] = nlohmann::json::parse(wrong);
    const auto refused = ParseJobState(json.dump());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(refused.status().message(), HasSubstr("weights")) << wrong;
  }
}

}  // namespace penstock::weights_test
