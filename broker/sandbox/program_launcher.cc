#include "broker/sandbox/program_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "common/format.h"

extern char** environ;

namespace penstock {
namespace {

// The first of a program's descriptors, and the launcher's only one.
constexpr int kFirstDescriptor = 3;
// As `ps` shows the launcher; at most 15 characters.
constexpr char kName[] = "penstock-launch";

// There is one process per processor, so each uses one thread.
std::vector<std::string> Environment() {
  constexpr std::string_view kThreads = "OMP_NUM_THREADS=";
  std::vector<std::string> all;
  bool set = false;
  for (char** each = environ; *each != nullptr; ++each) {
    all.emplace_back(*each);
    set |= all.back().starts_with(kThreads);
  }
  if (!set) all.push_back(Format("{}1", kThreads));
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct SpawnOptions {
  SpawnOptions() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

std::optional<int> WaitFor(pid_t pid) {
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  if (ended != pid) return std::nullopt;
  return status;
}

// The fields of its stat from the fourth on (proc(5)): ppid, ... Empty: there
// is no such process.
std::vector<int64_t> StatOf(pid_t pid) {
  std::ifstream file(Format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  // The second field is a name in parentheses, the third a letter.
  const size_t name_end = text.rfind(") ");
  if (name_end == text.npos) return {};
  std::istringstream words(text.substr(name_end + 4));
  return {std::istream_iterator<int64_t>(words), {}};
}

bool IsChildOf(pid_t pid, pid_t parent) {
  const std::vector<int64_t> stat = StatOf(pid);
  return !stat.empty() && stat[0] == parent;
}

// Also kills the group's other processes.
Status KillGroup(pid_t pid) {
  const std::vector<int64_t> stat = StatOf(pid);
  if (stat.empty()) return OkStatus();  // it has ended
  if (stat[0] != getpid() &&
      !IsChildOf(static_cast<pid_t>(stat[0]), getpid())) {
    return PermissionDeniedError("{} is no program of the launcher", pid);
  }
  return kill(-pid, SIGKILL) == 0 ? OkStatus() : ErrnoError(errno, "kill");
}

Status RemoveSocketAt(const std::string& path) {
  struct stat st;
  if (path.empty() || lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) {
    return NotFoundError("there is no socket");
  }
  return unlink(path.c_str()) == 0 ? OkStatus() : ErrnoError(errno, "unlink");
}

Status MakeFirstKilled(pid_t pid, pid_t parent) {
  if (!IsChildOf(pid, parent)) {
    return PermissionDeniedError("{} is not the daemon's child", pid);
  }
  const Fd file(open(Format("/proc/{}/oom_score_adj", pid).c_str(),
                     O_WRONLY | O_CLOEXEC));
  if (!file || write(file.get(), "1000", 4) != 4) {
    return ErrnoError(errno, "oom_score_adj");
  }
  return OkStatus();
}

StatusOr<Message> Answer(const ProgramLauncher::Handlers& handlers,
                         pid_t parent, Message request) {
  Message answer{OkReply(), {}};
  const std::string op = request.json.at("op");
  if (op == "run") {
    PENSTOCK_ASSIGN_OR_RETURN(
        const Program program,
        handlers.program(request.json.at("what"), std::move(request.fds)));
    PENSTOCK_ASSIGN_OR_RETURN(Child child, StartProgram(program));
    answer.json["pid"] = child.pid;
    answer.fds.push_back(std::move(child.pidfd));
  } else if (op == "connect") {
    PENSTOCK_ASSIGN_OR_RETURN(Fd fd, handlers.connect(request.json.at("what")));
    answer.fds.push_back(std::move(fd));
  } else if (op == "reap") {
    if (const auto status = WaitFor(request.json.at("pid"))) {
      answer.json["status"] = *status;
    }
  } else if (op == "kill_first") {
    PENSTOCK_RETURN_IF_ERROR(MakeFirstKilled(request.json.at("pid"), parent));
  } else if (op == "kill") {
    PENSTOCK_RETURN_IF_ERROR(KillGroup(request.json.at("pid")));
  } else if (op == "remove_socket") {
    PENSTOCK_RETURN_IF_ERROR(RemoveSocketAt(handlers.socket));
  } else {
    PENSTOCK_RETURN_IF_ERROR(handlers.reload());
  }
  return answer;
}

// The launcher's life: until the other end of the link is closed. Whatever is
// wrong with a request is its answer.
[[noreturn]] void Serve(const ProgramLauncher::Handlers& handlers,
                        pid_t parent) {
  for (;;) {
    pollfd entry{kFirstDescriptor, POLLIN, 0};
    if (poll(&entry, 1, -1) < 0 && errno != EINTR) _exit(1);
    auto request = ReceiveMessage(kFirstDescriptor);
    if (!request.ok()) {
      if (!handlers.folder.empty()) rmdir(handlers.folder.c_str());
      _exit(0);
    }
    if (!*request) continue;
    StatusOr<Message> answer = InvalidArgumentError("not a request");
    try {
      answer = Answer(handlers, parent, *std::move(*request));
    } catch (const nlohmann::json::exception&) {
    }
    std::vector<int> fds;
    if (answer.ok()) {
      for (const Fd& fd : answer->fds) fds.push_back(fd.get());
    }
    if (!SendMessage(kFirstDescriptor,
                     answer.ok() ? answer->json : ErrorReply(answer.status()),
                     fds)
             .ok()) {
      _exit(0);
    }
  }
}

std::unique_ptr<ProgramLauncher>
    launcher;  // set before there is a second thread

}  // namespace

StatusOr<Child> StartProgram(const Program& program) {
  SpawnOptions options;
  posix_spawn_file_actions_addopen(&options.actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  // Copied to numbers above those that the program expects.
  const int count = static_cast<int>(program.fds.size());
  std::vector<Fd> apart;
  for (const Fd& fd : program.fds) {
    apart.emplace_back(
        fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstDescriptor + count));
    if (!apart.back()) return ErrnoError(errno, "fcntl");
    posix_spawn_file_actions_adddup2(
        &options.actions, apart.back().get(),
        kFirstDescriptor + static_cast<int>(apart.size()) - 1);
  }
  // Workers block signals; Ctrl-C is for the broker only.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&options.attributes, &none);
  posix_spawnattr_setpgroup(&options.attributes, 0);
  posix_spawnattr_setflags(&options.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = program.words;
  std::vector<std::string> environment = Environment();
  Child child;
  if (const int error = posix_spawnp(
          &child.pid, words[0].c_str(), &options.actions, &options.attributes,
          Pointers(words).data(), Pointers(environment).data());
      error != 0) {
    return ErrnoError(error, Format("start '{}'", words[0]));
  }
  child.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0)));
  if (!child.pidfd) return ErrnoError(errno, "pidfd_open");
  return child;
}

Status ProgramLauncher::Start(const Handlers& handlers) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError(errno, "socketpair");
  }
  Fd link(ends[0]);
  const Fd other(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoError(errno, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);  // it died before prctl took effect
    prctl(PR_SET_NAME, kName);
    // In its command line too, as far as there is room: who looks for penstockd
    // finds one process.
    std::strncpy(program_invocation_name, kName,
                 std::strlen(program_invocation_name));
    // Ctrl-C is for the parent.
    setpgid(0, 0);
    // It keeps none of the parent's sockets and memory open.
    if (dup2(other.get(), kFirstDescriptor) < 0 && errno != EINVAL) _exit(1);
    fcntl(kFirstDescriptor, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, kFirstDescriptor + 1, ~0u, 0);
    Serve(handlers, parent);
  }
  Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return ErrnoError(errno, "pidfd_open");
  launcher.reset(new ProgramLauncher(pid, std::move(link), std::move(pidfd)));
  return OkStatus();
}

ProgramLauncher::~ProgramLauncher() {
  link_.Reset();  // it ends when it sees that
  WaitFor(pid_);
}

ProgramLauncher* ProgramLauncher::Get() { return launcher.get(); }

StatusOr<Message> ProgramLauncher::Ask(nlohmann::json request,
                                       const std::vector<int>& fds) {
  const std::lock_guard lock(mutex_);
  return Request(link_.get(), std::move(request), fds);
}

StatusOr<Child> ProgramLauncher::Run(const nlohmann::json& request,
                                     const std::vector<int>& fds) {
  PENSTOCK_ASSIGN_OR_RETURN(Message answer,
                            Ask({{"op", "run"}, {"what", request}}, fds));
  Child child;
  child.pid = answer.json["pid"];
  child.pidfd = std::move(answer.fds.at(0));
  return child;
}

StatusOr<Fd> ProgramLauncher::Connect(const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(Message answer,
                            Ask({{"op", "connect"}, {"what", request}}));
  return std::move(answer.fds.at(0));
}

std::optional<int> ProgramLauncher::Reap(pid_t pid) {
  const auto answer = Ask({{"op", "reap"}, {"pid", pid}});
  if (!answer.ok() || !answer->json.contains("status")) return std::nullopt;
  return answer->json["status"].get<int>();
}

Status ProgramLauncher::KillFirst(pid_t pid) {
  return Ask({{"op", "kill_first"}, {"pid", pid}}).status();
}

Status ProgramLauncher::Kill(pid_t pid) {
  return Ask({{"op", "kill"}, {"pid", pid}}).status();
}

Status ProgramLauncher::RemoveSocket() {
  return Ask({{"op", "remove_socket"}}).status();
}

double ProgramLauncher::CpuSeconds() const {
  constexpr size_t kUtime = 14 - 4;
  constexpr size_t kFields = 4;  // utime, stime, and those of children
  const std::vector<int64_t> stat = StatOf(pid_);
  int64_t ticks = 0;
  for (size_t i = kUtime; i < std::min(stat.size(), kUtime + kFields); ++i) {
    ticks += stat[i];
  }
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Status ProgramLauncher::Reload() { return Ask({{"op", "reload"}}).status(); }

}  // namespace penstock
