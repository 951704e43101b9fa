// Promise: a worker serves the job with the least turn; of the jobs that do not
// read only one before a given turn; and it learns of new jobs in time.
#include "broker/workers/serving_order.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::serving_order_test {

constexpr bool kReads = true;

std::vector<size_t> TakeAll(ServingOrder* order, const Turn& before) {
  std::vector<size_t> taken;
  while (const auto next = order->TakeNext(before))
    taken.push_back(next->index);
  return taken;
}

TEST(ServingOrderTest, JobsComeByTurnWhetherTheyReadOrNot) {
  ServingOrder order;
  order.Add(kReads, {{0, 30}, 3});
  order.Add(!kReads, {{0, 20}, 2});
  order.Add(kReads, {{0, 10}, 1});
  order.Add(!kReads, {{0, 40}, 4});
  EXPECT_EQ(TakeAll(&order, kLastTurn), (std::vector<size_t>{1, 2, 3, 4}));
  EXPECT_TRUE(order.empty());
}

TEST(ServingOrderTest, OnlyJobsThatReadComeWhenItIsAnothersTurn) {
  ServingOrder order;
  order.Add(!kReads, {{0, 5}, 0});
  order.Add(!kReads, {{0, 20}, 2});
  order.Add(kReads, {{0, 30}, 3});
  EXPECT_EQ(TakeAll(&order, {0, 20}), (std::vector<size_t>{0, 3}));
  EXPECT_FALSE(order.empty());
  EXPECT_EQ(TakeAll(&order, {0, 21}), (std::vector<size_t>{2}));
}

TEST(ServingOrderTest,
     TheUserWithLeastTimeComesFirstAndOfHerJobsThatWithLeast) {
  ServingOrder order;
  const auto add = [&](size_t user, uint64_t user_ns, uint64_t job_ns,
                       size_t index) {
    order.Add(kReads,
              {order.TurnIn({job_ns, Demand::kNow, user, user_ns}), index});
  };
  order.Begin(1);
  add(1, 200, 5, 1);
  add(0, 100, 70, 2);
  // Her time has grown since: the order of her jobs is by theirs alone.
  add(0, 130, 60, 3);
  add(1, 201, 4, 4);
  EXPECT_EQ(TakeAll(&order, kLastTurn), (std::vector<size_t>{3, 2, 4, 1}));
}

TEST(ServingOrderTest, AListServesForAsLongAsAClaimMayTake) {
  ServingOrder order;
  constexpr uint64_t kNow = 1'000'000'000;
  EXPECT_TRUE(order.expired(kNow));
  order.Begin(kNow);
  EXPECT_FALSE(order.expired(kNow + ServingOrder::kKeptNs));
  EXPECT_TRUE(order.expired(kNow + ServingOrder::kKeptNs + 1));
  order.Add(kReads, {{0, 1}, 1});
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
  jobs.ForEach(ClaimableJobs::kJobsMax,
               [&](size_t index) { visited.push_back(index); });
  EXPECT_EQ(visited, std::vector<size_t>(expected.begin(), expected.end()));
  visited.clear();
  jobs.ForEach(100, [&](size_t index) { visited.push_back(index); });
  EXPECT_EQ(visited,
            std::vector<size_t>(expected.begin(), expected.lower_bound(100)));
}

}  // namespace penstock::serving_order_test
