// Promise: records that a state directory does not take survive in memory, or
// the next broker instance knows that they are missing. Method: the real
// recovery journal on a file system that hangs or is full; its process is
// killed, and another instance reads what it left.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "broker/recovery/recovery_journal.h"
#include "common/memory_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gated_state_directory.h"

namespace penstock::lost_records_test {

using testing::HasSubstr;

class LostRecordsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "penstock-lost-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::filesystem::create_directories(state());
    storage_.emplace(state());
    if (!storage_->mounted()) GTEST_SKIP() << "no FUSE: " << strerror(errno);
  }
  void TearDown() override {
    if (storage_ && storage_->mounted()) {
      storage_->Open();
      std::error_code ignored;
      const auto memory = std::filesystem::read_symlink(
          state() + "/" + kMemoryFolderLink, ignored);
      if (!memory.empty()) std::filesystem::remove_all(memory, ignored);
    }
    storage_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::string state() const { return folder_ + "/state"; }

  static std::unique_ptr<RecoveryJournal> Opened(const std::string& state) {
    auto journal = RecoveryJournal::Open(state, {});
    if (!journal.ok()) throw std::runtime_error(journal.status().message());
    return *std::move(journal);
  }
  static uint64_t MakeJob(RecoveryJournal* journal) {
    JobOptions options;
    options.spec = *ParseDatasetSpec(
        "dataset: numbers\nsource: {range: 8}\nbatch: {size: 1}\n", "test",
        "/");
    options.delivery.mode = DeliveryMode::kDynamic;
    const uint64_t job =
        *journal->JobOpened({0, "train", "numbers", {}}, options, {}, true, {});
    journal->Begun(job, 0, 4096);
    return job;
  }
  // Appends until the disk is full; returns how many.
  static uint64_t CompleteUntilLost(RecoveryJournal* journal, uint64_t job) {
    uint64_t steps = 0;
    while (journal->Trouble().find("records are lost") == std::string::npos) {
      for (int i = 0; i < 1000; ++i, ++steps) {
        journal->Completed(job, steps, steps + 1);
      }
    }
    return steps;
  }
  // Runs body in another process with a job, kills it once it has returned, and
  // lets the directory answer.
  template <typename Body>
  void RunAndKill(const Body& body) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto journal = Opened(state());
      const uint64_t job = MakeJob(journal.get());
      journal->Flush();
      body(journal.get(), job);
      (void)!write(ends[1], "x", 1);
      for (;;) pause();
    }
    char byte = 0;
    ASSERT_EQ(read(ends[0], &byte, 1), 1);
    kill(child, SIGKILL);
    // Its last thread stays in the kernel until the state directory answers.
    storage_->Open();
    waitpid(child, nullptr, 0);
    close(ends[0]);
    close(ends[1]);
  }

  std::string folder_;
  std::optional<GatedStateDirectory> storage_;
};

TEST_F(LostRecordsTest, AreMadeGoodWhenTheDirectoryAnswersAgain) {
  uint64_t steps = 0;
  {
    const auto journal = Opened(state());
    const uint64_t job = MakeJob(journal.get());
    journal->Flush();
    storage_->Close();
    steps = CompleteUntilLost(journal.get(), job);
    const Status refused = journal->DatasetRegistered({0, "d", "spec"});
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), HasSubstr("records are lost since"));
    storage_->Open();
    journal->Flush();
    EXPECT_EQ(journal->Trouble(), "");
    EXPECT_TRUE(journal->DatasetRegistered({0, "d", "spec"}).ok());
  }
  const auto next = Opened(state());
  EXPECT_TRUE(next->KnowsAllJobs());
  EXPECT_EQ(next->TakeDatasets().size(), 1u);
  const std::vector<FormerJob> jobs = next->TakeJobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_FALSE(jobs[0].incomplete);
  EXPECT_EQ(jobs[0].low, steps);
}

TEST_F(LostRecordsTest, AreKnownToBeMissingByTheNextInstances) {
  RunAndKill([this](RecoveryJournal* journal, uint64_t job) {
    storage_->Close();
    CompleteUntilLost(journal, job);
  });
  // Also by an instance after one that did not restore the job.
  for (int instance = 2; instance < 5; ++instance) {
    const auto next = Opened(state());
    next->Flush();
    EXPECT_EQ(next->Trouble(), "");
    const std::vector<FormerJob> jobs = next->TakeJobs();
    ASSERT_EQ(jobs.size(), 1u);
    EXPECT_TRUE(jobs[0].incomplete) << "instance " << instance;
  }
}

TEST_F(LostRecordsTest, NoneAreWhatAHungDirectoryDidNotTake) {
  RunAndKill([this](RecoveryJournal* journal, uint64_t job) {
    storage_->Close();
    for (uint64_t step = 0; step < 100; ++step) {
      journal->Completed(job, step, step + 1);
      if (step == 0) storage_->WaitUntilSomethingHangs();
    }
  });
  const auto next = Opened(state());
  EXPECT_TRUE(next->KnowsAllJobs());
  const std::vector<FormerJob> jobs = next->TakeJobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_FALSE(jobs[0].incomplete);
  EXPECT_EQ(jobs[0].low, 100u);
}

TEST_F(LostRecordsTest, NoneAreWhatAFullDiskRefused) {
  RunAndKill([this](RecoveryJournal* journal, uint64_t job) {
    (void)journal->RankAttached(job, 0, 0, -1, -1);
    storage_->SetFull(true);
    journal->Completed(job, 0, 1);
    journal->Flush();
    journal->Completed(job, 1, 2);
    // A new rank is refused; a returning one is not.
    const std::string trouble = journal->Trouble();
    const Status refused = journal->DatasetRegistered({0, "d", "spec"});
    if (trouble.find("free space") == std::string::npos ||
        trouble.find("new ranks and registrations are refused") ==
            std::string::npos ||
        refused.code() != StatusCode::kResourceExhausted ||
        refused.message().find("the state directory " + state()) ==
            std::string::npos ||
        journal->RankAttached(job, 1, 0, -1, -1).ok() ||
        !journal->RankAttached(job, 0, 0, -1, -1).ok()) {
      _exit(1);
    }
  });
  // Still full: the next instance can start, and is killed too.
  RunAndKill([](RecoveryJournal* journal, uint64_t) {
    if (journal->Trouble().find("free space") == std::string::npos) _exit(1);
  });
  storage_->SetFull(false);
  const auto next = Opened(state());
  EXPECT_TRUE(next->KnowsAllJobs());
  next->Flush();
  EXPECT_EQ(next->Trouble(), "");
  const std::vector<FormerJob> jobs = next->TakeJobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_FALSE(jobs[0].incomplete);
  EXPECT_EQ(jobs[0].low, 2u);
  EXPECT_TRUE(next->TakeDatasets().empty());
}

// As after a broker's death between a write and the drop of what it wrote:
// applied twice, a record would report what has not happened.
TEST_F(LostRecordsTest, WhatIsInTheFileIsNotTakenFromTheTailAgain) {
  const std::string kept = folder_ + "/kept";
  RunAndKill([&](RecoveryJournal* journal, uint64_t job) {
    storage_->SetFull(true);
    journal->PhaseBegun(job, {{0, 1}, 4, {}});
    std::filesystem::copy_file(
        journal->memory_folder() + "/" + kJournalTailName, kept);
    storage_->SetFull(false);
    journal->Flush();
  });
  std::filesystem::copy_file(
      kept, state() + "/" + kMemoryFolderLink + "/" + kJournalTailName,
      std::filesystem::copy_options::overwrite_existing);
  const auto next = Opened(state());
  const std::vector<FormerJob> jobs = next->TakeJobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].phases.size(), 1u);
}

TEST_F(LostRecordsTest, AreAllThatWereInMemoryWhichIsGone) {
  RunAndKill([](RecoveryJournal*, uint64_t) {});
  const auto memory =
      std::filesystem::read_symlink(state() + "/" + kMemoryFolderLink);
  EXPECT_EQ(memory.parent_path(), "/dev/shm");
  EXPECT_GT(std::filesystem::remove_all(memory), 0u);
  EXPECT_FALSE(Opened(state())->KnowsAllJobs());
  const auto next = Opened(state());
  const std::vector<FormerJob> jobs = next->TakeJobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_TRUE(jobs[0].incomplete);
}

TEST_F(LostRecordsTest, AnOrderlyEndLeavesNothingInMemory) {
  std::filesystem::path memory;
  {
    const auto journal = Opened(state());
    MakeJob(journal.get());
    memory = journal->memory_folder();
    EXPECT_TRUE(std::filesystem::exists(memory));
  }
  EXPECT_FALSE(std::filesystem::exists(memory));
  const auto next = Opened(state());
  EXPECT_TRUE(next->KnowsAllJobs());
  EXPECT_FALSE(next->TakeJobs().at(0).incomplete);
}

}  // namespace penstock::lost_records_test
