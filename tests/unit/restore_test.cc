// Promise: after a death of the broker, a broadcast of a stream goes on where
// `lag` says, although rows were released that some consumer did not have.
// Method: the pure function that decides it, on made-up pages.
#include "broker/recovery/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::restore_test {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kBatch = 8;

// Rank 0 is dead, would have taken step 12 next and held step 10; rank 1 goes
// on at step 22. Of the rows before step 20 the former instance kept those of
// step 10.
class RestoreTest : public testing::Test {
 protected:
  RestoreTest() {
    dead_.position = 12 * kBatch;
    dead_.taken = 1;
    dead_.leases[0].generation = 1;
    dead_.leases[0].step = StepId(10 * kBatch, 0);
    alive_.position = 22 * kBatch;
    alive_.taken = 5;
  }
  static Plan MakePlan() {
    PlanSpec spec;
    spec.batch.size = kBatch;
    spec.epochs = 1;
    return *Plan::Make(spec, 100 * kBatch, 1);
  }
  Delivery::FormerSteps Gather(Lag lag, std::vector<RowRange> here,
                               uint32_t window = 10) const {
    FormerProgress former;
    former.options.mode = DeliveryMode::kBroadcast;
    former.options.lag = lag;
    former.options.on_rank_death = OnRankDeath::kWait;
    former.options.window = window;
    former.here = std::move(here);
    FormerProcess dead{.rank = 0, .page = &dead_};
    FormerProcess alive{
        .rank = 1, .page = &alive_, .may_live = true, .reconnects = true};
    return GatherSteps(former, MakePlan(), {dead, alive},
                       {{1, {&alive_, 22 * kBatch}}});
  }
  const std::vector<RowRange> gap_ = {{10 * kBatch, kBatch, false},
                                      {20 * kBatch, 10 * kBatch, false}};
  CursorPage dead_{};
  CursorPage alive_{};
};

// Its attach was recorded but perhaps not answered; it left no page.
TEST_F(RestoreTest, ABroadcastBeginsOnlyWhenAllHaveCome) {
  const Plan plan = MakePlan();
  CursorPage waits{};
  FormerProgress former;
  former.options.mode = DeliveryMode::kBroadcast;
  const std::vector<FormerProcess> processes = {
      {.rank = 0, .page = &waits, .may_live = true, .reconnects = true},
      {.rank = 2, .page = nullptr}};
  for (const bool all_came : {false, true}) {
    former.all_came = all_came;
    EXPECT_EQ(GatherSteps(former, plan, processes, {{0, {&waits, 0}}}).started,
              all_came);
  }
}

// Without the pages of some ranks or of all, as for a broker started by hand.
TEST_F(RestoreTest, WhoseBroadcastCannotGoOnWithoutItIsNamed) {
  FormerProgress former;
  former.options.mode = DeliveryMode::kBroadcast;
  const FormerProcess lost{.rank = 0, .may_live = true};
  const FormerProcess goes_on{.rank = 1, .may_live = true};
  const std::map<uint32_t, ReconnectedRank> one = {{1, {&alive_, 176}}};
  for (const OnRankDeath policy : {OnRankDeath::kShrink, OnRankDeath::kWait}) {
    former.options.on_rank_death = policy;
    EXPECT_EQ(UnknownConsumer(former, {lost, goes_on}, {}), 0u);
    EXPECT_EQ(UnknownConsumer(former, {lost, goes_on}, one),
              policy == OnRankDeath::kWait ? std::optional(0u) : std::nullopt);
    EXPECT_EQ(UnknownConsumer(former, {{.rank = 0, .page = &dead_}}, {}),
              std::nullopt);
    EXPECT_EQ(UnknownConsumer(former, {{.rank = 0, .left = true}}, {}),
              std::nullopt);
  }
  former.all_came = false;
  EXPECT_EQ(UnknownConsumer(former, {lost}, {}), std::nullopt);
}

TEST_F(RestoreTest, WhoComesWhenAllAreDeadJoinsWhereTheFurthestWas) {
  FormerProgress former;
  former.options.mode = DeliveryMode::kBroadcast;
  former.options.on_rank_death = OnRankDeath::kShrink;
  const auto gathered = GatherSteps(
      former, MakePlan(),
      {{.rank = 0, .page = &dead_}, {.rank = 1, .page = &alive_}}, {});
  EXPECT_TRUE(gathered.started);
  EXPECT_EQ(gathered.position, 22 * kBatch);
  EXPECT_TRUE(gathered.consumers.empty());
}

// It took a batch after its place was free, from where its replacement began.
// The page of that one no longer has the batch: its lease was used again.
TEST_F(RestoreTest, WhatAnEvictedRankTookInsteadOfItsReplacementIsNotOwed) {
  CursorPage evicted{};
  evicted.position = kBatch;
  evicted.taken = 1;
  evicted.leases[0].generation = 1;
  evicted.leases[0].step = StepId(0, 0);
  CursorPage replacement{};
  replacement.position = 2 * kBatch;
  replacement.taken = 2;
  replacement.released[0] = 2;
  replacement.leases[0].generation = 2;
  replacement.leases[0].step = StepId(kBatch, 0);
  const auto redo = [&](uint64_t begins_at) {
    return RestoreRanks({{.rank = 0, .page = &evicted},
                         {.rank = 0, .from = begins_at, .page = &replacement}},
                        {}, MakePlan())[0]
        .redo;
  };
  EXPECT_THAT(redo(0), IsEmpty());
  EXPECT_THAT(redo(kBatch), ElementsAre(StepId(0, 0)));
}

TEST_F(RestoreTest, AllIsHere) {
  for (const Lag lag : {Lag::kBlock, Lag::kSkip, Lag::kFail}) {
    const auto gathered = Gather(lag, {{10 * kBatch, 20 * kBatch, false}});
    EXPECT_EQ(gathered.position, 12 * kBatch);
    ASSERT_EQ(gathered.consumers.size(), 1u);
    EXPECT_THAT(gathered.consumers[0].redo,
                ElementsAre(StepId(10 * kBatch, 0)));
  }
}

TEST_F(RestoreTest, NoStream) {
  EXPECT_EQ(Gather(Lag::kSkip, {}).position, 12 * kBatch);
}

TEST_F(RestoreTest, WhoIsMoreThanAWindowBehindHoldsUpNobody) {
  const auto skipped = Gather(Lag::kSkip, {}, 9);
  EXPECT_EQ(skipped.position, 13 * kBatch);
  ASSERT_EQ(skipped.consumers.size(), 1u);
  EXPECT_EQ(skipped.consumers[0].position, 12 * kBatch);
  EXPECT_THAT(Gather(Lag::kFail, {}, 9).consumers, IsEmpty());
  EXPECT_EQ(Gather(Lag::kBlock, {}, 9).position, 12 * kBatch);
}

TEST_F(RestoreTest, SkipGoesOnBehindTheGapWithWhatIsKept) {
  const auto gathered = Gather(Lag::kSkip, gap_);
  EXPECT_EQ(gathered.position, 20 * kBatch);
  ASSERT_EQ(gathered.consumers.size(), 1u);
  EXPECT_EQ(gathered.consumers[0].position, 12 * kBatch);
  EXPECT_THAT(gathered.consumers[0].redo, ElementsAre(StepId(10 * kBatch, 0)));
}

TEST_F(RestoreTest, SkipLeavesOutWhatIsNotKept) {
  const auto gathered = Gather(Lag::kSkip, {gap_[1]});
  ASSERT_EQ(gathered.consumers.size(), 1u);
  EXPECT_THAT(gathered.consumers[0].redo, IsEmpty());
}

TEST_F(RestoreTest, AStreamOfWhichAllIsReleased) {
  EXPECT_EQ(Gather(Lag::kSkip, {{22 * kBatch, 0, false}}).position,
            22 * kBatch);
}

TEST_F(RestoreTest, FailDoesNotKeepThePlaceOfOneThatWasDropped) {
  const auto gathered = Gather(Lag::kFail, gap_);
  EXPECT_EQ(gathered.position, 22 * kBatch);
  EXPECT_THAT(gathered.consumers, IsEmpty());
}

// Impossible: missing rows are an error here, not skipped.
TEST_F(RestoreTest, BlockPassesOverNothing) {
  EXPECT_EQ(Gather(Lag::kBlock, gap_).position, 12 * kBatch);
}

}  // namespace penstock::restore_test
