// Promise: users of one service do not see, stop or starve one another: each
// sees her own jobs, root and observers see all; a user has so many jobs and
// the workers' time that every user has, whatever the number of her jobs.
// Method: a service of root, and children that are other users.
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
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

namespace penstock {
namespace {

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
    const std::string file = folder_ + ".yaml";
    std::ofstream(file) << "workers: 2\njobs_per_user: 4\nobservers: ["
                        << kObserver << "]\ndata: [{path: " << folder_
                        << "}]\n";
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
  }

  // Starts a child that is this user; what work returns can be read from fd.
  pid_t Start(uid_t user, const std::function<std::string()>& work, Fd* fd) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string said = "cannot become the user";
      if (setgroups(0, nullptr) == 0 && setgid(user) == 0 &&
          setuid(user) == 0) {
        try {
          said = work();
        } catch (const std::exception& error) {
          said = error.what();
        }
      }
      (void)!write(ends[1], said.data(), said.size());
      _exit(0);
    }
    close(ends[1]);
    *fd = Fd(ends[0]);
    return child;
  }
  std::string As(uid_t user, const std::function<std::string()>& work) {
    Fd fd;
    const pid_t child = Start(user, work, &fd);
    std::string said;
    char buffer[4096];
    for (ssize_t n; (n = read(fd.get(), buffer, sizeof(buffer))) > 0;) {
      said.append(buffer, static_cast<size_t>(n));
    }
    waitpid(child, nullptr, 0);
    return said;
  }
  StatusOr<nlohmann::json> Ask(const nlohmann::json& request) const {
    PENSTOCK_ASSIGN_OR_RETURN(const Fd socket,
                              ConnectControl(service_->socket()));
    PENSTOCK_ASSIGN_OR_RETURN(Message answer, Request(socket.get(), request));
    return std::move(answer.json);
  }
  // The answer, or the error's text.
  nlohmann::json AskAs(uid_t user, const nlohmann::json& request) {
    return nlohmann::json::parse(As(user, [&] {
      const auto answer = Ask(request);
      return answer.ok() ? answer->dump()
                         : nlohmann::json(answer.status().message()).dump();
    }));
  }
  // A job that takes all it gets, of rows that cost 1 ms, until the test ends.
  void Train(uid_t user, const std::string& job) {
    Fd fd;
    children_.push_back(Start(
        user,
        [&]() -> std::string {
          Reader reader({.spec = "dataset: d\nsource: {synthetic: {records: "
                                 "1000, cost_us: 1000, features: {x: {dtype: "
                                 "uint8, shape: [4]}}}}\nbatch: {size: 8}\n"
                                 "epochs: forever\n",
                         .job = job,
                         .socket = service_->socket()});
          Batch batch;
          while (reader.next(&batch) == Reader::Result::kBatch) {
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

TEST_F(UsersTest, AUserHasSoManyJobs) {
  for (const char* const job : {"1", "2", "3", "4"}) Train(kAlice, job);
  EXPECT_THAT(
      As(kAlice,
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
    children_.push_back(Start(
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
  const std::string said = As(kAlice, [&]() -> std::string {
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

}  // namespace
}  // namespace penstock
