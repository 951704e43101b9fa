// Promise: a worker serves the job with the least turn; of the jobs that do not
// read only one before a given turn; and it learns of new jobs in time.
#include "broker/workers/serving_order.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace penstock {
namespace {

constexpr bool kReads = true;

std::vector<size_t> TakeAll(ServingOrder* order, uint64_t before) {
  std::vector<size_t> taken;
  while (const auto next = order->TakeNext(before))
    taken.push_back(next->index);
  return taken;
}

TEST(ServingOrderTest, JobsComeByTurnWhetherTheyReadOrNot) {
  ServingOrder order;
  order.Add(kReads, {30, 3});
  order.Add(!kReads, {20, 2});
  order.Add(kReads, {10, 1});
  order.Add(!kReads, {40, 4});
  EXPECT_EQ(TakeAll(&order, UINT64_MAX), (std::vector<size_t>{1, 2, 3, 4}));
  EXPECT_TRUE(order.empty());
}

TEST(ServingOrderTest, OnlyJobsThatReadComeWhenItIsAnothersTurn) {
  ServingOrder order;
  order.Add(!kReads, {5, 0});
  order.Add(!kReads, {20, 2});
  order.Add(kReads, {30, 3});
  EXPECT_EQ(TakeAll(&order, 20), (std::vector<size_t>{0, 3}));
  EXPECT_FALSE(order.empty());
  EXPECT_EQ(TakeAll(&order, 21), (std::vector<size_t>{2}));
}

TEST(ServingOrderTest, AListServesForAsLongAsAClaimMayTake) {
  ServingOrder order;
  constexpr uint64_t kNow = 1'000'000'000;
  EXPECT_TRUE(order.expired(kNow));
  order.Begin(kNow);
  EXPECT_FALSE(order.expired(kNow + ServingOrder::kKeptNs));
  EXPECT_TRUE(order.expired(kNow + ServingOrder::kKeptNs + 1));
  order.Add(kReads, {1, 1});
  order.Expire();
  EXPECT_TRUE(order.expired(kNow));
  order.Begin(kNow);
  EXPECT_TRUE(order.empty());
}

TEST(ClaimableJobsTest, IsTheSetThatWasSet) {
  ClaimableJobs jobs;
  std::set<size_t> expected;
  for (size_t i = 0; i < 3000; ++i) {
    const size_t index = i * 7919 % ClaimableJobs::kJobsMax;
    const bool claimable = i % 3 != 0;
    jobs.Set(index, claimable);
    claimable ? (void)expected.insert(index) : (void)expected.erase(index);
    ASSERT_EQ(jobs.Has(index), claimable);
  }
  std::vector<size_t> visited;
  jobs.ForEach([&](size_t index) { visited.push_back(index); });
  EXPECT_EQ(visited, std::vector<size_t>(expected.begin(), expected.end()));
}

}  // namespace
}  // namespace penstock
