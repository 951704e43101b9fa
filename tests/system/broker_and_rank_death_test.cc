// Promise: a rank that dies together with the broker loses and repeats nothing:
// the cursor pages, which outlive both, say which batches it had. Method: both
// are killed; others take the place, and the rows of all are counted.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "tests/support/delivery_fixture.h"
#include "tests/system/kept_broker.h"

namespace penstock::broker_and_rank_death_test {

using testing::AllOf;
using testing::HasSubstr;

// Whether waiting until nobody can reconnect helps depends on the mode.
TEST(BothDieTest, ReplacementOfARankWhosePageNobodyKeptIsToldWhatHelps) {
  constexpr char kWait[] = "attach again after that";
  constexpr char kState[] = "waiting does not help: begin all ranks at a state";
  for (const auto& [delivery, what_helps] :
       {std::pair("split", kState), std::pair("independent", kState),
        std::pair("dynamic", kWait),
        std::pair("broadcast", "attach again after that, or begin all")}) {
    std::string state = testing::TempDir() + "/penstock-state-XXXXXX";
    ASSERT_NE(mkdtemp(state.data()), nullptr);
    BrokerProcess broker({"--state-dir", state});
    const auto attach = [&, mode = delivery](int rank) {
      Options options = OptionsFor(
          "dataset: numbers\nsource: {range: 1200}\nbatch: {size: 12}", rank, 2,
          broker.socket());
      options.delivery = mode;
      return RankProcess(options);
    };
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 2; ++rank) ranks.push_back(attach(rank));
    for (RankProcess& rank : ranks) {
      ASSERT_FALSE(rank.Attached().contains("error"));
    }
    broker.Stop(SIGKILL);
    for (RankProcess& rank : ranks) rank.Kill();
    broker.Start();
    EXPECT_THAT(attach(1).Attached().value("error", "attached"),
                AllOf(HasSubstr("rank 1 of job"), HasSubstr(what_helps)));
    std::filesystem::remove_all(state);
  }
}

TEST(BothDieTest, TheJobIsKeptForItsWaitTimeAtMost) {
  KeptBroker broker;
  Options options = OptionsFor(
      "dataset: numbers\nsource: {range: 400}\nbatch: {size: 4}", 0, 1,
      broker.socket());
  options.job = "waits";
  options.wait_s = 0.5;
  RankProcess rank(options);
  rank.Attached();
  ASSERT_EQ(rank.Next().what, RankProcess::What::kBatch);
  rank.Kill();
  broker.Kill();
  const auto begin = std::chrono::steady_clock::now();
  while (!broker.Ask({{"op", "status"}}).at("jobs").empty()) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin,
              std::chrono::seconds(30));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Its last page was kept, an earlier one with a batch that it held was not (a
// full descriptor store). It must not begin at the first batch again.
TEST(BothDieTest, ReplacementOfARankWithAPageLostIsRefused) {
  std::string folder = testing::TempDir() + "/penstock-lost-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string program = folder + "/penstockd";
  std::ofstream(program) << Format(
      "#!/bin/sh\n"
      "[ ! -e {}/lose ] ||\n"
      "  LISTEN_FDNAMES=$(echo \"$LISTEN_FDNAMES\" |\n"
      "    sed 's/cursor-[0-9-]*/lost/')\n"
      "exec {}/broker/penstockd \"$@\"\n",
      folder, PENSTOCK_BUILD_DIR);
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  KeptBroker broker({}, program);
  const Options options = OptionsFor(
      "dataset: numbers\nsource: {range: 400}\nbatch: {size: 4}\nhold: 2", 0, 1,
      broker.socket());
  const auto is_away = [&broker] {
    const nlohmann::json jobs = broker.Ask({{"op", "status"}}).at("jobs");
    return !jobs.at(0).value("waits_for", nlohmann::json::array()).empty();
  };
  RankProcess first(options);
  first.Attached();
  ASSERT_EQ(first.Next().what, RankProcess::What::kBatch);
  broker.Kill();
  // It reconnects with a batch of the first instance.
  for (;;) {
    ASSERT_EQ(first.Next().what, RankProcess::What::kBatch);
    if (!is_away()) break;
    first.Release(1);
  }
  first.Kill();
  std::ofstream(folder + "/lose");
  broker.Kill();
  RankProcess second(options);
  EXPECT_THAT(second.Attached().value("error", "attached"),
              HasSubstr("how far it was is not known"));
  std::filesystem::remove_all(folder);
}

// A batch that its predecessor held from a former broker instance is made again
// when later steps are made already.
TEST(BothDieTest, ReplacementThatGetsAnOldStepLastGoesOnWhereItWasBefore) {
  KeptBroker broker;
  Options options = OptionsFor(
      "dataset: numbers\nsource: {range: 400}\nbatch: {size: 4}\nhold: 2", 0, 1,
      broker.socket());
  const auto status = [&broker] {
    return broker.Ask({{"op", "status"}}).at("jobs").at(0);
  };
  std::set<int64_t> unmarked;
  Rows marked;
  const auto take = [&](RankProcess& rank) {
    const RankProcess::Event event = rank.Next();
    EXPECT_EQ(event.what, RankProcess::What::kBatch) << event.error;
    for (const int64_t row : event.taken.rows) {
      if (event.taken.redelivered) {
        marked.push_back(row);
      } else {
        EXPECT_TRUE(unmarked.insert(row).second) << row << " came twice";
      }
    }
    return event.taken;
  };
  RankProcess first(options);
  first.Attached();
  const Rows held = take(first).rows;
  broker.Kill();
  do {
    take(first);
    first.ReleaseLast();
  } while (!status().value("waits_for", nlohmann::json::array()).empty());
  while (status().at("ranks").at(0).at("ready") == 0) std::this_thread::yield();
  first.Kill();
  RankProcess second(options);
  second.Attached();
  EXPECT_FALSE(take(second).redelivered);
  second.Release(1);
  const std::string between = second.State();
  Rows rest(unmarked.begin(), unmarked.end());
  std::erase_if(rest, [&](int64_t row) {
    return std::find(held.begin(), held.end(), row) != held.end();
  });
  broker.Kill();
  while (unmarked.size() + marked.size() < 400 + held.size()) {
    ASSERT_FALSE(HasFailure());
    take(second);
    second.Release(1);
  }
  EXPECT_EQ(marked, held);
  options.state = between;
  options.job += "again";
  Reader reader(options);
  Append(RunToTheEnd(reader).taken, &rest);
  EXPECT_EQ(Sorted(rest), Numbers(400));
}

TEST(BothDieTest, ALateRankWithTheStateOfTheOthersJoinsThem) {
  KeptBroker broker;
  const auto options_of = [&](int rank) {
    Options options = OptionsFor(
        "dataset: numbers\nsource: {range: 240}\nbatch: {size: 12}", rank, 2,
        broker.socket());
    options.state = R"({"epoch": 0, "row": 24})";
    return options;
  };
  RankProcess first(options_of(0));
  first.Attached();
  Rows rows = first.Next().taken.rows;
  kill(broker.pid(), SIGKILL);
  RankProcess second(options_of(1));
  second.Run();
  first.Run();
  EXPECT_FALSE(second.Attached().contains("error"));
  for (RankProcess* const rank : {&first, &second}) {
    const Course course = rank->Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    Append(course.taken, &rows);
  }
  rows = Sorted(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  EXPECT_EQ(rows.size(), 216u);
}

// The broker dies first: no later instance sees the rank alive.
class BrokerThenRankDieTest : public testing::Test {
 protected:
  // The last of three ranks dies; returns what it released.
  void Run(const std::string& on_rank_death) {
    const std::string spec =
        "dataset: numbers\nsource: {range: 1200}\nbatch: {size: 12}\nhold: 3";
    for (int rank = 0; rank < 3; ++rank) {
      Options options = OptionsFor(spec, rank, 3, broker_.socket());
      options.on_rank_death = on_rank_death;
      ranks_.emplace_back(options);
    }
    for (RankProcess& rank : ranks_) rank.Attached();
    for (int step = 0; step < 5; ++step) {
      for (RankProcess& rank : ranks_) {
        const RankProcess::Event event = rank.Next();
        ASSERT_EQ(event.what, RankProcess::What::kBatch);
        if (&rank == &ranks_.back() && step >= 3) continue;
        rank.Release(1);
        done_.insert(done_.end(), event.taken.rows.begin(),
                     event.taken.rows.end());
      }
    }
    kill(broker_.pid(), SIGKILL);
    ranks_.back().Kill();
    ranks_.pop_back();
    for (RankProcess& rank : ranks_) rank.Run();
    for (RankProcess& rank : ranks_) courses_.push_back(rank.Finished());
  }

  KeptBroker broker_;
  std::vector<RankProcess> ranks_;
  Rows done_;
  std::vector<Course> courses_;
};

TEST_F(BrokerThenRankDieTest, ShrinkGivesAllOfItToTheOthers) {
  Run("shrink");
  for (const Course& course : courses_) {
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(course.taken.size(), courses_[0].taken.size());
    Append(course.taken, &done_);
  }
  EXPECT_EQ(Sorted(done_), Numbers(1200));
}

TEST_F(BrokerThenRankDieTest, FailTellsTheOthers) {
  Run("fail");
  for (const Course& course : courses_) {
    EXPECT_EQ(course.code, PENSTOCK_ABORTED);
    EXPECT_THAT(course.error, HasSubstr("rank 2 died"));
  }
}

// For the others it is gone before the broker dies; an evicted process dies
// later.
TEST(BothDieTest, RankThatOthersGoOnWithoutIsNotAskedForAgain) {
  for (const bool evicted : {false, true}) {
    KeptBroker broker;
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      Options options = OptionsFor(
          "dataset: numbers\nsource: {range: 1200}\nbatch: {size: 12}", rank, 3,
          broker.socket());
      options.on_rank_death = "shrink";
      ranks.emplace_back(options);
    }
    Rows all;
    for (RankProcess& rank : ranks) rank.Attached();
    for (RankProcess& rank : ranks) {
      const RankProcess::Event event = rank.Next();
      ASSERT_EQ(event.what, RankProcess::What::kBatch);
      rank.Release(1);
      all.insert(all.end(), event.taken.rows.begin(), event.taken.rows.end());
    }
    RankProcess gone = std::move(ranks.back());
    ranks.pop_back();
    if (evicted) {
      broker.Ask({{"op", "evict"},
                  {"job", OptionsFor("", 0, 1, "").job},
                  {"rank", 2}});
    } else {
      gone.Kill();
    }
    for (RankProcess& rank : ranks) {
      for (uint32_t world = 3; world != 2;) {
        const RankProcess::Event event = rank.Next();
        ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
        rank.Release(1);
        all.insert(all.end(), event.taken.rows.begin(), event.taken.rows.end());
        world = event.taken.world_size;
      }
    }
    broker.Kill();
    for (int step = 0; step < 6; ++step) {  // more than they still held
      for (RankProcess& rank : ranks) {
        const RankProcess::Event event = rank.Next();
        ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
        rank.Release(1);
        all.insert(all.end(), event.taken.rows.begin(), event.taken.rows.end());
      }
    }
    const nlohmann::json state =
        broker.Ask({{"op", "state"}, {"job", OptionsFor("", 0, 1, "").job}})
            .at("state");
    EXPECT_GT(state.at("row").get<uint64_t>(), 0u) << state.dump();
    for (RankProcess& rank : ranks) rank.Run();
    gone.Kill();
    for (RankProcess& rank : ranks) {
      const Course course = rank.Finished();
      EXPECT_EQ(course.code, 0) << course.error;
      Append(course.taken, &all);
    }
    EXPECT_EQ(Sorted(all), Numbers(1200));
  }
}

// Memory that an evicted process may still map is counted by every broker
// instance until the process is dead, even after its job.
TEST(BothDieTest, MemoryOfAnEvictedProcessCountsAsLongAsItLives) {
  KeptBroker broker;
  const auto options = [&](int rank) {
    return OptionsFor(
        "dataset: numbers\nsource: {range: 1200}\nbatch: {size: 12}", rank, 2,
        broker.socket());
  };
  const auto memory = [&] {
    return broker.Ask({{"op", "status"}})
        .at("broker")
        .at("memory_bytes")
        .get<uint64_t>();
  };
  const auto wait_for = [&](uint64_t bytes) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (memory() != bytes && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    EXPECT_EQ(memory(), bytes);
  };
  RankProcess evicted(options(0));
  RankProcess other(options(1));
  const auto take = [&](RankProcess& replacement) {
    // More than they still held.
    for (int step = 0; step < 6; ++step) {
      for (RankProcess* rank : {&replacement, &other}) {
        const RankProcess::Event event = rank->Next();
        ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
        rank->Release(1);
      }
    }
  };
  evicted.Attached();
  other.Attached();
  const uint64_t job = memory();
  ASSERT_GT(job, 0u);
  ASSERT_EQ(evicted.Next().what, RankProcess::What::kBatch);
  broker.Ask({{"op", "evict"}, {"job", options(0).job}, {"rank", 0}});
  RankProcess replacement(options(0));
  replacement.Attached();
  EXPECT_EQ(memory(), job);
  for (int instance = 0; instance < 2; ++instance) {
    SCOPED_TRACE(instance);
    take(replacement);
    broker.Kill();
    take(replacement);
    // The first instance's memory, which only the evicted process maps, and the
    // job's own.
    wait_for(2 * job);
  }
  for (RankProcess* rank : {&replacement, &other}) rank->Run();
  for (RankProcess* rank : {&replacement, &other}) {
    EXPECT_EQ(rank->Finished().code, 0);
    rank->Detach();
  }
  wait_for(job);
  broker.Kill();
  wait_for(job);
  evicted.Kill();
  wait_for(0);
  broker.Kill();
  EXPECT_EQ(memory(), 0u);
}

// One of two ranks hangs while the broker dies.
class AwayTest : public testing::Test {
 protected:
  // Each rank has taken and released a batch.
  void Begin(const std::string& mode, const std::string& on_rank_death,
             bool evicted = false) {
    other_.reset();
    hangs_.reset();
    broker_.emplace();
    all_.clear();
    mode_ = mode;
    on_rank_death_ = on_rank_death;
    other_.emplace(RankOptions(0));
    hangs_.emplace(RankOptions(1));
    other_->Attached();
    hangs_->Attached();
    for (RankProcess* rank : {&*hangs_, &*other_}) {
      const RankProcess::Event event = rank->Next();
      ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
      rank->Release(1);
      // In a broadcast each of the two gets all.
      if (mode == "broadcast") all_.clear();
      Append({event.taken}, &all_);
    }
    kill(hangs_->pid(), SIGSTOP);
    if (evicted) Evict();
    broker_->Kill();
  }
  Options RankOptions(int rank) {
    Options options =
        OptionsFor("dataset: numbers\nsource: {range: 240}\nbatch: {size: 4}",
                   rank, 2, broker_->socket());
    options.delivery = mode_;
    options.on_rank_death = on_rank_death_;
    return options;
  }
  nlohmann::json Job() {
    return broker_->Ask({{"op", "status"}}).at("jobs").at(0);
  }
  void Evict() {
    broker_->Ask({{"op", "evict"}, {"job", RankOptions(1).job}, {"rank", 1}});
  }
  // Rank 0 goes on until the broker reports this about the job.
  nlohmann::json GoOnUntil(const std::function<bool(nlohmann::json&)>& so) {
    other_->Run();
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    nlohmann::json job = Job();
    while (!so(job) && std::chrono::steady_clock::now() < end) job = Job();
    return job;
  }
  void ExpectAll(RankProcess& rank) {
    const Course course = rank.Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    if (mode_ == "broadcast" && &rank != &*other_) {
      EXPECT_EQ(course.taken.size(), 59u);
    } else {
      Append(course.taken, &all_);
    }
  }

  std::string mode_;
  std::string on_rank_death_;
  std::optional<KeptBroker> broker_;
  std::optional<RankProcess> other_;
  std::optional<RankProcess> hangs_;
  Rows all_;
};

TEST_F(AwayTest, IsNamedUntilItIsBack) {
  for (const char* const mode : {"split", "dynamic", "broadcast"}) {
    SCOPED_TRACE(mode);
    Begin(mode, "");
    const nlohmann::json at_first = Job();
    EXPECT_EQ(at_first.at("state"), "waiting for ranks 0 and 1 to reconnect");
    EXPECT_EQ(at_first.at("waits_for"), nlohmann::json({0, 1}));
    EXPECT_EQ(at_first.at("bottleneck").at("to_reconnect"),
              nlohmann::json({0, 1}));
    const nlohmann::json job = GoOnUntil([](nlohmann::json& so_far) {
      return so_far["bottleneck"]["what"] == "absent" &&
             so_far["bottleneck"]["ranks_wait"] > 0.5;
    });
    EXPECT_EQ(job.at("state"), "waiting for rank 1 to reconnect");
    EXPECT_EQ(job.at("waits_for"), nlohmann::json({1}));
    EXPECT_THAT(job.at("bottleneck").at("text"),
                HasSubstr("the job waits for rank 1 to reconnect"));
    const nlohmann::json& row = job.at("ranks").back();
    EXPECT_EQ(row.at("state"), "away");
    EXPECT_EQ(row.at("rank"), 1);
    EXPECT_EQ(row.at("pid"), hangs_->pid());
    kill(hangs_->pid(), SIGCONT);
    hangs_->Run();
    ExpectAll(*other_);
    ExpectAll(*hangs_);
    EXPECT_EQ(Sorted(all_), Numbers(240));
  }
}

// At once, or when the other is back; the next broker instance knows it too.
TEST_F(AwayTest, CanBeEvicted) {
  struct Case {
    std::string mode;
    std::string on_rank_death;
    bool other_is_back;
    bool dies_again;
  };
  for (const Case& each :
       std::initializer_list<Case>{{"split", "wait", true, false},
                                   {"split", "wait", true, true},
                                   {"split", "shrink", true, false},
                                   {"split", "shrink", false, true},
                                   {"dynamic", "", true, false},
                                   {"dynamic", "", false, false},
                                   {"dynamic", "", true, true},
                                   {"broadcast", "wait", false, true},
                                   {"broadcast", "shrink", true, false}}) {
    SCOPED_TRACE(each.mode + " " + each.on_rank_death +
                 (each.other_is_back ? "" : ", at once") +
                 (each.dies_again ? ", dies again" : ""));
    Begin(each.mode, each.on_rank_death);
    if (!each.other_is_back) Evict();
    GoOnUntil([&](nlohmann::json& job) {
      return !each.other_is_back || job["waits_for"] == nlohmann::json({1});
    });
    if (each.other_is_back) Evict();
    if (each.dies_again) broker_->Kill();
    if (each.on_rank_death == "wait") {
      RankProcess replacement(RankOptions(1));
      ASSERT_FALSE(replacement.Attached().contains("code"));
      replacement.Run();
      ExpectAll(replacement);
    }
    ExpectAll(*other_);
    EXPECT_EQ(Sorted(all_), Numbers(240));
    // First it takes the batches that the first instance had published to it.
    kill(hangs_->pid(), SIGCONT);
    hangs_->Run();
    const Course evicted = hangs_->Finished();
    EXPECT_EQ(evicted.code, PENSTOCK_ABORTED);
    EXPECT_THAT(evicted.error, HasSubstr("evicted"));
  }
}

// It wakes, is told, and leaves; its replacement goes on. Evicted before or
// after the death of the broker.
TEST_F(AwayTest, EvictedOneThatLeavesIsReplaced) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before);
    Begin("split", "wait", before);
    if (!before) Evict();
    EXPECT_EQ(Job().at("waits_for"), nlohmann::json::array({0}));
    kill(hangs_->pid(), SIGCONT);
    hangs_->Run();
    const Course evicted = hangs_->Finished();
    EXPECT_EQ(evicted.code, PENSTOCK_ABORTED);
    // The batches that the first instance had published to it, before its
    // position was read.
    Append(evicted.taken, &all_);
    hangs_->Detach();
    other_->Run();
    ExpectAll(*other_);
    other_->Detach();
    RankProcess replacement(RankOptions(1));
    EXPECT_EQ(replacement.Attached().at("incarnation"), 1);
    replacement.Run();
    ExpectAll(replacement);
    EXPECT_EQ(Sorted(all_), Numbers(240));
  }
}

// One rank takes that many batches, releases all but two, and dies with the
// broker.
class HolderDiesTest : public testing::Test {
 protected:
  void TakeAndDie(RankProcess first, int batches) {
    first.Attached();
    for (int step = 0; step < batches; ++step) {
      const RankProcess::Event event = first.Next();
      ASSERT_EQ(event.what, RankProcess::What::kBatch);
      if (step < batches - 2) {
        first.Release(1);
        done_.insert(event.taken.rows.begin(), event.taken.rows.end());
      } else {
        held_.insert(held_.end(), event.taken.rows.begin(),
                     event.taken.rows.end());
      }
    }
    const pid_t broker = broker_.pid();
    kill(first.pid(), SIGKILL);
    kill(broker, SIGKILL);
    first.Join();
  }
  // The other gets the held batches, marked, and the rest of the rows once.
  void ExpectRestFrom(RankProcess& second, size_t rows) {
    second.Run();
    const Course course = second.Finished();
    EXPECT_EQ(course.code, 0) << course.error;
    Rows marked;
    for (const Taken& taken : course.taken) {
      for (const int64_t row : taken.rows) {
        if (taken.redelivered) {
          marked.push_back(row);
        } else {
          EXPECT_TRUE(done_.insert(row).second) << row << " came twice";
        }
      }
    }
    EXPECT_EQ(Sorted(marked), Sorted(held_));
    EXPECT_EQ(done_.size() + held_.size(), rows);
  }

  KeptBroker broker_;
  std::set<int64_t> done_;
  Rows held_;
};

TEST_F(HolderDiesTest, SplitRankIsReplacedWithoutLoss) {
  const Options options = OptionsFor(
      "dataset: numbers\nsource: {range: 400}\nbatch: {size: 4}\nhold: 3", 1, 2,
      broker_.socket());
  TakeAndDie(RankProcess(options), 10);
  RankProcess second(options);
  second.Attached();
  ExpectRestFrom(second, 200);
}

TEST_F(HolderDiesTest, DynamicRankLeavesItsBatchesToOthers) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Options options = OptionsFor(
        "dataset: numbers\nsource: {range: 2000}\nbatch: {size: 4}\nhold: 3",
        rank, 2, broker_.socket());
    options.delivery = "dynamic";
    ranks.emplace_back(options);
  }
  ranks[1].Attached();
  TakeAndDie(std::move(ranks[0]), 20);
  ExpectRestFrom(ranks[1], 2000);
}

}  // namespace penstock::broker_and_rank_death_test
