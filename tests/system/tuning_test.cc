// Promise: where workers are blocked by slow reads, and where processes of a
// Python function wait for something else than a processor, there become more
// of them, and the status says why; what is configured stays. Method: a real
// broker on storage that answers every half second, and with a function that
// sleeps. The choice itself is `unit/worker_pool`'s.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "broker/memory/idle_processors.h"
#include "common/format.h"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"
#include "tests/support/slow_pictures.h"

namespace penstock::tuning_test {

using testing::HasSubstr;
using testing::StartsWith;

// Longer than a tuner rests after an attempt that the machine's noise spoiled.
constexpr auto kPatience = std::chrono::seconds(60);

class TuningTest : public DeliveryTest {
 protected:
  void StartBroker(const std::vector<std::string>& arguments) {
    tuned_ = std::make_unique<BrokerProcess>(arguments);
  }
  // A rank takes batches until the end of the test; pause: before every 12.
  void StartRank(const std::string& spec,
                 std::chrono::milliseconds pause = {}) {
    Options options = OptionsFor(spec, 0, 1);
    options.socket = tuned_->socket();
    rank_ = std::thread([this, options, pause] {
      try {
        Reader reader(options);
        Batch batch;
        for (uint64_t step = 0; !stop_; ++step) {
          if (step % 12 == 0) std::this_thread::sleep_for(pause);
          if (reader.next(&batch) == Reader::Result::kEndOfData) break;
          batch.release();
        }
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  void StopRank() {
    stop_ = true;
    if (rank_.joinable()) rank_.join();
  }
  ~TuningTest() override { StopRank(); }

  nlohmann::json Status() const {
    const StatusOr<Fd> socket = ConnectControl(tuned_->socket());
    if (!socket.ok()) return nlohmann::json::object();
    const StatusOr<Message> answer = Request(socket->get(), {{"op", "status"}});
    return answer.ok() ? answer->json : nlohmann::json::object();
  }
  // waits:sleeps, for brokers that are started from now on.
  void UseFunctionThatSleeps(double seconds) {
    broker_.Write("waits.py", Format("import time\n\n\n"
                                     "def sleeps(row):\n"
                                     "    time.sleep({})\n"
                                     "    return row\n",
                                     seconds));
    setenv("PENSTOCK_PYTHON_PATH", broker_.folder().c_str(), 1);
    setenv("PENSTOCK_PYTHON", "/usr/bin/python3", 1);  // the one with NumPy
  }
  // Polls the status until reached(status) or for kPatience.
  template <typename Reached>
  nlohmann::json WaitFor(const Reached& reached) const {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      const nlohmann::json status = Status();
      if (reached(status) || std::chrono::steady_clock::now() > end) {
        return status;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::unique_ptr<BrokerProcess> tuned_;
  std::thread rank_;
  std::atomic<bool> stop_{false};
};

TEST_F(TuningTest, WorkersWhoseReadsBlockThemBecomeMore) {
  const SlowPictures pictures(broker_.folder());
  if (!pictures.mounted()) GTEST_SKIP() << "no FUSE: " << strerror(errno);
  StartBroker(
      {"--config", broker_.Write("pread.yaml", "read_backend: pread\n")});
  const uint64_t before = Status().at("broker").at("workers");
  StartRank(pictures.Spec());
  const nlohmann::json broker =
      WaitFor([&](const nlohmann::json& status) {
        return status.at("broker").at("workers") >= 4 * before;
      }).at("broker");
  EXPECT_GE(broker.at("workers"), 4 * before);
  EXPECT_THAT(broker.at("workers_chosen"),
              HasSubstr("for each processor, as reads block them: "));
  StopRank();  // before the storage is gone
}

TEST_F(TuningTest, MoreIsMadeAheadForRanksThatTakeBatchesInBursts) {
  UseFunctionThatSleeps(0.001);
  StartBroker({"--workers", "1"});
  const std::string spec = RangeSpec(
      "100000",
      "map:\n  - python: {function: \"waits:sleeps\"}\nbatch: {size: 1}\n");
  // 4 of 12 batches that take 1 ms each are there after a pause: the rank
  // waits for the others, in two fifths of the time.
  const auto pause = std::chrono::milliseconds(12);
  StartRank(spec, pause);
  const nlohmann::json job =
      WaitFor([&](const nlohmann::json& status) {
        return !status.at("jobs").empty() &&
               status.at("jobs")[0].value("prefetch", 0) >= 4 &&
               !status.at("jobs")[0]
                    .value("prefetch_chosen", "")
                    .starts_with("being tried");
      })
          .at("jobs")
          .at(0);
  EXPECT_GE(job.at("prefetch"), 4);
  EXPECT_THAT(job.at("prefetch_chosen"), HasSubstr(" samples/s"));
  StopRank();
  stop_ = false;
  // What the spec says is not changed.
  StartBroker({"--workers", "1"});
  StartRank(spec + "prefetch: 2\n", pause);
  const nlohmann::json given =
      WaitFor([&](const nlohmann::json& status) {
        return !status.at("jobs").empty() &&
               status.at("jobs")[0].value("rows", 0) > 500;
      })
          .at("jobs")
          .at(0);
  EXPECT_EQ(given.at("prefetch"), 2);
  EXPECT_EQ(given.at("prefetch_chosen"), "set");
  unsetenv("PENSTOCK_PYTHON_PATH");
  unsetenv("PENSTOCK_PYTHON");
}

TEST_F(TuningTest, ProcessesThatWaitBecomeMore) {
  UseFunctionThatSleeps(0.05);
  const std::string spec = RangeSpec(
      "100000",
      "map:\n  - python: {function: \"waits:sleeps\"}\nbatch: {size: 4}\n");
  const auto has_rows = [](const nlohmann::json& status) {
    return !status.at("jobs").empty() &&
           status.at("jobs")[0].value("rows", 0) > 100;
  };
  // What is configured is not changed.
  StartBroker({"--workers", "1"});
  StartRank(spec);
  const nlohmann::json fixed = WaitFor(has_rows).at("jobs").at(0);
  EXPECT_EQ(fixed.at("processes"), 1);
  EXPECT_THAT(fixed.at("processes_chosen"), HasSubstr("as many as workers"));
  StopRank();
  stop_ = false;
  StartBroker({});
  unsetenv("PENSTOCK_PYTHON_PATH");
  unsetenv("PENSTOCK_PYTHON");
  const uint64_t workers = Status().at("broker").at("workers");
  StartRank(spec);
  const nlohmann::json job =
      WaitFor([&](const nlohmann::json& status) {
        return !status.at("jobs").empty() &&
               status.at("jobs")[0].value("processes", uint64_t{0}) > workers;
      })
          .at("jobs")
          .at(0);
  EXPECT_THAT(job.at("processes_chosen"), StartsWith("auto"));
  if (job.at("processes") == workers) {
    GTEST_SKIP() << "no processor was idle: " << job.at("processes_chosen");
  }
}

TEST(IdleProcessorsTest, AreThoseOfTheSetSinceTheLastCall) {
  const std::filesystem::path proc =
      std::filesystem::path(testing::TempDir()) / "penstock-proc";
  std::filesystem::create_directories(proc);
  const auto write = [&](int idle_0, int busy_1) {
    std::ofstream(proc / "stat")
        << "cpu  999 0 0 999 0 0 0 0 0 0\n"
        << "cpu0 10 0 10 " << idle_0 << " 5 0 0 0 0 0\n"
        << "cpu1 " << busy_1 << " 0 0 0 0 0 0 0 0 0\nintr 1\n";
  };
  write(100, 100);
  IdleProcessors of_both({0, 1}, {.proc = proc});
  IdleProcessors of_first({0}, {.proc = proc});
  EXPECT_FALSE(of_both.SinceLastCall());
  EXPECT_FALSE(of_first.SinceLastCall());
  EXPECT_FALSE(of_both.SinceLastCall()) << "no time has passed";
  write(150, 250);
  EXPECT_DOUBLE_EQ(of_both.SinceLastCall().value(), 0.25);
  EXPECT_DOUBLE_EQ(of_first.SinceLastCall().value(), 1);
  std::filesystem::remove_all(proc);
  EXPECT_FALSE(of_both.SinceLastCall());
}

}  // namespace penstock::tuning_test
