// Promise: the workers serve jobs by fair shares of time, waiting ranks first
// within a head start. Bound: read depth grows only while it helps. Method: the
// pure functions over simulated seconds; then a real pool with each read
// backend forced.
#include "broker/workers/worker_pool.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::worker_pool_test {

using testing::HasSubstr;

constexpr uint64_t kMs = 1'000'000;

size_t Served(const std::vector<Candidate>& candidates) {
  return ServedNext(candidates);
}

TEST(ServedNextTest, WhoHasHadLeastComesFirst) {
  EXPECT_EQ(Served({{30 * kMs, Demand::kAhead},
                    {10 * kMs, Demand::kAhead},
                    {20 * kMs, Demand::kAhead}}),
            1u);
  EXPECT_EQ(Served({{30 * kMs, Demand::kNow},
                    {40 * kMs, Demand::kNow},
                    {20 * kMs, Demand::kNow}}),
            2u);
  EXPECT_EQ(Served({{30 * kMs, Demand::kAhead}}), 0u);
}

TEST(ServedNextTest, AJobWhoseRankWaitsComesBeforeOneWhoseRanksHaveBatches) {
  EXPECT_EQ(Served({{10 * kMs, Demand::kAhead}, {10 * kMs, Demand::kNow}}), 1u);
  EXPECT_EQ(Served({{0, Demand::kAhead},
                    {kHeadStartNs - 1, Demand::kNow},
                    {0, Demand::kAhead}}),
            1u);
}

TEST(ServedNextTest, AJobThatAlwaysWaitsGetsNoMoreThanTheHeadStart) {
  EXPECT_EQ(Served({{0, Demand::kAhead}, {kHeadStartNs + 1, Demand::kNow}}),
            0u);
  // Simulates ten seconds of two jobs that always have rows.
  std::vector<Candidate> jobs = {{0, Demand::kAhead}, {0, Demand::kNow}};
  for (uint64_t ns = 0; ns < 10'000 * kMs; ns += 10 * kMs) {
    jobs[ServedNext(jobs)].virtual_time_ns += 10 * kMs;
  }
  EXPECT_LE(jobs[1].virtual_time_ns - jobs[0].virtual_time_ns,
            kHeadStartNs + 10 * kMs);
}

TEST(ServedNextTest, AJobThatTakesLessThanItsShareComesBeforeOneThatWaits) {
  // The unused time that the pool lets it keep.
  const uint64_t now_ns = 1'000 * kMs;
  EXPECT_EQ(
      Served({{now_ns - kCreditNs, Demand::kAhead}, {now_ns, Demand::kNow}}),
      0u);
}

TEST(ServedNextTest, AJobWithoutARankComesLast) {
  EXPECT_EQ(Served({{0, Demand::kNobody}, {10'000 * kMs, Demand::kAhead}}), 1u);
  EXPECT_EQ(Served({{kMs, Demand::kNobody}, {0, Demand::kNobody}}), 1u);
}

TEST(ServedNextTest, UsersGetTheSameWhateverTheNumberOfTheirJobs) {
  // User 0 has one job, user 1 has nine.
  std::vector<Candidate> jobs;
  for (size_t i = 0; i < 10; ++i) {
    jobs.push_back({0, i % 2 == 0 ? Demand::kAhead : Demand::kNow, i > 0});
  }
  std::vector<uint64_t> had(2);
  for (int i = 0; i < 10'000; ++i) {
    Candidate& next = jobs[ServedNext(jobs)];
    next.virtual_time_ns += kMs;
    had[next.user] += kMs;
    for (Candidate& job : jobs) job.user_virtual_time_ns = had[job.user];
  }
  EXPECT_NEAR(static_cast<double>(had[0]), static_cast<double>(had[1]),
              2 * kMs);
  // And the jobs of user 1 the same among themselves.
  for (size_t i = 1; i < jobs.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(jobs[i].virtual_time_ns), had[1] / 9.0,
                static_cast<double>(kHeadStartNs + 2 * kMs));
  }
}

// Storage that serves this many reads at once, 100 MB/s each; workers wait.
class Storage {
 public:
  explicit Storage(uint32_t parallel) : parallel_(parallel) {}
  // Samples five times a second, as the pool does.
  void Read(ReadDepth* depth, int seconds, double waiting = 0.8) const {
    for (int i = 0; i < 5 * seconds; ++i) {
      const uint64_t reads = 2 * std::min(depth->depth(), parallel_);
      depth->Measured(0.2, reads * 20'000'000, waiting);
    }
  }

 private:
  const uint32_t parallel_;
};

TEST(ReadDepthTest, GrowsWhileTheStorageGetsFasterByIt) {
  ReadDepth depth;
  EXPECT_EQ(depth.depth(), ReadDepth::kFirst);
  Storage(64).Read(&depth, 10);
  EXPECT_EQ(depth.depth(), 64u);
  Storage(1000).Read(&depth, 100);
  EXPECT_EQ(depth.depth(), ReadDepth::kMost);
}

TEST(ReadDepthTest, StaysWhereMoreBringsNothing) {
  ReadDepth depth;
  int seconds_at_first = 0;
  for (int second = 0; second < 100; ++second) {
    Storage(8).Read(&depth, 1);
    seconds_at_first += depth.depth() == ReadDepth::kFirst;
  }
  EXPECT_EQ(depth.depth(), ReadDepth::kFirst);
  EXPECT_GE(seconds_at_first, 95) << "tried once in kRestS";
}

TEST(ReadDepthTest, WorkersThatHardlyWaitHaveEnough) {
  ReadDepth depth;
  Storage(1000).Read(&depth, 100, 0.1);
  EXPECT_EQ(depth.depth(), ReadDepth::kFirst);
}

TEST(ReadDepthTest, WhoeverHasNotReadForLongBeginsAnew) {
  ReadDepth depth;
  Storage(1000).Read(&depth, 10);
  ASSERT_GT(depth.depth(), ReadDepth::kFirst);
  Storage(0).Read(&depth, 29, 0);
  EXPECT_GT(depth.depth(), ReadDepth::kFirst);
  Storage(0).Read(&depth, 2, 0);
  EXPECT_EQ(depth.depth(), ReadDepth::kFirst);
}

TEST(ReadDepthTest, WhatIsConfiguredStays) {
  ReadDepth depth(4);
  Storage(1000).Read(&depth, 100);
  EXPECT_EQ(depth.depth(), 4u);
  EXPECT_EQ(depth.most(), 4u);
}

// Something that gives 100 a second each, up to `useful` of them, give or take
// `noise`.
void Work(Tuner* tuner, uint32_t useful, int seconds, double waiting,
          double noise = 0, bool may_grow = true) {
  for (int i = 0; i < 5 * seconds; ++i) {
    const double rate = 100.0 * std::min(tuner->number(), useful);
    const double swing = 1 + noise * ((i * 7) % 11 - 5) / 5.0;
    tuner->Measured(0.2, 0.2 * rate * swing, waiting, may_grow);
  }
}

std::string Each(double rate) { return Format("{:.0f}/s", rate); }

TEST(TunerTest, DoesNotSwing) {
  Tuner tuner({2, 16, true});
  int changes = 0;
  for (int second = 0; second < 600; ++second) {
    const uint32_t before = tuner.number();
    Work(&tuner, 8, 1, 0.8, 0.03);
    changes += tuner.number() != before;
  }
  // To 4, to 8, and once in kRestS to 16 and back.
  EXPECT_LE(changes, 2 + 2 * 600 / 30);
  EXPECT_GE(tuner.number(), 8u);
}

TEST(TunerTest, WhatCostsAndIsNotWaitedForBeginsAnew) {
  Tuner tuner({2, 16, true});
  Work(&tuner, 100, 10, 0.8);
  ASSERT_EQ(tuner.number(), 16u);
  Work(&tuner, 100, 29, 0.1);
  EXPECT_EQ(tuner.number(), 16u);
  Work(&tuner, 100, 2, 0.1);
  EXPECT_EQ(tuner.number(), 2u);
  // Buffers cost nothing that somebody waits for.
  Tuner buffers({2, 16});
  Work(&buffers, 100, 10, 0.8);
  Work(&buffers, 100, 100, 0.1);
  EXPECT_EQ(buffers.number(), 16u);
}

TEST(TunerTest, WithoutMemoryItStays) {
  Tuner tuner({2, 16, true});
  Work(&tuner, 100, 100, 0.8, 0, false);
  EXPECT_EQ(tuner.number(), 2u);
  EXPECT_THAT(tuner.Reason(Each), HasSubstr("no memory for more"));
}

TEST(TunerTest, SaysWhy) {
  Tuner tuner({2, 16});
  EXPECT_EQ(tuner.Reason(Each), "nothing measured yet");
  Work(&tuner, 100, 1, 0.03);
  EXPECT_EQ(tuner.Reason(Each), "waited for 3 % of the time, which is little");
  Work(&tuner, 4, 1, 0.8);
  EXPECT_EQ(tuner.Reason(Each), "being tried: 2 gave 200/s");
  Work(&tuner, 4, 2, 0.8);
  EXPECT_EQ(tuner.number(), 4u);
  EXPECT_EQ(tuner.Reason(Each), "400/s, 8 gave 400/s");
  Tuner most({2, 4});
  Work(&most, 100, 3, 0.8);
  EXPECT_EQ(most.Reason(Each), "400/s, the most there may be");
  EXPECT_EQ(Tuner({2, 4}, 3).Reason(Each), "set");
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
                  HasSubstr(Format("read_backend: {}: io_uring",
                                   kReadBackendNames[i])));
      continue;
    }
    EXPECT_THAT((*pool)->read_backend(), HasSubstr(kReadBackendNames[i]));
  }
}

}  // namespace penstock::worker_pool_test
