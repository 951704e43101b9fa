#include "client/command/private_broker.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "client/command/interrupt.h"

namespace penstock {
namespace {

constexpr double kStopGrace_s = 5;
constexpr int kBacklog = 128;
constexpr char kSocketName[] = "/penstock.sock";

bool IsProgram(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) &&
         access(path.c_str(), X_OK) == 0;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void PrivateBrokerOptions::AddTo(CLI::App* app) {
  app->add_option("--workers", workers,
                  "Worker threads of the private broker (default: its choice)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096).description(""));
  app->add_option("--memory-limit", memory_limit,
                  "Memory the private broker may promise, as 500M or 8G "
                  "(default: its choice)")
      ->type_name("SIZE");
}

StatusOr<std::string> FindPenstockd() {
  if (const std::string given = Environment("PENSTOCKD"); !given.empty()) {
    if (IsProgram(given)) return given;
    return NotFoundError(
        "PENSTOCKD names '{}', which is no program; set it to penstockd's path "
        "or unset it",
        given);
  }
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"penstockd", "../../broker/penstockd"}) {
    const std::string path = (folder / place).lexically_normal().string();
    if (IsProgram(path)) return path;
  }
  const std::string path = Environment("PATH");
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string candidate =
        path.substr(begin, end - begin) + "/penstockd";
    if (IsProgram(candidate)) return candidate;
    begin = end + 1;
  }
  return NotFoundError(
      "cannot find penstockd: it is neither in '{}' nor in PATH; set PENSTOCKD "
      "to its path",
      folder.string());
}

Status PrivateBroker::MakeFolder() {
  std::vector<std::string> parents = {"/tmp"};
  if (const std::string runtime = Environment("XDG_RUNTIME_DIR");
      !runtime.empty() &&
      runtime.size() + 40 < sizeof(sockaddr_un{}.sun_path)) {
    parents.insert(parents.begin(), runtime);
  }
  int error = 0;
  for (const std::string& parent : parents) {
    std::string path = parent + "/penstock-XXXXXX";
    if (mkdtemp(path.data()) != nullptr) {  // mode 0700
      folder_ = path;
      socket_ = folder_ + kSocketName;
      return OkStatus();
    }
    error = errno;
  }
  return ErrnoError(error,
                    "cannot make a folder for the private broker's socket in "
                    "$XDG_RUNTIME_DIR or /tmp");
}

StatusOr<Fd> PrivateBroker::Listen() const {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError(errno, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) !=
          0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoError(errno, "cannot listen at '" + socket_ + "'");
  }
  return fd;
}

StatusOr<std::unique_ptr<PrivateBroker>> PrivateBroker::Start(
    const PrivateBrokerOptions& options) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string program, FindPenstockd());
  std::unique_ptr<PrivateBroker> broker(new PrivateBroker);
  PENSTOCK_RETURN_IF_ERROR(broker->MakeFolder());
  // Closed here once penstockd has it: then its death closes the socket.
  PENSTOCK_ASSIGN_OR_RETURN(const Fd listener, broker->Listen());
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));

  ProcessSpec spec;
  spec.argv = {program, "--private"};
  if (options.workers > 0) {
    spec.argv.push_back("--workers");
    spec.argv.push_back(std::to_string(options.workers));
  }
  if (!options.memory_limit.empty()) {
    spec.argv.push_back("--memory-limit");
    spec.argv.push_back(options.memory_limit);
  }
  spec.environment = {{"PENSTOCK_SOCKET", broker->socket_}};  // for its status
  spec.stdin_fd = null.get();
  spec.stdout_fd = STDERR_FILENO;  // stdout is the command's result
  spec.listen_fd = listener.get();
  spec.death_signal = SIGTERM;
  PENSTOCK_ASSIGN_OR_RETURN(broker->process_, Process::Start(spec));
  return broker;
}

StatusOr<nlohmann::json> PrivateBroker::Call(const nlohmann::json& request) {
  StatusOr<nlohmann::json> answer = CallBroker(socket_, request);
  if (!answer.ok() && answer.status().code() == StatusCode::kUnavailable) {
    // It has closed the connection: if it is dying, it will be dead shortly.
    if (const std::optional<Status> death = Death(1.0)) return *death;
  }
  return answer;
}

std::optional<Status> PrivateBroker::Death(double wait_s) {
  const std::optional<ProcessExit> ended =
      wait_s > 0 ? process_.WaitFor(wait_s) : process_.Ended();
  if (!ended) return std::nullopt;
  return UnavailableError("the private broker, penstockd (pid {}), {}",
                          process_.pid(), ended->ToString());
}

void PrivateBroker::Stop() {
  if (process_.pid() > 0) {
    process_.Signal(SIGTERM);
    process_.WaitFor(kStopGrace_s);
    process_.Reap();  // SIGKILL for what is left
  }
  if (!folder_.empty()) {
    unlink(socket_.c_str());
    rmdir(folder_.c_str());
    folder_.clear();
  }
}

std::string UniqueJobName(const std::string& prefix) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
  return fmt::format("{}-{}-{:08x}", prefix, getpid(), number);
}

}  // namespace penstock
