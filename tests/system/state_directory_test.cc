// Promise: a state directory that hangs or is full delays no job and costs no
// sample. Method: a real penstockd whose state directory is a file system that
// stops answering during jobs of all four modes over four ranks, answers again,
// and is full; the broker is killed after each, and the ranks' rows are checked
// against the modes' guarantees.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/memory_folder.h"
#include "client/penstock.hpp"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/broker_process.h"
#include "tests/support/delivery_fixture.h"
#include "tests/support/gated_state_directory.h"

namespace penstock::state_directory_test {

using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int64_t kRecords = 2400;
const std::vector<std::string> kModes = {"split", "dynamic", "broadcast",
                                         "independent"};

class StateDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "penstock-state-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::filesystem::create_directories(state());
    storage_.emplace(state());
    if (!storage_->mounted()) GTEST_SKIP() << "no FUSE: " << strerror(errno);
  }
  void TearDown() override {
    if (storage_ && storage_->mounted()) {
      storage_->Open();
      broker_.reset();
      std::error_code ignored;
      const auto memory = std::filesystem::read_symlink(
          state() + "/" + kMemoryFolderLink, ignored);
      if (!memory.empty()) std::filesystem::remove_all(memory, ignored);
    }
    storage_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string state() const { return folder_ + "/state"; }

  void StartJobs() {
    broker_.emplace(std::vector<std::string>{"--state-dir", state()});
    // All attach before the first batch, else a late one misses some.
    for (const std::string& mode : kModes) {
      for (int rank = 0; rank < kRanks; ++rank) {
        Options options;
        options.spec =
            "dataset: numbers\nsource: {range: " + std::to_string(kRecords) +
            "}\nshuffle: {seed: 5}\nbatch: {size: 4}\n";
        options.rank = rank;
        options.world_size = kRanks;
        options.socket = broker_->socket();
        options.job = mode;
        options.delivery = mode;
        options.timeout_s = 60;
        readers_.push_back(std::make_unique<Reader>(options));
      }
    }
    courses_.resize(readers_.size());
    taken_ = std::vector<std::atomic<uint64_t>>(readers_.size());
    for (size_t i = 0; i < readers_.size(); ++i) {
      threads_.emplace_back([this, i] {
        courses_[i] = RunToTheEnd(*readers_[i], 1, [this, i](const Taken&) {
          const uint64_t taken = ++taken_[i];
          for (uint64_t allowed = allowed_; taken >= allowed;
               allowed = allowed_) {
            allowed_.wait(allowed);
          }
        });
        taken_[i] = UINT64_MAX;
      });
    }
  }
  void Allow(uint64_t batches) {
    allowed_ = batches;
    allowed_.notify_all();
  }
  // Every rank of every job takes this many more.
  void Take(uint64_t batches) {
    Allow(allowed_ + batches);
    for (const std::atomic<uint64_t>& taken : taken_) {
      while (taken < allowed_) std::this_thread::yield();
    }
  }
  nlohmann::json Ask(const nlohmann::json& request) {
    const StatusOr<Fd> socket = ConnectControl(broker_->socket());
    if (!socket.ok()) throw std::runtime_error(socket.status().message());
    StatusOr<Message> answer = Request(socket->get(), request);
    if (!answer.ok()) throw std::runtime_error(answer.status().message());
    return std::move(answer->json);
  }
  void WaitForTrouble(const std::string& text) {
    for (;;) {
      const auto begin = std::chrono::steady_clock::now();
      const std::string trouble =
          Ask({{"op", "status"}}).at("broker").at("journal");
      EXPECT_LT(std::chrono::steady_clock::now() - begin,
                std::chrono::seconds(1));
      if (text.empty() ? trouble.empty()
                       : trouble.find(text) != std::string::npos) {
        return;
      }
      std::this_thread::yield();
    }
  }
  void KillBroker() {
    kill(broker_->pid(), SIGKILL);
    // Its last thread stays in the kernel until the state directory answers.
    storage_->Open();
    broker_->Stop(SIGKILL);
    broker_->Start();
  }
  void Finish() {
    Allow(UINT64_MAX);
    for (std::thread& thread : threads_) thread.join();
  }
  void FinishAndJudge() {
    Finish();
    for (size_t job = 0; job < kModes.size(); ++job) {
      SCOPED_TRACE(kModes[job]);
      const bool each_takes_all = job >= 2;
      Rows all;
      for (int rank = 0; rank < kRanks; ++rank) {
        const Course& course = courses_[job * kRanks + rank];
        EXPECT_EQ(course.code, 0) << course.error;
        for (const Taken& taken : course.taken) {
          EXPECT_FALSE(taken.redelivered);
        }
        Append(course.taken, &all);
        if (!each_takes_all) continue;
        EXPECT_EQ(Sorted(all), Numbers(kRecords)) << "rank " << rank;
        all.clear();
      }
      if (!each_takes_all) {
        EXPECT_EQ(Sorted(all), Numbers(kRecords));
      }
    }
  }

  std::string folder_;
  std::optional<GatedStateDirectory> storage_;
  std::optional<BrokerProcess> broker_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<std::thread> threads_;
  std::vector<Course> courses_;
  std::vector<std::atomic<uint64_t>> taken_;
  std::atomic<uint64_t> allowed_{1};
};

TEST_F(StateDirectoryTest, JobsOfAllModesGoOnAndLoseNothing) {
  StartJobs();
  Take(10);
  storage_->Close();
  // Far more than are published at any time.
  Take(30);
  storage_->WaitUntilSomethingHangs();
  WaitForTrouble("has not answered since");
  Take(10);
  KillBroker();
  Take(10);
  WaitForTrouble("");

  storage_->Close();
  Take(10);
  storage_->WaitUntilSomethingHangs();
  storage_->Open();
  Take(10);
  WaitForTrouble("");
  KillBroker();
  Take(10);

  storage_->SetFull(true);
  Take(10);
  WaitForTrouble("free space on its file system");
  try {
    Ask({{"op", "register"},
         {"spec", "dataset: other\nsource: {range: 8}\nbatch: {size: 4}\n"},
         {"file", "spec"},
         {"base", "/"}});
    FAIL() << "registered on a full disk";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("free space on its file system"));
  }
  KillBroker();
  Take(10);
  storage_->SetFull(false);
  WaitForTrouble("");
  FinishAndJudge();
}

TEST_F(StateDirectoryTest, BrokerStopsAllTheSame) {
  StartJobs();
  storage_->Close();
  Take(10);
  storage_->WaitUntilSomethingHangs();
  const auto begin = std::chrono::steady_clock::now();
  kill(broker_->pid(), SIGTERM);
  // The ranks are told; then its last thread stays in the kernel.
  Finish();
  for (const Course& course : courses_) {
    EXPECT_EQ(course.code, PENSTOCK_UNAVAILABLE) << course.error;
  }
  const auto is_over = [&] {
    std::ifstream file("/proc/" + std::to_string(broker_->pid()) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');
    return text.size() > name_end + 2 && text[name_end + 2] == 'Z';
  };
  while (!is_over() &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(is_over());
}

}  // namespace penstock::state_directory_test
