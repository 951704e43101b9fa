// Promise: `penstock status` names the bottleneck: the ranks, one rank,
// decoding, a Python function, producers, storage, the network, or a rank that
// is missing or hangs. Method: the pure function of the verdict on made-up
// samples; then a real broker with each of these made slow.
#include "broker/job/bottleneck.h"

#include <atomic>
#include <barrier>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"
#include "tests/support/slow_pictures.h"

namespace penstock::bottleneck_test {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using What = Bottleneck::What;

constexpr uint64_t kSampleNs = 200'000'000;
constexpr uint64_t kPool = 2;  // workers

// Samples a job for some seconds in which each rank waits for a share of the
// time.
class Observed {
 public:
  struct Rank {
    double waits = 0;
    int64_t progress = 0;  // negative: half steps behind
    double takes = 0;      // batches a second
  };
  // decoding, storage, network: parts of the workers' time.
  Observed& For(int samples, double decoding, double storage,
                const std::vector<Rank>& ranks, bool starved = false,
                double network = 0) {
    wait_ns_.resize(ranks.size());
    taken_.resize(ranks.size());
    for (int i = 0; i < samples; ++i) {
      now_ns_ += kSampleNs;
      decode_ns_ += static_cast<uint64_t>(decoding * kPool * kSampleNs);
      read_ns_ += static_cast<uint64_t>(storage * kPool * kSampleNs);
      fetch_ns_ += static_cast<uint64_t>(network * kPool * kSampleNs);
      std::vector<RecentUse::Rank> seen;
      for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
        wait_ns_[rank] += static_cast<uint64_t>(ranks[rank].waits * kSampleNs);
        taken_[rank] += ranks[rank].takes * kSampleNs * 1e-9;
        seen.push_back({rank, ++waits_, wait_ns_[rank], false,
                        1000 + i + ranks[rank].progress, false, false, true,
                        static_cast<uint64_t>(taken_[rank])});
      }
      use_.Add(now_ns_, decode_ns_, read_ns_, seen, starved, {}, true,
               fetch_ns_);
    }
    pool_ = {kPool, decoding, storage, 1 - decoding - storage};
    return *this;
  }
  // For a job with a Python function.
  Observed& With(const FunctionWorkersUse& function_workers, int samples,
                 double waits) {
    for (int i = 0; i < samples; ++i) {
      now_ns_ += kSampleNs;
      use_.Add(now_ns_, 0, 0,
               {{0, ++waits_, static_cast<uint64_t>(waits * now_ns_), false,
                 1000 + i}},
               false, function_workers);
    }
    pool_ = {kPool, 0, 0, 1};
    return *this;
  }
  Bottleneck Found() const { return Bottleneck::Of(use_, pool_); }
  RecentUse& use() { return use_; }
  uint64_t now_ns() const { return now_ns_; }

 private:
  RecentUse use_;
  PoolUse pool_;
  uint64_t now_ns_ = 1;
  uint64_t decode_ns_ = 0;
  uint64_t read_ns_ = 0;
  uint64_t fetch_ns_ = 0;
  uint64_t waits_ = 0;
  std::vector<uint64_t> wait_ns_;
  std::vector<double> taken_;
};

TEST(BottleneckTest, RanksThatDoNotWaitAreIt) {
  const Bottleneck found =
      Observed().For(30, 0.2, 0.1, {{0.01}, {0.02}}).Found();
  EXPECT_EQ(found.what, What::kRanks);
  EXPECT_EQ(found.text,
            "ranks are the bottleneck: ranks wait 2 % of the time, workers "
            "idle 70 %");
}

TEST(BottleneckTest, WhatTheWorkersDoWhileRanksWaitIsIt) {
  const Bottleneck decode = Observed().For(30, 0.9, 0.05, {{0.6}, {0}}).Found();
  EXPECT_EQ(decode.what, What::kDecode);
  EXPECT_EQ(decode.text,
            "decode is the bottleneck: workers 90 % busy decoding, 5 % waiting "
            "for reads, ranks wait 60 % of the time");
  const Bottleneck storage = Observed().For(30, 0.05, 0.9, {{0.6}}).Found();
  EXPECT_EQ(storage.what, What::kStorage);
  EXPECT_THAT(storage.text, HasSubstr("workers wait 90 % for reads"));
  const Bottleneck network =
      Observed().For(30, 0.05, 0.9, {{0.6}}, false, 0.7).Found();
  EXPECT_EQ(network.what, What::kNetwork);
  EXPECT_EQ(network.text,
            "the network is the bottleneck: workers wait 90 % for object "
            "stores, decode 5 %, ranks wait 60 % of the time");
  EXPECT_EQ(network.ToJson()["what"], "network");
  EXPECT_NEAR(network.ToJson()["network"].get<double>(), 0.7, 0.01);
  EXPECT_EQ(Observed().For(30, 0.05, 0.9, {{0.6}}, false, 0.2).Found().what,
            What::kStorage);
  const Bottleneck late = Observed().For(30, 0.1, 0, {{0.6}}).Found();
  EXPECT_THAT(late.text, HasSubstr("a larger `prefetch` may help"));
}

TEST(BottleneckTest, APythonFunctionIsJudgedByItsOwnProcesses) {
  const Bottleneck busy = Observed().With({2, 2, 0, 0}, 30, 0.6).Found();
  EXPECT_EQ(busy.what, What::kPython);
  EXPECT_EQ(busy.ToJson()["what"], "python");
  EXPECT_EQ(busy.text,
            "its Python function is the bottleneck: its 2 processes are 100 % "
            "busy, decoding included, 0 % waiting for reads, ranks wait 60 % "
            "of the time");
  EXPECT_THAT(Observed().With({2, 1, 2'500'000'000, 41}, 30, 0.6).Found().text,
              AllOf(HasSubstr("50 % busy"),
                    HasSubstr("sample 41 has been in progress for 2.5 s")));
  EXPECT_THAT(
      Observed().With({2, 0, 0, 0}, 30, 0.6).Found().text,
      HasSubstr("its Python processes idle 100 %: a larger `prefetch`"));
  const Bottleneck ranks = Observed().With({2, 1, 0, 0}, 30, 0.01).Found();
  EXPECT_EQ(ranks.what, What::kRanks);
  EXPECT_THAT(ranks.text, HasSubstr("its Python processes idle 50 %"));
}

TEST(BottleneckTest, ProducersThatPutTooLittleAreIt) {
  const Bottleneck found =
      Observed().For(30, 0.1, 0, {{0.6}, {0.6, -1}}, true).Found();
  EXPECT_EQ(found.what, What::kProducers);
  EXPECT_EQ(found.ToJson()["what"], "producers");
  EXPECT_EQ(found.text,
            "producers are the bottleneck: 100 % of the time there are no rows "
            "to make a batch of, ranks wait 60 % of the time, workers idle "
            "90 %");
  EXPECT_EQ(Observed().For(30, 0.1, 0, {{0.01}}, true).Found().what,
            What::kRanks);
}

TEST(BottleneckTest, WhatABatchTakesTheRanksIsSaid) {
  // Ranks that do not wait for each other: each has its own rate.
  const Bottleneck alone =
      Observed().For(30, 0.1, 0, {{0, 0, 80}, {0, -1, 25}, {0, 0, 80}}).Found();
  EXPECT_EQ(alone.rank, 1u);
  EXPECT_THAT(alone.text,
              HasSubstr("rank 1 is the bottleneck: it takes 40 ms a batch, the "
                        "others 12 ms, behind the others 100 % of the time"));
  EXPECT_NEAR(alone.ToJson()["batch_s"], 0.040, 0.001);
  EXPECT_NEAR(alone.ToJson()["others_batch_s"], 0.0125, 0.001);
  // An all-reduce makes their rates equal: the others wait for it, 70 % of the
  // time.
  Observed step;
  for (int i = 0; i < 30; ++i) {
    step.For(7, 0.1, 0, {{0, 0, 25}, {0, -1, 25}});
    step.For(3, 0.1, 0, {{0, 0, 25}, {0, 0, 25}});
  }
  const Bottleneck together = step.Found();
  EXPECT_EQ(together.rank, 1u);
  EXPECT_THAT(together.text, HasSubstr("it takes 40 ms a batch, the others 1"));
  // One that is far behind, and as fast as the others.
  EXPECT_EQ(Observed().For(30, 0.1, 0, {{0, 0, 25}, {0, -9, 25}}).Found().what,
            What::kRanks);
  // Waits for the broker are not the ranks' time.
  const Bottleneck all =
      Observed().For(30, 0.1, 0, {{0.05, 0, 19}, {0.05, 0, 19}}).Found();
  EXPECT_THAT(all.text, HasSubstr("ranks are the bottleneck: a batch takes "
                                  "them 50 ms, ranks wait 5 %"));
}

TEST(BottleneckTest, TheOneRankThatIsBehindIsNamed) {
  const Bottleneck found =
      Observed().For(30, 0.1, 0, {{0}, {0, -1}, {0}}).Found();
  EXPECT_EQ(found.what, What::kRank);
  EXPECT_EQ(found.rank, 1u);
  EXPECT_EQ(found.ToJson()["rank"], 1);
  EXPECT_THAT(found.text, HasSubstr("rank 1 is the bottleneck"));
  // The others wait for its slots (broadcast).
  EXPECT_EQ(Observed().For(30, 0.1, 0, {{0.9}, {0, -4}}).Found().rank, 1u);
  // It is behind because it gets no batches.
  EXPECT_EQ(Observed().For(30, 0.1, 0, {{0}, {0.9, -4}}).Found().what,
            What::kDecode);
  // Two are behind: neither is named alone.
  EXPECT_EQ(Observed().For(30, 0.1, 0, {{0}, {0, -1}, {0, -1}}).Found().what,
            What::kRanks);
}

TEST(BottleneckTest, TheLastSecondsCount) {
  Observed observed;
  observed.For(1000, 0.9, 0, {{0.9}});
  EXPECT_EQ(observed.For(50, 0.1, 0, {{0}}).Found().what, What::kRanks);
}

// Samples a job whose rank 0 hangs, and returns the bottleneck.
Bottleneck FoundWithOneThatHangs(const std::vector<RecentUse::Rank>& others,
                                 std::optional<int64_t> progress,
                                 const PoolUse& pool, bool filling = false,
                                 int samples = 30) {
  RecentUse use;
  RecentUse::Rank hangs;
  hangs.progress = progress;
  hangs.still = true;
  std::vector<RecentUse::Rank> ranks = others;
  ranks.insert(ranks.begin(), hangs);
  for (int i = 0; i < samples; ++i) {
    use.Add(1 + (i + 1) * kSampleNs, 0, 0, ranks, false, {}, filling);
  }
  return Bottleneck::Of(use, pool);
}

TEST(BottleneckTest, ARankThatHangsIsNamedWhateverBecameOfTheOthers) {
  const PoolUse idle = {kPool, 0, 0, 1};
  RecentUse::Rank waits;
  waits.rank = 1;
  waits.waiting = true;
  RecentUse::Rank done;
  done.rank = 2;
  done.done = true;
  RecentUse::Rank busy;
  busy.rank = 3;
  // dynamic: at the end of the data the others wait for the batch it has.
  const Bottleneck dynamic =
      FoundWithOneThatHangs({waits, done}, std::nullopt, idle);
  EXPECT_EQ(dynamic.rank, 0u) << dynamic.text;
  EXPECT_GT(dynamic.stands_s, 5);
  EXPECT_EQ(dynamic.ToJson()["what"], "rank");
  EXPECT_THAT(dynamic.text,
              HasSubstr("rank 0 is the bottleneck: it has neither taken nor "
                        "released a batch for 6 s, workers idle 100 %"));
  // split: the others have taken all of their data.
  EXPECT_EQ(FoundWithOneThatHangs({done}, 7, idle).rank, 0u);
  // Two are behind, and this one is last; the workers serve another job.
  waits.progress = 9;
  busy.progress = 8;
  EXPECT_EQ(FoundWithOneThatHangs({waits, busy}, 7, {kPool, 0.9, 0, 0.1}).rank,
            0u);
  // No other rank is left.
  EXPECT_EQ(FoundWithOneThatHangs({}, std::nullopt, idle).rank, 0u);
  EXPECT_EQ(FoundWithOneThatHangs({}, 7, idle).rank, 0u);
  // A short stand-still is not enough.
  EXPECT_NE(FoundWithOneThatHangs({done}, std::nullopt, idle, false, 10).rank,
            0u);
}

TEST(BottleneckTest, RanksThatHangTogetherAreIt) {
  const PoolUse idle = {kPool, 0, 0, 1};
  RecentUse::Rank other;
  other.rank = 1;
  other.still = true;
  for (const std::optional<int64_t> progress :
       {std::optional<int64_t>(), {7}}) {
    other.progress = progress;
    const Bottleneck both = FoundWithOneThatHangs({other}, progress, idle);
    EXPECT_EQ(both.what, Bottleneck::What::kRanks);
    EXPECT_THAT(both.text, HasSubstr("2 of 2 have neither taken nor released a "
                                     "batch for 6 s"));
  }
  // It has a batch and waits for this one, which is behind.
  other.progress = 8;
  EXPECT_EQ(FoundWithOneThatHangs({other}, 7, idle).rank, 0u);
}

TEST(BottleneckTest, ARankThatNobodyWaitsForIsNotNamedForStandingStill) {
  const PoolUse idle = {kPool, 0, 0, 1};
  RecentUse::Rank other;
  other.rank = 1;
  // It computes too.
  EXPECT_EQ(FoundWithOneThatHangs({other}, std::nullopt, idle).rank,
            std::nullopt);
  // It waits for a batch that is being made.
  other.waiting = true;
  EXPECT_EQ(FoundWithOneThatHangs({other}, std::nullopt, idle, true).rank,
            std::nullopt);
  // It waits for a batch that this one has taken.
  other.progress = 6;
  EXPECT_EQ(FoundWithOneThatHangs({other}, 7, idle).rank, std::nullopt);
  other.progress = 7;
  EXPECT_EQ(FoundWithOneThatHangs({other}, 7, idle).rank, std::nullopt);
}

TEST(BottleneckTest, RanksThatAreNotThereAreNamedWhileAllStandStill) {
  const PoolUse idle = {kPool, 0, 0, 1};
  const AbsentRanks absent = {{2}, {1, 3}};
  // Samples of rank 0: an endless wait, or a batch.
  const auto found = [&](int samples, bool waiting, bool moved, bool filling) {
    RecentUse use;
    RecentUse::Rank rank;
    rank.waiting = waiting;
    rank.still = !waiting && !moved;
    rank.moved = moved;
    for (int i = 0; i < samples; ++i) {
      use.Add(1 + (i + 1) * kSampleNs, 0, 0, {rank}, false, {}, filling);
    }
    return Bottleneck::Of(use, idle, absent);
  };
  const Bottleneck waits = found(10, true, false, false);
  EXPECT_EQ(waits.ToJson()["what"], "absent");
  EXPECT_EQ(waits.ToJson()["to_attach"], nlohmann::json({2}));
  EXPECT_EQ(waits.ToJson()["to_reconnect"], nlohmann::json({1, 3}));
  EXPECT_EQ(
      waits.text,
      "the job waits for ranks 1 and 3 to reconnect, for rank 2 to attach, "
      "ranks wait 100 % of the time, workers idle 100 %");
  // A rank that holds a batch may compute.
  EXPECT_NE(found(10, false, false, false).what, What::kAbsent);
  EXPECT_EQ(found(30, false, false, false).what, What::kAbsent);
  // Its batch is being made; it is the only rank.
  EXPECT_NE(found(30, true, false, true).what, What::kAbsent);
  EXPECT_NE(found(30, false, true, false).what, What::kAbsent);
  // Nobody is attached.
  EXPECT_EQ(Bottleneck::Of(RecentUse(), idle, absent).what, What::kAbsent);
}

TEST(BottleneckTest, NothingIsSaidTooEarlyOrOfNobody) {
  EXPECT_EQ(Observed().For(4, 0.9, 0, {{0.9}}).Found().what, What::kUnknown);
  EXPECT_EQ(Observed().For(30, 0.9, 0, {}).Found().what, What::kUnknown);
}

TEST(BottleneckTest, AWaitCountsWhileItLastsAndOnce) {
  // One of ten samples; the rank counts the wait when it ends.
  RecentUse use;
  uint64_t now_ns = 1;
  const auto add = [&](uint64_t waits, uint64_t wait_ns, bool waiting) {
    use.Add(now_ns += kSampleNs, 0, 0, {{0, waits, wait_ns, waiting, {}}});
    return use.ranks()[0].waits;
  };
  add(0, 0, false);
  add(0, 0, true);
  for (int i = 0; i < 10; ++i) add(0, 0, true);
  const double during = use.ranks()[0].waits;
  EXPECT_GT(during, 0.8);
  EXPECT_LT(add(1, 10 * kSampleNs + kSampleNs / 2, false), during);
}

TEST(BottleneckTest, WhatARankWritesIntoItsPageIsAShareOfTheTimeOrNone) {
  RecentUse use;
  uint64_t now_ns = 1;
  for (const uint64_t lie : {uint64_t{0}, UINT64_MAX, uint64_t{0},
                             uint64_t{1} << 63, UINT64_MAX, uint64_t{5}}) {
    for (const bool waiting : {true, false, true}) {
      for (const int64_t progress : {INT64_MIN, int64_t{0}, INT64_MAX}) {
        use.Add(now_ns += kSampleNs, 0, 0, {{7, lie, lie, waiting, progress}});
        const RecentUse::RankUse rank = use.ranks().at(0);
        EXPECT_GE(rank.waits, 0);
        EXPECT_LE(rank.waits, 1);
        EXPECT_LE(rank.behind, 1);
      }
    }
  }
}

// ---- a real broker

class BottleneckSystemTest : public DeliveryTest {
 protected:
  // Ranks of one job on a thread each, which take batches until the end of the
  // test; step(rank) is the work on a batch. They keep in step, as by an
  // all-reduce.
  void StartRanks(const std::string& spec, int ranks,
                  const std::function<void(int)>& step) {
    keep_step_.emplace(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      threads_.emplace_back([this, rank, step,
                             options = OptionsFor(spec, rank, ranks)] {
        try {
          Reader reader(options);
          Batch batch;
          while (!stop_ && reader.next(&batch) != Reader::Result::kEndOfData) {
            step(rank);
            batch.release();
            keep_step_->arrive_and_wait();
          }
        } catch (const Error& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
        keep_step_->arrive_and_drop();
      });
    }
  }
  void StopRanks() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  ~BottleneckSystemTest() override { StopRanks(); }

  nlohmann::json Found() {
    const nlohmann::json job = JobStatus(
        testing::UnitTest::GetInstance()->current_test_info()->name());
    return job.is_object() ? job.value("bottleneck", nlohmann::json::object())
                           : nlohmann::json::object();
  }
  // Polls status until it says so, for half a minute.
  void ExpectFound(const std::string& what, const std::string& text) {
    nlohmann::json found;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    do {
      std::this_thread::sleep_for(milliseconds(100));
      found = Found();
    } while (found.value("what", "") != what &&
             std::chrono::steady_clock::now() < end);
    EXPECT_EQ(found.value("what", ""), what) << found;
    EXPECT_THAT(found.value("text", ""), HasSubstr(text));
  }
  static std::string SyntheticSpec(int cost_us) {
    return "dataset: noise\nsource: {synthetic: {records: 1000000, cost_us: " +
           std::to_string(cost_us) +
           ", features: {x: {dtype: uint8, shape: [16]}}}}\n"
           "batch: {size: 8}\nepochs: forever\n";
  }

 private:
  std::atomic<bool> stop_{false};
  std::optional<std::barrier<>> keep_step_;
  std::vector<std::thread> threads_;
};

TEST_F(BottleneckSystemTest, SlowRanksAreNamed) {
  StartRanks(SyntheticSpec(0), 2,
             [](int) { std::this_thread::sleep_for(milliseconds(20)); });
  ExpectFound("ranks", "ranks are the bottleneck");
}

TEST_F(BottleneckSystemTest, TheRankThatAllOthersWaitForIsNamed) {
  StartRanks(SyntheticSpec(0), 3, [](int rank) {
    std::this_thread::sleep_for(milliseconds(rank == 1 ? 47 : 3));
  });
  ExpectFound("rank", "rank 1 is the bottleneck");
}

// Rank 0 takes its first batch and hangs; rank 1 goes on to the end of the
// data, longer than the window.
TEST_F(BottleneckSystemTest, ARankThatHangsStaysNamed) {
  for (const char* const mode : {"split", "dynamic"}) {
    SCOPED_TRACE(mode);
    const std::string spec = RangeSpec("12", "batch: {size: 2}\n");
    Options options = OptionsFor(spec, 0, 2);
    options.delivery = mode;
    options.job = mode;
    Reader hangs(options);
    options.rank = 1;
    Reader other(options);
    Batch held;
    ASSERT_EQ(hangs.next(&held), Reader::Result::kBatch);
    std::thread rest([&] { RunToTheEnd(other); });
    WaitUntil("it is named for longer than the window", [&] {
      const nlohmann::json found = JobStatus(mode).at("bottleneck");
      return found.at("what") == "rank" && found.at("rank") == 0 &&
             found.at("stands_s") > 2 * RecentMean::kSeconds;
    });
    // It continues, and so do the others.
    held.release();
    EXPECT_EQ(RunToTheEnd(hangs).code, 0);
    rest.join();
    WaitUntil("it is not named any more", [&] {
      return JobStatus(mode).at("bottleneck").at("what") != "rank";
    });
  }
}

// A broadcast begins only when all consumers of the launch have attached; a
// split rank goes on alone until it waits for the other in its all-reduce.
TEST_F(BottleneckSystemTest, ARankThatHasYetToAttachIsNamed) {
  for (const char* const mode : {"broadcast", "split"}) {
    SCOPED_TRACE(mode);
    Options options = OptionsFor(RangeSpec("12", "batch: {size: 2}\n"), 0, 2);
    options.delivery = mode;
    // Batches are made meanwhile.
    if (options.delivery == "broadcast") {
      options.spec =
          "dataset: noise\nsource: {synthetic: {records: 12, cost_us: 500000, "
          "features: {value: {dtype: int64, shape: [1]}}}}\nbatch: {size: 2}\n";
    }
    options.job = mode;
    Reader first(options);
    Batch held;
    if (options.delivery == "split") {
      ASSERT_EQ(first.next(&held), Reader::Result::kBatch);
    }
    std::thread waits([&] {
      if (options.delivery == "broadcast") RunToTheEnd(first);
    });
    nlohmann::json job;
    WaitUntil("it is named while the other stands still", [&] {
      job = JobStatus(mode);
      EXPECT_NE(job.at("bottleneck").at("what"), "decode");
      return job.at("bottleneck").at("what") == "absent" &&
             (job.at("bottleneck").at("ranks_wait") > 0.5 ||
              RankOf(job, 0).at("silent_s") > RecentMean::kSeconds);
    });
    EXPECT_EQ(job.at("bottleneck").at("to_attach"), nlohmann::json({1}));
    EXPECT_THAT(job.at("bottleneck").at("text"),
                HasSubstr("the job waits for rank 1 to attach"));
    EXPECT_EQ(job.at("state"), "waiting for rank 1");
    options.rank = 1;
    Reader second(options);
    EXPECT_EQ(RunToTheEnd(second).code, 0);
    waits.join();
  }
}

TEST_F(BottleneckSystemTest, DecodingIsNamed) {
  StartRanks(SyntheticSpec(2000), 2, [](int) {});
  ExpectFound("decode", "decode is the bottleneck");
  const nlohmann::json found = Found();
  EXPECT_GT(found.value("workers_decoding", 0.0), 0) << found;
  EXPECT_GT(found.value("ranks_wait", 0.0), 0.1) << found;
}

TEST_F(BottleneckSystemTest, SlowProducersAreNamed) {
  StartRanks(
      "dataset: noise\nsource: {stream: {features: {x: {dtype: uint8, shape: "
      "[16]}}}}\nbatch: {size: 8}\n",
      1, [](int) {});
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    ProducerOptions options;
    options.features = {{"x", PENSTOCK_UINT8, {16}}};
    options.rows = 8;
    options.socket = broker_.socket();
    options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
    Producer producer(options);
    while (!stop) {
      std::this_thread::sleep_for(milliseconds(20));
      producer.reserve(8);
      producer.put(8);
    }
    producer.finish();
  });
  ExpectFound("producers", "producers are the bottleneck");
  stop = true;
  thread.join();
}

TEST_F(BottleneckSystemTest, StorageIsNamed) {
  const SlowPictures pictures(broker_.folder());
  if (!pictures.mounted()) GTEST_SKIP() << "no FUSE: " << strerror(errno);
  StartRanks(pictures.Spec(), 1, [](int) {});
  ExpectFound("storage", "storage is the bottleneck");
  StopRanks();  // before the storage is gone
}

}  // namespace penstock::bottleneck_test
