// Promise: a private broker is restarted as documented: with its descriptors,
// after pauses, until it is given up; its folder is removed even if its owner
// was killed. Method: command_fake_penstockd.py stands in for penstockd, in
// RestartPolicy, PrivateBroker and the loop of `penstock run`.
#include "client/private_broker/private_broker.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <future>
#include <set>
#include <thread>

#include "client/command/supervise.h"
#include "client/penstock.hpp"
#include "common/message.h"
#include "tests/command/command_fixture.h"

namespace penstock::private_broker_test {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

// The descriptors that a program would inherit.
std::set<int> Inherited() {
  std::set<int> numbers;
  for (int fd = 0; fd < 1024; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) numbers.insert(fd);
  }
  return numbers;
}

TEST(RestartPolicyTest, AtOnceThenAfterDoublingPausesThenNoMore) {
  RestartPolicy policy;
  RestartPolicy::Clock::time_point now{};
  const milliseconds pauses[] = {milliseconds(0), milliseconds(200),
                                 milliseconds(400), milliseconds(800),
                                 milliseconds(1600)};
  int number = 0;
  for (const milliseconds pause : pauses) {
    const std::optional<RestartPolicy::Restart> restart = policy.Next(now);
    ASSERT_TRUE(restart.has_value());
    EXPECT_EQ(restart->number, ++number);
    EXPECT_EQ(restart->pause, pause);
    now += pause;
  }
  EXPECT_FALSE(policy.Next(now).has_value());
}

TEST(RestartPolicyTest, WhatIsOlderThanTheWindowIsForgotten) {
  RestartPolicy policy;
  RestartPolicy::Clock::time_point now{};
  // A pause is part of the time between two restarts.
  for (int i = 0; i < 20; ++i, now += seconds(14)) {
    EXPECT_TRUE(policy.Next(now).has_value()) << i;
  }
  now += RestartPolicy::kWindow;
  const std::optional<RestartPolicy::Restart> restart = policy.Next(now);
  ASSERT_TRUE(restart.has_value());
  EXPECT_EQ(restart->number, 1);
  EXPECT_EQ(restart->pause, milliseconds(0));
}

TEST(RestartPolicyTest, WhatWasBeforeProgressIsForgotten) {
  RestartPolicy policy;
  RestartPolicy::Clock::time_point now{};
  for (int i = 0; i < 4 * RestartPolicy::kRestartsMax; ++i) {
    const std::optional<RestartPolicy::Restart> restart = policy.Next(now);
    ASSERT_TRUE(restart.has_value());
    EXPECT_EQ(restart->number, i % 4 + 1);
    if (i % 4 == 3) policy.NoteProgress();
  }
}

TEST(ProcessTest, PassedDescriptorsMayLieWhereTheyAreToBe) {
  constexpr int kCount = 40;
  // Numbers from 3 on, in reverse, so that each target is another's source.
  std::vector<Fd> fds;
  ProcessSpec spec;
  for (int i = 0; i < kCount; ++i) {
    fds.emplace_back(memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(write(fds.back().get(), &i, sizeof(i)),
              static_cast<ssize_t>(sizeof(i)));
  }
  std::string names;
  for (int i = kCount - 1; i >= 0; --i) {
    spec.listen_fds.push_back({fds[i].get(), "n" + std::to_string(i)});
    names += (names.empty() ? "n" : ":n") + std::to_string(i);
  }
  std::set<int> expected = Inherited();
  for (int i = 0; i < kCount; ++i) expected.insert(3 + i);
  spec.body = [&] {
    for (int i = 0; i < kCount; ++i) {
      int content = -1;
      if (pread(3 + i, &content, sizeof(content), 0) != sizeof(content) ||
          content != kCount - 1 - i) {
        return 1;
      }
    }
    if (Inherited() != expected) return 2;
    if (std::string(getenv("LISTEN_FDNAMES")) != names) return 3;
    if (std::string(getenv("LISTEN_FDS")) != std::to_string(kCount)) return 4;
    return std::string(getenv("LISTEN_PID")) == std::to_string(getpid()) ? 0
                                                                         : 5;
  };
  StatusOr<Process> process = Process::Start(spec);
  ASSERT_TRUE(process.ok()) << process.status().message();
  const std::optional<ProcessExit> ended = process->WaitFor(60);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->ToString(), "ended with status 0");
}

class PrivateBrokerTest : public CommandTest {
 protected:
  PrivateBrokerTest() {
    setenv("PENSTOCKD",
           PENSTOCK_SOURCE_DIR "/tests/command/command_fake_penstockd.py", 1);
    fs::create_directory(folder_ + "/instances");
    options_.environment = {
        {"FAKE_PENSTOCKD_INSTANCES", folder_ + "/instances"}};
  }

  // Starts a broker whose fake misbehaves in this mode.
  std::unique_ptr<PrivateBroker> Start(const std::string& mode) {
    options_.environment.emplace_back("FAKE_PENSTOCKD", mode);
    StatusOr<std::unique_ptr<PrivateBroker>> broker =
        PrivateBroker::Start(options_);
    EXPECT_TRUE(broker.ok()) << broker.status().message();
    return std::move(*broker);
  }

  // Tends until this holds or the broker is given up.
  template <typename Condition>
  Status TendUntil(PrivateBroker& broker, const Condition& holds) {
    for (;;) {
      PENSTOCK_RETURN_IF_ERROR(broker.Tend(Collect()));
      if (holds()) return OkStatus();
      std::vector<pollfd> entries;
      broker.AddTo(&entries);
      int timeout_ms = -1;
      if (const auto at = broker.TendAt()) {
        const auto left =
            std::chrono::ceil<milliseconds>(*at - PrivateBroker::Clock::now());
        timeout_ms = static_cast<int>(std::max<int64_t>(left.count(), 0));
      }
      poll(entries.data(), entries.size(), timeout_ms);
    }
  }
  // Tends until a process other than this one is ready.
  Status TendUntilReady(PrivateBroker& broker, pid_t former = -1) {
    return TendUntil(broker, [&] {
      return broker.process().pid() != former && broker.store().ready();
    });
  }
  PrivateBroker::Report Collect() {
    return [this](const std::string& news) { messages_.push_back(news); };
  }

  PrivateBrokerOptions options_;
  std::vector<std::string> messages_;
};

TEST_F(PrivateBrokerTest, ItsFolderIsPrivateAndGoesWithAllThatIsInIt) {
  const std::unique_ptr<PrivateBroker> broker = Start("");
  const std::string state = broker->folder() + "/state";
  struct stat info {};
  ASSERT_EQ(stat(state.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  // A link out of it is removed, but not its target.
  fs::create_directories(folder_ + "/kept/inside");
  fs::create_directory_symlink(folder_ + "/kept", state + "/link");
  fs::create_directories(state + "/a/b");
  ASSERT_TRUE(TendUntilReady(*broker).ok());
  broker->Stop();
  EXPECT_TRUE(fs::is_empty(runtime_));
  EXPECT_TRUE(fs::exists(folder_ + "/kept/inside"));
}

// Makes a folder with content and is killed.
void LeaveFolder() {
  ProcessSpec spec;
  spec.body = [] {
    const StatusOr<PrivateFolder> folder = PrivateFolder::Make();
    if (!folder.ok()) return 1;
    fs::create_directories(folder->path() + "/state/a/b");
    std::ofstream(folder->path() + "/state/journal.set_aside");
    return raise(SIGKILL);
  };
  const StatusOr<Process> killed = Process::Start(spec);
  ASSERT_TRUE(killed.ok());
  const std::optional<ProcessExit> ended = killed->WaitFor(60);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->ShellStatus(), 137);
}

size_t EntriesOf(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder),
                       fs::directory_iterator());
}

TEST_F(PrivateBrokerTest, FoldersOfKilledOwnersAreRemovedByTheNextStart) {
  LeaveFolder();
  ASSERT_EQ(EntriesOf(runtime_), 1u);
  const std::unique_ptr<PrivateBroker> broker = Start("");
  EXPECT_EQ(EntriesOf(runtime_), 1u);
  EXPECT_TRUE(fs::exists(broker->folder() + "/state"));
}

TEST_F(PrivateBrokerTest, WhatIsNoAbandonedFolderIsKept) {
  LeaveFolder();
  const std::string left = fs::directory_iterator(runtime_)->path();
  // A similar name, but not a broker's folder.
  fs::create_directories(runtime_ + "/penstock-mydata/kept");
  fs::permissions(runtime_ + "/penstock-mydata", fs::perms::owner_all);
  // A link to such a folder, another name, and a folder that others can write
  // in.
  fs::rename(left, folder_ + "/elsewhere");
  fs::create_directory_symlink(folder_ + "/elsewhere",
                               runtime_ + "/penstock-aaaaaa");
  fs::copy(folder_ + "/elsewhere", runtime_ + "/penstock-longname",
           fs::copy_options::recursive);
  fs::copy(folder_ + "/elsewhere", runtime_ + "/penstock-bbbbbb",
           fs::copy_options::recursive);
  fs::permissions(runtime_ + "/penstock-bbbbbb", fs::perms::all);
  // A folder whose owner lives.
  StatusOr<PrivateFolder> living = PrivateFolder::Make();
  ASSERT_TRUE(living.ok());
  const std::string path = living->path();
  ASSERT_EQ(EntriesOf(runtime_), 5u);
  PrivateFolder::RemoveAbandoned();
  EXPECT_EQ(EntriesOf(runtime_), 5u);
  EXPECT_TRUE(fs::exists(folder_ + "/elsewhere/state/a/b"));
  // A link in an abandoned folder is not followed.
  living = PrivateFolder();
  fs::create_directory_symlink(folder_ + "/elsewhere", path + "/link");
  PrivateFolder::RemoveAbandoned();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(folder_ + "/elsewhere/state/a/b"));
}

TEST_F(PrivateBrokerTest,
       CommandsFindABrokerThatIsAnnouncedWhileItsOwnerLives) {
  const auto sockets = [this] {
    std::vector<std::string> here;  // not those of tests beside this one
    for (const std::string& each : PrivateFolder::AnnouncedSockets()) {
      if (each.starts_with(runtime_)) here.push_back(each);
    }
    return here;
  };
  StatusOr<PrivateFolder> run = PrivateFolder::Make();
  StatusOr<PrivateFolder> own = PrivateFolder::Make();  // as of `peek`
  ASSERT_TRUE(run.ok() && own.ok());
  EXPECT_THAT(sockets(), IsEmpty());
  run->Announce();
  EXPECT_THAT(sockets(), ElementsAre(run->socket()));
  own->Announce();
  EXPECT_THAT(sockets(), UnorderedElementsAre(run->socket(), own->socket()));
  EXPECT_THAT(RunningBroker("").status().message(),
              AllOf(HasSubstr("name one of them: --socket "),
                    HasSubstr(run->socket()), HasSubstr(own->socket())));
  EXPECT_EQ(RunningBroker("given").value(), "given");
  run = PrivateFolder();  // its owner's death releases the lock, no more
  EXPECT_THAT(sockets(), ElementsAre(own->socket()));
  // Tests beside this one may have theirs.
  const StatusOr<std::string> found = RunningBroker("");
  EXPECT_THAT(found.ok() ? *found : found.status().message(),
              HasSubstr(own->socket()));
}

TEST_F(PrivateBrokerTest, APenstockdWhoseOwnerWasKilledRemovesItsFolder) {
  setenv("PENSTOCKD", PENSTOCK_BUILD_DIR "/broker/penstockd", 1);
  const pid_t owner = CommandTest::Start({"broker"}, "socket");
  std::string socket;
  std::getline(std::ifstream(folder_ + "/socket"), socket);
  ASSERT_TRUE(fs::exists(socket));
  // A damaged file set aside, for example.
  std::ofstream(fs::path(socket).parent_path() / "state/journal.set_aside");
  kill(owner, SIGKILL);
  EXPECT_EQ(Wait(owner).status, 137);
  // This process has adopted it.
  int status = -1;
  ASSERT_GT(waitpid(-1, &status, 0), 0);
  EXPECT_EQ(status, 0);
  ExpectNothingLeft();
}

TEST_F(PrivateBrokerTest, InstancesDoNotAddUpDescriptors) {
  const size_t before = OpenDescriptors();
  const std::unique_ptr<PrivateBroker> broker = Start("keep");
  ASSERT_TRUE(TendUntilReady(*broker).ok());
  const size_t first = OpenDescriptors();
  EXPECT_THAT(broker->store().descriptors(), SizeIs(3));
  for (int instance = 0; instance < 3; ++instance) {
    const pid_t pid = broker->process().pid();
    broker->process().Signal(SIGKILL);
    ASSERT_TRUE(TendUntilReady(*broker, pid).ok());
    EXPECT_EQ(OpenDescriptors(), first);
  }
  EXPECT_THAT(broker->store().descriptors(), SizeIs(3));
  EXPECT_THAT(messages_, SizeIs(3));
  broker->Stop();
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_GT(broker->cpu_s(), 0);
}

TEST_F(PrivateBrokerTest, WhoConnectsBetweenTwoInstancesIsAnsweredByTheNext) {
  const std::unique_ptr<PrivateBroker> broker = Start("");
  ASSERT_TRUE(TendUntilReady(*broker).ok());
  const pid_t former = broker->process().pid();
  broker->process().Signal(SIGKILL);
  ASSERT_TRUE(broker->Death(60).has_value());
  const StatusOr<Fd> client = ConnectControl(broker->socket());
  ASSERT_TRUE(client.ok()) << client.status().message();
  ASSERT_TRUE(TendUntilReady(*broker, former).ok());
  const StatusOr<Message> answer = Request(client->get(), {{"op", "ping"}});
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->json["pid"], broker->process().pid());
}

TEST_F(PrivateBrokerTest, AGivenUpBrokerRefusesWhoWaitsAndWhoComes) {
  const std::unique_ptr<PrivateBroker> broker = Start("die-again");
  ASSERT_TRUE(TendUntilReady(*broker).ok());
  broker->process().Signal(SIGKILL);
  ASSERT_TRUE(broker->Death(60).has_value());
  // A fork that did not close the listening socket.
  ProcessSpec spec;
  spec.body = [] { return pause(); };
  const StatusOr<Process> holder = Process::Start(spec);
  ASSERT_TRUE(holder.ok());
  const StatusOr<Fd> client = ConnectControl(broker->socket());
  ASSERT_TRUE(client.ok());
  // The path remains, so the socket itself must refuse.
  const std::string path = folder_ + "/link";
  ASSERT_EQ(link(broker->socket().c_str(), path.c_str()), 0);

  const Status status = TendUntil(*broker, [] { return false; });
  EXPECT_THAT(status.message(), HasSubstr("given up after 5 restarts"));
  EXPECT_THAT(messages_, SizeIs(RestartPolicy::kRestartsMax));
  EXPECT_FALSE(broker->Tend(Collect()).ok());
  EXPECT_FALSE(broker->TendAt().has_value());
  std::vector<pollfd> entries;
  broker->AddTo(&entries);
  EXPECT_THAT(entries, IsEmpty());

  EXPECT_FALSE(fs::exists(broker->socket()));
  EXPECT_EQ(ConnectControl(path).status().code(), StatusCode::kUnavailable);
  char byte;
  EXPECT_LE(recv(client->get(), &byte, 1, 0), 0);
  EXPECT_FALSE(broker->Call({{"op", "ping"}}).ok());
}

TEST_F(PrivateBrokerTest, DeathsThatAreExplainedOrBetweenBatchesDoNotCount) {
  for (const char* progress : {",explained", ",takes", ",takes,leaves", ""}) {
    messages_.clear();
    fs::remove_all(folder_ + "/instances");
    fs::create_directory(folder_ + "/instances");
    options_.environment = {
        {"FAKE_PENSTOCKD_INSTANCES", folder_ + "/instances"}};
    const std::unique_ptr<PrivateBroker> broker =
        Start(std::string("die-ready") + progress);
    ASSERT_TRUE(TendUntilReady(*broker).ok());
    broker->process().Signal(SIGKILL);
    const Status status = TendUntil(*broker, [&] {
      return fs::exists(folder_ + "/instances/9") && broker->store().ready();
    });
    if (*progress != '\0') {
      EXPECT_TRUE(status.ok()) << progress << ": " << status.message();
      EXPECT_THAT(messages_, SizeIs(8));
    } else {
      EXPECT_THAT(status.message(), HasSubstr("given up after 5 restarts"));
    }
  }
}

// Every bad sample crashes two instances: more deaths than are allowed without
// progress.
TEST_F(PrivateBrokerTest, ManySamplesThatCrashTheBrokerAreFoundOneByOne) {
  setenv("PENSTOCKD", PENSTOCK_BUILD_DIR "/broker/penstockd", 1);
  setenv("PENSTOCK_PLUGIN_DIR", PENSTOCK_BUILD_DIR "/tests/plugins", 1);
  int stop[2];
  ASSERT_EQ(pipe2(stop, O_CLOEXEC), 0);
  std::promise<std::string> socket;
  testing::internal::CaptureStderr();  // the broker's log
  std::thread keeper([&] {
    PrivateBrokerOptions options;
    options.workers = 1;
    const auto broker = PrivateBroker::Start(options);
    ASSERT_TRUE(broker.ok()) << broker.status().message();
    socket.set_value((*broker)->socket());
    const Status status = (*broker)->TendUntil(stop[0], Collect());
    EXPECT_TRUE(status.ok()) << status.message();
  });
  Options options;
  options.spec =
      "dataset: numbers\nsource: {range: {stop: 40}}\n"
      "map: [{plugin: {library: faulty_plugin.so, function: "
      "crashes_on_sevenths}}]\n"
      "batch: {size: 10}\non_error: skip\n";
  options.rank = 0;
  options.world_size = 1;
  options.job = "many";
  options.socket = socket.get_future().get();
  std::vector<int64_t> ids;
  try {
    Reader reader(options);
    Batch batch;
    for (Reader::Result result = reader.next(&batch);
         result != Reader::Result::kEndOfData; result = reader.next(&batch)) {
      if (result != Reader::Result::kBatch) continue;
      ids.insert(ids.end(), batch.ids().begin(), batch.ids().end());
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  close(stop[1]);
  keeper.join();
  close(stop[0]);
  unsetenv("PENSTOCK_PLUGIN_DIR");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(ids, SizeIs(40 - 6));
  EXPECT_THAT(messages_, SizeIs(2 * 6));
  for (const int64_t bad : {3, 10, 17, 24, 31, 38}) {
    EXPECT_THAT(ids, testing::Not(testing::Contains(bad)));
    const std::string charged = Format(
        "dataset 'numbers': the death of the broker is charged to sample {} in "
        "range value {}, whose decoding crashed or hung; it is ",
        bad, bad);
    EXPECT_THAT(log, HasSubstr(charged + "decoded alone"));
    EXPECT_THAT(log, HasSubstr(charged + "not decoded any more"));
  }
  // This process has adopted the children of brokers that died while populating
  // memory.
  while (waitpid(-1, nullptr, 0) > 0) {
  }
}

TEST_F(PrivateBrokerTest, ABrokerThatWasNeverReadyIsNotRestarted) {
  const std::unique_ptr<PrivateBroker> broker = Start("die");
  const Status status = TendUntil(*broker, [] { return false; });
  EXPECT_THAT(status.message(), HasSubstr("ended with status 7"));
  EXPECT_THAT(messages_, IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ + "/instances/2"));
}

TEST_F(PrivateBrokerTest, AThreadCanKeepItForAProgramWithoutALoop) {
  const size_t before = OpenDescriptors();
  int stop[2];
  ASSERT_EQ(pipe2(stop, O_CLOEXEC), 0);
  std::promise<std::string> socket;
  std::thread keeper([&] {
    const std::unique_ptr<PrivateBroker> broker = Start("");
    socket.set_value(broker->socket());
    EXPECT_TRUE(broker->TendUntil(stop[0], Collect()).ok());
  });
  const std::string path = socket.get_future().get();
  const auto pid = [&] {
    return (*CallBroker(path, {{"op", "ping"}}))["pid"].get<pid_t>();
  };
  const pid_t first = pid();
  kill(first, SIGKILL);
  WaitForFile("instances/2");
  EXPECT_NE(pid(), first);
  close(stop[1]);
  keeper.join();
  close(stop[0]);
  EXPECT_THAT(messages_, SizeIs(1));
  EXPECT_EQ(OpenDescriptors(), before);
  ExpectNothingLeft();
}

class SuperviseTest : public PrivateBrokerTest {
 protected:
  SupervisedRank Rank(const std::string& name, const std::string& script,
                      int stdin_fd) {
    ProcessSpec spec;
    spec.argv = {"sh", "-c", script};
    spec.stdin_fd = stdin_fd;
    SupervisedRank rank;
    rank.name = name;
    StatusOr<Process> process = Process::Start(spec);
    EXPECT_TRUE(process.ok()) << process.status().message();
    rank.process = std::move(*process);
    return rank;
  }
};

TEST_F(SuperviseTest, ARankThatEndsWellWhileOthersGoOnIsToldOf) {
  const std::unique_ptr<PrivateBroker> broker = Start("");
  // The last rank waits for the message on stderr.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const std::string folder = folder_;
  std::vector<SupervisedRank> ranks;
  ranks.push_back(Rank("rank 0", "exit 0", -1));
  ranks.push_back(Rank("rank 1", "exit 0", -1));
  ranks.push_back(Rank(
      "rank 2", "read line; echo \"$line\" >" + folder + "/told", ends[0]));
  ASSERT_TRUE(ranks[0].process.WaitFor(60).has_value());
  ASSERT_TRUE(ranks[1].process.WaitFor(60).has_value());
  const int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  SuperviseOptions options;
  options.early_end_s = 0.01;
  const int status = Supervise(ranks, *broker, options);
  dup2(saved, STDERR_FILENO);
  for (const int fd : {saved, ends[0], ends[1]}) close(fd);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Read("told"),
            "penstock: rank 0, rank 1 ended with status 0 while 1 other goes "
            "on\n");
}

TEST_F(SuperviseTest, RanksThatEndTogetherAreNotToldOf) {
  const std::unique_ptr<PrivateBroker> broker = Start("");
  std::vector<SupervisedRank> ranks;
  ranks.push_back(Rank("rank 0", "exit 0", -1));
  ASSERT_TRUE(ranks[0].process.WaitFor(60).has_value());
  ranks.push_back(Rank("rank 1", "exit 0", -1));
  testing::internal::CaptureStderr();
  EXPECT_EQ(Supervise(ranks, *broker, {}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace penstock::private_broker_test
