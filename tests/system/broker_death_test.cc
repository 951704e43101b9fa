// Promise: the death of the broker, at any moment, costs a trainer nothing but
// the time of the restart. Method: a penstockd that is restarted as by systemd
// is killed while ranks take batches; the rows they got are compared with those
// of an undisturbed run.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>

#include "gmock/gmock.h"
#include "tests/support/delivery_fixture.h"
#include "tests/system/kept_broker.h"

namespace penstock::broker_death_test {

using testing::AllOf;
using testing::HasSubstr;

class BrokerDeathTest : public testing::Test {
 protected:
  Options OptionsFor(const std::string& spec, int rank, int world_size) const {
    return penstock::OptionsFor(spec, rank, world_size, broker_->socket());
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

}  // namespace penstock::broker_death_test
