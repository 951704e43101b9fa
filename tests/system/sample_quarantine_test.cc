// Promise: a sample that crashes or hangs the broker is found and quarantined,
// and no other sample is. Method: the quarantine's file through deaths of every
// kind and damage; then a real broker whose decoder crashes, and one whose
// decoder hangs.
#include "broker/workers/sample_quarantine.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <vector>

#include "client/penstock.hpp"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/broker_process.h"

namespace penstock::sample_quarantine_test {

using testing::HasSubstr;

constexpr uint64_t kJob = 5;

class SampleQuarantineTest : public testing::Test {
 protected:
  using Mark = SampleQuarantine::Mark;

  void SetUp() override {
    // In memory, where the brokers keep their file in the folder itself.
    std::string name = "/dev/shm/penstock-samples-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    Start();
  }
  void TearDown() override {
    samples_.reset();
    std::filesystem::remove_all(folder_);
  }

  // The next broker instance opens what the last one left.
  void Start() {
    samples_.reset();
    auto samples = SampleQuarantine::Open(folder_);
    ASSERT_TRUE(samples.ok()) << samples.status().message();
    samples_ = *std::move(samples);
  }
  // Kills the broker while worker i decodes samples[i], then restarts it.
  void DieWith(const std::vector<Sample>& samples) {
    DieWith(samples, [] {});
  }
  // The broker crashes decoding the last of them.
  void CrashWith(const std::vector<Sample>& samples) {
    DieWith(samples, [this] { samples_->BlameThisThread(); });
  }
  template <typename Before>
  void DieWith(const std::vector<Sample>& samples, const Before& before) {
    const pid_t child = fork();
    if (child == 0) {
      // A new one: the marks have no end.
      for (uint32_t i = 0; i < samples.size(); ++i) {
        new Mark(samples_.get(), i, samples[i], kJob, 9);
      }
      before();
      _exit(0);
    }
    ASSERT_EQ(Wait(child), 0);
    Start();
  }
  static int Wait(pid_t child) {
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  // Returns whether worker 0 may decode it, and then decodes it with success.
  bool Decodes(const Sample& sample) {
    return Mark(samples_.get(), 0, sample, kJob, 1).status().ok();
  }
  std::string File() const { return folder_ + "/sample_quarantine"; }
  // Overwrites bytes of the file of a dead broker.
  void Damage(uint64_t offset, const std::string& bytes) {
    samples_.reset();
    const int fd = open(File().c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(pwrite(fd, bytes.data(), bytes.size(), offset),
              static_cast<ssize_t>(bytes.size()));
    close(fd);
  }

  std::string folder_;
  std::unique_ptr<SampleQuarantine> samples_;
};

TEST_F(SampleQuarantineTest, TheFileHasTheDocumentedShape) {
  struct stat st;
  ASSERT_EQ(stat(File().c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 552960);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_GE(st.st_blocks * 512, st.st_size);  // no hole: no SIGBUS
  const Mark mark(samples_.get(), 3, {0x1122, 77}, kJob, 9);
  std::ifstream file(File(), std::ios::binary);
  std::string magic(8, '\0');
  file.read(magic.data(), 8);
  EXPECT_EQ(magic, "PSTKWORK");
  uint64_t line[4];
  file.seekg(28672 + 3 * 64);
  file.read(reinterpret_cast<char*>(line), sizeof(line));
  EXPECT_THAT(line, testing::ElementsAre(0x1122, 77, kJob, 9));
}

TEST_F(SampleQuarantineTest, WhatWasDoneAtADeathIsNotSuspected) {
  EXPECT_TRUE(Decodes({1, 7}));
  DieWith({});
  EXPECT_EQ(samples_->suspects(), 0u);
}

TEST_F(SampleQuarantineTest, AllThatWereInWorkAtADeathAreSuspected) {
  DieWith({{1, 7}, {1, 8}, {2, 7}});
  EXPECT_EQ(samples_->suspects(), 3u);
  EXPECT_EQ(samples_->condemned(), 0u);
}

TEST_F(SampleQuarantineTest, SuspectThatDecodesIsCleared) {
  DieWith({{1, 7}, {1, 8}});
  EXPECT_TRUE(Decodes({1, 7}));
  EXPECT_EQ(samples_->suspects(), 1u);
  Start();
  EXPECT_EQ(samples_->suspects(), 1u);
  EXPECT_TRUE(Decodes({1, 8}));
  EXPECT_EQ(samples_->suspects(), 0u);
}

TEST_F(SampleQuarantineTest, CrashAccusesTheOneThatCrashed) {
  CrashWith({{1, 7}, {1, 8}, {1, 9}});
  EXPECT_EQ(samples_->suspects(), 1u);
  CrashWith({{1, 7}, {1, 8}, {1, 9}});
  EXPECT_EQ(samples_->condemned(), 1u);
  EXPECT_TRUE(Decodes({1, 7}));
  EXPECT_FALSE(Decodes({1, 9}));
}

TEST_F(SampleQuarantineTest, CrashOfAnotherThreadAccusesNobody) {
  DieWith({{1, 7}}, [this] {
    std::thread([this] { samples_->BlameThisThread(); }).join();
  });
  EXPECT_EQ(samples_->suspects(), 0u);
}

TEST_F(SampleQuarantineTest, HangAccusesTheOneThatHangs) {
  for (int death = 0; death < 2; ++death) {
    EXPECT_EQ(samples_->condemned(), 0u);
    DieWith({{1, 7}, {1, 8}}, [this] { samples_->Blame(0); });
    EXPECT_EQ(samples_->suspects(), 1u);
  }
  EXPECT_FALSE(Decodes({1, 7}));
}

TEST_F(SampleQuarantineTest, FourthKillCondemnsTheOneSuspectInWork) {
  DieWith({{1, 7}, {1, 8}, {1, 9}});
  EXPECT_TRUE(Decodes({1, 8}));
  DieWith({{1, 7}});
  DieWith({{1, 7}});
  EXPECT_EQ(samples_->condemned(), 0u);
  // A suspect with others that are not.
  DieWith({{1, 100}, {1, 7}, {1, 101}});
  EXPECT_EQ(samples_->condemned(), 1u);
  EXPECT_EQ(samples_->suspects(), 4u);  // 7, 9, 100, 101
  EXPECT_FALSE(Decodes({1, 7}));
  EXPECT_TRUE(Decodes({2, 7}));
  for (const uint64_t record : {9, 100, 101}) {
    EXPECT_TRUE(Decodes({1, record})) << record;
  }
  // For all later instances.
  Start();
  EXPECT_EQ(samples_->suspects(), 1u);
  EXPECT_FALSE(Decodes({1, 7}));
  const Status status = Mark(samples_.get(), 0, {1, 7}, kJob, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("ended the broker again and again"));
  EXPECT_THAT(status.message(), HasSubstr("remove " + File()));
}

TEST_F(SampleQuarantineTest, SampleInWorkForTwoJobsDiedOnce) {
  DieWith({{1, 7}, {1, 7}});
  EXPECT_EQ(samples_->condemned(), 0u);
  EXPECT_EQ(samples_->suspects(), 1u);
}

TEST_F(SampleQuarantineTest, SuspectsAreDecodedOneAtATime) {
  constexpr uint32_t kWorkers = 4;
  std::vector<Sample> suspects;
  for (uint64_t i = 0; i < 100; ++i) suspects.push_back({1, i});
  DieWith(suspects);
  ASSERT_EQ(samples_->suspects(), 100u);
  std::atomic<int> at_once{0};
  std::atomic<int> most{0};
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      for (size_t i = worker; i < suspects.size(); i += kWorkers) {
        const Mark mark(samples_.get(), worker, suspects[i], kJob, 1);
        EXPECT_TRUE(mark.status().ok());
        most = std::max<int>(most, ++at_once);
        std::this_thread::yield();
        --at_once;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(samples_->suspects(), 0u);
  EXPECT_EQ(most, 1);
}

// A worker that waited for its turn finds it cleared.
TEST_F(SampleQuarantineTest, SuspectThatTwoJobsWantIsDecodedByBoth) {
  std::vector<Sample> suspects;
  for (uint64_t i = 0; i < 100; ++i) suspects.push_back({1, i});
  DieWith(suspects);
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    workers.emplace_back([&, worker] {
      for (const Sample& sample : suspects) {
        const Mark mark(samples_.get(), worker, sample, kJob, 1);
        EXPECT_TRUE(mark.status().ok());
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(samples_->suspects(), 0u);
}

TEST_F(SampleQuarantineTest, OthersDoNotWaitForASuspect) {
  DieWith({{1, 7}});
  const Mark suspect(samples_.get(), 0, {1, 7}, kJob, 1);
  for (uint64_t record = 100; record < 20'000; ++record) {
    const Mark mark(samples_.get(), 1, {1, record}, kJob, 1);
    ASSERT_TRUE(mark.status().ok());
  }
}

TEST_F(SampleQuarantineTest, TheOldestIsFound) {
  EXPECT_FALSE(samples_->Oldest(4).has_value());
  const Mark a(samples_.get(), 0, {1, 7}, kJob, 300);
  const Mark b(samples_.get(), 2, {1, 8}, kJob + 1, 200);
  const auto oldest = samples_->Oldest(4);
  ASSERT_TRUE(oldest.has_value());
  EXPECT_EQ(oldest->worker, 2u);
  EXPECT_EQ(oldest->sample, (Sample{1, 8}));
  EXPECT_EQ(oldest->job, kJob + 1);
  EXPECT_EQ(oldest->since_ns, 200u);
  EXPECT_EQ(samples_->Oldest(1)->worker, 0u);
}

// The oldest is one sample, never half of one and half of the next.
TEST_F(SampleQuarantineTest, WatchedWorkersAreSeenWhole) {
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    for (uint64_t i = 1; !stop; ++i) {
      const Mark mark(samples_.get(), 0, {i, i}, i, i);
    }
  });
  for (int seen = 0; seen < 1000;) {
    const auto oldest = samples_->Oldest(1);
    if (!oldest) {
      std::this_thread::yield();
      continue;
    }
    ++seen;
    ASSERT_EQ(oldest->sample.dataset, oldest->since_ns);
    ASSERT_EQ(oldest->sample.record, oldest->since_ns);
    ASSERT_EQ(oldest->job, oldest->since_ns);
  }
  stop = true;
  worker.join();
}

TEST_F(SampleQuarantineTest, FullTableForgetsSuspectsNeverTheCondemned) {
  CrashWith({{1, 7}});
  CrashWith({{1, 7}});
  for (uint64_t instance = 0; instance < 3; ++instance) {
    std::vector<Sample> many;
    for (uint64_t i = 0; i < 1000; ++i) many.push_back({2 + instance, i});
    DieWith(many);
  }
  EXPECT_EQ(samples_->suspects(), kSuspectsMax);
  EXPECT_EQ(samples_->condemned(), 1u);
  EXPECT_FALSE(Decodes({1, 7}));
}

TEST_F(SampleQuarantineTest, DeathOfTheMachineAccusesNobody) {
  DieWith({{1, 7}});
  const pid_t child = fork();
  if (child == 0) {
    new Mark(samples_.get(), 0, {1, 8}, kJob, 9);
    _exit(0);
  }
  ASSERT_EQ(Wait(child), 0);
  Damage(offsetof(SamplesHeader, boot), "anothrbt");
  Start();
  EXPECT_EQ(samples_->suspects(), 1u);
}

TEST_F(SampleQuarantineTest, DamagedFileIsSetAside) {
  const std::vector<std::pair<uint64_t, std::string>> damages = {
      {0, "X"},                                    // magic
      {offsetof(SamplesHeader, version), "\x09"},  // of another release
      {offsetof(SamplesHeader, lines), "\x01"},    // contradiction
      {kSuspectsOffset + 16, "\xff\xff\xff\xff"},  // too many deaths
      {kSamplesFileBytes, "x"},                    // too long
  };
  for (const auto& [offset, bytes] : damages) {
    DieWith({{1, 7}});
    Damage(offset, bytes);
    Start();
    EXPECT_EQ(samples_->suspects(), 0u) << offset;
    EXPECT_TRUE(std::filesystem::remove(File() + ".set_aside")) << offset;
    EXPECT_TRUE(Decodes({1, 7}));
  }
  samples_.reset();
  ASSERT_EQ(truncate(File().c_str(), 100), 0);
  Start();
  EXPECT_TRUE(std::filesystem::remove(File() + ".set_aside"));
  // Not a file.
  samples_.reset();
  ASSERT_EQ(unlink(File().c_str()), 0);
  ASSERT_EQ(mkfifo(File().c_str(), 0600), 0);
  Start();
  EXPECT_TRUE(std::filesystem::remove(File() + ".set_aside"));
}

TEST_F(SampleQuarantineTest, OneBrokerHasTheFile) {
  const auto other = SampleQuarantine::Open(folder_);
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), HasSubstr("another broker"));
  EXPECT_THAT(SampleQuarantine::Open(folder_ + "/none").status().message(),
              HasSubstr("No such file"));
  EXPECT_TRUE(SampleQuarantine::Open("").ok());
}

// Threads of a process, by the beginning of their name.
std::vector<pid_t> ThreadsOf(pid_t process, const std::string& name) {
  std::vector<pid_t> threads;
  const std::string folder = Format("/proc/{}/task", process);
  for (const auto& task : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    std::getline(file, comm);
    if (comm.rfind(name, 0) == 0) {
      threads.push_back(std::stoi(task.path().filename()));
    }
  }
  return threads;
}

// ---- the whole broker

class ChargedSampleTest : public SampleQuarantineTest {
 protected:
  void SetUp() override {
    SampleQuarantineTest::SetUp();
    samples_.reset();  // the brokers use it now
  }
  // The arguments of a broker with one worker.
  std::vector<std::string> Configured(const std::string& decode_timeout) {
    const std::string file = folder_ + "/penstock.yaml";
    std::ofstream(file) << "workers: 1\ndecode_timeout: " << decode_timeout
                        << "\nstate_dir: " << folder_ << "\n";
    return {"--config", file};
  }

  // Three samples that take cost_us each.
  Options For(const BrokerProcess& broker, uint64_t cost_us) {
    Options options;
    options.spec = Format(
        "dataset: slow\nsource: {{synthetic: {{records: 3, cost_us: {}, "
        "features: {{x: {{dtype: uint8, shape: [8]}}}}}}}}\n"
        "batch: {{size: 3}}\non_error: skip\n",
        cost_us);
    options.rank = 0;
    options.world_size = 1;
    options.socket = broker.socket();
    // Another job: the next instance keeps the seats of the former one's ranks.
    options.job = Format("slow{}", ++jobs_);
    options.timeout_s = 60;
    return options;
  }
  // A rank in its own process takes one batch, whatever the result. It waits
  // for another broker, and is killed when no longer needed.
  class RankProcess {
   public:
    explicit RankProcess(const Options& options) : pid_(fork()) {
      if (pid_ != 0) return;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        Reader reader(options);
        Batch batch;
        (void)reader.next(&batch);
      } catch (const Error& error) {
        std::cerr << "the rank: " << error.what() << "\n";
      }
      _exit(0);
    }
    ~RankProcess() {
      kill(pid_, SIGKILL);
      Wait(pid_);
    }
    RankProcess(const RankProcess&) = delete;

   private:
    const pid_t pid_;
  };
  // Waits until the one worker decodes; returns the record.
  uint64_t RecordInWork(const BrokerProcess& broker) {
    // It answers, so the former instance's marks are gone.
    const StatusOr<Fd> socket = ConnectControl(broker.socket());
    EXPECT_TRUE(Request(socket->get(), {{"op", "ping"}}).ok());
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (std::chrono::steady_clock::now() < end) {
      std::ifstream file(File(), std::ios::binary);
      uint64_t line[4] = {};
      file.seekg(kSampleLinesOffset);
      file.read(reinterpret_cast<char*>(line), sizeof(line));
      if (file && line[3] != 0) return line[1];
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no sample in work";
    return UINT64_MAX;
  }

 private:
  int jobs_ = 0;
};

TEST_F(ChargedSampleTest, SampleThatCrashesTheBrokerTwiceIsLeftOut) {
  constexpr uint64_t kCostUs = 1'000'000;
  for (int death = 0; death < 2; ++death) {
    BrokerProcess broker(Configured("60s"));
    const RankProcess rank(For(broker, kCostUs));
    EXPECT_EQ(RecordInWork(broker), 0u);
    // In the worker's thread, as a decoder that crashes.
    for (const pid_t thread : ThreadsOf(broker.pid(), "worker")) {
      syscall(SYS_tgkill, broker.pid(), thread, SIGSEGV);
    }
    EXPECT_NE(broker.Stop(0), 0);
  }
  BrokerProcess broker(Configured("60s"));
  Reader reader(For(broker, kCostUs));
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  EXPECT_THAT(batch.ids(), testing::ElementsAre(1, 2));
  const StatusOr<Fd> socket = ConnectControl(broker.socket());
  const StatusOr<Message> status = Request(socket->get(), {{"op", "status"}});
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->json.at("broker").at("condemned_samples"), 1);
  EXPECT_THAT(status->json.at("jobs").dump(), HasSubstr("sample 0 in"));
}

// After two deaths, as after any other crash. A crash that does not name its
// sample takes four.
TEST_F(ChargedSampleTest, StackOverflowIsChargedToItsSample) {
  const std::string config = folder_ + "/penstock.yaml";
  std::ofstream(config) << "workers: 2\nstate_dir: " << folder_
                        << "\nplugin_dir: " PENSTOCK_BUILD_DIR
                           "/tests/plugins\n";
  const auto options = [&](const BrokerProcess& broker) {
    Options options = For(broker, 0);
    options.spec +=
        "map: [{plugin: {library: faulty_plugin.so, function: "
        "overflows_the_stack}}]\n";
    return options;
  };
  for (int death = 0; death < 2; ++death) {
    BrokerProcess broker({"--config", config});
    const RankProcess rank(options(broker));
    EXPECT_NE(broker.Stop(0), 0);
  }
  BrokerProcess broker({"--config", config});
  Reader reader(options(broker));
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  EXPECT_THAT(batch.ids(), testing::ElementsAre(0, 2));
}

TEST_F(ChargedSampleTest, BrokerWhoseDecoderHangsEndsItself) {
  BrokerProcess broker(Configured("300ms"));
  const RankProcess rank(For(broker, 1'000'000));
  EXPECT_EQ(RecordInWork(broker), 0u);
  EXPECT_EQ(broker.Stop(0), kStuckExitStatus);
  Start();
  EXPECT_EQ(samples_->suspects(), 1u);
}

// Time in which nothing ran counts against no sample.
TEST_F(ChargedSampleTest, BrokerThatWasStoppedDoesNotTakeItForAHang) {
  BrokerProcess broker(Configured("3s"));
  const Options options = For(broker, 400'000);
  std::atomic<bool> taken{false};
  std::thread rank([&] {
    Reader reader(options);
    Batch batch;
    EXPECT_EQ(reader.next(&batch), Reader::Result::kBatch);
    EXPECT_EQ(batch.rows(), 3u);
    taken = true;
  });
  EXPECT_EQ(RecordInWork(broker), 0u);
  // Longer than decode_timeout: here the test must wait for time to pass.
  kill(broker.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  kill(broker.pid(), SIGCONT);
  rank.join();
  EXPECT_TRUE(taken);
}

}  // namespace penstock::sample_quarantine_test
