// Promise: a Python function that hangs holds up neither a job that is stopped
// nor the end of the broker; and rows that a dead process had not begun do not
// wait for its successor. Method: a real broker whose function sleeps for
// ever on one row, and ranks that wait for that row.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::hung_function_test {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A function may take far longer than a stop.
constexpr std::chrono::seconds kPythonTimeout{60};
constexpr std::chrono::seconds kStopTime{20};

class HungFunctionTest : public DeliveryTest {
 protected:
  HungFunctionTest() {
    broker_.Write("steps.py",
                  "import time\n\n\n"
                  "def hangs(row):\n"
                  "    if row['value'] == 28:\n"
                  "        time.sleep(1000)\n"
                  "    return row\n");
    setenv("PENSTOCK_PYTHON_PATH", broker_.folder().c_str(), 1);
    setenv("PENSTOCK_PYTHON", "/usr/bin/python3", 1);  // the one with NumPy
    functions_ = std::make_unique<BrokerProcess>(
        std::vector<std::string>{"--workers", "2"});
    unsetenv("PENSTOCK_PYTHON_PATH");
    unsetenv("PENSTOCK_PYTHON");
  }
  // Step 3 has sample 28, which belongs to the second of two ranks.
  Options OptionsOf(int rank, int world_size) {
    Options options =
        OptionsFor(RangeSpec("1000",
                             "map:\n  - python: {function: \"steps:hangs\"}\n"
                             "batch: {size: 8}\n"),
                   rank, world_size);
    options.socket = functions_->socket();
    options.timeout_s = 600;
    return options;
  }
  nlohmann::json AskThere(const nlohmann::json& request) {
    const StatusOr<Fd> socket = ConnectControl(functions_->socket());
    if (!socket.ok()) throw std::runtime_error(socket.status().message());
    StatusOr<Message> answer = Request(socket->get(), request);
    if (!answer.ok()) throw std::runtime_error(answer.status().message());
    return std::move(answer->json);
  }
  void WaitUntilItHangs() {
    WaitUntil("a row is in progress for long", [&] {
      const nlohmann::json job = AskThere({{"op", "status"}}).at("jobs").at(0);
      return job.at("bottleneck")
                 .at("text")
                 .get<std::string>()
                 .find("sample 28 has been in progress") != std::string::npos;
    });
  }
  // Processes of functions are the launcher's children.
  bool HasFunctions() const {
    const auto first_child = [](const std::string& pid) {
      const std::string folder = "/proc/" + pid + "/task/" + pid;
      std::string child;
      std::ifstream(folder + "/children") >> child;
      return child;
    };
    const std::string launcher = first_child(std::to_string(functions_->pid()));
    EXPECT_NE(launcher, "");
    return !first_child(launcher).empty();
  }
  // Stops the job and returns how long the ranks took to end.
  std::vector<Course> StopRanks(std::vector<std::unique_ptr<Reader>>& ranks,
                                Clock::duration* took) {
    std::vector<Course> courses(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] { courses[i] = RunToTheEnd(*ranks[i]); });
    }
    WaitUntilItHangs();
    const auto begin = Clock::now();
    AskThere({{"op", "stop"}, {"job", OptionsOf(0, 1).job}});
    for (std::thread& thread : threads) thread.join();
    *took = Clock::now() - begin;
    return courses;
  }

  std::unique_ptr<BrokerProcess> functions_;
};

TEST_F(HungFunctionTest, RowsThatADeadProcessHadNotBegunAreMadeByAnother) {
  const std::string folder = broker_.folder().string() + "/";
  broker_.Write("sets.py",
                "import os, time\n\n\n"
                "class Once:\n"
                "    def __len__(self):\n"
                "        return 20\n"
                "    def __getitem__(self, i):\n"
                "        if i == 7 and not os.path.exists('" +
                    folder +
                    "died'):\n"
                    "            open('" +
                    folder +
                    "died', 'w').close()\n"
                    "            os._exit(9)\n"
                    "        while i == 7 and not os.path.exists('" +
                    folder +
                    "go'):\n"
                    "            time.sleep(0.01)\n"
                    "        open('" +
                    folder +
                    "made.' + str(i), 'w').close()\n"
                    "        return {'value': i * i}\n");
  Options options = OptionsFor(
      "dataset: squares\nsource: {python: {dataset: \"sets:Once\"}}\n"
      "batch: {size: 20}\n",
      0, 1);
  options.socket = functions_->socket();
  Reader reader(options);
  // The process that follows is held at row 7.
  for (int row = 0; row < 20; ++row) {
    const std::string made = folder + "made." + std::to_string(row);
    if (row != 7) {
      WaitUntil(made.c_str(), [&] { return std::filesystem::exists(made); });
    }
  }
  broker_.Write("go", "");
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  const Taken taken = TakenOf(reader, batch);
  ASSERT_EQ(taken.rows.size(), 20u);
  for (int64_t row = 0; row < 20; ++row) EXPECT_EQ(taken.rows[row], row * row);
}

TEST_F(HungFunctionTest, StopEndsAJobWhoseNextStepHangs) {
  static_assert(kStopTime < kPythonTimeout);
  std::vector<std::unique_ptr<Reader>> ranks;
  ranks.push_back(std::make_unique<Reader>(OptionsOf(0, 1)));
  Clock::duration took;
  const std::vector<Course> courses = StopRanks(ranks, &took);
  EXPECT_EQ(courses[0].code, 0) << courses[0].error;
  EXPECT_EQ(courses[0].taken.size(), 3u);
  EXPECT_LT(took, kStopTime);
  // The function's process ends with the job, not after its time limit.
  const auto begin = Clock::now();
  ranks.clear();
  WaitUntil("its process is gone", [&] { return !HasFunctions(); });
  EXPECT_LT(Clock::now() - begin, kStopTime);
}

TEST_F(HungFunctionTest, StopEndsAJobThatCannotFinishItsStepWithAnError) {
  std::vector<std::unique_ptr<Reader>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<Reader>(OptionsOf(rank, 2)));
  }
  Clock::duration took;
  // The first rank takes the step that the second waits for.
  const std::vector<Course> courses = StopRanks(ranks, &took);
  EXPECT_LT(took, kStopTime);
  EXPECT_EQ(courses[1].taken.size(), 3u);
  EXPECT_EQ(courses[1].code, PENSTOCK_ABORTED);
  EXPECT_THAT(courses[1].error,
              HasSubstr("was stopped, and its last step waits for sample 28"));
}

// Whatever was made ahead, no step has holes, and no rank has one more.
TEST_F(HungFunctionTest, StopEndsAllRanksAtTheSameStep) {
  for (const char* const mode : {"split", "broadcast", "dynamic"}) {
    SCOPED_TRACE(mode);
    std::vector<std::unique_ptr<Reader>> ranks;
    std::vector<Options> options;
    for (int rank = 0; rank < 2; ++rank) {
      options.push_back(
          OptionsFor(RangeSpec("100000", "batch: {size: 8}\n"), rank, 2));
      options.back().delivery = mode;
      options.back().job = mode;
      ranks.push_back(std::make_unique<Reader>(options.back()));
    }
    std::vector<Rows> rows(2);
    std::vector<size_t> steps(2);
    for (size_t i : {0, 1, 0, 1, 0}) {
      Batch batch;
      ASSERT_EQ(ranks[i]->next(&batch), Reader::Result::kBatch);
      Append({TakenOf(*ranks[i], batch)}, &rows[i]);
      ++steps[i];
    }
    Ask({{"op", "stop"}, {"job", mode}});
    std::vector<std::thread> threads;
    for (size_t i : {0, 1}) {
      threads.emplace_back([&, i] {
        const Course course = RunToTheEnd(*ranks[i]);
        EXPECT_EQ(course.code, 0) << course.error;
        Append(course.taken, &rows[i]);
        steps[i] += course.taken.size();
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (std::string(mode) == "broadcast") {
      EXPECT_EQ(rows[0], rows[1]);
      EXPECT_EQ(rows[0], Numbers(static_cast<int64_t>(rows[0].size())));
      continue;
    }
    if (std::string(mode) == "split") {
      EXPECT_EQ(steps[0], steps[1]);
    }
    Rows all = rows[0];
    all.insert(all.end(), rows[1].begin(), rows[1].end());
    EXPECT_EQ(Sorted(all), Numbers(static_cast<int64_t>(all.size())));
    EXPECT_LT(all.size(), 200u);
  }
}

TEST_F(HungFunctionTest, TheBrokerEndsThoughAFunctionHangs) {
  Reader reader(OptionsOf(0, 1));
  std::thread rank([&] { RunToTheEnd(reader); });
  WaitUntilItHangs();
  const auto begin = Clock::now();
  EXPECT_EQ(functions_->Stop(SIGTERM), 0);
  EXPECT_LT(Clock::now() - begin, kStopTime);
  rank.join();
}

}  // namespace penstock::hung_function_test
