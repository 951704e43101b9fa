// Promise: code that runs where pictures are decoded reaches no network, starts
// no program, and changes no file outside of the daemon's folders; functions of
// users run all the same. Method: a step that tries, in a broker with the
// sandbox and in one without, where the attempts succeed.
#include <arpa/inet.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"
#include "tests/support/hostile_attempts.h"

namespace penstock::sandbox_test {

using testing::_;
using testing::Each;
using testing::Gt;
using testing::Pair;

#define NAME_OF(name) #name,
constexpr const char* kAttempts[] = {HOSTILE_ATTEMPTS(NAME_OF)};

class SandboxTest : public testing::Test {
 protected:
  SandboxTest() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::string name =
        std::filesystem::temp_directory_path() / "penstock-hostile-XXXXXX";
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ / "victim") << "untouched";
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)),
              0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    for (const int abstract : {0, 1}) {
      sockaddr_un unix{};
      unix.sun_family = AF_UNIX;
      const std::string path = folder_ / "listens";
      path.copy(unix.sun_path + abstract, path.size());
      Fd& listener = unix_[abstract];
      listener = Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&unix),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                            abstract + path.size())),
                0);
      EXPECT_EQ(listen(listener.get(), 8), 0);
    }
    setenv(HOSTILE_FOLDER, folder_.c_str(), 1);
    setenv(HOSTILE_PORT, std::to_string(ntohs(address.sin_port)).c_str(), 1);
    setenv("PENSTOCK_PLUGIN_DIR", PENSTOCK_BUILD_DIR "/tests/plugins", 1);
  }
  ~SandboxTest() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(folder_.string() + ".yaml");
  }

  // The errno of each attempt; 0: it succeeded.
  std::map<std::string, int> Attempt(const char* sandbox,
                                     const std::string& configuration = "") {
    setenv("PENSTOCK_SANDBOX", sandbox, 1);
    const std::string file = folder_.string() + ".yaml";
    // One worker: one attempt after the other.
    std::ofstream(file) << "workers: 1\n" << configuration;
    const BrokerProcess broker({"--config", file});
    unsetenv("PENSTOCK_SANDBOX");
    Options options;
    options.spec = Format(
        "dataset: attempts\nsource: {{range: {}}}\nbatch: {{size: 1}}\n"
        "map: [{{plugin: {{library: hostile_plugin.so, function: attempts, "
        "features: {{value: {{dtype: int64, shape: []}}}}}}}}]\n",
        std::size(kAttempts));
    options.socket = broker.socket();
    options.rank = 0;
    options.world_size = 1;
    options.timeout_s = 60;
    Reader reader(options);
    const Course course = RunToTheEnd(reader);
    EXPECT_EQ(course.error, "");
    std::map<std::string, int> results;
    for (size_t i = 0; i < course.taken.size(); ++i) {
      results[kAttempts[i]] = static_cast<int>(course.taken[i].rows.at(0));
    }
    return results;
  }
  std::string Victim() const {
    std::string text;
    std::getline(std::ifstream(folder_ / "victim"), text);
    return text;
  }

  std::filesystem::path folder_;
  const Fd listener_;
  Fd unix_[2];
};

TEST_F(SandboxTest, EveryAttemptFailsWithinIt) {
  // io_uring makes sockets of all kinds, which then only the service's network
  // namespace holds.
  auto results = Attempt("required");
  ASSERT_EQ(results.size(), std::size(kAttempts));
  EXPECT_EQ(results["socket_by_io_uring"], 0);
  results.erase("socket_by_io_uring");
  EXPECT_THAT(results, Each(Pair(_, Gt(0))));
  EXPECT_EQ(Victim(), "untouched");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);
}

TEST_F(SandboxTest, WithoutIoUringNotEvenThat) {
  const auto results = Attempt("required", "read_backend: pread\n");
  ASSERT_EQ(results.size(), std::size(kAttempts));
  EXPECT_THAT(results, Each(Pair(_, Gt(0))));
}

TEST_F(SandboxTest, FunctionsRunOutsideOfItAndTheirTimeCounts) {
  std::ofstream(folder_ / "steps.py")
      << "import os, time\n\n\n"
         "def writes(row):\n"
         "    while time.process_time() < 0.5:\n"
         "        pass\n"
         "    open(os.environ['" HOSTILE_FOLDER
         "'] + '/made', 'w').close()\n"
         "    return row\n";
  setenv("PENSTOCK_PYTHON_PATH", folder_.c_str(), 1);
  setenv("PENSTOCK_PYTHON", "/usr/bin/python3", 1);  // the one with NumPy
  const BrokerProcess broker;
  unsetenv("PENSTOCK_PYTHON_PATH");
  unsetenv("PENSTOCK_PYTHON");
  Options options;
  options.spec =
      "dataset: functions\nsource: {range: 4}\nbatch: {size: 1}\n"
      "map: [{python: {function: \"steps:writes\"}}]\n";
  options.socket = broker.socket();
  options.rank = 0;
  options.world_size = 1;
  options.timeout_s = 60;
  {
    Reader reader(options);
    const Course course = RunToTheEnd(reader);
    EXPECT_EQ(course.error, "");
    EXPECT_EQ(course.taken.size(), 4u);
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "made"));
  // Once its processes have ended.
  const auto cpu_s = [&] {
    const StatusOr<Fd> socket = ConnectControl(broker.socket());
    return Request(socket->get(), {{"op", "status"}})
        ->json.at("broker")
        .at("cpu_s")
        .get<double>();
  };
  for (int i = 0; i < 1000 && cpu_s() < 0.5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_GE(cpu_s(), 0.5);
}

// Else the attempts above would show nothing.
TEST_F(SandboxTest, EveryAttemptSucceedsWithoutIt) {
  auto results = Attempt("off");
  ASSERT_EQ(results.size(), std::size(kAttempts));
  // Nor can this process in a chroot (tests/debian_13).
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) results.erase("a_user_namespace");
  for (const auto& [attempt, error] : results) {
    EXPECT_EQ(error, 0) << attempt << ": " << std::strerror(error);
  }
}

}  // namespace penstock::sandbox_test
