// Promise: ranks in containers (PID, user, network, IPC, UTS and mount
// namespaces of their own, no /dev/shm) attach, die, are evicted and replaced
// as others are, beside any broker, or are refused with the reason; nobody
// reads by a container what she could not read; a broker in a container does
// without what is kept from it, and says so. Method: the namespaces, as root.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "broker/recovery/recorded_job.h"
#include "common/message.h"
#include "tests/support/delivery_fixture.h"
#include "tests/support/namespaces.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace penstock::containers_test {

using testing::HasSubstr;
using testing::Not;
using What = RankProcess::What;

constexpr uid_t kAlice = 61001;
constexpr uid_t kBob = 61002;
constexpr char kInside[] = "/mnt/penstock";  // the broker's folder, in there
constexpr int kAllNamespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET |
                               CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

// Into a container of this user, who is root in there, and sees nothing of the
// machine's /tmp and /dev/shm.
void EnterContainer(const std::string& socket_folder, uid_t user) {
  EnterUserNamespace("0 " + std::to_string(user) + " 1\n", 0);
  EnterNamespaces(kAllNamespaces);
  HideFolder("/mnt");
  BindFolder(socket_folder, kInside);
  HideFolder("/tmp");
  HideFolder("/dev/shm");
  MakeReadOnly("/dev/shm");  // so that nothing can be made there
}

class ContainersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root";
    if (!MayEnterNamespaces()) GTEST_SKIP() << "no namespaces here (a chroot?)";
    std::string pattern = testing::TempDir() + "penstock-containers-XXXXXX";
    folder_ = std::filesystem::canonical(mkdtemp(pattern.data()));
    chmod(folder_.c_str(), 0755);
  }
  void TearDown() override {
    broker_.reset();
    std::filesystem::remove_all(folder_);
  }

  // A service that all users may connect to.
  void StartBroker(const std::string& configuration = "workers: 1\n",
                   const std::function<void()>& enter = nullptr) {
    const std::string file = folder_ + "/penstockd.yaml";
    std::ofstream(file) << configuration;
    // Its folder is searched by other users once it is there; the socket too.
    broker_ = std::make_unique<BrokerProcess>(
        std::vector<std::string>{"--config", file}, false, enter);
    chmod(broker_->folder().c_str(), 0755);
    chmod(broker_->socket().c_str(), 0666);
  }

  static Options OptionsFor(int rank, int world_size, const std::string& spec) {
    Options options;
    options.spec = spec;
    options.rank = rank;
    options.world_size = world_size;
    options.socket = std::string(kInside) + "/sock";
    static int jobs = 0;
    options.job = world_size > 1 ? "contained" : Format("job {}", ++jobs);
    options.timeout_s = 60;
    return options;
  }
  static std::string Numbers(int rows) {
    return "dataset: numbers\nsource: {range: " + std::to_string(rows) +
           "}\nbatch: {size: 8}\nprefetch: 3\n";
  }
  RankProcess StartContained(const Options& options, uid_t user = kAlice) {
    return RankProcess(options, [folder = broker_->folder().string(), user] {
      EnterContainer(folder, user);
    });
  }
  nlohmann::json Ask(nlohmann::json request) {
    const StatusOr<Fd> socket = ConnectControl(broker_->socket());
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    StatusOr<Message> answer = Request(socket->get(), std::move(request));
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return answer->json;
  }
  nlohmann::json RankStatus(int rank) {
    const nlohmann::json answer = Ask({{"op", "status"}});
    for (const nlohmann::json& job : answer.at("jobs")) {
      for (const nlohmann::json& each : job.at("ranks")) {
        if (each.at("rank") == rank) return each;
      }
    }
    return {};
  }
  void WaitUntilGone(int rank) {
    const auto give_up =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      const nlohmann::json status = RankStatus(rank);
      if (!status.is_object() || status.at("state") != "attached") return;
      ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    }
  }

  // Two ranks: one dies with batches and is replaced, and the replacement is
  // evicted and replaced. All rows come.
  void DieAndBeEvicted() {
    const std::string spec = Numbers(160);
    RankProcess other = StartContained(OptionsFor(0, 2, spec));
    RankProcess rank = StartContained(OptionsFor(1, 2, spec));
    ASSERT_EQ(other.Attached().value("error", ""), "");
    ASSERT_EQ(rank.Attached().value("error", ""), "");
    Rows rows;
    const auto take = [&rows](RankProcess& from, bool marked) {
      const RankProcess::Event event = from.Next();
      ASSERT_EQ(event.what, What::kBatch) << event.error;
      EXPECT_EQ(event.taken.redelivered, marked);
      if (!marked) Append({event.taken}, &rows);
    };
    take(rank, false);
    take(rank, false);
    rank.Kill();
    WaitUntilGone(1);

    RankProcess second = StartContained(OptionsFor(1, 2, spec));
    ASSERT_EQ(second.Attached().value("error", ""), "");
    take(second, true);
    take(second, true);
    take(second, false);
    second.Release(3);
    second.SendNext();  // is answered, so the releases are seen
    Append({second.ReceiveNext().taken}, &rows);
    second.Release(1);
    nlohmann::json evict = {{"op", "evict"}, {"job", "contained"}, {"rank", 1}};
    EXPECT_TRUE(Ask(evict).value("ok", false));
    RankProcess::Event told = second.Next();
    EXPECT_EQ(told.what, What::kError);
    EXPECT_THAT(told.error, HasSubstr("evicted"));
    second.Kill();
    WaitUntilGone(1);

    RankProcess third = StartContained(OptionsFor(1, 2, spec));
    ASSERT_EQ(third.Attached().value("error", ""), "");
    for (RankProcess* each : {&other, &third}) {
      each->Run();
    }
    for (RankProcess* each : {&other, &third}) {
      const Course course = each->Finished();
      EXPECT_EQ(course.code, 0) << course.error;
      for (const Taken& taken : course.taken) {
        if (!taken.redelivered) Append({taken}, &rows);
      }
    }
    EXPECT_EQ(Sorted(rows), penstock::Numbers(160));
  }

  std::string folder_;
  std::unique_ptr<BrokerProcess> broker_;
};

TEST_F(ContainersTest, RanksDieAndAreEvictedBesideABrokerOfTheHost) {
  StartBroker();
  DieAndBeEvicted();
}

TEST_F(ContainersTest, TheHostsBrokerNamesThemAsItSeesThem) {
  StartBroker();
  RankProcess rank = StartContained(OptionsFor(0, 1, Numbers(80)));
  ASSERT_EQ(rank.Attached().value("error", ""), "");
  const nlohmann::json status = RankStatus(0);
  // Process 1 in there.
  const std::string file =
      "/proc/" + std::to_string(status.at("pid").get<pid_t>()) + "/status";
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("PPid:\t" + std::to_string(rank.pid())));
  EXPECT_EQ(Ask({{"op", "status"}}).at("jobs")[0].at("uid"), kAlice);
}

TEST_F(ContainersTest, RanksDieAndAreEvictedBesideABrokerInAContainer) {
  StartBroker("workers: 1\n", [] { EnterNamespaces(kAllNamespaces); });
  DieAndBeEvicted();
}

TEST_F(ContainersTest, ABrokerThatDoesNotSeeThemGivesNoPid) {
  StartBroker("workers: 1\n", [] { EnterNamespaces(kAllNamespaces); });
  RankProcess rank = StartContained(OptionsFor(0, 1, Numbers(80)));
  ASSERT_EQ(rank.Attached().value("error", ""), "");
  const nlohmann::json status = RankStatus(0);
  EXPECT_EQ(status.at("state"), "attached");
  EXPECT_FALSE(status.contains("pid"));
}

TEST_F(ContainersTest, WithoutPidfdsOfPeersThoseThatItDoesNotSeeAreRefused) {
  StartBroker("workers: 1\n", [] {
    EnterNamespaces(kAllNamespaces);
    DenySocketOption(SO_PEERPIDFD);
  });
  RankProcess rank = StartContained(OptionsFor(0, 1, Numbers(80)));
  EXPECT_THAT(rank.Attached().value("error", ""),
              HasSubstr("cannot see your process, and would not notice its "
                        "end: it is in a PID namespace beside the broker's"));
  // `penstock status` needs no death.
  EXPECT_TRUE(Ask({{"op", "status"}}).at("jobs").empty());
}

TEST_F(ContainersTest, OfAnOlderKernelTheHostSeesAllProcesses) {
  StartBroker("workers: 1\n", [] { DenySocketOption(SO_PEERPIDFD); });
  DieAndBeEvicted();
}

TEST_F(ContainersTest, UsersThatABrokerCannotTellApartAreRefused) {
  StartBroker("workers: 1\n", [] {
    EnterUserNamespace("0 0 1\n1000 " + std::to_string(kAlice) + " 1\n", 0);
  });
  RankProcess alice = StartContained(OptionsFor(0, 1, Numbers(80)));
  EXPECT_EQ(alice.Attached().value("error", ""), "");
  EXPECT_EQ(Ask({{"op", "status"}}).at("jobs")[0].at("uid"), 1000);
  RankProcess bob = StartContained(OptionsFor(0, 1, Numbers(80)), kBob);
  EXPECT_THAT(bob.Attached().value("error", ""),
              HasSubstr("user namespace (a rootless container) that does not "
                        "know your user"));
}

// ---- files

TEST_F(ContainersTest, FoldersAreNamedAsTheContainerSeesThem) {
  const std::string outside = folder_ + "/outside";
  std::filesystem::create_directories(outside);
  std::ofstream(outside + "/lines") << "one\ntwo\nthree\n";
  chmod((outside + "/lines").c_str(), 0600);
  StartBroker("workers: 1\ndata: [{path: " + outside + ", as: /data}]\n");
  const auto spec = [](const std::string& files) {
    return "dataset: lines\nsource:\n  text_lines: {files: \"" + files +
           "\", max_bytes: 8}\nbatch: {size: 3}\n";
  };
  for (const char* const files :
       {"/data/lines", "/data/l*", "/data//./lines"}) {
    RankProcess rank = StartContained(OptionsFor(0, 1, spec(files)));
    EXPECT_EQ(rank.Attached().value("error", ""), "") << files;
  }
  std::filesystem::create_directories(outside + "/pictures/a");
  std::ofstream(outside + "/pictures/a/1.jpg") << "no picture, but read";
  for (int i = 0; i < 2; ++i) {  // found, then known from the cache
    RankProcess rank = StartContained(OptionsFor(
        0, 1,
        "dataset: pictures\nsource: {image_folder: {path: /data/pictures}}\n"
        "map: [{decode_image: {size: 4}}]\nbatch: {size: 1}\non_error: "
        "skip\n"));
    EXPECT_EQ(rank.Attached().value("error", ""), "");
  }
  RankProcess none = StartContained(OptionsFor(0, 1, spec("/data/none")));
  EXPECT_THAT(none.Attached().value("error", ""),
              HasSubstr("/data/none: " + outside +
                        "/none: there is no such file or folder"));
}

TEST_F(ContainersTest, RootOfAContainerReadsWhatDataLetsItRead) {
  const std::string open = folder_ + "/open";
  std::filesystem::create_directories(open);
  for (const char* const name : {"/open/lines", "/lines"}) {
    std::ofstream(folder_ + name) << "one\n";
  }
  StartBroker("workers: 1\ndata: [{path: " + open + "}]\n");
  const auto error = [&](const std::string& path) {
    // No user namespace: root in there is root for the broker.
    RankProcess rank(
        OptionsFor(0, 1,
                   "dataset: lines\nsource: {text_lines: {files: " + path +
                       ", max_bytes: 8}}\nbatch: {size: 1}\n"),
        [folder = broker_->folder().string()] {
          EnterNamespaces(kAllNamespaces);
          HideFolder("/mnt");
          BindFolder(folder, kInside);
        });
    return rank.Attached().value("error", "");
  };
  EXPECT_EQ(error(open + "/lines"), "");
  EXPECT_THAT(error(folder_ + "/lines"), HasSubstr("not below a folder"));
}

// ---- a broker that is kept from much

// As by the seccomp profiles of Docker and containerd, without CAP_SYS_NICE.
void DenyAsContainersDo() {
  DropCapabilities();
  DenySystemCalls({SYS_io_uring_setup, SYS_io_uring_enter,
                   SYS_io_uring_register, SYS_mbind, SYS_set_mempolicy,
                   SYS_migrate_pages, SYS_move_pages});
}

TEST_F(ContainersTest, ABrokerDoesWithoutWhatIsKeptFromItAndSaysSoOnce) {
  const std::string state = folder_ + "/state";
  std::filesystem::create_directories(state);
  testing::internal::CaptureStderr();
  StartBroker("state_dir: " + state + "\ncache_dir: /var/cache/penstock\n",
              [state] {
                EnterNamespaces(kAllNamespaces);
                BindFolder(state, state);  // a volume
                HideFolder("/dev/shm");
                MakeReadOnly("/dev/shm");
                MakeReadOnly("/");
                DenyAsContainersDo();
              });
  RankProcess rank = StartContained(OptionsFor(0, 1, Numbers(160)));
  EXPECT_EQ(rank.Attached().value("error", ""), "");
  rank.Run();
  EXPECT_EQ(rank.Finished().code, 0);
  broker_->Stop(SIGTERM);
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* const what :
       {"reads by pread (io_uring: Operation not permitted)",
        "no memory that outlives this process: make a folder in /dev/shm: "
        "Read-only file system",
        "cache_dir: /var/cache/penstock: Read-only file system: indexes are "
        "made anew"}) {
    const size_t at = said.find(what);
    EXPECT_NE(at, said.npos) << what << ", of\n" << said;
    EXPECT_EQ(said.find(what, at + 1), said.npos) << said;
  }
}

TEST_F(ContainersTest, TheSharedMemoryOfAContainerMayBeTiny) {
  const std::string state = folder_ + "/state";
  std::filesystem::create_directories(state);
  testing::internal::CaptureStderr();
  StartBroker("state_dir: " + state + "\n", [] {
    EnterNamespaces(kAllNamespaces);
    Must(mount("none", "/dev/shm", "tmpfs", 0, "size=64m") == 0, "/dev/shm");
  });
  // Batches of 256 MB are no matter of /dev/shm.
  Options options = OptionsFor(
      0, 1,
      "dataset: large\nsource: {synthetic: {records: 32, features: {x: {dtype: "
      "uint8, shape: [16777216]}}}}\nbatch: {size: 4}\nprefetch: 3\n");
  RankProcess rank(options, [folder = broker_->folder().string()] {
    EnterContainer(folder, kAlice);
  });
  EXPECT_EQ(rank.Attached().value("error", ""), "");
  const nlohmann::json status = Ask({{"op", "status"}});
  EXPECT_GE(status.at("jobs")[0].at("memory_bytes"), uint64_t{256} << 20);
  broker_->Stop(SIGTERM);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              Not(HasSubstr("no memory that outlives")));
}

// The folder in which cgroups with a limit of memory can be made, or "".
std::string MemoryCgroups() {
  for (const char* const each : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
    std::ifstream controllers(std::string(each) + "/cgroup.subtree_control");
    std::string all;
    std::getline(controllers, all);
    if (std::filesystem::exists(std::string(each) + "/memory.limit_in_bytes") ||
        all.find("memory") != all.npos) {
      return each;
    }
  }
  return "";
}

TEST_F(ContainersTest, AJobThatASmallMemoryCgroupDoesNotHoldIsRefused) {
  const std::string all = MemoryCgroups();
  if (all.empty()) GTEST_SKIP() << "no cgroups of the memory controller here";
  const std::string cgroup = all + "/penstock-test-" + std::to_string(getpid());
  ASSERT_EQ(mkdir(cgroup.c_str(), 0755), 0) << strerror(errno);
  const bool v1 = std::filesystem::exists(cgroup + "/memory.limit_in_bytes");
  std::ofstream(cgroup + (v1 ? "/memory.limit_in_bytes" : "/memory.max"))
      << (256 << 20) << std::flush;
  StartBroker("workers: 1\n", [cgroup] {
    std::ofstream file(cgroup + "/cgroup.procs");
    Must((file << getpid()).flush().good(), "enter the cgroup");
  });
  const auto start = [&](int mib) {
    return StartContained(OptionsFor(
        0, 1,
        Format("dataset: large\nsource: {{synthetic: {{records: 8, features: "
               "{{value: {{dtype: int64, shape: []}}, x: {{dtype: uint8, "
               "shape: [{}]}}}}}}}}\nbatch: {{size: 1}}\n"
               "prefetch: 1\n",
               mib << 20)));
  };
  RankProcess large = start(200);
  EXPECT_THAT(large.Attached().value("error", ""),
              HasSubstr(v1 ? "memory.limit_in_bytes of cgroup /penstock-test-"
                           : "memory.max of cgroup /penstock-test-"));
  RankProcess small = start(4);
  EXPECT_EQ(small.Attached().value("error", ""), "");
  small.Run();
  const Course course = small.Finished();
  EXPECT_EQ(course.code, 0) << course.error;
  EXPECT_EQ(course.taken.size(), 8u);
  small.Detach();
  broker_.reset();
  EXPECT_EQ(rmdir(cgroup.c_str()), 0) << strerror(errno);
}

// ---- identity of processes that are not visible

TEST_F(ContainersTest, ProcessesAreToldApartWhereTheyHaveNoNumber) {
  const auto pidfd = [](pid_t pid) {
    return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  };
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  const int own = pidfd(getpid());
  const int again = pidfd(getpid());
  const int of_other = pidfd(other);
  EXPECT_EQ(PidOf(own), getpid());
  const pid_t inside = fork();
  if (inside == 0) {
    EnterNamespaces(CLONE_NEWPID | CLONE_NEWNS);
    _exit((PidOf(own) == 0 && IsSameProcess(own, again) ? 0 : 1) |
          (!IsSameProcess(own, of_other) ? 0 : 2));
  }
  int status = 0;
  waitpid(inside, &status, 0);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  EXPECT_EQ(status, 0);
  for (const int fd : {own, again, of_other}) close(fd);
}

}  // namespace penstock::containers_test
