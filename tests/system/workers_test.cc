// Promise: the number of workers can change while jobs run, without losing a
// sample; surplus workers sleep, and their pinned memory is given back. Method:
// a real broker whose workers are set while ranks take batches.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>

#include "common/format.h"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::workers_test {

using testing::HasSubstr;

class WorkersTest : public DeliveryTest {
 protected:
  StatusOr<Message> Ask(const nlohmann::json& request) {
    const StatusOr<Fd> socket = ConnectControl(broker_.socket());
    EXPECT_TRUE(socket.ok());
    return Request(socket->get(), request);
  }
  nlohmann::json Set(int count) {
    auto answer = Ask({{"op", "workers"}, {"workers", count}});
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return answer.ok() ? answer->json : nlohmann::json();
  }
  // How often each worker's thread has gone to sleep so far, by its name.
  std::map<std::string, uint64_t> Sleeps() const {
    std::map<std::string, uint64_t> sleeps;
    for (const auto& [name, count] :
         broker_.OfWorkers("voluntary_ctxt_switches")) {
      sleeps[name] = std::stoull(count);
    }
    return sleeps;
  }
};

TEST_F(WorkersTest, EverySampleComesOnceWhileTheyComeAndGo) {
  constexpr int64_t kSamples = 6000;
  Reader reader(OptionsFor(
      RangeSpec(std::to_string(kSamples), "batch: {size: 4}\n"), 0, 1));
  Rows rows;
  const int counts[] = {3, 1, 5, 2, 0, 4};
  for (int step = 0;; ++step) {
    if (step % 100 == 0) Set(counts[step / 100 % 6]);
    Batch batch;
    const Reader::Result result = reader.next(&batch);
    if (result == Reader::Result::kEndOfData) break;
    if (result == Reader::Result::kBatch) {
      Append({TakenOf(reader, batch)}, &rows);
    }
  }
  EXPECT_EQ(Sorted(rows), Numbers(kSamples));
}

TEST_F(WorkersTest, ThoseThatAreTooManySleepUntilTheyAreWantedAgain) {
  EXPECT_EQ(Set(4).at("workers"), 4);
  EXPECT_EQ(Set(1).at("workers"), 1);
  Reader reader(OptionsFor(
      RangeSpec("1024", "batch: {size: 64}\nepochs: forever\n"), 0, 1));
  const auto take = [&](int batches) {
    for (int i = 0; i < batches; ++i) {
      Batch batch;
      reader.next(&batch);
    }
  };
  // They learn that they are surplus, or are just starting.
  constexpr int kAttempts = 20;
  std::map<std::string, uint64_t> before;
  std::map<std::string, uint64_t> after = Sleeps();
  const auto sleep_on = [&] {
    for (const char* name : {"worker 1", "worker 2", "worker 3"}) {
      if (before[name] != after[name]) return false;
    }
    return true;
  };
  int attempts = 0;
  do {
    before = after;
    take(300);
    after = Sleeps();
  } while (!sleep_on() && ++attempts < kAttempts);
  ASSERT_EQ(before.size(), 4u);
  EXPECT_TRUE(sleep_on());
  Set(4);
  take(2000);
  uint64_t of_the_others = 0;
  for (const auto& [name, sleeps] : Sleeps()) {
    if (name != "worker 0") of_the_others += sleeps - after.at(name);
  }
  EXPECT_GT(of_the_others, 3u) << "not only those that were woken once";
  EXPECT_EQ(Sleeps().size(), 4u) << "no thread was started for nothing";
}

// Memory that workers pin for direct reads into slots is given back when it is
// no longer read into, even without other events.
TEST_F(WorkersTest, PinnedMemoryGoesWithItsJob) {
  const auto pinned_kb = [&] {
    std::ifstream status("/proc/" + std::to_string(broker_.pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmPin:")) return std::stoull(line.substr(6));
    }
    throw std::runtime_error("no VmPin");
  };
  constexpr uint64_t kRecordBytes = 128 << 10;
  const std::string path =
      broker_.Write("records", std::string(64 * kRecordBytes, 'r'));
  const Fd direct(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!direct) {
    GTEST_SKIP() << "no direct reads in " << broker_.folder();
  }
  const std::string spec = Format(R"(dataset: records
source:
  fixed_length_records:
    files: [{}]
    features: {{bytes: {{dtype: uint8, shape: [{}]}}}}
    io: direct
batch: {{size: 8}}
epochs: forever
)",
                                  path, kRecordBytes);
  ASSERT_EQ(pinned_kb(), 0u);
  for (int course = 0; course < 3; ++course) {
    Reader reader(OptionsFor(spec, 0, 1));
    for (int i = 0; i < 50; ++i) {
      Batch batch;
      const Reader::Result result = reader.next(&batch);
      if (result == Reader::Result::kEndOfEpoch) continue;
      ASSERT_EQ(result, Reader::Result::kBatch);
      const auto* const bytes = static_cast<const char*>(batch.data(0));
      EXPECT_EQ(std::count(bytes, bytes + 8 * kRecordBytes, 'r'),
                8 * kRecordBytes);
    }
    // At least one worker pins a batch.
    EXPECT_GE(pinned_kb(), 8 * kRecordBytes >> 10);
    EXPECT_GE(Ask({{"op", "status"}})
                  ->json.at("broker")
                  .at("pinned_bytes")
                  .get<uint64_t>(),
              8 * kRecordBytes);
  }
  for (int i = 0; i < 500 && pinned_kb() > 0; ++i) usleep(20'000);
  EXPECT_EQ(pinned_kb(), 0u);
}

TEST_F(WorkersTest, TheStatusSaysHowManyAndThatTheyWereSet) {
  Set(3);
  auto status = Ask({{"op", "status"}});
  ASSERT_TRUE(status.ok());
  const nlohmann::json& broker = status->json.at("broker");
  EXPECT_EQ(broker.at("workers"), 3);
  EXPECT_THAT(broker.at("workers_chosen").get<std::string>(),
              HasSubstr("; set by `penstock workers`"));
  EXPECT_THAT(Set(0).at("workers_chosen").get<std::string>(),
              HasSubstr("auto"));
}

TEST_F(WorkersTest, MoreThanThereMayBeAreRefused) {
  for (const nlohmann::json& count :
       std::vector<nlohmann::json>{1 << 20, -1, "3", nullptr}) {
    EXPECT_EQ(Ask({{"op", "workers"}, {"workers", count}}).status().code(),
              StatusCode::kInvalidArgument)
        << count.dump();
  }
}

TEST_F(WorkersTest, OnlyRootAndTheBrokersUserMaySetThem) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
  const BrokerProcess service({}, /*private_broker=*/false);
  ASSERT_EQ(chmod(service.folder().c_str(), 0755), 0);
  ASSERT_EQ(chmod(service.socket().c_str(), 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
    const StatusOr<Fd> socket = ConnectControl(service.socket());
    if (!socket.ok()) _exit(4);
    if (!Request(socket->get(), {{"op", "ping"}}).ok()) _exit(5);
    const auto answer =
        Request(socket->get(), {{"op", "workers"}, {"workers", 1}});
    _exit(answer.status().code() == StatusCode::kPermissionDenied ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace penstock::workers_test
