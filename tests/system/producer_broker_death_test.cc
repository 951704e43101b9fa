// Promise: the death of the broker costs a stream nothing: rows that were put
// come once, in the order of the puts, whoever dies with it. Method: a
// penstockd that is restarted as by systemd is killed while producers (threads,
// or processes that are killed too) put rows and ranks take them.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "tests/support/delivery_fixture.h"
#include "tests/system/kept_broker.h"

namespace penstock::producer_broker_death_test {

using testing::HasSubstr;

// `penstock run` gives up a broker that dies five times a minute.
constexpr int kDeathsMax = 4;

class ProducerBrokerDeathTest : public testing::Test {
 protected:
  static std::string Job() {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  Options OptionsFor(int rank, int world_size, int producers = 1) const {
    Options options;
    options.spec =
        "dataset: numbers\n"
        "source: {stream: {features: {value: {dtype: int64, shape: []}}, "
        "producers: " +
        std::to_string(producers) + "}}\nbatch: {size: 8}\n";
    options.rank = rank;
    options.world_size = world_size;
    options.socket = broker_->socket();
    options.job = Job();
    options.timeout_s = 60;
    return options;
  }
  ProducerOptions ProducerFor(uint64_t rows) const {
    ProducerOptions options;
    options.features = {{"value", PENSTOCK_INT64, {}}};
    options.rows = rows;
    options.socket = broker_->socket();
    options.job = Job();
    options.timeout_s = 60;
    return options;
  }
  static void Put(Producer* producer, int64_t first, int64_t rows) {
    producer->reserve(static_cast<uint64_t>(rows));
    std::iota(producer->data<int64_t>(0), producer->data<int64_t>(0) + rows,
              first);
    producer->put(static_cast<uint64_t>(rows));
  }
  // Puts rows [first, end), `rows` at a time.
  void Produce(int64_t first, int64_t end, int64_t rows) {
    Producer producer(ProducerFor(static_cast<uint64_t>(rows)));
    for (int64_t at = first; at < end; at += rows) {
      Put(&producer, at, std::min(rows, end - at));
    }
    producer.finish();
  }
  nlohmann::json JobStatus() {
    const nlohmann::json status = broker_->Ask({{"op", "status"}});
    for (const auto& job : status.at("jobs")) {
      if (job.at("job") == Job()) return job;
    }
    return nullptr;
  }
  void WaitUntil(const std::string& what, const std::function<bool()>& is_so) {
    const auto give_up =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_so()) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up) << what;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // Runs producers and ranks on threads and kills the broker `kills` times,
  // after equal parts of the rows.
  std::vector<Course> RunWithKills(
      const std::vector<Options>& ranks,
      const std::vector<std::function<void()>>& producers, int kills,
      uint64_t rows) {
    std::atomic<uint64_t> taken{0};
    std::vector<Course> courses(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          Reader reader(ranks[i]);
          courses[i] = RunToTheEnd(
              reader, 1, [&](const Taken& each) { taken += each.rows.size(); });
          reconnects_ += reader.stats().reconnects;
        } catch (const Error& error) {
          courses[i].code = error.code();
          courses[i].error = error.what();
        }
        taken = UINT64_MAX / 2;  // no more kills wait for it
      });
    }
    for (const auto& produce : producers) {
      threads.emplace_back([&produce] {
        try {
          produce();
        } catch (const Error& error) {
          ADD_FAILURE() << "a producer: " << error.what();
        }
      });
    }
    for (int kill = 1; kill <= kills; ++kill) {
      while (taken < kill * rows / (kills + 1)) std::this_thread::yield();
      broker_->Kill();
    }
    for (std::thread& thread : threads) thread.join();
    return courses;
  }

  std::unique_ptr<KeptBroker> broker_ = std::make_unique<KeptBroker>();
  std::atomic<uint64_t> reconnects_{0};
};

TEST_F(ProducerBrokerDeathTest, RowsComeOnceAndInOrder) {
  constexpr int64_t kRows = 30'000;
  const std::vector<Course> courses = RunWithKills(
      {OptionsFor(0, 1)}, {[&] { Produce(0, kRows, 7); }}, kDeathsMax, kRows);
  EXPECT_EQ(courses[0].code, 0) << courses[0].error;
  EXPECT_EQ(courses[0].epoch_ends, 1u);
  EXPECT_GE(reconnects_, 1u);
  Rows rows;
  Append(courses[0].taken, &rows);
  EXPECT_EQ(rows, Numbers(kRows));
}

TEST_F(ProducerBrokerDeathTest, EveryModeGivesEachRowOnce) {
  constexpr int64_t kPart = 6'001;  // the last batch is a short one
  for (const char* mode : {"split", "dynamic"}) {
    broker_ = std::make_unique<KeptBroker>();
    std::vector<Options> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(OptionsFor(rank, 2, 3));
      ranks.back().delivery = mode;
    }
    std::vector<std::function<void()>> producers;
    for (int64_t part = 0; part < 3; ++part) {
      producers.push_back([this, part] {
        Produce(part * kPart, (part + 1) * kPart, part + 3);
      });
    }
    Rows rows;
    for (const Course& course :
         RunWithKills(ranks, producers, kDeathsMax, 3 * kPart)) {
      EXPECT_EQ(course.code, 0) << mode << ": " << course.error;
      EXPECT_EQ(course.epoch_ends, 1u);
      Append(course.taken, &rows);
      for (const Taken& taken : course.taken) EXPECT_FALSE(taken.redelivered);
    }
    EXPECT_EQ(Sorted(rows), Numbers(3 * kPart)) << mode;
  }
}

TEST_F(ProducerBrokerDeathTest, BroadcastConsumersMissNothing) {
  constexpr int64_t kRows = 8'000;
  std::vector<Options> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(OptionsFor(rank, 2));
    ranks.back().delivery = "broadcast";
  }
  for (const Course& course :
       RunWithKills(ranks, {[&] { Produce(0, kRows, 5); }}, 2, 2 * kRows)) {
    EXPECT_EQ(course.code, 0) << course.error;
    Rows rows;
    Append(course.taken, &rows);
    EXPECT_EQ(rows, Numbers(kRows));
  }
}

// A consumer of a job that skips: its batches come in order, except those it is
// told that it missed.
struct Skipping {
  static constexpr uint64_t kBatch = 8;
  uint64_t next = 0;
  uint64_t batches = 0;
  uint64_t skipped = 0;

  void Count(const Taken& taken) {
    skipped += taken.skipped;
    next += taken.skipped;
    EXPECT_EQ(taken.step, next++);
    EXPECT_EQ(taken.rows.front(), static_cast<int64_t>(taken.step * kBatch));
    ++batches;
  }
};

// The rows between its held batch and the next ones are released when the other
// has finished with them, and are gone when the broker restarts.
TEST_F(ProducerBrokerDeathTest, WhatASlowConsumerMissedIsSkipped) {
  constexpr int64_t kRows = 8'000;
  constexpr uint64_t kSteps = kRows / Skipping::kBatch;
  Options options = OptionsFor(-1, 1);
  options.delivery = "broadcast";
  options.lag = "skip";
  Reader fast(options);
  Reader slow(options);
  std::thread producer([&] { Produce(0, kRows, 5); });
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> go_on{false};
  Skipping of_fast;
  Course fast_course;
  std::thread rank([&] {
    fast_course = RunToTheEnd(fast, 1, [&](const Taken& each) {
      of_fast.Count(each);
      if (++taken < 400) return;
      while (!go_on) std::this_thread::yield();
    });
  });
  Skipping of_slow;
  {
    Batch held;
    ASSERT_EQ(slow.next(&held), Reader::Result::kBatch);
    of_slow.Count(TakenOf(slow, held));
    while (taken < 400) std::this_thread::yield();
    EXPECT_EQ(of_fast.skipped, 0u);
    broker_->Kill();
  }
  go_on = true;
  const Course slow_course =
      RunToTheEnd(slow, 1, [&](const Taken& each) { of_slow.Count(each); });
  rank.join();
  producer.join();
  EXPECT_EQ(fast_course.code, 0) << fast_course.error;
  EXPECT_EQ(slow_course.code, 0) << slow_course.error;
  EXPECT_GT(of_slow.skipped, 300u);
  EXPECT_EQ(slow.stats().skipped + of_slow.batches, kSteps);
  EXPECT_EQ(fast.stats().skipped + of_fast.batches, kSteps);
}

TEST_F(ProducerBrokerDeathTest, AProducerThatWaitsForItsJobGoesOnWaiting) {
  std::thread producer([&] { Produce(0, 100, 10); });
  broker_->Kill();
  Reader reader(OptionsFor(0, 1));
  const Course course = RunToTheEnd(reader);
  producer.join();
  EXPECT_EQ(course.code, 0) << course.error;
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(100));
}

TEST_F(ProducerBrokerDeathTest, OneThatIsSilentWhileItDiesIsNotGivenUp) {
  Course course;
  std::thread rank([&] {
    Reader reader(OptionsFor(0, 1));
    course = RunToTheEnd(reader);
  });
  Producer producer(ProducerFor(8));
  Put(&producer, 0, 8);
  const auto heard_of = [&] {
    const nlohmann::json job = JobStatus();
    return job.contains("producers_at_work") && job.at("rows_put") == 8;
  };
  WaitUntil("its rows are heard of", heard_of);
  broker_->Kill();
  WaitUntil("the job goes on", heard_of);
  EXPECT_EQ(JobStatus().at("producers_at_work"), 0);
  Put(&producer, 8, 8);
  producer.finish();
  rank.join();
  EXPECT_EQ(course.code, 0) << course.error;
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(16));
}

// ---- with a producer

// A producer in its own process, which is killed.
pid_t Fork(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      body();
    } catch (const Error& error) {
      fprintf(stderr, "a producer: %s\n", error.what());
      _exit(1);
    }
    for (;;) pause();
  }
  return pid;
}
void Kill(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(ProducerBrokerDeathTest, RowsOfADeadProducerOutliveTheBroker) {
  const pid_t first = Fork([&] {
    Producer producer(ProducerFor(10));
    Put(&producer, 0, 10);
    Put(&producer, 10, 10);
    for (;;) pause();
  });
  Reader reader(OptionsFor(0, 1));
  WaitUntil("rows put", [&] {
    return !JobStatus().is_null() && JobStatus().at("rows_put") == 20;
  });
  Kill(first);
  WaitUntil("it is gone",
            [&] { return JobStatus().at("producers_at_work") == 0; });
  broker_->Kill();
  std::thread second([&] { Produce(20, 25, 5); });
  const Course course = RunToTheEnd(reader);
  second.join();
  EXPECT_EQ(course.code, 0) << course.error;
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(25));
}

TEST_F(ProducerBrokerDeathTest, ProducerAndBrokerDieTogether) {
  constexpr int64_t kRows = 4'000;
  // Each begins at the stream's next row, as a producer that knows its rows by
  // number.
  const auto produce = [&] {
    Producer producer(ProducerFor(5));
    for (auto at = static_cast<int64_t>(producer.next_row()); at < kRows;) {
      const int64_t rows = std::min<int64_t>(5, kRows - at);
      Put(&producer, at, rows);
      at += rows;
    }
    producer.finish();
  };
  pid_t running = Fork(produce);
  std::atomic<uint64_t> taken{0};
  Course course;
  std::thread rank([&] {
    Reader reader(OptionsFor(0, 1));
    course = RunToTheEnd(reader, 1,
                         [&](const Taken& each) { taken += each.rows.size(); });
    taken = UINT64_MAX / 2;
  });
  for (int kill = 1; kill <= kDeathsMax; ++kill) {
    while (taken < static_cast<uint64_t>(kill * kRows / (kDeathsMax + 1))) {
      std::this_thread::yield();
    }
    const pid_t broker = broker_->pid();
    ::kill(running, SIGKILL);
    ::kill(broker, SIGKILL);
    waitpid(running, nullptr, 0);
    running = Fork(produce);
  }
  rank.join();
  Kill(running);
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(course.epoch_ends, 1u);
  Rows rows;
  Append(course.taken, &rows);
  EXPECT_EQ(rows, Numbers(kRows));
}

TEST_F(ProducerBrokerDeathTest, ABrokerThatDoesNotComeBackIsNamed) {
  Reader reader(OptionsFor(0, 1));
  ProducerOptions options = ProducerFor(8);
  options.reconnect_s = 0.5;
  Producer producer(options);
  broker_ = nullptr;
  std::string error;
  int code = 0;
  try {
    for (;;) Put(&producer, 0, 8);
  } catch (const Error& thrown) {
    error = thrown.what();
    code = thrown.code();
  }
  EXPECT_EQ(code, PENSTOCK_UNAVAILABLE);
  EXPECT_THAT(error, HasSubstr("reconnect_s"));
}

}  // namespace penstock::producer_broker_death_test
