#include "client/attach/own_broker.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "client/attach/launcher.h"
#include "common/message.h"
#include "common/quantity.h"

extern char** environ;

namespace penstock {
namespace {

// The limit of `penstock broker`.
constexpr int64_t kWorkersMax = 4096;
// `penstock broker` gives its penstockd 5 s.
constexpr std::chrono::seconds kStopGrace{10};

// PENSTOCK_COMMAND, else the program installed or built beside this library,
// else the one in PATH.
std::string FindCommand() {
  if (const char* path = std::getenv("PENSTOCK_COMMAND");
      path != nullptr && *path != '\0') {
    return path;
  }
  Dl_info library;
  if (dladdr(reinterpret_cast<void*>(&FindCommand), &library) != 0 &&
      library.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(library.dli_fname).parent_path();
    for (const char* relative : {"bin/penstock", "command/penstock",
                                 "../bin/penstock", "../../bin/penstock"}) {
      const std::string path = (folder / relative).string();
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return "penstock";
}

// Reads to the end of the line or of the file.
std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0;;) {
    const ssize_t bytes = read(fd, &c, 1);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0 || c == '\n') return line;
    line += c;
  }
}

// posix_spawn attributes that keep the trainer's signals (Ctrl-C, `kill 0`, a
// notebook's interrupt) from the broker: own process group, empty mask.
class SpawnApart {
 public:
  SpawnApart() {
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
  }
  ~SpawnApart() { posix_spawnattr_destroy(&attributes_); }
  SpawnApart(const SpawnApart&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// Parses the line by which `penstock broker --until-eof` says why it failed.
Status WhyNot(const std::string& line) {
  int code = 0;
  int text = 0;  // offset of the text
  if (std::sscanf(line.c_str(), "error %d %n", &code, &text) == 1 && code > 0) {
    return Status(static_cast<StatusCode>(code),
                  line.substr(static_cast<size_t>(text)));
  }
  return UnavailableError(
      "the private broker did not start: `penstock broker` says why on "
      "standard error");
}

// A folder of this user alone.
StatusOr<std::string> FolderOfLaunches() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string folder;
  for (const char* each : {runtime, "/dev/shm", "/tmp"}) {
    if (each != nullptr && access(each, W_OK | X_OK) == 0) {
      folder = Format("{}/penstock-launches-{}", each, geteuid());
      break;
    }
  }
  struct stat st;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError(errno, Format("make '{}'", folder));
  }
  if (lstat(folder.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) ||
      st.st_uid != geteuid() || (st.st_mode & 0077) != 0) {
    return FailedPreconditionError(
        "'{}' is not a folder of this user alone: remove it", folder);
  }
  return folder;
}

// The start time of a process, which tells it from a later one of its number.
std::string StartTimeOf(pid_t pid) {
  std::ifstream file(Format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  std::istringstream words(text.substr(text.rfind(')') + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) words >> word;
  return word;
}

// The file by which the ranks of this launch find their broker. Named for the
// launcher's id of the run and the address where its ranks meet; else for the
// process that started them.
StatusOr<std::string> PlaceOfLaunch() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string folder, FolderOfLaunches());
  const Environment environment = ProcessEnvironment();
  PENSTOCK_ASSIGN_OR_RETURN(const LaunchInfo info, DetectLaunch(environment));
  std::string name =
      Format("{} {} {}", info.job, environment("MASTER_ADDR").value_or(""),
             environment("MASTER_PORT").value_or(""));
  if (name == "  ") {
    name = Format("{} {}", getppid(), StartTimeOf(getppid()));
  }
  name = info.launcher + " " + name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return folder + "/" + name.substr(0, 200);
}

// Opens the launch's file and locks it: the holder alone may start a broker or
// remove the file.
StatusOr<Fd> LockPlace(std::string* place) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(*place, PlaceOfLaunch());
    Fd file(
        open(place->c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file && errno == ENOENT) continue;  // the folder was removed
    if (!file) return ErrnoError(errno, Format("open '{}'", *place));
    struct stat st;
    if (TEMP_FAILURE_RETRY(flock(file.get(), LOCK_EX)) != 0 ||
        fstat(file.get(), &st) != 0) {
      return ErrnoError(errno, Format("lock '{}'", *place));
    }
    if (st.st_nlink > 0) return file;  // else it was removed meanwhile
  }
  return UnavailableError("'{}' is removed again and again", *place);
}

// Removes the files of brokers that were killed.
void RemoveOldPlaces(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".fifo") continue;
    const Fd file(open(entry.path().c_str(),
                       O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file || flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    const std::string socket = ReadLine(file.get());
    if (!socket.empty() && ConnectControl(socket).ok()) continue;
    std::filesystem::remove(entry.path().string() + ".fifo", error);
    std::filesystem::remove(entry.path(), error);
  }
}

bool IsOver(int pidfd, std::chrono::milliseconds wait) {
  pollfd entry{pidfd, POLLIN, 0};
  return TEMP_FAILURE_RETRY(poll(&entry, 1, static_cast<int>(wait.count()))) >
         0;
}

}  // namespace

Status OwnBroker::Launch(const OwnBrokerOptions& options, const Fd& input,
                         const std::string& place) {
  const std::string command = FindCommand();
  std::vector<std::string> words = {command, "broker", "--until-eof"};
  if (options.workers > 0) {
    words.push_back(Format("--workers={}", options.workers));
  }
  if (!options.memory_limit.empty()) {
    words.push_back("--memory-limit=" + options.memory_limit);
  }
  if (!place.empty()) words.push_back("--place=" + place);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  PENSTOCK_ASSIGN_OR_RETURN(PipeEnds output, MakePipe());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command.c_str(), &actions,
                                 SpawnApart().get(), argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return ErrnoError(error,
                      Format("start a private broker by '{}' (PENSTOCK_COMMAND "
                             "names the `penstock` program)",
                             command));
  }
  // Not glibc's wrapper: 2.36 declares it without extern "C".
  pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  output.write.Reset();
  socket_ = ReadLine(output.read.get());
  return socket_.starts_with('/') ? OkStatus() : WhyNot(socket_);
}

StatusOr<std::unique_ptr<OwnBroker>> OwnBroker::Start(
    const OwnBrokerOptions& options) {
  if (options.workers < 0 || options.workers > kWorkersMax) {
    return InvalidArgumentError(
        "workers={}: wanted 1 to {}, or 0 for its choice", options.workers,
        kWorkersMax);
  }
  if (!options.memory_limit.empty()) {
    const auto bytes = ParseBytes(options.memory_limit);
    if (!bytes.ok()) return bytes.status().Prepend("memory_limit");
  }
  std::unique_ptr<OwnBroker> broker(new OwnBroker());
  PENSTOCK_ASSIGN_OR_RETURN(PipeEnds input, MakePipe());
  broker->input_ = std::move(input.write);
  PENSTOCK_RETURN_IF_ERROR(broker->Launch(options, input.read));
  return broker;
}

StatusOr<std::unique_ptr<OwnBroker>> OwnBroker::StartOrJoin() {
  std::string place;
  PENSTOCK_ASSIGN_OR_RETURN(const Fd file, LockPlace(&place));
  const std::string fifo = place + ".fifo";
  std::unique_ptr<OwnBroker> broker(new OwnBroker());
  broker->shared_ = true;
  broker->socket_ = ReadLine(file.get());
  if (!broker->socket_.empty() && ConnectControl(broker->socket_).ok()) {
    // Nobody reads from it: the broker is ending.
    broker->input_ = Fd(open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (broker->input_) return broker;
  }
  unlink(fifo.c_str());
  if (mkfifo(fifo.c_str(), 0600) != 0) {
    return ErrnoError(errno, Format("make '{}'", fifo));
  }
  const Fd output(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  broker->input_ = Fd(open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!output || !broker->input_) {
    return ErrnoError(errno, Format("open '{}'", fifo));
  }
  if (const Status status = broker->Launch({}, output, place); !status.ok()) {
    unlink(fifo.c_str());
    unlink(place.c_str());
    return status;
  }
  const std::string line = broker->socket_ + "\n";
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), line.data(), line.size(), 0) !=
          static_cast<ssize_t>(line.size())) {
    return ErrnoError(errno, Format("write '{}'", place));
  }
  RemoveOldPlaces(std::filesystem::path(place).parent_path());
  return broker;
}

bool OwnBroker::Ended() const {
  if (shared_) return !input_ || !ConnectControl(socket_).ok();
  return !pidfd_ || IsOver(pidfd_.get(), std::chrono::milliseconds(0));
}

// Runs in the child before fork returns.
void OwnBroker::ForgetInChild(void* broker) {
  OwnBroker& parents = *static_cast<OwnBroker*>(broker);
  parents.input_.Reset();
  parents.pidfd_.Reset();
}

OwnBroker::~OwnBroker() {
  input_.Reset();
  if (!pidfd_ || shared_) return;
  // Closing its input may not reach it: a child cloned without fork hooks may
  // hold the other end.
  const auto send = [&](int signal) {
    (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
  };
  send(SIGTERM);
  if (!IsOver(pidfd_.get(), kStopGrace)) send(SIGKILL);
  // ECHILD: the trainer has reaped it.
  (void)TEMP_FAILURE_RETRY(waitid(static_cast<idtype_t>(P_PIDFD),
                                  static_cast<id_t>(pidfd_.get()), nullptr,
                                  WEXITED));
}

StatusOr<std::string> SocketOfOwnBroker(bool shared) {
  static std::mutex mutex;
  // Never destroyed; ends with the process, when the kernel closes its input.
  static OwnBroker* broker = nullptr;
  const std::lock_guard lock(mutex);
  if (broker == nullptr || broker->Ended()) {
    PENSTOCK_ASSIGN_OR_RETURN(
        auto started, shared ? OwnBroker::StartOrJoin() : OwnBroker::Start({}));
    delete std::exchange(broker, started.release());
  }
  return broker->socket();
}

StatusOr<std::string> SocketOfAnyBroker(const std::string& socket,
                                        bool shared) {
  const auto trial = ConnectControl(socket);
  if (trial.ok()) return socket;
  if (trial.status().code() != StatusCode::kNotFound &&
      trial.status().code() != StatusCode::kUnavailable) {
    return trial.status();
  }
  return SocketOfOwnBroker(shared);
}

}  // namespace penstock
