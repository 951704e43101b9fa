#include "client/private_broker/private_broker.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "client/private_broker/interrupt.h"
#include "common/layout.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr double kStopGrace_s = 5;
// A restarted penstockd that is not ready by then is killed, as with systemd's
// TimeoutStartSec=. The first start has no limit.
constexpr std::chrono::seconds kReadyWithin(90);
// Enough for all ranks to connect at once after a restart (capped by
// net.core.somaxconn).
constexpr int kBacklog = 4096;
constexpr char kNotifyName[] = "/notify.sock";
constexpr char kStateName[] = "/state";
// systemd's name for the socket of a socket unit.
constexpr char kListenerName[] = "penstockd.socket";
// A pidfd of this process: penstockd ends when it does (broker/owner.h).
constexpr char kOwnerName[] = "penstock.owner";

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

void PrivateBrokerOptions::AddTo(Command command) {
  command
      .AddOption("--workers", &workers,
                 "Worker threads of the private broker (default: its choice)")
      .Type("N")
      .InRange(1, 4096);
  command
      .AddOption("--memory-limit", &memory_limit,
                 "Memory of all batches of the private broker, such as 500M "
                 "or 8G (default: its choice)")
      .Type("SIZE")
      .Check([](const std::string& text) {
        return ParseBytes(text).status().message();
      });
}

StatusOr<std::string> FindPenstockd() {
  if (const std::string given = Environment("PENSTOCKD"); !given.empty()) {
    if (IsProgram(given)) return given;
    return NotFoundError(
        "PENSTOCKD names '{}', which is not a program; set it to penstockd's "
        "path or unset it",
        given);
  }
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* relative : {"penstockd", "../../broker/penstockd"}) {
    const std::string path = (folder / relative).lexically_normal().string();
    if (IsProgram(path)) return path;
  }
  for (const std::string& each : SplitText(Environment("PATH"), ':')) {
    if (IsProgram(each + "/penstockd")) return each + "/penstockd";
  }
  return NotFoundError(
      "cannot find penstockd: it is neither in '{}' nor in PATH; set PENSTOCKD "
      "to its path",
      folder.string());
}

Status PrivateBroker::Listen() {
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
  listener_ = std::move(fd);
  return OkStatus();
}

PrivateBrokerOptions PrivateBrokerOptions::Without(
    std::initializer_list<const char*> messages) const {
  PrivateBrokerOptions options = *this;
  for (const char* message : messages) {
    options.arguments.insert(options.arguments.end(),
                             {"--without-message", message});
  }
  return options;
}

StatusOr<std::unique_ptr<PrivateBroker>> PrivateBroker::Start(
    const PrivateBrokerOptions& options) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  std::unique_ptr<PrivateBroker> broker(new PrivateBroker);
  broker->options_ = options;
  PENSTOCK_ASSIGN_OR_RETURN(broker->program_, FindPenstockd());
  RaiseDescriptorLimit();  // for the store
  PENSTOCK_ASSIGN_OR_RETURN(broker->folder_, PrivateFolder::Make());
  broker->socket_ = broker->folder_.socket();
  broker->notify_path_ = broker->folder() + kNotifyName;
  broker->state_folder_ = broker->folder() + kStateName;
  if (mkdir(broker->state_folder_.c_str(), 0700) != 0) {
    return ErrnoError(errno, "cannot make '" + broker->state_folder_ + "'");
  }
  PENSTOCK_RETURN_IF_ERROR(broker->store_.Listen(broker->notify_path_));
  broker->store_.BeforeRemoval([of = broker.get()](int fd) {
    of->took_and_left_ |= of->TookMore(fd, &of->taken_);
  });
  PENSTOCK_RETURN_IF_ERROR(broker->Listen());
  PENSTOCK_RETURN_IF_ERROR(broker->Launch());
  return broker;
}

Status PrivateBroker::Launch() {
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  // Not glibc's wrapper: 2.36 declares it without extern "C".
  const Fd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!self) return ErrnoError(errno, "pidfd_open");
  ProcessSpec spec;
  spec.argv = {program_, "--private", "--state-dir", state_folder_};
  if (options_.workers > 0) {
    spec.argv.insert(spec.argv.end(),
                     {"--workers", std::to_string(options_.workers)});
  }
  if (!options_.memory_limit.empty()) {
    spec.argv.insert(spec.argv.end(),
                     {"--memory-limit", options_.memory_limit});
  }
  spec.argv.insert(spec.argv.end(), options_.arguments.begin(),
                   options_.arguments.end());
  spec.environment = options_.environment;
  spec.environment.emplace_back("PENSTOCK_SOCKET", socket_);  // shown in status
  spec.environment.emplace_back("NOTIFY_SOCKET", notify_path_);
  // Announces the store, as systemd does since 254.
  spec.environment.emplace_back(
      "FDSTORE", std::to_string(DescriptorStore::kDescriptorsMax));
  spec.stdin_fd = null.get();
  spec.stdout_fd = STDERR_FILENO;  // stdout is the command's result
  spec.listen_fds = {{listener_.get(), kListenerName}};
  for (const StoredDescriptor& stored : store_.descriptors()) {
    spec.listen_fds.push_back({stored.fd.get(), stored.name});
  }
  spec.listen_fds.push_back({self.get(), kOwnerName});
  spec.death_signal = 0;
  StatusOr<Process> process = Process::Start(spec);
  if (!process.ok()) return process.status();
  former_cpu_s_ += process_.cpu_s();
  process_ = *std::move(process);
  ++starts_;
  store_.Expect(process_.pid());
  launched_at_ = Clock::now();
  death_.reset();
  return OkStatus();
}

std::string PrivateBroker::Name() const {
  return Format("the private broker, penstockd (pid {}),", process_.pid());
}

StatusOr<nlohmann::json> PrivateBroker::Call(const nlohmann::json& request) {
  // Not ConnectControl's error: it advises `penstock run`, which is running.
  if (const std::optional<Status> death = Death()) return *death;
  StatusOr<nlohmann::json> answer = CallBroker(
      socket_, request, [this](int socket) { return WaitForAnswer(socket); });
  if (answer.ok() || answer.status().code() == StatusCode::kCancelled) {
    return answer;
  }
  // It has closed the connection or removed its socket: if it is dying, wait
  // for the death.
  const bool leaving = answer.status().code() == StatusCode::kUnavailable ||
                       access(socket_.c_str(), F_OK) != 0;
  if (const std::optional<Status> death = Death(leaving ? 1.0 : 0)) {
    return *death;
  }
  return answer;
}

Status PrivateBroker::WaitForAnswer(int socket) {
  for (;;) {
    pollfd entries[] = {{socket, POLLIN, 0},
                        {process_.pidfd(), POLLIN, 0},
                        {store_.fd(), POLLIN, 0}};
    if (poll(entries, std::size(entries), -1) < 0 && errno != EINTR) {
      return ErrnoError(errno, "poll");
    }
    // A message sent before the death counts.
    if (entries[0].revents != 0) return OkStatus();
    store_.Receive();
    // The connection may be in the backlog of the listener kept open here, and
    // then does not hang up.
    if (const std::optional<Status> death = Death()) return *death;
  }
}

std::optional<ProcessExit> PrivateBroker::WaitForEnd(double seconds) {
  const Clock::time_point until = Clock::now() + DurationOf(seconds);
  for (;;) {
    const std::optional<ProcessExit> ended = process_.Ended();
    // In this order, so that its last messages are taken before its end.
    store_.Receive();
    const int left_ms = MillisecondsUntil(until);
    if (ended || left_ms == 0) return ended;
    pollfd entries[] = {{process_.pidfd(), POLLIN, 0},
                        {store_.fd(), POLLIN, 0}};
    poll(entries, std::size(entries), left_ms);
  }
}

std::optional<Status> PrivateBroker::Death(double wait_s) {
  if (process_.pid() <= 0) return death_;
  const std::optional<ProcessExit> ended = WaitForEnd(wait_s);
  if (!ended) return std::nullopt;
  return DeathBy(*ended);
}

Status PrivateBroker::DeathBy(const ProcessExit& ended) const {
  const std::string how = Name() + " " + ended.ToString();
  if (store_.ready() || store_.status().empty()) {
    return UnavailableError("{}", how);
  }
  return FailedPreconditionError("{}: {}", how, store_.status());
}

void PrivateBroker::AddTo(std::vector<pollfd>* entries) const {
  if (given_up_) return;
  entries->push_back({store_.fd(), POLLIN, 0});
  if (process_.pid() > 0) entries->push_back({process_.pidfd(), POLLIN, 0});
}

std::optional<PrivateBroker::Clock::time_point> PrivateBroker::TendAt() const {
  if (given_up_) return std::nullopt;
  if (restart_at_) return restart_at_;
  if (was_ready_ && !store_.ready()) return launched_at_ + kReadyWithin;
  return std::nullopt;
}

Status PrivateBroker::Tend(const Report& report) {
  if (given_up_) return *given_up_;
  if (process_.pid() > 0) {
    const std::optional<ProcessExit> ended = WaitForEnd(0);
    was_ready_ |= store_.ready();
    if (store_.ready() && store_.explained()) policy_.NoteProgress();
    if (ended) {
      death_ = DeathBy(*ended);
      process_.Reap();  // and its children
      const bool stop_requested = ended->ok() || store_.stopping();
      store_.Expect(-1);
      // Never ready: it has printed the reason itself.
      if (stop_requested || !was_ready_) {
        return GiveUp(death_->message());
      }
      PENSTOCK_RETURN_IF_ERROR(Died(death_->message(), report));
    } else if (const auto at = TendAt(); at && Clock::now() >= *at) {
      process_.Signal(SIGKILL);
      launched_at_ = Clock::now();  // the next round sees its end
    }
  }
  while (restart_at_ && Clock::now() >= *restart_at_) {
    restart_at_.reset();
    const Status launched = Launch();
    if (launched.ok()) break;
    death_ = launched.Prepend("the private broker is not restarted");
    PENSTOCK_RETURN_IF_ERROR(Died(death_->message(), report));
  }
  return OkStatus();
}

bool PrivateBroker::TookMore(int fd, std::map<uint64_t, uint64_t>* taken) {
  struct stat info;
  uint64_t magic = 0;
  uint64_t count = 0;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size != static_cast<off_t>(kCursorBytes) ||
      pread(fd, &magic, sizeof(magic), offsetof(CursorPage, magic)) !=
          sizeof(magic) ||
      magic != kCursorMagic ||
      pread(fd, &count, sizeof(count), offsetof(CursorPage, taken)) !=
          sizeof(count)) {
    return false;
  }
  const auto before = taken_.find(info.st_ino);
  const bool more = count > (before == taken_.end() ? 0 : before->second);
  (*taken)[info.st_ino] = count;
  return more;
}

// Whether ranks took batches since the last death, by their cursor pages, which
// are kept here: penstockd's own count died with it.
bool PrivateBroker::RanksTookBatches() {
  std::map<uint64_t, uint64_t> taken;
  bool more = std::exchange(took_and_left_, false);
  for (const StoredDescriptor& stored : store_.descriptors()) {
    more |= TookMore(stored.fd.get(), &taken);
  }
  taken_ = std::move(taken);
  return more;
}

Status PrivateBroker::Died(const std::string& message, const Report& report) {
  const Clock::time_point now = Clock::now();
  if (RanksTookBatches()) policy_.NoteProgress();
  const std::optional<RestartPolicy::Restart> restart = policy_.Next(now);
  if (!restart) {
    return GiveUp(Format(
        "{}; given up after {} restarts within {} s, in which no "
        "rank took a batch",
        message, RestartPolicy::kRestartsMax, RestartPolicy::kWindow.count()));
  }
  restart_at_ = now + restart->pause;
  const double pause_s = std::chrono::duration<double>(restart->pause).count();
  report(Format("{}; restart {} of {}{}", message, restart->number,
                RestartPolicy::kRestartsMax,
                pause_s > 0 ? Format(" in {:.1f} s", pause_s) : std::string()));
  return OkStatus();
}

Status PrivateBroker::GiveUp(const std::string& message) {
  given_up_ = UnavailableError("{}", message);
  restart_at_.reset();
  // Closing is not enough, because another process may hold the socket too (a
  // child that penstockd left, a fork of this one). The shutdown refuses new
  // clients, ends accept, and hangs up on the backlog.
  shutdown(listener_.get(), SHUT_RDWR);
  while (Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))) {
  }
  listener_.Reset();
  unlink(socket_.c_str());
  store_.Close();
  return *given_up_;
}

Status PrivateBroker::TendUntil(int stop_fd, const Report& report) {
  for (;;) {
    PENSTOCK_RETURN_IF_ERROR(Tend(report));
    std::vector<pollfd> entries = {{stop_fd, POLLIN, 0}};
    AddTo(&entries);
    const auto at = TendAt();
    poll(entries.data(), entries.size(), at ? MillisecondsUntil(*at) : -1);
    if (entries[0].revents != 0) return OkStatus();
  }
}

void PrivateBroker::Stop() {
  if (process_.pid() > 0) {
    process_.Signal(SIGTERM);
    WaitForEnd(kStopGrace_s);
    process_.Reap();  // SIGKILL for what is left
  }
  restart_at_.reset();
  listener_.Reset();
  store_.Close();
  folder_.Remove();
}

void PrivateBroker::ForgetInFork() {
  listener_.Reset();
  store_.Close();
}

std::string UniqueJobName(const std::string& prefix) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
  return Format("{}-{}-{:08x}", prefix, getpid(), number);
}

}  // namespace penstock
