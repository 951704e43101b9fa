// Promise: storage that hangs ends the jobs that read from it, within
// read_timeout and by name, and no other job. Method: a real broker, ranks of
// this process, and a file system that does not answer.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/penstock.hpp"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/broker_process.h"
#include "tests/support/delivery_fixture.h"
#include "tests/support/gated_file_system.h"

namespace penstock::hung_storage_test {

using testing::HasSubstr;

// The system call `number` fails with EPERM from here on, in this process and
// its children.
bool ForbidSystemCall(uint32_t number) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class HungStorageTest : public testing::Test {
 protected:
  static constexpr int kPictures = 40;

  void SetUp() override {
    std::string name = testing::TempDir() + "penstock-hung-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::filesystem::create_directories(folder_ + "/mount");
    storage_.emplace(folder_ + "/mount", 1);
    if (!storage_->mounted()) GTEST_SKIP() << "no FUSE: " << strerror(errno);
    // A folder of classes that can be listed; its pictures are elsewhere.
    std::filesystem::create_directories(folder_ + "/pictures/cat");
    for (int i = 0; i < kPictures; ++i) {
      const std::string file = "hung_read" + std::to_string(i) + ".jpg";
      std::filesystem::create_symlink(folder_ + "/mount/" + file,
                                      folder_ + "/pictures/cat/" + file);
    }
    // Eight records of 2 x 2, read one by one.
    std::string idx("\0\0\x08\x03\0\0\0\x08\0\0\0\x02\0\0\0\x02", 16);
    idx += "abcdefghijklmnopabcdefghijklmnop";
    std::ofstream(folder_ + "/images.idx", std::ios::binary) << idx;
  }
  void StartBroker(int workers) {
    const std::string config = folder_ + "/penstock.yaml";
    std::ofstream(config) << "workers: " << workers
                          << "\nread_depth: 4\nread_timeout: 2s\n";
    broker_.emplace(std::vector<std::string>{"--config", config});
  }
  void TearDown() override {
    // The broker cannot end during a read in the kernel.
    if (storage_) storage_->Recover();
    broker_.reset();
    storage_.reset();
    std::filesystem::remove_all(folder_);
  }

  Options For(const std::string& spec, const std::string& job) {
    Options options;
    options.spec = spec;
    options.rank = 0;
    options.world_size = 1;
    options.socket = broker_->socket();
    options.job = job;
    options.timeout_s = 60;
    return options;
  }
  Options Hung(const std::string& job) {
    return For("dataset: pictures\nsource: {image_folder: {path: " + folder_ +
                   "/pictures}}\nmap:\n  - decode_image: {size: [8, 8]}\n"
                   "batch: {size: 40}\non_error: skip\n",
               job);
  }
  Options Healthy(const std::string& job, const std::string& epochs) {
    return For("dataset: numbers\nsource: {idx: {images: " + folder_ +
                   "/images.idx}}\nbatch: {size: 4}\nepochs: " + epochs,
               job);
  }
  // Returns the rows of all epochs.
  static uint64_t TakeAll(const Options& options) {
    Reader reader(options);
    uint64_t rows = 0;
    for (;;) {
      Batch batch;
      const Reader::Result result = reader.next(&batch);
      if (result == Reader::Result::kEndOfData) return rows;
      if (result == Reader::Result::kBatch) rows += batch.rows();
    }
  }
  // Returns the error that ends the job; "" if it goes on.
  static std::string ErrorOf(const Options& options, int* code) {
    try {
      TakeAll(options);
      return "";
    } catch (const Error& error) {
      *code = error.code();
      return error.what();
    }
  }
  // State of a process in /proc; 'Z': it has ended.
  static char State(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');
    return name_end + 2 < text.size() ? text[name_end + 2] : '?';
  }
  nlohmann::json LateReads() {
    const StatusOr<Fd> socket = ConnectControl(broker_->socket());
    const StatusOr<Message> answer = Request(socket->get(), {{"op", "status"}});
    if (!answer.ok()) throw std::runtime_error(answer.status().message());
    return answer->json.at("late_reads");
  }

  std::string folder_;
  std::optional<GatedFileSystem> storage_;
  std::optional<BrokerProcess> broker_;
};

TEST_F(HungStorageTest, EndsItsJobByNameAndNoOther) {
  StartBroker(1);
  std::string error;
  int code = 0;
  std::thread hung([&] { error = ErrorOf(Hung("hung"), &code); });
  while (storage_->hanging() == 0) std::this_thread::yield();
  // The only worker has a job on hung storage, and another.
  EXPECT_EQ(TakeAll(Healthy("healthy", "50")), 400u);
  nlohmann::json late;
  while ((late = LateReads()).empty()) std::this_thread::yield();
  EXPECT_EQ(late[0].at("job"), "hung");
  EXPECT_EQ(late[0].at("dataset"), "pictures");
  EXPECT_THAT(late[0].at("file").get<std::string>(),
              HasSubstr("/pictures/cat/hung_read"));
  EXPECT_GE(late[0].at("seconds").get<double>(), 1.0);
  EXPECT_LE(storage_->hanging(), 4u);
  hung.join();
  EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
  EXPECT_THAT(error, HasSubstr("/pictures/cat/hung_read"));
  EXPECT_THAT(error, HasSubstr(" s (read_timeout)"));
  EXPECT_EQ(TakeAll(Healthy("later", "50")), 400u);
  // They exist until the kernel has finished with the read.
  EXPECT_FALSE(LateReads().empty());
  storage_->Recover();
  while (!LateReads().empty()) std::this_thread::yield();
  // Its files are not pictures: with on_error: skip it ends with another error.
  error = ErrorOf(Hung("hung"), &code);
  EXPECT_EQ(code, PENSTOCK_DATA_LOSS) << error;
}

// The kernel will write into the slot at any later time.
TEST_F(HungStorageTest, AReadIntoASlotKeepsThatSlotUntilItIsAnswered) {
  StartBroker(1);
  const std::string spec =
      "dataset: records\nsource:\n  fixed_length_records: {files: " + folder_ +
      "/mount/hung_read_records, features: {x: {dtype: uint8, shape: "
      "[100]}}}\nbatch: {size: 10}\n";
  std::string error;
  int code = 0;
  std::thread hung([&] { error = ErrorOf(For(spec, "hung"), &code); });
  while (storage_->hanging() == 0) std::this_thread::yield();
  EXPECT_EQ(TakeAll(Healthy("healthy", "50")), 400u);
  hung.join();
  EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
  EXPECT_THAT(error, HasSubstr("/mount/hung_read_records, offset "));
  // The next job is likely to get freed memory.
  EXPECT_EQ(TakeAll(Healthy("later", "50")), 400u);
  storage_->Recover();
  while (!LateReads().empty()) std::this_thread::yield();
  EXPECT_EQ(TakeAll(For(spec, "again")), 10u);
  EXPECT_EQ(TakeAll(Healthy("last", "50")), 400u);
}

// As by a launcher that restarts a failed training.
TEST_F(HungStorageTest, JobsThatComeAgainAndAgainLeaveRoomForOthers) {
  StartBroker(1);
  std::vector<std::thread> ranks;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      ranks.emplace_back([this, round, i] {
        int code = 0;
        ErrorOf(Hung("hung" + std::to_string(4 * round + i)), &code);
        EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
      });
    }
    EXPECT_EQ(TakeAll(Healthy("beside" + std::to_string(round), "50")), 400u);
    for (std::thread& rank : ranks) rank.join();
    ranks.clear();
  }
  EXPECT_EQ(TakeAll(Healthy("after", "50")), 400u);
}

// A rank that dies while its job opens does not split the others into two
// incarnations.
TEST_F(HungStorageTest, RanksMeetAfterAnOpeningThatWasGivenUp) {
  StartBroker(1);
  const auto attach = [this](int rank, double timeout_s) {
    Options options = For(
        "dataset: records\nsource:\n  fixed_length_records: {files: " + folder_ +
            "/mount/hung_open_records, features: {x: {dtype: uint8, shape: "
            "[100]}}}\nbatch: {size: 2}\n",
        "given-up");
    options.rank = rank;
    options.world_size = options.local_world_size = 2;
    options.delivery = "dynamic";
    options.timeout_s = timeout_s;
    return options;
  };
  const auto openings = [this] {
    const StatusOr<Fd> socket = ConnectControl(broker_->socket());
    const StatusOr<Message> answer = Request(socket->get(), {{"op", "status"}});
    if (!answer.ok()) throw std::runtime_error(answer.status().message());
    return answer->json.at("jobs").size();
  };
  int code = 0;
  ErrorOf(attach(0, 0.2), &code);
  EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
  uint64_t rows = 0;
  std::thread rank_0([&] { rows = TakeAll(attach(0, 60)); });
  while (openings() < 2) std::this_thread::yield();
  ErrorOf(attach(1, 0.2), &code);
  EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
  EXPECT_EQ(openings(), 2u);
  storage_->Recover();
  const uint64_t others = TakeAll(attach(1, 60));
  rank_0.join();
  EXPECT_EQ(rows + others, 10u);
}

// The launcher starts again, with a state, where the ranks died while the job
// of a former broker instance opened.
class RestartTest : public HungStorageTest,
                    public testing::WithParamInterface<const char*> {};

TEST_P(RestartTest, AStateEndsAnOpeningWhoseRanksAreDead) {
  const std::string former = GetParam();
  StartBroker(1);
  const std::string records = folder_ + "/records";
  const auto are_at = [this, &records](const std::string& file) {
    std::filesystem::remove(records);
    std::filesystem::create_symlink(folder_ + "/mount/" + file, records);
  };
  are_at("file");
  Options options = For(
      "dataset: records\nsource:\n  fixed_length_records: {files: " + records +
          ", features: {value: {dtype: int64, shape: []}}}\n"
          "batch: {size: 2}\n",
      "before");
  std::string state;
  {
    Reader reader(options);
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    state = reader.state();
  }
  options.job = "restarted";
  options.state = former == "other state" ? "" : state;
  options.world_size = former == "more ranks" ? 2 : 1;
  options.local_world_size = options.world_size;
  RankProcess rank(options);
  rank.Attached();
  const RankProcess::Event first = rank.Next();
  ASSERT_EQ(first.what, RankProcess::What::kBatch) << first.error;
  broker_->Stop(SIGKILL);
  are_at("hung_open");
  broker_->Start();
  rank.Run();
  while (storage_->hanging() == 0) std::this_thread::yield();
  rank.Kill();
  options.state = state;
  options.world_size = options.local_world_size = 1;
  options.timeout_s = 0.2;
  int code = 0;
  ErrorOf(options, &code);
  EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
  storage_->Recover();
  options.timeout_s = 60;
  EXPECT_EQ(TakeAll(options), 123u);
}
INSTANTIATE_TEST_SUITE_P(Former, RestartTest,
                         testing::Values("other state", "same state",
                                         "more ranks"));

// As in Docker, whose filter forbids io_uring: each read blocks its worker.
TEST_F(HungStorageTest, PlainReadsThatHangHoldUpNoOtherJob) {
  const pid_t child = fork();  // a filter cannot be removed
  if (child == 0) {
    if (!ForbidSystemCall(SYS_io_uring_setup)) _exit(77);
    StartBroker(2);
    std::string error;
    int code = 0;
    std::thread hung([&] { error = ErrorOf(Hung("hung"), &code); });
    while (storage_->hanging() < 2) std::this_thread::yield();
    EXPECT_EQ(TakeAll(Healthy("healthy", "50")), 400u);
    hung.join();
    EXPECT_EQ(code, PENSTOCK_DEADLINE_EXCEEDED);
    EXPECT_THAT(error, HasSubstr("/pictures/cat/hung_read"));
    EXPECT_EQ(TakeAll(Healthy("later", "50")), 400u);
    EXPECT_FALSE(LateReads().empty());
    storage_->Recover();
    while (!LateReads().empty()) std::this_thread::yield();
    broker_.reset();
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

// Neither ranks nor the next broker wait: the process releases what it can, and
// the kernel keeps the rest until the storage answers.
TEST_F(HungStorageTest, BrokerStopsAllTheSame) {
  StartBroker(1);
  std::string error;
  int code = 0;
  std::thread hung([&] { error = ErrorOf(Hung("hung"), &code); });
  while (storage_->hanging() == 0) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  kill(broker_->pid(), SIGTERM);
  hung.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(code, PENSTOCK_UNAVAILABLE) << error;
  // Its last thread stays in the kernel until the read returns.
  while (State(broker_->pid()) != 'Z' &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::yield();
  }
  EXPECT_EQ(State(broker_->pid()), 'Z');
}

}  // namespace penstock::hung_storage_test
