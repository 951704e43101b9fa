#include "client/own_broker.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <vector>

extern char** environ;

namespace penstock {
namespace {

// PENSTOCK_COMMAND, where it is installed or built beside this library, else in
// PATH.
std::string FindCommand() {
  if (const char* path = std::getenv("PENSTOCK_COMMAND");
      path != nullptr && *path != '\0') {
    return path;
  }
  Dl_info library;
  if (dladdr(reinterpret_cast<void*>(&FindCommand), &library) != 0 &&
      library.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(library.dli_fname).parent_path();
    for (const char* place : {"bin/penstock", "command/penstock",
                              "../bin/penstock", "../../bin/penstock"}) {
      const std::string path = (folder / place).string();
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return "penstock";
}

struct Pipe {
  Fd read;
  Fd write;
};

StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

// Up to the first end of line, or all there is.
std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0;;) {
    const ssize_t bytes = read(fd, &c, 1);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0 || c == '\n') return line;
    line += c;
  }
}

}  // namespace

StatusOr<std::unique_ptr<OwnBroker>> OwnBroker::Start(
    const OwnBrokerOptions& options) {
  const std::string command = FindCommand();
  std::vector<std::string> words = {command, "broker", "--until-eof"};
  if (options.workers > 0) {
    words.push_back(fmt::format("--workers={}", options.workers));
  }
  if (!options.memory_limit.empty()) {
    words.push_back("--memory-limit=" + options.memory_limit);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  PENSTOCK_ASSIGN_OR_RETURN(Pipe input, MakePipe());
  PENSTOCK_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
  std::unique_ptr<OwnBroker> broker(new OwnBroker());
  const int error = posix_spawnp(&broker->pid_, command.c_str(), &actions,
                                 nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    broker->pid_ = -1;
    return ErrnoError(
        error, fmt::format("start a private broker by '{}' (PENSTOCK_COMMAND "
                           "names the `penstock` program)",
                           command));
  }
  broker->input_ = std::move(input.write);
  output.write.Reset();
  broker->socket_ = ReadLine(output.read.get());
  if (broker->socket_.empty()) {
    return UnavailableError(
        "the private broker did not start: `penstock broker` says why on "
        "standard error");
  }
  return broker;
}

OwnBroker::~OwnBroker() {
  input_.Reset();
  if (pid_ <= 0) return;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

StatusOr<std::string> SocketOfAnyBroker(const std::string& socket) {
  const auto trial = ConnectControl(socket);
  if (trial.ok()) return socket;
  if (trial.status().code() != StatusCode::kNotFound &&
      trial.status().code() != StatusCode::kUnavailable) {
    return trial.status();
  }
  static std::mutex mutex;
  // Ends with the process: the kernel closes its input.
  static OwnBroker* broker = nullptr;
  const std::lock_guard lock(mutex);
  if (broker == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(auto started, OwnBroker::Start({}));
    broker = started.release();
  }
  return broker->socket();
}

}  // namespace penstock
