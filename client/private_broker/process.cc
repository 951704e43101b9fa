#include "client/private_broker/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "client/private_broker/interrupt.h"

namespace penstock {
namespace {

// The limit before RaiseDescriptorLimit.
std::optional<rlimit> g_descriptor_limit;

// Places descriptors 0 to 2 (-1: unchanged), then those from
// SD_LISTEN_FDS_START (3) on. Moves the sources and the error pipe above the
// targets first, so that no target overwrites one.
bool PlaceDescriptors(const ProcessSpec& spec, int* error_fd) {
  std::vector<int> sources = {spec.stdin_fd, spec.stdout_fd, spec.stderr_fd};
  for (const PassedDescriptor& passed : spec.listen_fds) {
    sources.push_back(passed.fd);
  }
  const int targets = static_cast<int>(sources.size());
  const int moved = fcntl(*error_fd, F_DUPFD_CLOEXEC, targets);
  if (moved < 0) return false;
  *error_fd = moved;
  for (int& fd : sources) {
    if (fd >= 0 && (fd = fcntl(fd, F_DUPFD_CLOEXEC, targets)) < 0) return false;
  }
  for (int target = 0; target < targets; ++target) {
    // dup2 clears close-on-exec.
    if (sources[target] >= 0 && dup2(sources[target], target) < 0) return false;
  }
  return true;
}

// Sets what sd_listen_fds_with_names(3) reads. Sockets that a service manager
// passed to this process are not passed on.
void SetListenVariables(const std::vector<PassedDescriptor>& passed) {
  for (const char* name : {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}) {
    unsetenv(name);
  }
  if (passed.empty()) return;
  const std::string names = JoinText(passed, ":", &PassedDescriptor::name);
  setenv("LISTEN_FDS", std::to_string(passed.size()).c_str(), 1);
  setenv("LISTEN_FDNAMES", names.c_str(), 1);
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
}

// Runs in the fork; never returns.
[[noreturn]] void BecomeChild(const ProcessSpec& spec, pid_t parent,
                              int error_fd) {
  const auto fail = [&] {
    const int error = errno;
    [[maybe_unused]] const ssize_t n = write(error_fd, &error, sizeof(error));
    _exit(127);
  };
  setpgid(0, spec.group);
  prctl(PR_SET_PDEATHSIG, spec.death_signal);
  if (getppid() != parent) _exit(127);  // it died before prctl
  ForgetInterrupts();
  if (!PlaceDescriptors(spec, &error_fd)) fail();
  for (const auto& [name, value] : spec.environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  SetListenVariables(spec.listen_fds);
  if (spec.body) {
    close(error_fd);
    const int status = spec.body();
    std::fflush(stdout);
    std::fflush(stderr);
    _exit(status);
  }
  std::vector<char*> argv;
  for (const std::string& word : spec.argv) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  if (g_descriptor_limit) setrlimit(RLIMIT_NOFILE, &*g_descriptor_limit);
  execvp(argv[0], argv.data());
  fail();
  _exit(127);
}

std::vector<pid_t> Children() {
  std::vector<pid_t> pids;
  std::ifstream file(
      Format("/proc/self/task/{}/children", syscall(SYS_gettid)));
  for (pid_t pid; file >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

std::string ProcessExit::ToString() const {
  if (!signaled) return Format("ended with status {}", number);
  return Format("was killed by signal {} ({})", number, strsignal(number));
}

StatusOr<Process> Process::Start(const ProcessSpec& spec) {
  PENSTOCK_ASSIGN_OR_RETURN(PipeEnds error, MakePipe());
  std::fflush(nullptr);  // else the child flushes these buffers too
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoError(errno, "fork");
  if (pid == 0) BecomeChild(spec, parent, error.write.get());

  Process process;
  process.pid_ = pid;
  process.leads_group_ = spec.group == 0;
  // Parent and child both set the group, whichever runs first. EACCES: the
  // child has set it and executed already.
  setpgid(pid, spec.group == 0 ? pid : spec.group);
  // Not glibc's wrapper: 2.36 declares it without extern "C".
  process.pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_) return ErrnoError(errno, "pidfd_open");
  error.write.Reset();
  if (!spec.body) {
    int number = 0;
    if (TEMP_FAILURE_RETRY(read(error.read.get(), &number, sizeof(number))) ==
        sizeof(number)) {
      return ErrnoError(number, "cannot start '" + spec.argv[0] + "'");
    }
  }
  return process;
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    Reap();
    pid_ = std::exchange(other.pid_, -1);
    leads_group_ = other.leads_group_;
    pidfd_ = std::move(other.pidfd_);
    cpu_s_ = other.cpu_s_;
  }
  return *this;
}

Process::~Process() { Reap(); }

void Process::Signal(int signal) const {
  if (pid_ > 0) kill(leads_group_ ? -pid_ : pid_, signal);
}

std::optional<ProcessExit> Process::Ended() const {
  if (pid_ <= 0) return std::nullopt;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info,
             WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return ProcessExit{info.si_code != CLD_EXITED, info.si_status};
}

std::optional<ProcessExit> Process::WaitFor(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const double left_s =
        std::chrono::duration<double>(deadline - Clock::now()).count();
    pollfd entry{pidfd_.get(), POLLIN, 0};
    // Rounded up, so that 0.3 ms does not become a busy loop.
    const int ready =
        poll(&entry, 1, std::max(0, static_cast<int>(left_s * 1e3 + 1)));
    if (ready > 0 || (ready < 0 && errno != EINTR) || left_s <= 0) {
      return Ended();
    }
  }
}

void Process::Reap() {
  if (pid_ <= 0) return;
  // The zombie holds the number, so it is still its group.
  Signal(SIGKILL);
  rusage usage{};
  int status;
  (void)TEMP_FAILURE_RETRY(wait4(pid_, &status, 0, &usage));
  const auto seconds = [](const timeval& t) {
    return t.tv_sec + t.tv_usec / 1e6;
  };
  cpu_s_ = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  pid_ = -1;
  pidfd_.Reset();
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (g_descriptor_limit || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) g_descriptor_limit = before;
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void ReapOrphans(const std::vector<pid_t>& keep) {
  for (const pid_t pid : Children()) {
    if (std::find(keep.begin(), keep.end(), pid) == keep.end()) {
      waitpid(pid, nullptr, WNOHANG);
    }
  }
}

void KillOrphans(const std::vector<pid_t>& keep) {
  // In each round this process adopts the children of those killed.
  for (bool found = true; found;) {
    found = false;
    for (const pid_t pid : Children()) {
      if (std::find(keep.begin(), keep.end(), pid) != keep.end()) continue;
      found = true;
      kill(pid, SIGKILL);
      (void)TEMP_FAILURE_RETRY(waitpid(pid, nullptr, 0));
    }
  }
}

std::optional<uint64_t> PssBytes(pid_t pid) {
  std::ifstream file(Format("/proc/{}/smaps_rollup", pid));
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib;
    if (std::sscanf(line.c_str(), "Pss: %llu kB", &kib) == 1) {
      return kib * 1024;
    }
  }
  return std::nullopt;
}

}  // namespace penstock
