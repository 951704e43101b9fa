// penstockd: reads the command line, wires the rooms, runs until it is told to
// stop. broker/README.md describes the flow.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "broker/arguments.h"
#include "broker/base/event_loop.h"
#include "broker/base/log.h"
#include "broker/base/service_protocol.h"
#include "broker/config.h"
#include "broker/control/control_server.h"
#include "broker/declare/describe.h"
#include "broker/fetch/fetcher.h"
#include "broker/index/cache_file.h"
#include "broker/job/write_indexes.h"
#include "broker/memory/topology.h"
#include "broker/owner.h"
#include "broker/recovery/journal.h"
#include "broker/recovery/journal_tail.h"
#include "broker/recovery/memory_folder.h"
#include "broker/recovery/recovery_journal.h"
#include "broker/registry/job_table.h"
#include "broker/sandbox/program_launcher.h"
#include "broker/sandbox/sandbox.h"
#include "broker/source/kinds.h"
#include "broker/spec/dataset_spec.h"
#include "broker/spec/describe.h"
#include "broker/transform/row_function.h"
#include "broker/transform/tokenize.h"
#include "broker/user_code/python_process.h"
#include "broker/watchdog.h"
#include "broker/workers/measure_reads.h"
#include "broker/workers/replay.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/worker_pool.h"
#include "common/command_line.h"
#include "common/memory_folder.h"
#include "common/message.h"
#include "common/printable.h"
#include "common/quantity.h"
#include "common/text_file.h"

namespace penstock {
namespace {

// For whoever started it: `systemctl status`, a private broker's owner.
std::string StatusLine(const Status& status) {
  constexpr size_t kBytesMax = 3000;  // systemd takes messages of 4096
  return Printable(status.message()).substr(0, kBytesMax);
}

void RemoveOwnSocket(const std::string& path) {
  if (ProgramLauncher* const launcher = ProgramLauncher::Get()) {
    (void)launcher->RemoveSocket();
  }
  unlink(path.c_str());  // without a sandbox, or in the folder it was given
}

// Listens at path. A socket left by a dead broker is replaced, one in use is
// not.
Status CheckSocketPath(const std::string& path) {
  constexpr size_t kBytesMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kBytesMax) {
    return InvalidArgumentError("socket path '{}' is longer than {} bytes",
                                path, kBytesMax);
  }
  // A file that is no socket refuses connections as well.
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return AlreadyExistsError(
        "'{}' exists and is not a socket; choose another --socket", path);
  }
  return OkStatus();
}

StatusOr<Fd> ListenAt(const std::string& path) {
  PENSTOCK_RETURN_IF_ERROR(CheckSocketPath(path));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  // Only a refusing socket is left over from a dead broker; one of another
  // type, say, belongs to somebody else.
  const StatusOr<Fd> other = ConnectControl(path);
  switch (other.ok() ? StatusCode::kOk : other.status().code()) {
    case StatusCode::kNotFound:
      break;
    case StatusCode::kUnavailable:
      RemoveOwnSocket(path);
      break;
    case StatusCode::kOk:
      return AlreadyExistsError("another broker listens at '{}'", path);
    default:
      return AlreadyExistsError(
          "'{}' exists and is not a broker's socket ({}); choose another "
          "--socket",
          path, other.status().message());
  }
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoError(errno, "socket");
  const mode_t mask = umask(0117);  // user and group
  const int bound =
      bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const int error = errno;
  umask(mask);
  if (bound != 0 && error == ENOENT) {
    return NotFoundError("listen at '{}': there is no folder '{}'", path,
                         std::filesystem::path(path).parent_path().string());
  }
  if (bound != 0) return ErrnoError(error, "listen at '" + path + "'");
  if (listen(fd.get(), 128) != 0) return ErrnoError(errno, "listen");
  return fd;
}

// Descriptors that systemd or `penstock run` passes: the listening socket, if
// it makes one, those that a former broker instance stored, and the owner of a
// private broker.
struct Inherited {
  Fd listener;
  Fd owner;
  std::vector<StoredFd> stored;
};

StatusOr<Inherited> Inherit() {
  Inherited inherited;
  for (PassedFd& passed : TakePassedFds()) {
    if (passed.name == kOwnerName) {
      inherited.owner = std::move(passed.fd);
    } else if (!IsListening(passed.fd.get(), AF_UNIX, SOCK_SEQPACKET)) {
      inherited.stored.push_back({passed.name, std::move(passed.fd)});
    } else if (inherited.listener) {
      // The service manager's own come first; one of a former instance that a
      // hostile file had taken over may follow.
      Log<"second-socket">();
    } else if (fcntl(passed.fd.get(), F_SETFL, O_NONBLOCK) != 0) {
      return ErrnoError(errno, "set up the inherited socket");
    } else {
      inherited.listener = std::move(passed.fd);
    }
  }
  return inherited;
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

StatusOr<Config> ConfigOf(const Arguments& arguments) {
  Config config;
  if (!arguments.config.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(config, LoadConfig(arguments.config));
  }
  if (!arguments.socket.empty()) config.socket = arguments.socket;
  if (!arguments.workers.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(config.workers,
                              ParseCountOrAuto(arguments.workers, kWorkersMax));
  }
  if (!arguments.memory_limit.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(config.memory_limit,
                              ParseBytes(arguments.memory_limit));
  }
  if (!arguments.state_dir.empty()) config.state_dir = arguments.state_dir;
  if (config.snapshot_path.empty()) {
    config.snapshot_path = ParseFolders(Variable("PENSTOCK_SNAPSHOT_PATH"));
  }
  if (const std::string mode = Variable("PENSTOCK_SANDBOX");
      !mode.empty() && config.position_of.count("sandbox") == 0) {
    StatusOr<SandboxMode> parsed = ParseSandboxMode(mode);
    if (!parsed.ok()) return parsed.status().Prepend("PENSTOCK_SANDBOX");
    config.sandbox = *parsed;
  }
  return config;
}

// Before any thread starts.
void UseCacheDir(const Config& config) {
  if (config.cache_dir.empty()) return;
  setenv("PENSTOCK_CACHE_DIR",
         std::filesystem::absolute(config.cache_dir).c_str(), 1);
}

// What datasets may run, from the configuration, else from the environment.
// Fails for folders that others can write.
StatusOr<FunctionOptions> FunctionsOf(const Config& config,
                                      bool private_broker) {
  FunctionOptions functions = config.functions;
  if (functions.python_path.empty()) {
    functions.python_path = ParseFolders(Variable("PENSTOCK_PYTHON_PATH"));
  }
  if (const std::string python = Variable("PENSTOCK_PYTHON");
      !python.empty() && config.position_of.count("python") == 0) {
    functions.python = python;
  }
  if (const std::string limit = Variable("PENSTOCK_PYTHON_TIMEOUT");
      !limit.empty() && config.position_of.count("python_timeout") == 0) {
    const StatusOr<uint64_t> parsed = ParseDuration(limit);
    if (!parsed.ok()) return parsed.status().Prepend("PENSTOCK_PYTHON_TIMEOUT");
    functions.call_timeout_ns = *parsed;
  }
  if (functions.plugin_dir.empty()) {
    const auto folders = ParseFolders(Variable("PENSTOCK_PLUGIN_DIR"));
    if (!folders.empty()) functions.plugin_dir = folders.front();
  }
  // A user's own group usually has no other members.
  if (private_broker) functions.writable_by = 0002;
  const auto check = [&](const char* key, std::string* folder) {
    StatusOr<std::string> found = CheckTrusted(*folder, functions.writable_by);
    if (!found.ok()) return found.status().Prepend(key);
    *folder = *std::move(found);
    return OkStatus();
  };
  for (std::string& folder : functions.python_path) {
    PENSTOCK_RETURN_IF_ERROR(check("python_path", &folder));
  }
  if (!functions.plugin_dir.empty()) {
    PENSTOCK_RETURN_IF_ERROR(check("plugin_dir", &functions.plugin_dir));
  }
  return functions;
}

// If status names a configuration key, prefixes the place that set it: the
// machine lacks what the configuration asks for.
Status AsConfigured(const Config& config, const Status& status) {
  const std::string& message = status.message();
  const auto position =
      config.position_of.find(message.substr(0, message.find(':')));
  return position == config.position_of.end()
             ? status
             : status.Prepend(position->second);
}

template <typename T>
StatusOr<T> AsConfigured(const Config& config, StatusOr<T> made) {
  if (made.ok()) return made;
  return AsConfigured(config, made.status());
}

// Users of installed units may be unknown to this host.
StatusOr<std::vector<uid_t>> UsersOf(const char* key,
                                     const std::vector<std::string>& names) {
  std::vector<uid_t> users;
  for (const std::string& name : names) {
    const StatusOr<uid_t> uid = UserNumber(name);
    if (uid.ok()) {
      users.push_back(*uid);
    } else if (name != kMetricsUser && name != kLinkUser) {
      return uid.status().Prepend(key);
    }
  }
  return users;
}

// Checks the folders that the daemon makes if they are not there.
Status CheckFolders(const Config& config) {
  const auto check = [](const char* key, const std::string& path) -> Status {
    struct stat info;
    return stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode)
               ? OkStatus()
               : FailedPreconditionError("{}: '{}' is not a folder", key, path);
  };
  if (const std::string cache = CacheFolder(); !cache.empty()) {
    PENSTOCK_RETURN_IF_ERROR(check("cache_dir", cache));
  }
  for (const std::string& folder : config.snapshot_path) {
    PENSTOCK_RETURN_IF_ERROR(check("snapshot_path", folder));
  }
  return OkStatus();
}

// Reports errors that would prevent a start, without starting anything.
Status CheckMachine(const Config& config, const WorkerOptions& workers,
                    const FunctionOptions& functions) {
  PENSTOCK_RETURN_IF_ERROR(
      AsConfigured(config, WorkerPool::CheckReads(workers)).status());
  if (!config.state_dir.empty()) {
    PENSTOCK_RETURN_IF_ERROR(AsConfigured(
        config,
        OpenJournalDirectory(config.state_dir).status().Prepend("state_dir")));
  }
  PENSTOCK_RETURN_IF_ERROR(AsConfigured(config, CheckFolders(config)));
  PENSTOCK_RETURN_IF_ERROR(AsConfigured(
      config, CheckSocketPath(SocketPath(config.socket)).Prepend("socket")));
  PENSTOCK_RETURN_IF_ERROR(
      AsConfigured(config, DataPolicy::Open(config.data)).status());
  for (const auto& [key, names] : {std::pair("observers", &config.observers),
                                   std::pair("links", &config.links)}) {
    PENSTOCK_RETURN_IF_ERROR(
        AsConfigured(config, UsersOf(key, *names)).status());
  }
  if (functions.python_path.empty()) return OkStatus();
  return AsConfigured(config,
                      PythonProcess::CheckInterpreter(functions.python));
}

// The absolute path of a listening socket, from the kernel.
std::string PathOf(int listener) {
  sockaddr_un address{};
  socklen_t length = sizeof(address) - 1;  // ends in a NUL, whatever it holds
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
      0) {
    return "";
  }
  if (address.sun_path[0] == '\0') return "";
  std::error_code error;  // the working folder may be gone
  const auto path = std::filesystem::absolute(address.sun_path, error);
  return error ? address.sun_path : path.string();
}

StatusOr<std::unique_ptr<Fetcher>> MakeFetcher(
    const FunctionOptions& functions) {
  return Fetcher::Make(functions, CacheFolder() + "/objects");
}

// A private broker has the credentials of its user, a service has none.
Status UseStores(const FunctionOptions& functions) {
  if (CacheFolder().empty()) return OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Fetcher> fetcher,
                            MakeFetcher(functions));
  FileAccess::UseStores(std::move(fetcher));
  return OkStatus();
}

// What cannot be tried is told as what is found: for `penstock doctor`.
Status TryStore(const Arguments& arguments) {
  PENSTOCK_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  UseCacheDir(config);
  const auto found = [&]() -> StatusOr<nlohmann::json> {
    if (CacheFolder().empty()) {
      return FailedPreconditionError(
          "there is no folder for copies: set PENSTOCK_CACHE_DIR");
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const FunctionOptions functions,
        AsConfigured(config, FunctionsOf(config, /*private_broker=*/true)));
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Fetcher> fetcher,
                              MakeFetcher(functions));
    return fetcher->Try(arguments.try_store, arguments.seconds);
  }();
  const nlohmann::json json =
      found.ok()
          ? *found
          : nlohmann::json({{"url", arguments.try_store},
                            {"error",
                             {{"step", "start"},
                              {"code", static_cast<int>(found.status().code())},
                              {"text", found.status().message()}}}});
  Print(stdout, "{}\n",
        json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return OkStatus();
}

// For programs that need a dataset and no broker: --replay, --measure-reads,
// --write-indexes.
Status RunOnSpec(const Arguments& arguments) {
  const std::string& file = !arguments.replay.empty() ? arguments.replay
                            : !arguments.measure_reads.empty()
                                ? arguments.measure_reads
                                : arguments.write_indexes;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                            ReadTextFile("spec file", file, kSpecBytesMax));
  const std::string folder =
      std::filesystem::absolute(file).parent_path().string();
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetSpec spec,
                            ParseDatasetSpec(text, file, folder));
  PENSTOCK_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  UseCacheDir(config);
  PENSTOCK_ASSIGN_OR_RETURN(
      FunctionOptions functions,
      AsConfigured(config, FunctionsOf(config, /*private_broker=*/true)));
  // As the private broker whose command has written the spec into its folder.
  functions.object_dir = folder + "/datasets";
  PENSTOCK_RETURN_IF_ERROR(UseStores(functions));
  if (!arguments.replay.empty()) {
    ReplayOptions options = arguments.replay_options;
    const auto changes = nlohmann::json::parse(
        arguments.replay_weights.empty() ? "[]" : arguments.replay_weights,
        nullptr, /*allow_exceptions=*/false);
    for (const nlohmann::json& each : changes) {
      PENSTOCK_ASSIGN_OR_RETURN(WeightsChange change,
                                WeightsChangeFromJson(each));
      options.weights.push_back(std::move(change));
    }
    return Replay(spec, functions, options, stdout);
  }
  if (!arguments.write_indexes.empty()) {
    return WriteIndexes(spec, functions, arguments.out, stdout);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Topology> topology,
                            Topology::Load({}));
  return MeasureReads(
      spec, functions,
      {arguments.seconds,
       config.workers != 0 ? config.workers : topology->cpu_quota()},
      stdout);
}

// For `penstock help`, whose exit status it returns.
int DescribeTo(std::FILE* out, const Arguments& arguments) {
  if (arguments.describe_config) {
    Print(out, "{}", DescribeConfig());
    return 0;
  }
  if (arguments.describe_messages) {
    Print(out, "{}", DescribeMessages());
    return 0;
  }
  const StatusOr<std::string> text = DescribeSpec(*arguments.describe_spec);
  if (!text.ok()) {
    Print(stderr, "penstock: {}\n", text.status().message());
    return 2;
  }
  Print(out, "{}", arguments.json ? SpecDeclarations().dump(1) + "\n" : *text);
  return 0;
}

// To the most the system allows: each rank costs four descriptors.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// A read that never returns (hung storage) must not keep a stopped broker
// alive.
void ExitSoonAtAnyRate() {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    Log<"thread-hangs">();
    _exit(1);
  }).detach();
}

// Samples that the last broker instance died of. If the file cannot be used,
// only this knowledge is lost.
StatusOr<std::unique_ptr<SampleQuarantine>> SamplesOf(
    const std::string& folder) {
  auto samples = SampleQuarantine::Open(folder);
  if (samples.ok() || folder.empty()) return samples;
  Log<"samples-unknown">(samples.status().message());
  return SampleQuarantine::Open("");
}

// Used by OnCrash.
SampleQuarantine* crash_samples = nullptr;
constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
struct sigaction crash_actions[NSIG];  // those replaced

// Records the sample in work, then ends as without this handler (a core, the
// report of a sanitizer).
void OnCrash(int signal, siginfo_t* info, void*) {
  // One that another process sent (systemd's watchdog: SIGABRT) came to any
  // thread.
  if (info->si_code != SI_USER) crash_samples->BlameThisThread();
  sigaction(signal, &crash_actions[signal], nullptr);
  // A fault recurs by itself; a signal that was sent does not.
  if (info->si_code <= 0) raise(signal);
}

void NoteCrashes(SampleQuarantine* samples) {
  crash_samples = samples;
  struct sigaction action = {};
  action.sa_sigaction = OnCrash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : kCrashSignals) {
    sigaction(signal, &action, &crash_actions[signal]);
  }
}

// Only the end of the process stops a thread that hangs in a decoder. The next
// broker instance knows the sample (sample_quarantine.h).
[[noreturn]] void EndStuck(const std::string& stuck) {
  Log<"stuck">(stuck);
  FlushLog(true);
  _exit(kStuckExitStatus);
}

// SIGINT, SIGTERM and, if it reloads, SIGHUP are read from this descriptor.
// Before any thread starts: all must inherit the mask.
StatusOr<Fd> OpenSignals(bool reloads) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  if (reloads) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write over the file size limit reports it itself.
  signal(SIGXFSZ, SIG_IGN);
  Fd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd) return ErrnoError(errno, "signalfd");
  return signal_fd;
}

// The folders that the daemon writes, made if they were not there.
StatusOr<SandboxOptions> SandboxOf(const Config& config,
                                   const std::string& given_folder,
                                   bool private_broker) {
  SandboxOptions options;
  options.io_uring = config.read_backend != ReadBackend::kPread;
  // Its own socket is there, and it asks no directory of users.
  options.connects = given_folder.empty() || !private_broker;
  PENSTOCK_RETURN_IF_ERROR(AsConfigured(config, CheckFolders(config)));
  if (std::string cache = CacheFolder(); !cache.empty()) {
    MakeFolderOf(cache + "/");
    options.written.push_back(std::move(cache));
  }
  for (const std::string& folder : config.snapshot_path) {
    MakeFolderOf(folder + "/");
    options.written.push_back(folder);
  }
  if (!config.state_dir.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const auto files,
                              OpenJournalDirectory(config.state_dir));
    options.written.push_back(files->directory());
    // The memory folder of a broker that runs is left alone.
    PENSTOCK_RETURN_IF_ERROR(LockJournal(files.get()));
    // Without it, the journal says what is lost.
    StatusOr<std::string> memory = OpenMemoryFolder(files->directory());
    if (memory.ok()) options.written.push_back(*std::move(memory));
  }
  if (given_folder.empty()) {
    options.sockets.push_back(
        std::filesystem::absolute(SocketPath(config.socket)).parent_path());
  } else if (private_broker) {
    // With that of the state in memory, it ends with the owner.
    options.emptied.push_back(given_folder);
    options.parents.push_back(
        std::filesystem::path(given_folder).parent_path());
    options.parents.push_back("/dev/shm");
  }
  return options;
}

// From here on this process starts no programs and writes to its own folders
// only; the launcher starts functions. Before there is a thread. Returns what
// is in force.
StatusOr<std::string> Confine(const Arguments& arguments, const Config& config,
                              const FunctionOptions& functions,
                              const std::string& given_folder) {
  if (config.sandbox == SandboxMode::kOff) return std::string("off");
  PENSTOCK_ASSIGN_OR_RETURN(
      const SandboxOptions options,
      SandboxOf(config, given_folder, arguments.private_broker));
  ConnectServiceManager();
  PENSTOCK_RETURN_IF_ERROR(PythonProcess::StartLauncher(
      functions,
      {PythonOp::Program(), TokenizeOp::Program(),
       PythonDatasetSource::Program(), Fetcher::Program()},
      given_folder.empty()
          ? std::filesystem::absolute(SocketPath(config.socket)).string()
          : "",
      config.state_dir.empty() ? "" : LinkedMemoryFolder(config.state_dir),
      [arguments](FunctionOptions* options) -> Status {
        PENSTOCK_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
        PENSTOCK_ASSIGN_OR_RETURN(
            *options, FunctionsOf(config, arguments.private_broker));
        return OkStatus();
      }));
  PENSTOCK_ASSIGN_OR_RETURN(
      const Sandbox sandbox,
      AsConfigured(config, EnterSandbox(config.sandbox, options)));
  // `penstock doctor` tells the user of a private broker.
  if (!sandbox.lacking.empty() && !arguments.private_broker) {
    Log<"sandbox-lacks">(sandbox.lacking);
  }
  return sandbox.in_force.empty() ? std::string("none") : sandbox.in_force;
}

// 0: none.
uint32_t NextSignal(int signal_fd) {
  signalfd_siginfo info{};
  return read(signal_fd, &info, sizeof(info)) == sizeof(info) ? info.ssi_signo
                                                              : 0;
}

WorkerOptions WorkersOf(const Config& config) {
  WorkerOptions options;
  options.workers = config.workers;
  options.read_depth = config.read_depth;
  options.read_backend = config.read_backend;
  options.read_timeout_ns = config.read_timeout_ns;
  options.decode_timeout_ns = config.decode_timeout_ns;
  return options;
}

JobTable::Limits LimitsOf(const Config& config, FunctionOptions functions,
                          DataPolicy data, bool private_broker) {
  JobTable::Limits limits;
  // What holds a private broker is its sandbox.
  if (!private_broker) limits.snapshots = config.snapshot_path;
  limits.memory.bytes = config.memory_limit;
  limits.memory.bytes_of_uid = config.memory_limit_per_user;
  limits.jobs_per_uid = config.jobs_per_user;
  limits.functions = std::move(functions);
  limits.data = std::move(data);
  return limits;
}

// Takes over what the configuration file says now. *config: what is in force.
// A file with a mistake changes nothing.
Status Reload(const Arguments& arguments, Config* config, JobTable* jobs,
              WorkerPool* workers) {
  PENSTOCK_ASSIGN_OR_RETURN(const Config next, ConfigOf(arguments));
  PENSTOCK_ASSIGN_OR_RETURN(
      FunctionOptions functions,
      AsConfigured(next, FunctionsOf(next, /*private_broker=*/false)));
  PENSTOCK_ASSIGN_OR_RETURN(DataPolicy data,
                            AsConfigured(next, DataPolicy::Open(next.data)));
  if (ProgramLauncher* const launcher = ProgramLauncher::Get()) {
    PENSTOCK_RETURN_IF_ERROR(launcher->Reload());
  }
  std::vector<std::string> taken;
  std::vector<std::string> left;
  for (const std::string& key : ChangedKeys(*config, next)) {
    (IsReloadable(key) ? taken : left).push_back(key);
  }
  // The folders of snapshots stay: the sandbox has those of the start.
  Config in_force = next;
  in_force.snapshot_path = config->snapshot_path;
  jobs->SetLimits(LimitsOf(in_force, std::move(functions), std::move(data),
                           /*private_broker=*/false));
  workers->SetTimeouts(next.read_timeout_ns, next.decode_timeout_ns);
  // Else the number that `penstock workers` set stays.
  const bool other_workers = next.workers != config->workers;
  config->workers = next.workers;
  config->memory_limit = next.memory_limit;
  config->memory_limit_per_user = next.memory_limit_per_user;
  config->jobs_per_user = next.jobs_per_user;
  config->decode_timeout_ns = next.decode_timeout_ns;
  config->read_timeout_ns = next.read_timeout_ns;
  config->functions = next.functions;
  config->data = next.data;
  Log<"reloaded">(arguments.config,
                  taken.empty() ? "nothing changes" : JoinText(taken, ", "));
  if (!left.empty()) {
    Log<"restart-needed">(arguments.config, JoinText(left, ", "));
  }
  return other_workers ? workers->SetWorkers(next.workers, "`workers`")
                       : OkStatus();
}

// As systemd wants to be told of it.
void ReloadAndNotify(const Arguments& arguments, Config* config, JobTable* jobs,
                     WorkerPool* workers) {
  NotifyServiceManager("RELOADING=1");
  const Status status = Reload(arguments, config, jobs, workers);
  if (!status.ok()) Log<"reload-failed">(status.message());
  NotifyServiceManager("READY=1\nSTATUS=" + StatusLine(status));
}

// An orderly end leaves only knowledge of bad samples in memory.
void RemoveSamples(const SampleQuarantine& samples, const std::string& folder) {
  if (samples.suspects() != 0 || folder.empty()) return;
  unlink((folder + "/" + SampleQuarantine::kFileName).c_str());
}

// Connects all rooms.
Status Serve(const Arguments& arguments) {
  RaiseDescriptorLimit();
  // A private broker, and one without a file, ends with its terminal.
  const bool reloads = !arguments.config.empty() && !arguments.private_broker;
  PENSTOCK_ASSIGN_OR_RETURN(const Fd signal_fd, OpenSignals(reloads));
  PENSTOCK_ASSIGN_OR_RETURN(Config config, ConfigOf(arguments));
  UseCacheDir(config);
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<Topology> topology,
      AsConfigured(config,
                   Topology::Load({config.cpus, config.reserve_cores})));
  if (!topology->unbound().empty()) {
    Log<"numa-off">(topology->unbound());
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      FunctionOptions functions,
      AsConfigured(config, FunctionsOf(config, arguments.private_broker)));
  WorkerOptions worker_options = WorkersOf(config);
  if (arguments.check) {
    PENSTOCK_RETURN_IF_ERROR(CheckMachine(config, worker_options, functions));
    Print(stdout, "{}: valid on this machine\n",
          arguments.config.empty() ? "options" : Printable(arguments.config));
    return OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(Inherited inherited, Inherit());
  const std::string given_folder =
      std::filesystem::path(PathOf(inherited.listener.get())).parent_path();
  if (arguments.private_broker) {
    functions.object_dir = given_folder + "/datasets";
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::string sandbox,
      Confine(arguments, config, functions, given_folder));
  if (arguments.private_broker) {
    PENSTOCK_RETURN_IF_ERROR(UseStores(functions));
  } else if (!config.fetcher.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(auto fetcher, Fetcher::Connect(config.fetcher));
    FileAccess::UseStores(std::move(fetcher));
  }
  const Owner owner(std::move(inherited.owner), given_folder);
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<RecoveryJournal> recovery_journal,
      RecoveryJournal::Open(config.state_dir, std::move(inherited.stored)));

  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop,
                            EventLoop::Make());
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<SampleQuarantine> samples,
                            SamplesOf(recovery_journal->memory_folder()));
  NoteCrashes(samples.get());
  worker_options.samples = samples.get();
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<WorkerPool> workers,
      AsConfigured(config, WorkerPool::Start(*topology, worker_options)));
  // The last step that can fail for an outside reason: nothing is left behind.
  const bool own_socket = !inherited.listener;
  if (own_socket) {
    StatusOr<Fd> listener = ListenAt(SocketPath(config.socket));
    if (!listener.ok()) {
      RemoveSamples(*samples, recovery_journal->memory_folder());
      return listener.status();
    }
    inherited.listener = *std::move(listener);
  }
  const std::string path = PathOf(inherited.listener.get());
  DeferredDestruction deferred;
  DataPolicy data;
  if (!arguments.private_broker) {
    PENSTOCK_ASSIGN_OR_RETURN(
        data, AsConfigured(config, DataPolicy::Open(config.data)));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      std::vector<uid_t> observers,
      AsConfigured(config, UsersOf("observers", config.observers)));
  PENSTOCK_ASSIGN_OR_RETURN(
      std::vector<uid_t> links,
      AsConfigured(config, UsersOf("links", config.links)));
  JobTable jobs(loop.get(), workers.get(), &deferred, recovery_journal.get(),
                LimitsOf(config, std::move(functions), std::move(data),
                         arguments.private_broker));
  ControlServer server(loop.get(), &jobs, workers.get(), topology.get(),
                       &deferred, recovery_journal.get(),
                       {arguments.private_broker, path, sandbox,
                        std::move(observers), std::move(links)});
  loop->SetTick(
      WorkerPool::kTickInterval,
      [&] {
        return server.WantsTick() || workers->WantsTick() ||
               recovery_journal->WantsTick() || LogHoldsBack();
      },
      [&] {
        server.Tick();
        recovery_journal->Tick();
        FlushLog();
        if (const auto stuck = workers->Tick()) EndStuck(*stuck);
      });
  PENSTOCK_RETURN_IF_ERROR(loop->Watch(signal_fd.get(), [&](uint32_t) {
    const uint32_t signal = NextSignal(signal_fd.get());
    if (signal == SIGHUP) {
      ReloadAndNotify(arguments, &config, &jobs, workers.get());
    } else if (signal != 0) {
      loop->Stop();
    }
  }));
  Watchdog watchdog;
  PENSTOCK_RETURN_IF_ERROR(Watchdog::Start(
      loop.get(), [&] { return workers->StandsStill(); }, &watchdog));
  if (ProgramLauncher* const launcher = ProgramLauncher::Get()) {
    PENSTOCK_RETURN_IF_ERROR(loop->Watch(launcher->pidfd(), [](uint32_t) {
      EndStuck("the process that starts functions has ended");
    }));
  }
  PENSTOCK_RETURN_IF_ERROR(server.Listen(std::move(inherited.listener)));
  NotifyServiceManager(samples->death_explained()
                           ? "READY=1\nX_PENSTOCK_EXPLAINED=1"
                           : "READY=1");
  Log<"serving">(PENSTOCK_VERSION, path, workers->workers(),
                 workers->read_backend());

  if (const Status cache = CheckCacheFolder(); !cache.ok()) {
    Log<"cache-unusable">(cache.message());
  }
  if (config.state_dir.empty() && !arguments.private_broker) {
    Log<"no-state-directory">();
  }
  loop->Run();

  NotifyServiceManager("STOPPING=1");
  jobs.Shutdown();
  FlushLog(true);
  ExitSoonAtAnyRate();
  RemoveSamples(*samples, recovery_journal->memory_folder());
  // The path is ours: nobody replaces it while we listen. Ranks that find no
  // socket know that no other broker will come.
  if (own_socket || (arguments.private_broker && !owner.known())) {
    RemoveOwnSocket(path);
  }
  owner.RemoveFolderOfDead();
  return OkStatus();
}

int Main(int argc, char** argv) {
  LogToJournal();
  Arguments arguments;
  CommandLine line("penstockd");
  DeclareArguments(line, &arguments);
  const StatusOr<bool> parsed = line.Parse(argc, argv);
  if (!parsed.ok()) {
    Log<"wrong-usage">(parsed.status().message());
    return 2;
  }
  if (!*parsed) return 0;
  if (arguments.describe_config || arguments.describe_messages ||
      arguments.describe_spec) {
    return DescribeTo(stdout, arguments);
  }
  if (arguments.private_broker) SetLogLevel(LogLevel::kWarning);
  for (const std::string& name : arguments.without_message) {
    if (LeaveOutOfLog(name)) continue;
    Log<"wrong-usage">(Format("--without-message: no message is '{}'", name));
    return 2;
  }

  const Status status = !arguments.try_store.empty() ? TryStore(arguments)
                        : arguments.replay.empty() &&
                                arguments.measure_reads.empty() &&
                                arguments.write_indexes.empty()
                            ? Serve(arguments)
                            : RunOnSpec(arguments);
  if (status.ok()) return 0;
  Log<"failed">(status.message());
  NotifyServiceManager("STATUS=" + StatusLine(status));
  return 1;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
