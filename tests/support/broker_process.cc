// Starts and stops the penstockd of a test, and asks it questions.
#include "tests/support/broker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "common/message.h"

namespace penstock {

BrokerProcess::BrokerProcess(std::vector<std::string> arguments,
                             bool private_broker, std::function<void()> enter)
    : enter_(std::move(enter)) {
  std::string name =
      (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX");
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
  folder_ = name;
  socket_ = folder_ / "sock";
  words_ = {PENSTOCK_BUILD_DIR "/broker/penstockd"};
  if (private_broker) words_.push_back("--private");
  words_.insert(words_.end(), arguments.begin(), arguments.end());
  Start();
}

void BrokerProcess::Start() {
  // Passed on listening, as by systemd: clients wait in the backlog until the
  // broker is up, without polling.
  const Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  unlink(socket_.c_str());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_.c_str(), sizeof(address.sun_path) - 1);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(listener.get(), 128) != 0) {
    throw std::runtime_error("listen at " + socket_);
  }
  std::vector<char*> argv;
  for (std::string& word : words_) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string cache = folder_ / "cache";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (enter_) enter_();
    // dup2 onto itself would leave close-on-exec set.
    if (listener.get() == 3) fcntl(3, F_SETFD, 0);
    dup2(listener.get(), 3);
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    setenv("PENSTOCK_CACHE_DIR", cache.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  if (pid_ < 0) throw std::runtime_error("fork");
}

BrokerProcess::~BrokerProcess() {
  if (pid_ > 0) Stop(SIGTERM);
  std::filesystem::remove_all(folder_);
}

int BrokerProcess::Stop(int signal) {
  kill(pid_, signal);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

uint64_t BrokerProcess::RowsMade() const {
  const StatusOr<Fd> socket = ConnectControl(socket_);
  if (!socket.ok()) throw std::runtime_error(socket.status().message());
  const StatusOr<Message> answer = Request(socket->get(), {{"op", "jobs"}});
  if (!answer.ok()) throw std::runtime_error(answer.status().message());
  uint64_t rows = 0;
  for (const nlohmann::json& job : answer->json.at("jobs")) {
    rows += job.at("rows").get<uint64_t>();
  }
  return rows;
}

std::map<std::string, std::string> BrokerProcess::OfWorkers(
    const std::string& field) const {
  std::map<std::string, std::string> values;
  for (const auto& task : std::filesystem::directory_iterator(
           "/proc/" + std::to_string(pid_) + "/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.rfind("worker ", 0) != 0) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      const std::string key = field + ":\t";
      if (line.rfind(key, 0) == 0) values[name] = line.substr(key.size());
    }
  }
  return values;
}

std::string BrokerProcess::Write(const std::string& name,
                                 const std::string& text) const {
  const std::filesystem::path path = folder_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

}  // namespace penstock
