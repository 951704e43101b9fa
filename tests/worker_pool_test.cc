// Which job the workers serve next, and how they read.
#include "broker/worker_pool.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMs = 1'000'000;

size_t Served(const std::vector<Candidate>& candidates) {
  return ServedNext(candidates);
}

TEST(ServedNextTest, WhoHasHadLeastComesFirst) {
  EXPECT_EQ(Served({{30 * kMs, false}, {10 * kMs, false}, {20 * kMs, false}}),
            1u);
  EXPECT_EQ(Served({{30 * kMs, true}, {40 * kMs, true}, {20 * kMs, true}}), 2u);
  EXPECT_EQ(Served({{30 * kMs, false}}), 0u);
}

TEST(ServedNextTest, AJobWhoseRankWaitsComesBeforeOneWhoseRanksHaveBatches) {
  EXPECT_EQ(Served({{10 * kMs, false}, {10 * kMs, true}}), 1u);
  EXPECT_EQ(Served({{0, false}, {kHeadStartNs - 1, true}, {0, false}}), 1u);
}

TEST(ServedNextTest, AJobThatAlwaysWaitsGetsNoMoreThanTheHeadStart) {
  EXPECT_EQ(Served({{0, false}, {kHeadStartNs + 1, true}}), 0u);
  // Ten seconds of two jobs that always have rows.
  std::vector<Candidate> jobs = {{0, false}, {0, true}};
  for (uint64_t ns = 0; ns < 10'000 * kMs; ns += 10 * kMs) {
    jobs[ServedNext(jobs)].virtual_time_ns += 10 * kMs;
  }
  EXPECT_LE(jobs[1].virtual_time_ns - jobs[0].virtual_time_ns,
            kHeadStartNs + 10 * kMs);
}

TEST(ServedNextTest, AJobThatTakesLessThanItsShareComesBeforeOneThatWaits) {
  // What the pool leaves it of the time that it did not need.
  const uint64_t now_ns = 1'000 * kMs;
  EXPECT_EQ(Served({{now_ns - kCreditNs, false}, {now_ns, true}}), 0u);
}

TEST(WorkerPoolTest, ReadsAsItIsTold) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  for (size_t i = 1; i < kReadBackendNames.size(); ++i) {
    WorkerOptions options;
    options.workers = 1;
    options.read_backend = static_cast<ReadBackend>(i);
    const auto pool = WorkerPool::Start(**topology, options);
    if (!pool.ok()) {  // this kernel or container has no such io_uring
      EXPECT_THAT(pool.status().message(),
                  HasSubstr(fmt::format("read_backend: {}: io_uring",
                                        kReadBackendNames[i])));
      continue;
    }
    EXPECT_THAT((*pool)->read_backend(), HasSubstr(kReadBackendNames[i]));
  }
}

}  // namespace
}  // namespace penstock
