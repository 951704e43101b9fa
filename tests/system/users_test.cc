// Promise: users of one service do not see, stop or starve one another: each
// sees her own jobs, root and observers see all; a user has so many jobs,
// connections, datasets, so much memory, and the time of workers and of the
// control thread that every user has, whatever the number of her jobs.
// Method: a service of root, and children that are other users.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/penstock.hpp"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/broker_process.h"
#include "tests/support/gated_file_system.h"
#include "tests/support/other_user.h"

namespace penstock::users_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr uid_t kAlice = 61001;
constexpr uid_t kBob = 61002;
constexpr uid_t kObserver = 61003;

class UsersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
    std::string pattern = testing::TempDir() + "penstock-users-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    storage_ = std::make_unique<GatedFileSystem>(folder_, 1);
    ASSERT_TRUE(storage_->mounted());
    std::filesystem::create_directory(lines());
    const std::string file = folder_ + ".yaml";
    std::ofstream(file) << "workers: 2\njobs_per_user: 4\n"
                        << "memory_limit_per_user: 32M\nobservers: ["
                        << kObserver << "]\ndata: [{path: " << folder_
                        << "}, {path: " << lines() << "}]\n";
    service_ = std::make_unique<BrokerProcess>(
        std::vector<std::string>{"--config", file}, /*private_broker=*/false);
    chmod(service_->folder().c_str(), 0755);
    chmod(service_->socket().c_str(), 0666);
  }
  void TearDown() override {
    for (const pid_t child : children_) kill(child, SIGKILL);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
    if (storage_) storage_->Recover();
    service_.reset();
    storage_.reset();
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(folder_ + ".yaml");
    std::filesystem::remove_all(lines());
  }
  std::string lines() const { return folder_ + "-lines"; }

  StatusOr<nlohmann::json> Ask(const nlohmann::json& request) const {
    PENSTOCK_ASSIGN_OR_RETURN(const Fd socket,
                              ConnectControl(service_->socket()));
    PENSTOCK_ASSIGN_OR_RETURN(Message answer, Request(socket.get(), request));
    return std::move(answer.json);
  }
  // The answer, or the error's text.
  nlohmann::json AskAs(uid_t user, const nlohmann::json& request) {
    return nlohmann::json::parse(RunAs(user, [&] {
      const auto answer = Ask(request);
      return answer.ok() ? answer->dump()
                         : nlohmann::json(answer.status().message()).dump();
    }));
  }
  // A job that takes all it gets, of rows that cost 1 ms, until the test ends.
  void Train(uid_t user, const std::string& job) {
    Fd fd;
    children_.push_back(StartAs(
        user,
        [&]() -> std::string {
          Reader reader({.spec = "dataset: d\nsource: {synthetic: {records: "
                                 "1000, cost_us: 1000, features: {x: {dtype: "
                                 "uint8, shape: [4]}}}}\nbatch: {size: 8}\n"
                                 "epochs: forever\n",
                         .job = job,
                         .socket = service_->socket()});
          Batch batch;
          while (reader.next(&batch) != Reader::Result::kEndOfData) {
          }
          return "";
        },
        &fd));
    kept_.push_back(std::move(fd));
    WaitForRows(job, 16);
  }
  // By root.
  uint64_t RowsOf(const std::string& job) {
    uint64_t rows = 0;
    const nlohmann::json jobs = Ask({{"op", "jobs"}})->at("jobs");
    for (const nlohmann::json& each : jobs) {
      if (each.at("job") == job) rows += each.value("rows", uint64_t{0});
    }
    return rows;
  }
  void WaitForRows(const std::string& job, uint64_t rows) {
    while (RowsOf(job) < rows) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // False: it has ended.
  static bool WaitUntilStopped(pid_t child) {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child), &info,
           WSTOPPED | WEXITED | WNOWAIT);
    return info.si_code == CLD_STOPPED;
  }
  static std::vector<std::string> Names(const nlohmann::json& answer,
                                        const char* list, const char* name) {
    std::vector<std::string> names;
    for (const nlohmann::json& each : answer.at(list)) {
      names.push_back(each.at(name));
    }
    return names;
  }

  std::string folder_;
  std::unique_ptr<GatedFileSystem> storage_;
  std::unique_ptr<BrokerProcess> service_;
  std::vector<pid_t> children_;
  std::vector<Fd> kept_;
};

TEST_F(UsersTest, EachSeesAndStopsHerOwn) {
  Train(kAlice, "of alice");
  Train(kBob, "of bob");
  const nlohmann::json register_it = {
      {"op", "register"},
      {"spec", "dataset: secret\nsource: {range: 4}\nbatch: {size: 1}\n"},
      {"file", "secret.yaml"},
      {"base", "/"}};
  AskAs(kAlice, register_it);
  for (const char* const op : {"jobs", "status"}) {
    EXPECT_THAT(Names(AskAs(kAlice, {{"op", op}}), "jobs", "job"),
                ElementsAre("of alice"));
    EXPECT_THAT(Names(AskAs(kBob, {{"op", op}}), "jobs", "job"),
                ElementsAre("of bob"));
    for (const uid_t all : {kObserver, uid_t{0}}) {
      EXPECT_THAT(Names(AskAs(all, {{"op", op}}), "jobs", "job"),
                  UnorderedElementsAre("of alice", "of bob"));
    }
  }
  EXPECT_EQ(AskAs(kBob, {{"op", "status"}})["broker"]["hidden_jobs"], 1);
  EXPECT_THAT(Names(AskAs(kAlice, {{"op", "datasets"}}), "datasets", "name"),
              ElementsAre("secret"));
  EXPECT_THAT(Names(AskAs(kBob, {{"op", "datasets"}}), "datasets", "name"),
              IsEmpty());
  // The same answer for a job that is another's and for one that is not there;
  // an observer only sees.
  for (const uid_t other : {kBob, kObserver}) {
    for (const nlohmann::json& request : std::vector<nlohmann::json>{
             {{"op", "stop"}, {"job", "of alice"}},
             {{"op", "stop"}, {"job", "of alice"}, {"now", true}},
             {{"op", "state"}, {"job", "of alice"}},
             {{"op", "evict"}, {"job", "of alice"}, {"rank", 0}}}) {
      nlohmann::json none = request;
      none["job"] = "of nobody";
      std::string answer = AskAs(other, request).dump();
      const std::string answer_of_none = AskAs(other, none).dump();
      ASSERT_THAT(answer, HasSubstr("runs no job"));
      answer.replace(answer.find("of alice"), 8, "of nobody");
      EXPECT_EQ(answer, answer_of_none);
    }
  }
  EXPECT_THAT(AskAs(kBob, {{"op", "workers"}, {"workers", 1}}).dump(),
              HasSubstr("only root"));
  // Alice's goes on.
  const uint64_t rows = RowsOf("of alice");
  WaitForRows("of alice", rows + 16);
}

TEST_F(UsersTest, RootNamesTheUserWhereJobsOfSeveralHaveOneName) {
  Train(kAlice, "same");
  const uint64_t rows = RowsOf("same");
  Train(kBob, "same");
  while (Names(AskAs(0, {{"op", "jobs"}}), "jobs", "job").size() < 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  WaitForRows("same", rows + 64);
  for (const nlohmann::json& request : std::vector<nlohmann::json>{
           {{"op", "state"}, {"job", "same"}},
           {{"op", "measure"}, {"job", "same"}, {"seconds", 1}},
           {{"op", "failures"}, {"job", "same"}},
           {{"op", "evict"}, {"job", "same"}, {"rank", 0}},
           {{"op", "stop"}, {"job", "same"}},
           {{"op", "stop"}, {"job", "same"}, {"now", true}}}) {
    EXPECT_THAT(AskAs(0, request).dump(),
                HasSubstr("2 jobs are named 'same', of users 61001, 61002: "
                          "name the user too (--uid)"));
  }
  EXPECT_THAT(AskAs(kBob, {{"op", "stop"}, {"job", "same"}, {"uid", kAlice}}),
              "user 61001 runs no job 'same'; `penstock jobs` lists them");
  EXPECT_TRUE(AskAs(0, {{"op", "state"}, {"job", "same"}, {"uid", kBob}})
                  .contains("state"));
  EXPECT_EQ(AskAs(0, {{"op", "stop"},
                      {"job", "same"},
                      {"uid", kAlice},
                      {"now", true}})["ended"],
            true);
  // Bob's goes on, and needs no other name now.
  while (Names(AskAs(0, {{"op", "jobs"}}), "jobs", "job").size() > 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  WaitForRows("same", RowsOf("same") + 16);
  EXPECT_TRUE(AskAs(0, {{"op", "state"}, {"job", "same"}}).contains("state"));
}

TEST_F(UsersTest, AUserHasSoManyJobs) {
  for (const char* const job : {"1", "2", "3", "4"}) Train(kAlice, job);
  EXPECT_THAT(
      RunAs(kAlice,
            [&]() -> std::string {
              const Reader reader({.spec = "dataset: d\nsource: {range: 4}\n"
                                           "batch: {size: 1}\n",
                                   .job = "5",
                                   .socket = service_->socket()});
              return "";
            }),
      HasSubstr("user 61001 has 4 jobs"));
  Train(kBob, "of bob");
}

TEST_F(UsersTest, OpeningsThatHangHoldUpTheirUserAlone) {
  constexpr int kOpenings = 100;  // more than may run at once
  for (int i = 0; i < kOpenings; ++i) {
    Fd fd;
    children_.push_back(StartAs(
        kAlice,
        [&] {
          const auto answer = Ask(
              {{"op", "index"},
               {"spec", "dataset: d\nsource: {text_lines: {files: " + folder_ +
                            "/hung_open_" + std::to_string(i) +
                            ", max_bytes: 8}}\nbatch: {size: 1}\n"},
               {"file", "d.yaml"},
               {"base", "/"}});
          return answer.ok() ? std::to_string(answer->at("records").get<int>())
                             : answer.status().message();
        },
        &fd));
    kept_.push_back(std::move(fd));
  }
  while (Ask({{"op", "status"}})->at("broker").at("connections") <= kOpenings) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Train(kBob, "of bob");
  storage_->Recover();
  for (const Fd& fd : kept_) {
    if (&fd == &kept_.back()) break;  // Bob's, which has no end
    std::string said(16, '\0');
    said.resize(read(fd.get(), said.data(), said.size()));
    EXPECT_EQ(said, "1");
  }
}

TEST_F(UsersTest, AnswersThatAreNotReadAreBounded) {
  // Its answer has each path in full, half a megabyte, in a memfd.
  std::string files;
  for (int i = 0; i < 150; ++i) files += "f, ";
  std::string base;
  for (int i = 0; i < 39; ++i) base += "/" + std::string(99, 'a');
  const nlohmann::json large = {
      {"penstock", kProtocolVersion},
      {"op", "parse"},
      {"spec", "dataset: d\nsource: {text_lines: {files: [" + files +
                   "f], max_bytes: 8}}\nbatch: {size: 1}\n"},
      {"file", "d.yaml"},
      {"base", base}};
  const std::string said = RunAs(kAlice, [&]() -> std::string {
    std::vector<Fd> held;
    for (int i = 0; i < 130; ++i) {
      StatusOr<Fd> socket = ConnectControl(service_->socket());
      if (!socket.ok()) return socket.status().message();
      (void)SendMessage(socket->get(), large);
      (void)SendMessage(socket->get(), large);
      (void)SendMessage(socket->get(), "no request");
      pollfd answered{socket->get(), POLLIN, 0};
      poll(&answered, 1, 60'000);  // and leaves it there
      held.push_back(*std::move(socket));
    }
    uint64_t bytes = 0;
    int refused = 0;
    for (const Fd& socket : held) {
      for (int answer = 0; answer < 2; ++answer) {
        pollfd entry{socket.get(), POLLIN, 0};
        poll(&entry, 1, 60'000);
        const auto message = ReceiveMessage(socket.get());
        if (!message.ok() || !*message) return "no answer";
        const nlohmann::json& json = (*message)->json;
        if (json.at("ok") == true) {
          bytes += json.dump().size();
        } else if (json.at("error").get<std::string>().find(
                       "read the answers") != std::string::npos) {
          ++refused;
        }
      }
    }
    if (bytes == 0 || bytes > (64 << 20)) return Format("{} bytes", bytes);
    if (refused < 130) return Format("{} refused", refused);
    const auto answer = Ask({{"op", "ping"}});
    return answer.ok() ? "bounded" : answer.status().message();
  });
  EXPECT_EQ(said, "bounded");
  Train(kBob, "of bob");
}

TEST_F(UsersTest, IndexesOfAUserCountTogether) {
  // The index of each has 12 MB.
  const auto open = [&](int i) -> std::string {
    const std::string file = Format("{}/{}", lines(), i);
    std::ofstream(file) << std::string(1'000'000, '\n');
    Fd said;
    children_.push_back(StartAs(
        kAlice,
        [&]() -> std::string {
          Reader reader({.spec = "dataset: d\nsource: {text_lines: {files: " +
                                 file + ", max_bytes: 8}}\nbatch: {size: 1}\n",
                         .job = file,
                         .socket = service_->socket()});
          Batch batch;
          if (reader.next(&batch) != Reader::Result::kBatch) return "no batch";
          kill(getpid(), SIGSTOP);  // keeps it
          return "";
        },
        &said));
    if (WaitUntilStopped(children_.back())) return "open";
    std::string text(1024, '\0');
    text.resize(static_cast<size_t>(
        std::max<ssize_t>(read(said.get(), text.data(), text.size()), 0)));
    return text;
  };
  EXPECT_EQ(open(1), "open");
  EXPECT_EQ(open(2), "open");
  EXPECT_THAT(open(3), HasSubstr("are left by memory_limit_per_user"));
  Train(kBob, "of bob");
  // What is not open any more does not count.
  const pid_t first = children_.front();
  kill(first, SIGKILL);
  waitpid(first, nullptr, 0);
  children_.erase(children_.begin());
  AskAs(kAlice, {{"op", "stop"}, {"job", lines() + "/1"}, {"now", true}});
  while (Ask({{"op", "status"}})->at("broker").at("memory_bytes") >
         20'000'000) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(open(4), "open");
}

TEST_F(UsersTest, AUserHasSoManyConnectionsAndDatasets) {
  constexpr rlim_t kConnections = 1088;
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  if (descriptors.rlim_max < kConnections + 64) {
    descriptors.rlim_max = kConnections + 64;
  }
  descriptors.rlim_cur = kConnections + 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &descriptors), 0);
  Fd said;
  children_.push_back(StartAs(
      kAlice,
      [&]() -> std::string {
        std::vector<Fd> held;
        for (rlim_t i = 0; i < kConnections; ++i) {
          auto socket = ConnectControl(service_->socket());
          if (!socket.ok()) return socket.status().message();
          const auto answer = Request(socket->get(), {{"op", "ping"}});
          if (!answer.ok()) return answer.status().message();
          held.push_back(*std::move(socket));
        }
        const auto one_more = Ask({{"op", "ping"}});
        if (one_more.ok()) return "one more is accepted";
        kill(getpid(), SIGSTOP);  // holds them
        return one_more.status().message();
      },
      &said));
  EXPECT_TRUE(WaitUntilStopped(children_.back()));
  EXPECT_EQ(AskAs(kBob, {{"op", "ping"}})["ok"], true);
  kill(children_.back(), SIGCONT);
  std::string refusal(1024, '\0');
  refusal.resize(static_cast<size_t>(
      std::max<ssize_t>(read(said.get(), refusal.data(), refusal.size()), 0)));
  EXPECT_THAT(refusal, HasSubstr("the limit of 1088 connections per user"));
  const auto register_it = [](int i) -> nlohmann::json {
    return {{"op", "register"},
            {"spec", Format("dataset: d{}\nsource: {{range: 4}}\nbatch: "
                            "{{size: 1}}\n",
                            i)},
            {"file", "d.yaml"},
            {"base", "/"}};
  };
  EXPECT_THAT(RunAs(kAlice,
                    [&]() -> std::string {
                      for (int i = 0; i < 1024; ++i) {
                        const auto answer = Ask(register_it(i));
                        if (!answer.ok()) return answer.status().message();
                      }
                      return Ask(register_it(1024)).status().message();
                    }),
              HasSubstr("the limit of 1024 registered datasets"));
  EXPECT_EQ(AskAs(kBob, register_it(0))["ok"], true);
}

TEST_F(UsersTest, ManyRequestsOfOneDelayAnotherByOne) {
  constexpr int kConnections = 60;
  const nlohmann::json costly = {
      {"penstock", kProtocolVersion},
      {"op", "parse"},
      {"spec", "dataset: d\nsource: {range: 4}\nbatch: {size: 1}\n# " +
                   std::string(60'000, 'x')},
      {"file", "d.yaml"},
      {"base", "/"}};
  const nlohmann::json ping = {{"penstock", kProtocolVersion}, {"op", "ping"}};
  const auto connect = [&] {
    StatusOr<Fd> socket = ConnectControl(service_->socket());
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    return *std::move(socket);
  };
  // The kernel tells the user of each when it connects.
  const auto connect_as = [&](uid_t user) {
    EXPECT_EQ(seteuid(user), 0);
    Fd socket = connect();
    EXPECT_EQ(seteuid(0), 0);
    return socket;
  };
  std::vector<Fd> of_alice;
  for (int i = 0; i < kConnections; ++i) {
    of_alice.push_back(connect_as(kAlice));
  }
  const Fd of_bob = connect_as(kBob);
  kill(service_->pid(), SIGSTOP);
  for (const Fd& socket : of_alice) {
    for (int i = 0; i < 2; ++i) (void)SendMessage(socket.get(), costly);
  }
  (void)SendMessage(of_bob.get(), ping);
  kill(service_->pid(), SIGCONT);
  pollfd answered{of_bob.get(), POLLIN, 0};
  ASSERT_EQ(poll(&answered, 1, 60'000), 1);
  kill(service_->pid(), SIGSTOP);
  int served = 0;
  for (const Fd& socket : of_alice) {
    pollfd entry{socket.get(), POLLIN, 0};
    served += poll(&entry, 1, 0);
  }
  kill(service_->pid(), SIGCONT);
  EXPECT_LT(served, kConnections / 2);
}

TEST_F(UsersTest, FourJobsOfOneGetNoMoreTimeThanOneOfAnother) {
  const std::vector<std::string> of_alice = {"1", "2", "3", "4"};
  for (const std::string& job : of_alice) Train(kAlice, job);
  Train(kBob, "of bob");
  const auto rows_of_alice = [&] {
    uint64_t rows = 0;
    for (const std::string& job : of_alice) rows += RowsOf(job);
    return rows;
  };
  constexpr uint64_t kRows = 400;
  // Until Bob's credit of a new user is used.
  WaitForRows("of bob", 200);
  const uint64_t alice = rows_of_alice();
  const uint64_t bob = RowsOf("of bob");
  WaitForRows("of bob", bob + kRows);
  // Each half, where each job would have a fifth.
  EXPECT_LT(rows_of_alice() - alice, kRows * 2);
  EXPECT_GT(rows_of_alice() - alice, kRows / 2);
}

}  // namespace penstock::users_test
