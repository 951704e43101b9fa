#include "broker/user_code/python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <vector>

#include "broker/sandbox/program_launcher.h"
#include "broker/user_code/python_process_program.h"
#include "common/packet.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAnswerBytesMax = 64 << 10;
// How often a waiting worker checks for cancellation.
constexpr std::chrono::milliseconds kLookInterval{100};
// Time for a process to end after it was killed or closed its socket.
constexpr std::chrono::milliseconds kEndTime{1000};
// A template answers at once unless it is stopped.
constexpr uint64_t kReapNs = 1'000'000'000;
// Descriptors that a request has: of the link and of the memory; and a template
// of a program: of the text and of the log.
constexpr size_t kGivenFds = 2;
// Keeps the output of `ps` short.
constexpr char kRunProgram[] = "exec(open(5).read())";

// Sends a packet of these bytes, after the number.
Status SendPacket(int link, const iovec& number,
                  std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec pieces[] = {number,
                    {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = std::size(pieces);
  alignas(cmsghdr) char control[CMSG_SPACE(kGivenFds * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(link, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? ErrnoError(errno, "sendmsg") : OkStatus();
}

// A memfd with python_process.py and the program that follows it, positioned at
// its start.
StatusOr<Fd> MemoryOf(std::string_view program) {
  Fd fd(memfd_create("penstock function runner", MFD_CLOEXEC));
  if (!fd) return ErrnoError(errno, "memfd_create");
  const std::string text = Format("{}\n\n{}", kPythonProcessProgram, program);
  if (pwrite(fd.get(), text.data(), text.size(), 0) !=
      static_cast<ssize_t>(text.size())) {
    return ErrnoError(errno, "memory of a program");
  }
  return fd;
}

// What a process is told by whoever starts it, not by who asks for it.
std::string Trusted(const FunctionOptions& options) {
  return nlohmann::json{{"python_path", options.python_path},
                        {"writable_by", options.writable_by},
                        {"object_dir", options.object_dir}}
      .dump();
}

// A process with this text, this argument, and these descriptors: its link and
// its memory.
StatusOr<Program> ProgramOf(const FunctionOptions& options,
                            std::string_view text, const std::string& argument,
                            std::vector<Fd> fds) {
  PENSTOCK_ASSIGN_OR_RETURN(Fd memory, MemoryOf(text));
  Program program;
  program.words = {options.python, "-c", kRunProgram, argument,
                   Trusted(options)};
  program.fds = std::move(fds);
  program.fds.push_back(std::move(memory));
  return program;
}

// A connection to a template of a program, which is told the text it is to run.
StatusOr<Fd> ConnectTo(const FunctionOptions& options, std::string_view text,
                       const std::string& path) {
  std::error_code error;
  if (options.object_dir.empty() ||
      !std::filesystem::equivalent(std::filesystem::path(path).parent_path(),
                                   options.object_dir, error)) {
    return PermissionDeniedError("'{}' is not in the broker's folder", path);
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return UnavailableError("'{}' is too long", path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (!fd ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0 ||
      getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return UnavailableError("{}: {}", path, std::strerror(errno));
  }
  if (peer.uid != geteuid()) {
    return PermissionDeniedError("'{}' is another user's", path);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Fd memory, MemoryOf(text));
  const int fds[] = {memory.get(), STDERR_FILENO};
  const std::string trusted = Trusted(options);
  PENSTOCK_RETURN_IF_ERROR(
      SendPacket(fd.get(), {}, std::as_bytes(std::span(trusted)), fds));
  return fd;
}

// How a process ended, once it has.
int AwaitEnd(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

StatusOr<Fd> Copy(int fd) {
  Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return ErrnoError(errno, "fcntl");
  return copy;
}

StatusOr<Child> StartHere(const FunctionOptions& options, std::string_view text,
                          const std::string& argument,
                          const std::vector<int>& fds) {
  std::vector<Fd> copies;
  for (const int fd : fds) {
    PENSTOCK_ASSIGN_OR_RETURN(Fd copy, Copy(fd));
    copies.push_back(std::move(copy));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const Program program,
      ProgramOf(options, text, argument, std::move(copies)));
  return StartProgram(program);
}

}  // namespace

Status GrowingMemory::Reserve(uint64_t bytes) {
  if (bytes <= bytes_) return OkStatus();
  if (!fd_) {
    fd_ =
        Fd(memfd_create("penstock function", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd_) return ErrnoError(errno, "memfd_create");
    if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      return ErrnoError(errno, "seal the memory of a function");
    }
  }
  // Half as much again, so that records of varying sizes rarely remap it.
  bytes += bytes / 2;
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoError(errno, "memory of a function");
  }
  PENSTOCK_ASSIGN_OR_RETURN(mapping_,
                            Mapping::Map(fd_.get(), bytes, /*writable=*/true));
  bytes_ = bytes;
  return OkStatus();
}

Status GrowingMemory::Follow(uint64_t bytes) {
  if (bytes <= bytes_) return OkStatus();
  struct stat st;
  if (fstat(fd_.get(), &st) != 0) {
    return ErrnoError(errno, "memory of a function");
  }
  // A page behind the end would be SIGBUS.
  if (static_cast<uint64_t>(st.st_size) < bytes) {
    return UnavailableError("its process has less memory than it said");
  }
  PENSTOCK_ASSIGN_OR_RETURN(mapping_,
                            Mapping::Map(fd_.get(), bytes, /*writable=*/true));
  bytes_ = bytes;
  return OkStatus();
}

Status PythonProcess::CheckInterpreter(const std::string& python) {
  Program program;
  program.words = {python, "-c", ""};
  StatusOr<Child> child = StartProgram(program);
  if (!child.ok()) return child.status().Prepend("python");
  const int status = AwaitEnd(child->pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OkStatus();
  return FailedPreconditionError("python: '{} -c \"\"' fails", python);
}

Status PythonProcess::StartLauncher(
    FunctionOptions options, std::vector<std::string_view> programs,
    std::string socket, std::string folder,
    std::function<Status(FunctionOptions*)> reload) {
  const auto shared = std::make_shared<FunctionOptions>(std::move(options));
  ProgramLauncher::Handlers handlers;
  handlers.program = [shared, programs](
                         const nlohmann::json& request,
                         std::vector<Fd> fds) -> StatusOr<Program> {
    // The text of a program is never taken from a request.
    const auto text =
        std::find(programs.begin(), programs.end(),
                  request.at("program").get_ref<const std::string&>());
    if (text == programs.end() || fds.size() != kGivenFds) {
      return PermissionDeniedError("the launcher knows no such program");
    }
    if (shared->python_path.empty() && shared->object_dir.empty()) {
      return PermissionDeniedError("no functions are allowed (python_path)");
    }
    return ProgramOf(*shared, *text,
                     request.at("argument").get_ref<const std::string&>(),
                     std::move(fds));
  };
  handlers.connect = [shared,
                      programs](const nlohmann::json& request) -> StatusOr<Fd> {
    const auto text =
        std::find(programs.begin(), programs.end(),
                  request.at("program").get_ref<const std::string&>());
    if (text == programs.end()) {
      return PermissionDeniedError("the launcher knows no such program");
    }
    return ConnectTo(*shared, *text,
                     request.at("socket").get_ref<const std::string&>());
  };
  handlers.socket = std::move(socket);
  handlers.folder = std::move(folder);
  handlers.reload = [shared, reload = std::move(reload)] {
    return reload(shared.get());
  };
  return ProgramLauncher::Start(handlers);
}

StatusOr<std::unique_ptr<PythonProcess>> PythonProcess::Start(
    const FunctionOptions& options, std::string_view program,
    const std::string& argument, const GrowingMemory& memory,
    const Cancelled& cancelled) {
  const auto start = [&](const std::vector<int>& fds) {
    ProgramLauncher* const launcher = ProgramLauncher::Get();
    StatusOr<Child> child =
        launcher == nullptr
            ? StartHere(options, program, argument, fds)
            : launcher->Run({{"program", program}, {"argument", argument}},
                            fds);
    if (child.ok()) return child;
    return StatusOr<Child>(
        child.status().Prepend("python (`python` names the interpreter)"));
  };
  return Linked(start, nullptr, options, memory, cancelled);
}

StatusOr<std::unique_ptr<PythonProcess>> PythonProcess::Fork(
    const FunctionOptions& options,
    const std::shared_ptr<PythonTemplate>& parent, const std::string& argument,
    const GrowingMemory& memory, const Cancelled& cancelled) {
  const auto fork = [&](const std::vector<int>& fds) {
    return parent->Fork(argument, fds, options.start_timeout_ns, cancelled);
  };
  return Linked(fork, parent, options, memory, cancelled);
}

StatusOr<std::unique_ptr<PythonProcess>> PythonProcess::Linked(
    const std::function<StatusOr<Child>(const std::vector<int>& fds)>& start,
    std::shared_ptr<PythonTemplate> parent, const FunctionOptions& options,
    const GrowingMemory& memory, const Cancelled& cancelled) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError(errno, "socketpair");
  }
  std::unique_ptr<PythonProcess> process(new PythonProcess());
  process->link_ = Fd(ends[0]);
  Fd link(ends[1]);
  PENSTOCK_ASSIGN_OR_RETURN(Child child, start({link.get(), memory.fd()}));
  link.Reset();  // so that its end is seen here
  process->parent_ = std::move(parent);
  process->pid_ = child.pid;
  process->pidfd_ = std::move(child.pidfd);
  PENSTOCK_ASSIGN_OR_RETURN(
      Answer answer,
      process->Receive(options.start_timeout_ns, "for its import", cancelled));
  if (answer.kind != Answer::Kind::kDone) {
    return InvalidArgumentError("cannot be loaded:\n{}", answer.body);
  }
  process->greeting_ = std::move(answer.body);
  process->greeting_fd_ = std::move(answer.fd);
  return process;
}

std::optional<int> PythonProcess::Reap() {
  const pid_t pid = std::exchange(pid_, -1);
  if (parent_) return parent_->Reap(pid);
  if (ProgramLauncher* const launcher = ProgramLauncher::Get())
    return launcher->Reap(pid);
  return AwaitEnd(pid);
}

// Does not wait for a process that signals cannot reach (a hung network file
// system).
PythonProcess::~PythonProcess() {
  if (pid_ < 0) return;
  if (parent_) {
    Reap();  // which kills it too
    return;
  }
  // It leads its group: this also kills its children.
  if (ProgramLauncher* const launcher = ProgramLauncher::Get()) {
    (void)launcher->Kill(pid_);
  } else {
    kill(-pid_, SIGKILL);
  }
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  if (!pidfd_ || poll(&ended, 1, static_cast<int>(kEndTime.count())) > 0) {
    Reap();
    return;
  }
  if (ProgramLauncher::Get() != nullptr) return;  // whose end ends it
  std::thread([pid = pid_] { AwaitEnd(pid); }).detach();
}

void PythonProcess::Drop() {
  if (parent_ && pid_ >= 0) parent_->Kill(std::exchange(pid_, -1));
}

Status PythonProcess::Send(std::span<const std::byte> asked,
                           std::span<const int> fds,
                           const Cancelled& cancelled) {
  if (cancelled && cancelled()) return CancelledError("nobody waits for it");
  ++calls_;
  const iovec number = {&calls_, sizeof(calls_)};
  return SendPacket(link_.get(), number, asked, fds).ok() ? OkStatus()
                                                          : Ended();
}

StatusOr<PythonProcess::Answer> PythonProcess::Receive(
    uint64_t timeout_ns, const char* limit, const Cancelled& cancelled) {
  pollfd ready[] = {{link_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
  // Measures time that stops with the broker: while the broker and its
  // processes are stopped, no call exceeds its limit.
  std::chrono::nanoseconds spent{0};
  for (;;) {
    const Clock::time_point begin = Clock::now();
    if (poll(ready, 2, static_cast<int>(kLookInterval.count())) > 0) break;
    if (cancelled && cancelled()) return CancelledError("nobody waits for it");
    spent += std::min<std::chrono::nanoseconds>(Clock::now() - begin,
                                                2 * kLookInterval);
    if (spent >= std::chrono::nanoseconds(timeout_ns)) {
      return DeadlineExceededError("took longer than {:.1f} s {}",
                                   static_cast<double>(timeout_ns) * 1e-9,
                                   limit);
    }
  }
  // An answer sent before its end still counts.
  answer_.resize(kAnswerBytesMax);
  std::optional<Packet> packet = ReceivePacket(link_.get(), answer_, 1);
  if (!packet || packet->bytes == 0) return Ended();
  const size_t bytes = packet->bytes;
  uint64_t call = 0;
  constexpr size_t kHead = sizeof(call) + 1;
  if (bytes >= kHead) {
    std::memcpy(&call, answer_.data(), sizeof(call));
  }
  if (drops_late_answers_ && call < calls_) {
    return Receive(timeout_ns, limit, cancelled);
  }
  // The function, or a process that it forked, may have written this answer:
  // the memory may then hold the result for another row.
  if (bytes < kHead || call != calls_) {
    return UnavailableError("its process answered what it was not asked");
  }
  return Answer{static_cast<Answer::Kind>(answer_[kHead - 1]),
                std::string(answer_.data() + kHead, bytes - kHead),
                packet->fds.empty() ? Fd() : std::move(packet->fds[0])};
}

// It closed its socket, so it should end soon.
Status PythonProcess::Ended() {
  if (pid_ < 0) return UnavailableError("its process ended");
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  if (poll(&ended, 1, static_cast<int>(kEndTime.count())) <= 0) {
    return UnavailableError("its process closed its descriptors");
  }
  // Its children, while the group still has its number.
  if (!parent_) kill(-pid_, SIGKILL);
  const std::optional<int> reaped = Reap();
  if (!reaped) return UnavailableError("its process ended");
  const int status = *reaped;
  return UnavailableError(
      "its process {}",
      WIFSIGNALED(status)
          ? Format("was ended by signal {} ({})", WTERMSIG(status),
                   strsignal(WTERMSIG(status)))
          : Format("ended with status {}", WEXITSTATUS(status)));
}

StatusOr<std::shared_ptr<PythonTemplate>> PythonTemplate::Connect(
    const FunctionOptions& options, std::string_view program,
    const std::string& socket) {
  ProgramLauncher* const launcher = ProgramLauncher::Get();
  std::unique_ptr<PythonProcess> process(new PythonProcess());
  PENSTOCK_ASSIGN_OR_RETURN(
      process->link_,
      launcher == nullptr
          ? ConnectTo(options, program, socket)
          : launcher->Connect({{"program", program}, {"socket", socket}}));
  return std::make_shared<PythonTemplate>(std::move(process));
}

StatusOr<PythonProcess::Answer> PythonTemplate::Ask(
    const std::string& asked, std::span<const int> fds, uint64_t timeout_ns,
    const Cancelled& cancelled) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_RETURN_IF_ERROR(
      process_->Send(std::as_bytes(std::span(asked)), fds, cancelled));
  return process_->Receive(timeout_ns, "to fork", cancelled);
}

StatusOr<Child> PythonTemplate::Fork(const std::string& argument,
                                     std::span<const int> fds,
                                     uint64_t timeout_ns,
                                     const Cancelled& cancelled) {
  PENSTOCK_ASSIGN_OR_RETURN(PythonProcess::Answer answer,
                            Ask(argument, fds, timeout_ns, cancelled));
  uint64_t pid = 0;
  if (answer.body.size() != sizeof(pid) || !answer.fd) {
    return UnavailableError("its template did not fork");
  }
  std::memcpy(&pid, answer.body.data(), sizeof(pid));
  return Child{static_cast<pid_t>(pid), std::move(answer.fd)};
}

std::optional<int> PythonTemplate::Reap(pid_t pid) {
  const auto answer = Ask(Format("{}", pid), {}, kReapNs, {});
  uint64_t status = 0;
  if (!answer.ok() || answer->body.size() != sizeof(status)) {
    return std::nullopt;
  }
  std::memcpy(&status, answer->body.data(), sizeof(status));
  return static_cast<int>(status);
}

void PythonTemplate::Kill(pid_t pid) {
  const std::string asked = Format("{}", -pid);  // below 0: it does not answer
  const std::lock_guard lock(mutex_);
  (void)process_->Send(std::as_bytes(std::span(asked)), {}, {});
}

}  // namespace penstock
