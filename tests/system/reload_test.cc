// Promise: SIGHUP applies a changed configuration file to a running penstockd,
// and no batch is lost or made twice; a file with a mistake changes nothing;
// keys that need a restart are named. Method: a service with a file that the
// test rewrites while a rank takes batches.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::reload_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ReloadTest : public testing::Test {
 protected:
  ReloadTest() {
    Write("workers: 2\n");
    testing::internal::CaptureStderr();  // the service inherits it
    service_.emplace(std::vector<std::string>{"--config", config_},
                     /*private_broker=*/false);
    Ask({{"op", "ping"}});  // it is up
  }
  ~ReloadTest() override {
    if (service_) StopAndRead();
    std::filesystem::remove(config_);
  }

  void Write(const std::string& text) {
    std::ofstream(config_, std::ios::trunc) << text;
  }
  nlohmann::json Ask(nlohmann::json request) {
    const StatusOr<Fd> socket = ConnectControl(service_->socket());
    EXPECT_TRUE(socket.ok());
    return Request(socket->get(), std::move(request))->json;
  }
  // Returns when it is done.
  void Reload() {
    kill(service_->pid(), SIGHUP);
    // The first answer may be of the round that the signal came in.
    for (int i = 0; i < 3; ++i) Ask({{"op", "ping"}});
  }
  nlohmann::json BrokerStatus() { return Ask({{"op", "status"}}).at("broker"); }
  Options OptionsFor(const std::string& job, const std::string& rest) {
    Options options;
    options.spec = "dataset: numbers\nsource: {range: 6000}\n" + rest;
    options.rank = 0;
    options.world_size = 1;
    options.socket = service_->socket();
    options.job = job;
    options.timeout_s = 60;
    return options;
  }
  // What it logged, at the end.
  std::string StopAndRead() {
    service_->Stop(SIGTERM);
    service_.reset();
    return testing::internal::GetCapturedStderr();
  }

  const std::string config_ =
      std::filesystem::temp_directory_path() /
      ("penstock-reload-" + std::to_string(getpid()) + ".yaml");
  std::optional<BrokerProcess> service_;
};

TEST_F(ReloadTest, ANewLimitIsThatOfLaterJobsAndNoBatchIsLost) {
  Reader reader(OptionsFor("runs", "batch: {size: 4}\n"));
  Rows rows;
  for (int i = 0; i < 20; ++i) {
    Batch batch;
    reader.next(&batch);
    Append({TakenOf(reader, batch)}, &rows);
  }
  EXPECT_EQ(BrokerStatus().at("workers"), 2);
  Write("workers: 3\nmemory_limit: 1K\nread_timeout: 5s\n");
  Reload();
  EXPECT_EQ(BrokerStatus().at("workers"), 3);
  EXPECT_EQ(BrokerStatus().at("memory_limit_bytes"), 1024);
  EXPECT_THAT(BrokerStatus().at("workers_chosen").get<std::string>(),
              HasSubstr("set by `workers`"));
  try {
    Reader late(OptionsFor("late", "batch: {size: 64}\n"));
    FAIL() << "it opens";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory_limit is 1.0 KiB"));
  }
  Append(RunToTheEnd(reader).taken, &rows);
  EXPECT_EQ(Sorted(rows), Numbers(6000));

  Write("workers: 3\n");
  Reload();
  Reader again(OptionsFor("again", "batch: {size: 64}\n"));
  EXPECT_EQ(RunToTheEnd(again).code, 0);
  EXPECT_THAT(StopAndRead(), AllOf(HasSubstr("is reloaded: workers, "
                                             "memory_limit, read_timeout"),
                                   HasSubstr("is reloaded: memory_limit, "
                                             "read_timeout"),
                                   Not(HasSubstr("restart"))));
}

TEST_F(ReloadTest, AMistakeChangesNothing) {
  Write("workers: 3\nmemory_limt: 1K\n");
  Reload();
  EXPECT_EQ(BrokerStatus().at("workers"), 2);
  std::filesystem::remove(config_);
  Reload();
  EXPECT_EQ(BrokerStatus().at("workers"), 2);
  EXPECT_THAT(StopAndRead(), AllOf(HasSubstr("reload: " + config_ +
                                             ":2:1: unknown key 'memory_limt'"),
                                   Not(HasSubstr("is reloaded"))));
}

TEST_F(ReloadTest, KeysThatNeedARestartAreNamedEachTime) {
  Write("workers: 2\nread_depth: 3\nstate_dir: /nowhere\n");
  Reload();
  Reload();
  const std::string log = StopAndRead();
  const std::string needs = "needs a restart: read_depth, state_dir";
  const size_t first = log.find(needs);
  ASSERT_NE(first, log.npos) << log;
  EXPECT_NE(log.find(needs, first + 1), log.npos) << log;
  EXPECT_THAT(log, HasSubstr("nothing changes"));
}

TEST_F(ReloadTest, WorkersThatWereSetStayIfTheFileIsAsBefore) {
  Ask({{"op", "workers"}, {"workers", 4}});
  Write("workers: 2\ndecode_timeout: 5m\n");
  Reload();
  EXPECT_EQ(BrokerStatus().at("workers"), 4);
}

TEST_F(ReloadTest, APrivateBrokerEndsWithItsTerminal) {
  BrokerProcess broker({"--config", config_});
  const StatusOr<Fd> socket = ConnectControl(broker.socket());
  ASSERT_TRUE(Request(socket->get(), {{"op", "ping"}}).ok());
  EXPECT_EQ(broker.Stop(SIGHUP), -SIGHUP);
}

}  // namespace penstock::reload_test
