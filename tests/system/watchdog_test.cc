// Promise: systemd's watchdog hears from penstockd as long as the control
// thread and every worker make turns, idle or busy, whatever a function or a
// read does; and not when one of them stands still. The control thread
// does not wait for a service manager that reads nothing. Method: a service
// with a notification socket of the test; threads of it are stopped by
// ptrace(2).
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::watchdog_test {

using Clock = std::chrono::steady_clock;
// A message every 100 ms.
constexpr char kWatchdogUs[] = "400000";
constexpr std::chrono::milliseconds kSilence{2000};

class WatchdogTest : public testing::Test {
 protected:
  WatchdogTest() : notified_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = std::filesystem::temp_directory_path() /
                             ("penstock-watchdog-" + std::to_string(getpid()));
    unlink(path.c_str());
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(notified_.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)),
              0);
    path_ = path;
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    setenv("WATCHDOG_USEC", kWatchdogUs, 1);
    setenv("PENSTOCK_PYTHON", "/usr/bin/python3", 1);  // the one with NumPy
  }
  ~WatchdogTest() override {
    for (const char* const name : {"NOTIFY_SOCKET", "WATCHDOG_USEC",
                                   "PENSTOCK_PYTHON", "PENSTOCK_PYTHON_PATH"}) {
      unsetenv(name);
    }
    unlink(path_.c_str());
  }

  // Whether WATCHDOG=1 comes within the time; what came before is discarded.
  bool IsFed(std::chrono::milliseconds within = std::chrono::seconds(20)) {
    char text[4096];
    while (recv(notified_.get(), text, sizeof(text), MSG_DONTWAIT) > 0) {
    }
    const Clock::time_point end = Clock::now() + within;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - Clock::now());
      pollfd ready = {notified_.get(), POLLIN, 0};
      if (left.count() <= 0 ||
          poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
        return false;
      }
      const ssize_t bytes = recv(notified_.get(), text, sizeof(text), 0);
      if (bytes > 0 &&
          std::string(text, static_cast<size_t>(bytes)) == "WATCHDOG=1") {
        return true;
      }
    }
  }
  Options OptionsFor(const BrokerProcess& broker, const std::string& rest) {
    Options options;
    options.spec = "dataset: numbers\n" + rest + "batch: {size: 16}\n";
    options.socket = broker.socket();
    options.rank = 0;
    options.world_size = 1;
    options.timeout_s = 30;
    return options;
  }

  const Fd notified_;
  std::string path_;
};

TEST_F(WatchdogTest, AnIdleServiceFeedsIt) {
  const BrokerProcess broker({"--workers", "2"});
  EXPECT_TRUE(IsFed());
  EXPECT_TRUE(IsFed());
}

TEST_F(WatchdogTest, AManagerThatDoesNotReadStopsNothing) {
  const BrokerProcess broker({"--workers", "1"});
  // Longer than it takes to fill the manager's socket (max_dgram_qlen).
  std::this_thread::sleep_for(kSilence);
  const StatusOr<Fd> socket = ConnectControl(broker.socket());
  ASSERT_TRUE(socket.ok()) << socket.status().message();
  EXPECT_TRUE(Request(socket->get(), {{"op", "status"}}).ok());
  EXPECT_TRUE(IsFed());  // reads what is there: the service can say its end
}

TEST_F(WatchdogTest, AHungFunctionDoesNotStarveIt) {
  const std::string folder = std::filesystem::temp_directory_path() /
                             ("penstock-python-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/steps.py")
      << "import time\n\n\ndef hangs(row):\n    time.sleep(1000)\n";
  setenv("PENSTOCK_PYTHON_PATH", folder.c_str(), 1);
  const BrokerProcess broker({"--workers", "1"});
  const Reader reader(OptionsFor(
      broker,
      "source: {range: 1000}\nmap: [{python: {function: \"steps:hangs\"}}]\n"));
  const Clock::time_point end = Clock::now() + 2 * kSilence;
  while (Clock::now() < end) EXPECT_TRUE(IsFed());
  std::filesystem::remove_all(folder);
}

// The thread is one of this process's grandchildren's: ptrace(2) needs only
// that it has the same user, or root. Stopped as it submits reads, it is
// neither asleep nor in a sample, both of which excuse it.
TEST_F(WatchdogTest, AWorkerThatStandsStillStarvesIt) {
  const std::string path = path_ + ".records";
  std::ofstream(path) << std::string(1 << 20, 'x');
  const BrokerProcess broker({"--workers", "1"});
  Reader reader(OptionsFor(
      broker,
      "source: {fixed_length_records: {files: " + path +
          ", features: {x: {dtype: int64, shape: []}}}}\nepochs: forever\n"));
  std::atomic<bool> stop{false};
  std::thread takes([&] {
    Batch batch;
    while (!stop && reader.next(&batch) != Reader::Result::kEndOfData) {
      batch = Batch();
    }
  });
  EXPECT_TRUE(IsFed());
  pid_t worker = 0;
  for (const auto& task : std::filesystem::directory_iterator(
           Format("/proc/{}/task", broker.pid()))) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "worker 0") worker = std::stoi(task.path().filename());
  }
  ASSERT_GT(worker, 0);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, worker, nullptr, PTRACE_O_TRACESYSGOOD), 0)
      << std::strerror(errno);
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, worker, nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(waitpid(worker, &status, __WALL), worker);
  const auto reads = [&] {
    __ptrace_syscall_info call{};
    return status >> 8 == (SIGTRAP | 0x80) &&
           ptrace(PTRACE_GET_SYSCALL_INFO, worker, sizeof(call), &call) > 0 &&
           call.op == PTRACE_SYSCALL_INFO_ENTRY &&
           (call.entry.nr == SYS_preadv2 ||  // what is in the page cache
            (call.entry.nr == SYS_io_uring_enter && call.entry.args[1] > 0));
  };
  while (!reads()) {
    ASSERT_EQ(ptrace(PTRACE_SYSCALL, worker, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(worker, &status, __WALL), worker);
  }
  IsFed(std::chrono::milliseconds(400));  // sees the turns before it
  EXPECT_FALSE(IsFed(kSilence));
  ASSERT_EQ(ptrace(PTRACE_CONT, worker, nullptr, nullptr), 0);
  EXPECT_TRUE(IsFed());  // it goes on
  stop = true;
  takes.join();
  ptrace(PTRACE_INTERRUPT, worker, nullptr, nullptr);
  waitpid(worker, nullptr, __WALL);
  ptrace(PTRACE_DETACH, worker, nullptr, nullptr);
  std::filesystem::remove(path);
}

TEST_F(WatchdogTest, AControlThreadThatStandsStillStarvesIt) {
  const BrokerProcess broker({"--workers", "1"});
  EXPECT_TRUE(IsFed());
  kill(broker.pid(), SIGSTOP);
  IsFed(std::chrono::milliseconds(400));
  EXPECT_FALSE(IsFed(kSilence));
  kill(broker.pid(), SIGCONT);
  EXPECT_TRUE(IsFed());
}

}  // namespace penstock::watchdog_test
