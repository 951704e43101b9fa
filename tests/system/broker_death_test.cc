// Promise: the death of the broker, at any moment, costs a trainer nothing but
// the time of the restart. Method: a penstockd that is restarted as by systemd
// is killed while ranks (threads, or processes that are killed too) take
// batches; the rows they got are compared with those of an undisturbed run.
#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>

#include "common/message.h"
#include "common/ring.h"
#include "common/segment.h"
#include "common/wake.h"
#include "gmock/gmock.h"
#include "tests/support/delivery_fixture.h"
#include "tests/system/kept_broker.h"

namespace penstock::broker_death_test {

using testing::AllOf;
using testing::HasSubstr;

class BrokerDeathTest : public testing::Test {
 protected:
  Options OptionsFor(const std::string& spec, int rank, int world_size) const {
    Options options;
    options.spec = spec;
    options.rank = rank;
    options.world_size = world_size;
    options.socket = broker_->socket();
    options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
    options.timeout_s = 60;
    return options;
  }
  static std::string Spec(int records, int batch,
                          const std::string& rest = "") {
    return "dataset: numbers\nsource: {range: " + std::to_string(records) +
           "}\nshuffle: {seed: 5}\nbatch: {size: " + std::to_string(batch) +
           "}\n" + rest;
  }
  // Runs the ranks on threads and kills the broker `kills` times, after equal
  // parts of the batches.
  std::vector<Course> RunWithKills(const std::vector<Options>& ranks, int kills,
                                   uint64_t batches_between, size_t hold = 1) {
    std::atomic<uint64_t> taken{0};
    std::atomic<size_t> running{ranks.size()};
    std::vector<Course> courses(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          Reader reader(ranks[i]);
          courses[i] =
              RunToTheEnd(reader, hold, [&](const Taken&) { ++taken; });
          reconnects_ += reader.stats().reconnects;
        } catch (const Error& error) {
          courses[i].code = error.code();
          courses[i].error = error.what();
        }
        --running;
      });
    }
    for (int kill = 1; kill <= kills; ++kill) {
      while (taken < kill * batches_between && running > 0) {
        std::this_thread::yield();
      }
      broker_->Kill();
    }
    for (std::thread& thread : threads) thread.join();
    return courses;
  }

  std::unique_ptr<KeptBroker> broker_ = std::make_unique<KeptBroker>();
  std::atomic<uint64_t> reconnects_{0};
};

TEST_F(BrokerDeathTest, SplitRanksGoOnExactlyWhereTheyWere) {
  const std::string spec = Spec(6000, 6, "epochs: 2");
  std::vector<Options> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(OptionsFor(spec, rank, 3));
  }
  const std::vector<Course> harmed = RunWithKills(ranks, 4, 1200);
  for (Options& options : ranks) options.job += "-unharmed";
  const std::vector<Course> unharmed = RunWithKills(ranks, 0, 0);
  EXPECT_GE(reconnects_, 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(harmed[rank].code, 0) << harmed[rank].error;
    EXPECT_EQ(harmed[rank].epoch_ends, 2u);
    EXPECT_EQ(StepsOf(harmed[rank].taken), StepsOf(unharmed[rank].taken));
    for (const Taken& taken : harmed[rank].taken) {
      EXPECT_FALSE(taken.redelivered);
    }
  }
}

TEST_F(BrokerDeathTest, BatchesHeldOverADeathStayAsTheyAre) {
  Reader reader(OptionsFor(Spec(4000, 4, "hold: 3"), 0, 1));
  Batch first;
  Batch second;
  ASSERT_EQ(reader.next(&first), Reader::Result::kBatch);
  ASSERT_EQ(reader.next(&second), Reader::Result::kBatch);
  const Rows before(first.ids().begin(), first.ids().end());
  const Rows before_second(second.ids().begin(), second.ids().end());
  broker_->Kill();
  std::vector<Rows> rest;
  Batch batch;
  while (reader.next(&batch) == Reader::Result::kBatch) {
    rest.emplace_back(batch.ids().begin(), batch.ids().end());
  }
  EXPECT_EQ(rest.size(), 998u);
  EXPECT_EQ(Rows(first.ids().begin(), first.ids().end()), before);
  EXPECT_EQ(Rows(second.ids().begin(), second.ids().end()), before_second);
  Rows all = before;
  all.insert(all.end(), before_second.begin(), before_second.end());
  for (const Rows& rows : rest) all.insert(all.end(), rows.begin(), rows.end());
  EXPECT_EQ(Sorted(all), Numbers(4000));
}

TEST_F(BrokerDeathTest, DynamicBatchesComeExactlyOnce) {
  const std::string spec = Spec(6000, 2, "epochs: 2");
  std::vector<Options> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(OptionsFor(spec, rank, 3));
    ranks.back().delivery = "dynamic";
  }
  const std::vector<Course> courses = RunWithKills(ranks, 4, 1200, 2);
  Rows all;
  for (const Course& course : courses) {
    EXPECT_EQ(course.code, 0) << course.error;
    Append(course.taken, &all);
    for (const Taken& taken : course.taken) EXPECT_FALSE(taken.redelivered);
  }
  EXPECT_EQ(Sorted(all), Numbers(6000, 2));
}

// Its values are in the journal.
TEST_F(BrokerDeathTest, DynamicJobOfValuesInItsSpecGoesOn) {
  const std::string spec =
      "dataset: values\nsource: {tensors: {features: {value: [0, 1, 2, 3, 4, "
      "5], "
      "y: {dtype: float16, values: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}}}}\n"
      "batch: {size: 2}\nepochs: 400\n";
  Options options = OptionsFor(spec, 0, 1);
  options.delivery = "dynamic";
  const std::vector<Course> courses = RunWithKills({options}, 2, 400);
  EXPECT_EQ(courses[0].code, 0) << courses[0].error;
  Rows all;
  Append(courses[0].taken, &all);
  for (const Taken& taken : courses[0].taken) EXPECT_FALSE(taken.redelivered);
  EXPECT_EQ(Sorted(all), Numbers(6, 400));
}

// Its index is read again, from its caches or the files.
TEST_F(BrokerDeathTest, RecordsOfSeveralFilesGoOnWithinOne) {
  std::string pattern = testing::TempDir() + "penstock-shards-XXXXXX";
  const std::filesystem::path folder = mkdtemp(pattern.data());
  const auto member = [](const std::string& name, const std::string& content) {
    std::string tar(1024, '\0');
    tar.replace(0, name.size(), name);
    tar.replace(124, 11, "00000000000");
    tar[134] = static_cast<char>('0' + content.size());
    tar[156] = '0';
    tar.replace(148, 8, "        ");
    unsigned sum = 0;
    for (const char c : tar) sum += static_cast<unsigned char>(c);
    tar.replace(148, 7, Format("{:06o}", sum) + '\0');
    return tar.replace(512, content.size(), content);
  };
  for (int shard = 0; shard < 4; ++shard) {
    std::ofstream tar(folder / Format("s-{}.tar", shard), std::ios::binary);
    for (int i = 500 * shard; i < 500 * (shard + 1); ++i) {
      tar << member(Format("{:05}.cls", i), std::to_string(i));
    }
  }
  const std::string spec =
      "dataset: shards\nsource:\n  webdataset:\n    files: " + folder.string() +
      "/s-{0..3}.tar\n    features: {value: {member: cls, dtype: int64, "
      "shape: []}}\nshuffle: {seed: 5}\nbatch: {size: 4}\nepochs: 3\n";
  std::vector<Options> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(OptionsFor(spec, rank, 2));
    ranks.back().delivery = "dynamic";
  }
  Rows all;
  for (const Course& course : RunWithKills(ranks, 3, 350)) {
    EXPECT_EQ(course.code, 0) << course.error;
    Append(course.taken, &all);
    for (const Taken& taken : course.taken) EXPECT_FALSE(taken.redelivered);
  }
  EXPECT_GE(reconnects_, 2u);
  EXPECT_EQ(Sorted(all), Numbers(2000, 3));
  std::filesystem::remove_all(folder);
}

TEST_F(BrokerDeathTest, BroadcastConsumersMissNothing) {
  const std::string spec = Spec(4000, 4);
  std::vector<Options> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(OptionsFor(spec, rank, 3));
    ranks.back().delivery = "broadcast";
    ranks.back().window = 4;
  }
  // All attach before the first batch, else a late one misses some.
  std::vector<std::unique_ptr<Reader>> readers;
  for (const Options& options : ranks) {
    readers.push_back(std::make_unique<Reader>(options));
  }
  std::atomic<uint64_t> taken{0};
  std::vector<Course> courses(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      courses[rank] =
          RunToTheEnd(*readers[rank], 1, [&](const Taken&) { ++taken; });
    });
  }
  for (uint64_t kill = 1; kill <= 3; ++kill) {
    while (taken < kill * 700) std::this_thread::yield();
    broker_->Kill();
  }
  for (std::thread& thread : threads) thread.join();
  for (const Course& course : courses) {
    EXPECT_EQ(course.code, 0) << course.error;
    EXPECT_EQ(StepsOf(course.taken), StepsOf(courses[0].taken));
    Rows all;
    Append(course.taken, &all);
    EXPECT_EQ(Sorted(all), Numbers(4000));
  }
}

TEST_F(BrokerDeathTest, BroadcastThatDiesBeforeItsFirstBatchWaitsForAll) {
  Options options = OptionsFor(Spec(40, 4), 0, 2);
  options.delivery = "broadcast";
  std::atomic<bool> begins{false};
  Course first;
  std::thread thread([&] {
    Reader reader(options);
    begins = true;
    first = RunToTheEnd(reader);
  });
  while (!begins) std::this_thread::yield();
  broker_->Kill();
  options.rank = 1;
  // The other has reconnected, alone.
  const auto is_back = [&] {
    const nlohmann::json status = broker_->Ask({{"op", "status"}});
    const nlohmann::json& jobs = status.at("jobs");
    return !jobs.empty() && jobs[0].contains("ranks") &&
           !jobs[0]["ranks"].empty() &&
           jobs[0]["ranks"][0].at("state") == "attached";
  };
  while (!is_back()) std::this_thread::yield();
  Reader reader(options);
  const Course second = RunToTheEnd(reader);
  thread.join();
  EXPECT_EQ(first.taken.size(), 10u);
  EXPECT_EQ(StepsOf(first.taken), StepsOf(second.taken));
}

TEST_F(BrokerDeathTest, OneThatLeftAndLivesOnIsNotWaitedFor) {
  Options options = OptionsFor(Spec(400, 4), 0, 2);
  options.delivery = "dynamic";
  // Less than the broker waits for a rank that may reconnect.
  options.timeout_s = 20;
  auto leaver = std::make_unique<Reader>(options);
  options.rank = 1;
  Reader stayer(options);
  Batch batch;
  ASSERT_EQ(leaver->next(&batch), Reader::Result::kBatch);
  Rows all(batch.ids().begin(), batch.ids().end());
  batch.release();
  leaver.reset();
  broker_->Kill();
  const Course course = RunToTheEnd(stayer);
  EXPECT_EQ(course.code, 0) << course.error;
  Append(course.taken, &all);
  EXPECT_EQ(Sorted(all), Numbers(400));
}

TEST_F(BrokerDeathTest, ShutDownAndStartedAgainIsTheSameAsKilled) {
  Reader reader(OptionsFor(Spec(400, 4), 0, 1));
  Rows all;
  Batch batch;
  for (int step = 0; step < 100; ++step) {
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    all.insert(all.end(), batch.ids().begin(), batch.ids().end());
    if (step == 50) broker_->Kill(SIGSEGV);
  }
  EXPECT_EQ(Sorted(all), Numbers(400));
}

TEST_F(BrokerDeathTest, RegisteredDatasetIsStillThere) {
  broker_->Ask({{"op", "register"},
                {"spec", Spec(8, 4)},
                {"file", "spec"},
                {"base", "/"}});
  broker_->Kill();
  Options options = OptionsFor("", 0, 1);
  options.dataset = "numbers";
  EXPECT_EQ(Reader(options).sample_count(), 8u);
  nlohmann::json other = {{"op", "register"},
                          {"spec", Spec(12, 4)},
                          {"file", "spec"},
                          {"base", "/"}};
  EXPECT_THROW(broker_->Ask(other), std::runtime_error);
  other["replace"] = true;
  broker_->Ask(other);
  broker_->Kill();
  EXPECT_EQ(Reader(options).sample_count(), 12u);
  broker_->Ask({{"op", "unregister"}, {"dataset", "numbers"}});
  broker_->Kill();
  EXPECT_THROW(Reader{options}, Error);
  broker_->Ask({{"op", "register"},
                {"spec",
                 "dataset: values\nsource: {tensors: {features: {x: [1, "
                 "2, 3]}}}\nbatch: {size: 1}\n"},
                {"file", "spec"},
                {"base", "/"}});
  broker_->Kill();
  options.dataset = "values";
  EXPECT_EQ(Reader(options).sample_count(), 3u);
}

TEST_F(BrokerDeathTest, JobKeepsTheSpecItBeganWith) {
  nlohmann::json request = {{"op", "register"},
                            {"spec", Spec(400, 4)},
                            {"file", "spec"},
                            {"base", "/"}};
  broker_->Ask(request);
  Options options = OptionsFor("", 0, 1);
  options.dataset = "numbers";
  Reader reader(options);
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  Rows all(batch.ids().begin(), batch.ids().end());
  request["spec"] = Spec(12, 4);
  request["replace"] = true;
  broker_->Ask(request);
  broker_->Kill();
  while (reader.next(&batch) == Reader::Result::kBatch) {
    all.insert(all.end(), batch.ids().begin(), batch.ids().end());
  }
  EXPECT_EQ(Sorted(all), Numbers(400));
}

TEST_F(BrokerDeathTest, NobodyTakesThePlaceOfARankThatMayReconnect) {
  const std::string spec = Spec(400, 4);
  Reader reader(OptionsFor(spec, 0, 2));
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  broker_->Kill();
  try {
    Reader other(OptionsFor(spec, 0, 2));
    FAIL() << "a second rank 0 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PENSTOCK_ALREADY_EXISTS);
    EXPECT_THAT(error.what(), HasSubstr("may reconnect"));
  }
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
}

// Ranks are killed together with the broker: their pages, which outlive both,
// say which batches they had.
class BothDieTest : public testing::Test {
 protected:
  Options OptionsFor(const std::string& spec, int rank, int world_size,
                     const std::string& socket) {
    Options options;
    options.spec = spec;
    options.rank = rank;
    options.world_size = world_size;
    options.socket = socket;
    options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
    options.timeout_s = 60;
    return options;
  }
};

// Whether waiting until nobody can reconnect helps depends on the mode.
TEST_F(BothDieTest, ReplacementOfARankWhosePageNobodyKeptIsToldWhatHelps) {
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

// Its last page was kept, an earlier one with a batch that it held was not (a
// full descriptor store). It must not begin at the first batch again.
TEST_F(BothDieTest, ReplacementOfARankWithAPageLostIsRefused) {
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
TEST_F(BothDieTest, ReplacementThatGetsAnOldStepLastGoesOnWhereItWasBefore) {
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

// The broker dies first: no later instance sees the rank alive.
class BrokerThenRankDieTest : public BothDieTest {
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
TEST_F(BothDieTest, RankThatOthersGoOnWithoutIsNotAskedForAgain) {
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
TEST_F(BothDieTest, MemoryOfAnEvictedProcessCountsAsLongAsItLives) {
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
class AwayTest : public BothDieTest {
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
class HolderDiesTest : public BothDieTest {
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

class BroadcastDeathTest : public BothDieTest {
 protected:
  Options OptionsFor(const std::string& spec, int rank) {
    Options options =
        BothDieTest::OptionsFor("dataset: numbers\nbatch: {size: 2}\n" + spec,
                                rank, 2, broker_.socket());
    options.delivery = "broadcast";
    options.window = 1;
    return options;
  }
  // Waits until the broker reports this about a rank.
  template <typename Is>
  void WaitForRank(int rank, const Is& is) {
    for (;;) {
      const nlohmann::json status = broker_.Ask({{"op", "status"}});
      for (const nlohmann::json& job : status.at("jobs")) {
        if (!job.contains("ranks")) continue;
        for (const nlohmann::json& each : job["ranks"]) {
          if (each.at("rank") == rank && is(each)) return;
        }
      }
      std::this_thread::yield();
    }
  }

  // The request of a rank.
  static nlohmann::json AttachOf(const Options& options, int rank) {
    return {{"op", "attach"},
            {"spec", options.spec},
            {"file", "spec"},
            {"base", "/"},
            {"job", options.job},
            {"named", true},
            {"delivery", options.delivery},
            {"lag", options.lag.empty() ? "block" : options.lag},
            {"window", options.window},
            {"consumers", 2},
            {"rank", rank},
            {"world_size", 2},
            {"local_world_size", options.local_world_size}};
  }
  // Attaches as its process does, with its own cursor page.
  StatusOr<Message> Attach(const nlohmann::json& request) {
    PENSTOCK_ASSIGN_OR_RETURN(cursor_, CreateCursor());
    PENSTOCK_ASSIGN_OR_RETURN(socket_, ConnectControl(broker_.socket()));
    return Request(socket_.get(), request, {cursor_.fd.get()});
  }
  // Attaches and leaves. Returns the answer when it comes back at this
  // position, after longer silence than the others wait.
  nlohmann::json ComesBackAt(uint64_t position, nlohmann::json request) {
    const StatusOr<Message> answer = Attach(request);
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    request["incarnation"] = answer->json.at("incarnation");
    request["token"] = answer->json.at("token");
    EXPECT_TRUE(SendMessage(socket_.get(),
                            {{"penstock", kProtocolVersion}, {"op", "detach"}})
                    .ok());
    request["position"] = position;
    request["phase"] = 0;
    request["taken"] = 0;
    request["owed"] = nlohmann::json::array();
    return request;
  }
  // Waits for a batch, as a rank with this answer does.
  Cell TakeAs(const Message& answer) {
    const auto view = SegmentView::Open(answer.fds[0].get(), 1);
    const Ring& ring = (*view)->ring(answer.json.at("seat").get<uint32_t>());
    Cell cell{};
    while (TryTake(ring, cursor_.page(), &cell) != TakeResult::kTaken) {
      pollfd wake = {answer.fds[1].get(), POLLIN, 0};
      if (ArmWait(ring, cursor_.page())) {
        if (BrokerWaitsForTakes(ring)) SendWake(wake.fd);
        poll(&wake, 1, 1000);
      }
      DisarmWait(cursor_.page());
      DrainWakes(wake.fd);
    }
    return cell;
  }

  KeptBroker broker_;
  OwnedCursor cursor_;
  Fd socket_;
};

TEST_F(BroadcastDeathTest, NewConsumerGetsNothingOfTheOneWhoseNumberItHas) {
  const std::string spec = "source: {range: 40}\nhold: 6";
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(OptionsFor(spec, rank));
  }
  for (RankProcess& rank : ranks) rank.Attached();
  for (uint64_t step = 0; step < 5; ++step) {
    for (RankProcess& rank : ranks) {
      ASSERT_EQ(rank.Next().taken.step, step);
      if (step < 2) rank.Release(1);
    }
  }
  WaitForRank(1, [](const auto& rank) { return rank.at("ready") == 1; });
  broker_.Kill();
  ASSERT_EQ(ranks[1].Next().taken.step, 5u);
  // It reconnects with four batches of the former instance, and dies while the
  // broker waits for the other.
  ranks[1].SendNext();
  WaitForRank(1, [](const auto& rank) { return rank["state"] == "attached"; });
  ranks[1].Kill();
  RankProcess other(OptionsFor(spec, 1));
  ASSERT_EQ(ranks[0].Next().taken.step, 5u);
  ASSERT_EQ(ranks[0].Next().taken.step, 6u);
  other.Attached();
  ranks[0].Run();
  other.Run();
  const Course course = other.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(ranks[0].Finished().taken.size(), 13u);
  ASSERT_FALSE(course.taken.empty());
  for (size_t i = 0; i < course.taken.size(); ++i) {
    EXPECT_FALSE(course.taken[i].redelivered);
    EXPECT_EQ(course.taken[i].skipped, 0u);
    EXPECT_EQ(course.taken[i].step, course.taken[0].step + i);
  }
  EXPECT_EQ(course.taken.back().step, 19u);
}

TEST_F(BroadcastDeathTest, EpochsOfAFullEpochConsumerGoOnAsTheyWere) {
  Options options = OptionsFor("source: {range: 10}\nepochs: 4", 0);
  options.local_world_size = 1;
  options.consumers = 2;
  RankProcess first(options);
  first.Attached();
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(first.Next().what, RankProcess::What::kBatch);
    first.Release(1);
  }
  options.rank = 1;
  options.full_epoch = true;
  RankProcess late(options);
  const auto epoch = late.Attached().at("epoch").get<uint64_t>();
  uint64_t step = 0;
  const auto take = [&](uint64_t steps) {
    for (; steps > 0; --steps) {
      while (first.Next().what != RankProcess::What::kBatch) {
      }
      first.Release(1);
      RankProcess::Event event = late.Next();
      while (event.what == RankProcess::What::kEndOfEpoch) {
        EXPECT_EQ(step % 5, 0u);
        event = late.Next();
      }
      ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
      EXPECT_EQ(event.taken.epoch, epoch + step / 5);
      EXPECT_EQ(event.taken.step, step % 5);
      late.Release(1);
      ++step;
    }
  };
  take(7);
  broker_.Kill();
  // The late one has taken the last batch of an epoch, and not the next one.
  ASSERT_EQ(first.Next().what, RankProcess::What::kBatch);
  ASSERT_EQ(first.Next().what, RankProcess::What::kEndOfEpoch);
  first.Release(1);
  first.SendNext();
  const RankProcess::Event event = late.Next();
  ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
  EXPECT_EQ(event.taken.epoch, epoch + step / 5);
  EXPECT_EQ(event.taken.step, step % 5);
  ++step;
  first.Receive();
  first.Release(1);
  late.Release(1);
  take(4);
}

TEST_F(BroadcastDeathTest, WhoIsFarBehindIsSkippedAndNotWaitedFor) {
  const std::string spec = "source: {range: 400}";
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Options options = OptionsFor(spec, rank);
    options.lag = "skip";
    ranks.emplace_back(options);
  }
  for (RankProcess& rank : ranks) rank.Attached();
  RankProcess& fast = ranks[0];
  RankProcess& slow = ranks[1];
  ASSERT_EQ(slow.Next().taken.step, 0u);
  slow.Release(1);
  for (uint64_t step = 0; step < 100; ++step) {
    ASSERT_EQ(fast.Next().taken.step, step);
    fast.Release(1);
  }
  WaitForRank(0, [](const auto& rank) { return rank.at("ready") == 1; });
  broker_.Kill();
  // First the batches that they were given before.
  ASSERT_EQ(fast.Next().taken.step, 100u);
  fast.Release(1);
  fast.SendNext();
  uint64_t next = 1;
  uint64_t skipped = 0;
  while (next < 100) {
    const RankProcess::Event event = slow.Next();
    ASSERT_EQ(event.what, RankProcess::What::kBatch) << event.error;
    next += event.taken.skipped;
    skipped += event.taken.skipped;
    EXPECT_EQ(event.taken.step, next++);
    slow.Release(1);
  }
  EXPECT_GT(skipped, 90u);
  fast.Receive();
  fast.Release(1);
  fast.Run();
  const Course rest = fast.Finished();
  EXPECT_EQ(rest.code, 0) << rest.error;
  ASSERT_EQ(rest.taken.size(), 98u);
  EXPECT_EQ(rest.taken.front().step, 102u);
}

TEST_F(BroadcastDeathTest, WhoComesBackTooLateIsToldWhatItMissed) {
  for (const std::string lag : {"block", "skip"}) {
    Options options = OptionsFor("source: {range: 40}", 0);
    options.lag = lag;
    options.job += lag;
    options.consumers = 2;
    options.local_world_size = 1;
    RankProcess first(options);
    first.Attached();
    const nlohmann::json request = ComesBackAt(0, AttachOf(options, 1));
    for (uint64_t step = 0; step < 2; ++step) {
      ASSERT_EQ(first.Next().taken.step, step);
      first.Release(1);
    }
    const StatusOr<Message> answer = Attach(request);
    if (lag == "block") {
      EXPECT_EQ(answer.status().code(), StatusCode::kAborted);
      EXPECT_THAT(answer.status().message(), HasSubstr("it missed"));
      continue;
    }
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    const uint64_t missed = answer->json.at("position").get<uint64_t>() / 2;
    EXPECT_GE(missed, 2u);
    first.SendNext();
    const Cell cell = TakeAs(*answer);
    EXPECT_EQ(cell.skipped, missed);
    EXPECT_EQ(cell.position, 2 * missed);
  }
}

// It was ahead when the broker died, and absent when the others went on.
TEST_F(BroadcastDeathTest, WhoComesBackAheadIsNotHeldUpByWhoIsBehind) {
  Options options = OptionsFor("source: {range: 400}", 0);
  options.lag = "skip";
  options.consumers = 2;
  options.local_world_size = 1;
  RankProcess behind(options);
  behind.Attached();
  const nlohmann::json request = ComesBackAt(2 * 50, AttachOf(options, 1));
  ASSERT_EQ(behind.Next().taken.step, 0u);
  // It misses more steps than there are slots.
  const StatusOr<Message> answer = Attach(request);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(TakeAs(*answer).position, 2 * 50u);
}

// The broker died before it answered this attach; the process repeats the
// request.
class UnansweredTest : public BroadcastDeathTest {};

TEST_F(UnansweredTest, ConsumerGetsWhatOthersHadBecauseItWasThere) {
  for (const char* policy : {"", "wait"}) {
    Options options = OptionsFor("source: {range: 40}", 0);
    options.job += policy;
    options.consumers = options.local_world_size = 2;
    options.on_rank_death = policy;
    nlohmann::json request = AttachOf(options, 1);
    if (*policy != 0) request["on_rank_death"] = policy;
    RankProcess first(options);
    first.Attached();
    const StatusOr<Message> unheard = Attach(request);
    ASSERT_TRUE(unheard.ok()) << unheard.status().message();
    ASSERT_EQ(first.Next().taken.step, 0u);
    first.Release(1);
    broker_.Kill();
    first.SendNext();
    const StatusOr<Message> answer = Attach(request);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->json.at("position"), 0);
    EXPECT_EQ(answer->json.at("incarnation"), 1);
    const auto view = SegmentView::Open(answer->fds[0].get(), 1);
    const Ring& ring = (*view)->ring(answer->json.at("seat").get<uint32_t>());
    Cell cell{};
    while (TryTake(ring, cursor_.page(), &cell) != TakeResult::kTaken) {
      std::this_thread::yield();
    }
    EXPECT_EQ(cell.position, 0u);
    EXPECT_EQ(cell.flags & kRedelivered, 0u);
  }
}

TEST_F(UnansweredTest, RankThatBeginsAtAStateMeetsTheOthersThere) {
  Options options = OptionsFor("source: {range: 40}", 0);
  options.delivery = "split";
  options.window = 0;
  options.local_world_size = 2;
  nlohmann::json request = AttachOf(options, 1);
  for (const char* of_broadcast : {"window", "consumers", "lag"}) {
    request.erase(of_broadcast);
  }
  request["job"] = "to get a state";
  const StatusOr<Message> begun = Attach(request);
  ASSERT_TRUE(begun.ok()) << begun.status().message();
  request["job"] = options.job;
  request["state"] = begun->json.at("state");
  options.state = request["state"].dump();
  RankProcess first(options);
  first.Attached();
  ASSERT_TRUE(Attach(request).ok());
  ASSERT_EQ(first.Next().taken.step, 0u);
  broker_.Kill();
  first.SendNext();
  const StatusOr<Message> answer = Attach(request);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->json.at("incarnation"), 1);
  EXPECT_EQ(first.ReceiveNext().taken.step, 1u);
}

// An incarnation is known by its token, not by its number.
TEST_F(BroadcastDeathTest, NobodyReconnectsToAJobThatIsOver) {
  Options options = OptionsFor("source: {range: 4}", 0);
  options.local_world_size = 1;
  for (int incarnation = 1; incarnation <= 2; ++incarnation) {
    RankProcess rank(options);
    EXPECT_EQ(rank.Attached().at("incarnation"), incarnation);
    rank.Run();
    EXPECT_EQ(rank.Finished().taken.size(), 2u);
    rank.Detach();
  }
  for (const char* job : {"another", options.job.c_str()}) {
    nlohmann::json request = AttachOf(options, 0);
    request.update({{"job", job},
                    {"incarnation", 2},
                    {"token", 2},
                    {"position", 0},
                    {"phase", 0},
                    {"taken", 0},
                    {"owed", nlohmann::json::array()}});
    const auto cursor = CreateCursor();
    const auto socket = ConnectControl(broker_.socket());
    ASSERT_TRUE(socket.ok());
    const auto answer = Request(socket->get(), request, {cursor->fd.get()});
    EXPECT_EQ(answer.status().code(), StatusCode::kAborted);
    EXPECT_THAT(answer.status().message(), HasSubstr("is over"));
  }
}

}  // namespace penstock::broker_death_test
