// Promise: a row that another host makes is taken once, if it came in time and
// is what its maker made of this very row; whatever else comes, or does not,
// costs nothing but the row. Method: a dataset of numbers, a test that writes
// rows where a link does, and one thread of a worker beside one of a link.
#include "broker/job/remote_rows.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "broker/job/dataset.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::remote_rows_test {

class RemoteRowsTest : public testing::Test {
 protected:
  explicit RemoteRowsTest(uint64_t records = 4000)
      : spec_(*ParseDatasetSpec(
            "dataset: numbers\nsource: {range: " + std::to_string(records) +
                "}\nbatch: {size: 10}\n",
            "test", "/")),
        dataset_(*OpenDataset(spec_, {}, &progress_)),
        plan_(*PlanOf(spec_, *dataset_, 1, 1)),
        rows_(dataset_, 0) {
    rows_.SetSteps(ChooseStepsOfMakers(spec_, *dataset_, &progress_));
    Begin(8);
  }

  void Begin(uint32_t asks) {
    const auto fd = rows_.Begin(asks, [this](uint64_t bytes) {
      reserved_ += bytes;
      return OkStatus();
    });
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    fd_ = *fd;
  }
  std::optional<RemoteRows::Ask> Next(uint64_t end, bool ranks_wait = true) {
    return rows_.Next(plan_, {{0}, end, ranks_wait});
  }
  // Writes what a maker would make of the row; its checksum.
  uint64_t Write(const RemoteRows::Row& row, uint64_t value) {
    std::vector<std::byte> bytes(rows_.form().row_bytes);
    std::memcpy(bytes.data(), &value, sizeof(value));
    EXPECT_EQ(pwrite(fd_, bytes.data(), bytes.size(),
                     static_cast<off_t>(row.place * bytes.size())),
              static_cast<ssize_t>(bytes.size()));
    const uint64_t key[] = {row.record, row.pass};
    return Crc32c(bytes, Crc32c(std::as_bytes(std::span(key))));
  }
  std::vector<uint64_t> Make(const RemoteRows::Ask& ask) {
    std::vector<uint64_t> made;
    for (const RemoteRows::Row& row : ask.rows) {
      made.push_back(row.place);
      made.push_back(Write(row, row.record));
    }
    return made;
  }
  std::vector<Plan::Row> Planned(uint64_t first, uint64_t count) const {
    std::vector<Plan::Row> rows(count);
    plan_.Rows(0, first, count, rows.data());
    return rows;
  }
  // The value of a row at a head; nullopt: it is damaged.
  std::optional<uint64_t> Read(const RemoteRows::Heads& heads, size_t i,
                               const Plan::Row& row) {
    std::vector<std::byte> bytes;
    RawRecord made;
    if (!rows_.Read(heads, heads.of_rows[i], row, &bytes, &made).ok()) {
      return std::nullopt;
    }
    uint64_t value = 0;
    std::memcpy(&value, made[0].data(), sizeof(value));
    return value;
  }
  uint64_t Shown(const char* key) const {
    return rows_.StatusJson().at(key).get<uint64_t>();
  }

  OpenProgress progress_;
  const DatasetSpec spec_;
  const std::shared_ptr<const Dataset> dataset_;
  const Plan plan_;
  RemoteRows rows_;
  int fd_ = -1;
  uint64_t reserved_ = 0;
};

TEST_F(RemoteRowsTest, RowsAreAskedForInTheirOrderAndNoFartherThanWanted) {
  std::vector<uint64_t> asked;
  while (const auto ask = Next(100)) {
    for (const RemoteRows::Row& row : ask->rows) asked.push_back(row.record);
  }
  ASSERT_EQ(asked.size(), 100u);
  for (uint64_t i = 0; i < asked.size(); ++i) EXPECT_EQ(asked[i], i);
}

TEST_F(RemoteRowsTest, WhatIsClaimedIsNotAskedFor) {
  rows_.Claimed(40);
  EXPECT_EQ(Next(100)->rows[0].record, 40u);
}

TEST_F(RemoteRowsTest, NoMoreAsksThanTheLinkAnswersAtOnce) {
  std::vector<RemoteRows::Ask> asks;
  while (const auto ask = Next(4000)) asks.push_back(*ask);
  ASSERT_EQ(asks.size(), 8u);
  EXPECT_GT(Shown("rows_wanted"), 0u);
  EXPECT_TRUE(rows_.Made(asks[3].number, "a", {}).ok());
  EXPECT_TRUE(Next(4000).has_value());
  EXPECT_FALSE(Next(4000).has_value());
}

TEST_F(RemoteRowsTest, ARowThatCameIsTakenOnce) {
  const auto ask = Next(10);
  ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  const auto rows = Planned(0, 10);
  const RemoteRows::Heads heads = rows_.Take(rows);
  ASSERT_EQ(heads.of_rows.size(), 10u);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(Read(heads, i, rows[i]), i);
  EXPECT_TRUE(rows_.Take(rows).of_rows.empty());
  rows_.Free(heads);
  EXPECT_EQ(Shown("rows_used"), 10u);
}

TEST_F(RemoteRowsTest, ALateRowIsThrownAway) {
  const auto ask = Next(10);
  EXPECT_TRUE(rows_.Take(Planned(0, 4)).of_rows.empty());
  ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  EXPECT_TRUE(rows_.Take(Planned(0, 4)).of_rows.empty());
  EXPECT_EQ(rows_.Take(Planned(4, 6)).of_rows.size(), 6u);
  EXPECT_EQ(Shown("rows_late"), 4u);
}

TEST_F(RemoteRowsTest, APlaceIsNotGivenAwayBeforeItsAskIsOver) {
  const auto late = Next(10);
  EXPECT_TRUE(rows_.Take(Planned(0, 10)).of_rows.empty());
  std::set<uint32_t> places;
  for (const RemoteRows::Row& row : late->rows) places.insert(row.place);
  rows_.Claimed(10);
  while (const auto ask = Next(4000)) {
    for (const RemoteRows::Row& row : ask->rows) {
      EXPECT_TRUE(places.insert(row.place).second);
    }
  }
}

TEST_F(RemoteRowsTest, BytesOfAnotherRowAreNoRow) {
  const auto ask = Next(2);
  std::vector<uint64_t> made = Make(*ask);
  std::swap(made[1], made[3]);
  ASSERT_TRUE(rows_.Made(ask->number, "a", made).ok());
  const auto rows = Planned(0, 2);
  const RemoteRows::Heads heads = rows_.Take(rows);
  EXPECT_EQ(Read(heads, 0, rows[0]), std::nullopt);
  EXPECT_EQ(Read(heads, 1, rows[1]), std::nullopt);
  EXPECT_EQ(Shown("rows_damaged"), 2u);
}

TEST_F(RemoteRowsTest, WhatTheLinkWritesLaterChangesNothingThatIsUsed) {
  const auto ask = Next(1);
  ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  const auto rows = Planned(0, 1);
  const RemoteRows::Heads heads = rows_.Take(rows);
  Write(ask->rows[0], 77);
  EXPECT_EQ(Read(heads, 0, rows[0]), std::nullopt);
}

TEST_F(RemoteRowsTest, PlacesThatWereNotAskedForAreRefused) {
  const auto first = Next(10);
  const auto second = Next(20);
  EXPECT_FALSE(rows_.Made(first->number, "a", Make(*second)).ok());
  EXPECT_FALSE(rows_.Made(99, "a", {}).ok());
  const std::vector<uint64_t> far = {uint64_t{1} << 40, 0};
  EXPECT_FALSE(rows_.Made(second->number, "a", far).ok());
}

TEST_F(RemoteRowsTest, TheMemoryCannotBeMadeSmallerThanItIs) {
  EXPECT_NE(ftruncate(fd_, 0), 0);
}

TEST_F(RemoteRowsTest, AnotherLinkGetsAnotherMemoryAndRowsInUseStay) {
  const auto ask = Next(10);
  ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  const auto rows = Planned(0, 5);
  const RemoteRows::Heads heads = rows_.Take(rows);
  rows_.End();
  EXPECT_TRUE(rows_.Take(Planned(5, 5)).of_rows.empty());
  Begin(8);
  EXPECT_EQ(Read(heads, 3, rows[3]), 3u);
  rows_.Free(heads);
  EXPECT_FALSE(rows_.Made(ask->number, "a", {}).ok());
  EXPECT_EQ(reserved_, rows_.form().places * rows_.form().row_bytes);
  EXPECT_TRUE(Next(10).has_value());
}

TEST_F(RemoteRowsTest, AMakerOfOtherRowsIsPutOut) {
  const auto ask = Next(10);
  ASSERT_TRUE(rows_.Made(ask->number, "liar", Make(*ask)).ok());
  const RemoteRows::Heads heads = rows_.Take(Planned(0, 5));
  for (const RemoteRows::Head& head : heads.of_rows) EXPECT_TRUE(head.checked);
  rows_.Differs(heads.of_rows[0], 0);
  rows_.Free(heads);
  EXPECT_TRUE(rows_.Take(Planned(5, 5)).of_rows.empty());
  const auto put_out = rows_.TakeDistrusted();
  ASSERT_EQ(put_out.size(), 1u);
  EXPECT_EQ(put_out[0].first, "liar");
  const auto more = Next(20);
  ASSERT_TRUE(rows_.Made(more->number, "liar", Make(*more)).ok());
  EXPECT_TRUE(rows_.Take(Planned(10, 10)).of_rows.empty());
}

TEST_F(RemoteRowsTest, AllRowsAreCheckedUntilOneAgreesThenSome) {
  const auto ask = Next(10);
  ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  const RemoteRows::Heads first = rows_.Take(Planned(0, 5));
  EXPECT_TRUE(first.of_rows[4].checked);
  rows_.Agrees(first.of_rows[0]);
  rows_.Free(first);
  const RemoteRows::Heads second = rows_.Take(Planned(5, 5));
  uint64_t checked = 0;
  for (const RemoteRows::Head& head : second.of_rows) checked += head.checked;
  EXPECT_LT(checked, 5u);
  rows_.Free(second);
  checked = 0;
  for (uint64_t at = 10; at < 4000; at += 10) {
    rows_.Claimed(at);
    const auto more = Next(at + 10);
    ASSERT_TRUE(rows_.Made(more->number, "a", Make(*more)).ok());
    const RemoteRows::Heads heads = rows_.Take(Planned(at, 10));
    for (const RemoteRows::Head& head : heads.of_rows) checked += head.checked;
    rows_.Free(heads);
  }
  // Which are checked is drawn: outside of this once in 10^6 runs.
  constexpr uint64_t kMean = 3990 / RemoteRows::kCheckedOneIn;
  EXPECT_GE(checked, 1u);
  EXPECT_LE(checked, 3 * kMean);
}

TEST_F(RemoteRowsTest, AnAskThatNoMakerTookNamesNone) {
  const auto ask = Next(10);
  ASSERT_TRUE(rows_.Made(ask->number, "", {}).ok());
  EXPECT_TRUE(rows_.StatusJson().at("makers").empty());
}

TEST_F(RemoteRowsTest, RowsThatNobodyComesForAreLetGo) {
  while (const auto ask = Next(4000)) {
    ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  }
  const uint64_t made = Shown("rows_made");
  EXPECT_GT(made, 500u);  // and not all
  EXPECT_LT(made, 600u);
  rows_.Claimed(4000);
  rows_.Tick(20, {});
  EXPECT_EQ(Shown("rows_unused"), made);
}

TEST_F(RemoteRowsTest, OnlyTheShortfallIsAskedForWhileNobodyWaits) {
  // Workers make 100 rows a second, and 180 are taken: half of those.
  uint64_t claimed = 0;
  RemoteRows::Local local;
  const auto after_a_second = [&](uint64_t taken) {
    usleep(100'000);
    rows_.Claimed(claimed += taken / 10);
    local.rows += 10;
    local.ns += 100'000'000;
    rows_.Tick(20, local);
  };
  for (int i = 0; i < 20; ++i) after_a_second(80);
  EXPECT_FALSE(Next(4000, false).has_value());
  for (int i = 0; i < 20; ++i) after_a_second(180);
  uint64_t asked = 0;
  uint64_t first = 4000;
  uint64_t last = 0;
  while (const auto ask = Next(4000, false)) {
    asked += ask->rows.size();
    first = std::min(first, ask->rows.front().record);
    last = ask->rows.back().record;
    ASSERT_TRUE(rows_.Made(ask->number, "a", {}).ok());
  }
  EXPECT_NEAR(static_cast<double>(asked),
              0.5 * static_cast<double>(last - claimed), 50);
}

TEST_F(RemoteRowsTest,
       WhileRanksWaitWorkersAreLeftWhatTheyMakeInAnAnswersTime) {
  const auto ask = Next(4000);
  ASSERT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
  const double answer_s = rows_.StatusJson().at("answer_s").get<double>();
  rows_.Tick(20, {1000, static_cast<uint64_t>(answer_s * 1e9), 1});
  // 1,500 rows that workers make, and the 32 that are here.
  const auto next = Next(4000);
  EXPECT_NEAR(static_cast<double>(next->rows[0].record), 1532, 2);
  const uint64_t end = next->rows.back().record + 1;
  // What makers are asked for leaves that as it is; what workers take does not.
  EXPECT_EQ(Next(4000)->rows[0].record, end);
  rows_.Claimed(10);
  EXPECT_EQ(Next(4000)->rows[0].record, end + 32 + 10);
}

// Under ThreadSanitizer: the control thread, a link's answers, and a worker.
TEST_F(RemoteRowsTest, WorkersTakeWhileRowsCome) {
  std::atomic<uint64_t> taken{0};
  std::thread worker([&] {
    for (uint64_t at = 0; at < 4000; at += 10) {
      rows_.Claimed(at + 10);
      const auto rows = Planned(at, 10);
      const RemoteRows::Heads heads = rows_.Take(rows);
      for (size_t i = 0; i < heads.of_rows.size(); ++i) {
        if (heads.of_rows[i].place == RemoteRows::kNoPlace) continue;
        EXPECT_EQ(Read(heads, i, rows[i]), at + i);
        ++taken;
      }
      rows_.Free(heads);
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 2000; ++i) {
    if (const auto ask = Next(4000, true)) {
      EXPECT_TRUE(rows_.Made(ask->number, "a", Make(*ask)).ok());
    }
    rows_.Tick(20, {});
    std::this_thread::yield();
  }
  worker.join();
  EXPECT_EQ(Shown("rows_used"), taken.load());
}

TEST(SpecForMakersTest, HasTheStepsAndNothingOfTheOrder) {
  const DatasetSpec spec = *ParseDatasetSpec(
      "dataset: numbers\nsource: {range: 100}\nshuffle: {seed: 4}\n"
      "select: [take: 50]\nmap: [{cast: {feature: value, dtype: int32}}]\n"
      "epochs: 3\nbatch: {size: 10}\n",
      "test", "/");
  const auto json = SpecForMakers(spec, 0, 7);
  const auto read = ParseDatasetSpec(json.dump(), "", "/");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(read->asked);
  EXPECT_TRUE(read->map.empty());
  EXPECT_EQ(read->seed, 4u);
  EXPECT_FALSE(read->shuffle.has_value());
  EXPECT_EQ(read->batch.size, 7u);
}

}  // namespace penstock::remote_rows_test
