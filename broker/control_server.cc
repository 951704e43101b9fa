#include "broker/control_server.h"

#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/job_state.h"
#include "common/wake.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace penstock {
namespace {

// Fields of a request: foreign, so every access is checked.
StatusOr<std::string> TextField(const nlohmann::json& json, const char* name,
                                size_t chars_max) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) {
    return InvalidArgumentError("request: '{}' is missing or not a string",
                                name);
  }
  const auto& text = found->get_ref<const std::string&>();
  if (text.size() > chars_max) {
    return InvalidArgumentError("request: '{}' is longer than {} characters",
                                name, chars_max);
  }
  return text;
}

StatusOr<uint64_t> NumberField(const nlohmann::json& json, const char* name,
                               uint64_t min, uint64_t max) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer() ||
      (!found->is_number_unsigned() && found->get<int64_t>() < 0) ||
      found->get<uint64_t>() < min || found->get<uint64_t>() > max) {
    return InvalidArgumentError(
        "request: '{}' is missing or not a number from {} to {}", name, min,
        max);
  }
  return found->get<uint64_t>();
}

StatusOr<std::vector<uint64_t>> PositionsField(const nlohmann::json& json) {
  const auto found = json.find("owed");
  std::vector<uint64_t> positions;
  const bool fits = found != json.end() && found->is_array() &&
                    found->size() <= JobState::kOwedMax;
  if (fits) {
    for (const nlohmann::json& each : *found) {
      if (!each.is_number_unsigned()) break;
      positions.push_back(each.get<uint64_t>());
    }
  }
  if (fits && positions.size() == found->size()) return positions;
  return InvalidArgumentError(
      "request: 'owed' is missing or not a list of up to {} positions",
      JobState::kOwedMax);
}

// One of a few words; absent: the first.
template <typename E, size_t N>
StatusOr<E> ChoiceField(const nlohmann::json& json, const char* name,
                        const std::array<std::string_view, N>& names) {
  const auto found = json.find(name);
  if (found == json.end()) return static_cast<E>(0);
  if (found->is_string()) {
    for (size_t i = 0; i < N; ++i) {
      if (found->get_ref<const std::string&>() == names[i]) {
        return static_cast<E>(i);
      }
    }
  }
  return InvalidArgumentError("request: '{}' is {}; wanted one of: {}", name,
                              found->dump().substr(0, 40),
                              fmt::join(names, ", "));
}

StatusOr<bool> FlagField(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return false;
  if (found->is_boolean()) return found->get<bool>();
  return InvalidArgumentError("request: '{}' is not true or false", name);
}

StatusOr<DeliveryOptions> DeliveryOf(const nlohmann::json& request) {
  DeliveryOptions options;
  PENSTOCK_ASSIGN_OR_RETURN(
      options.mode,
      ChoiceField<DeliveryMode>(request, "delivery", kDeliveryModeNames));
  PENSTOCK_ASSIGN_OR_RETURN(options.lag,
                            ChoiceField<Lag>(request, "lag", kLagNames));
  // Only a split has a place that is nobody else's.
  options.on_rank_death = options.mode == DeliveryMode::kSplit
                              ? OnRankDeath::kWait
                              : OnRankDeath::kShrink;
  if (request.contains("on_rank_death")) {
    PENSTOCK_ASSIGN_OR_RETURN(
        options.on_rank_death,
        ChoiceField<OnRankDeath>(request, "on_rank_death", kOnRankDeathNames));
  }
  if (request.contains("window")) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t window,
                              NumberField(request, "window", 1, kLeasesMax));
    options.window = static_cast<uint32_t>(window);
  }
  if (options.mode == DeliveryMode::kDynamic &&
      options.on_rank_death == OnRankDeath::kWait) {
    return InvalidArgumentError(
        "attach: on_rank_death: wait is not offered in dynamic, where the "
        "batches of a dead rank go to the others at once; shrink or fail");
  }
  if (options.mode == DeliveryMode::kBroadcast) return options;
  for (const char* name : {"lag", "window", "consumers", "full_epoch"}) {
    if (!request.contains(name)) continue;
    return InvalidArgumentError(
        "attach: '{}' is an option of broadcast; delivery is {}", name,
        kDeliveryModeNames[static_cast<size_t>(options.mode)]);
  }
  return options;
}

// What a rank says of where it runs.
StatusOr<RankPlacement> PlacementOf(const nlohmann::json& request) {
  RankPlacement placement;
  if (request.contains("cpus")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                              TextField(request, "cpus", kCpuListCharsMax));
    auto cpus = ParseCpuList(text);
    if (!cpus.ok()) return cpus.status().Prepend("attach: 'cpus'");
    placement.cpus = *std::move(cpus);
  }
  if (request.contains("cpu")) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t cpu,
                              NumberField(request, "cpu", 0, kCpusMax - 1));
    placement.cpu = static_cast<uint32_t>(cpu);
  }
  if (request.contains("node")) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t node,
                              NumberField(request, "node", 0, kNodesMax - 1));
    placement.node = static_cast<uint32_t>(node);
  }
  return placement;
}

std::shared_ptr<const CursorPage> PageOf(Mapping mapping) {
  const auto shared = std::make_shared<Mapping>(std::move(mapping));
  return {shared, reinterpret_cast<const CursorPage*>(shared->data())};
}

constexpr int kAcceptsPerTurn = 16;
// Consumers of a broadcast job that names no number of ranks of its own.
constexpr uint64_t kConsumersDefault = 8;
// From hang-up to the news of the death, which follows at once if it died.
constexpr std::chrono::milliseconds kLostGrace{500};
// A request is a spec of 64 KiB, escaped, and some words.
constexpr size_t kRequestBytesMax = 512 * 1024;
constexpr size_t kNameCharsMax = 256;
constexpr size_t kPathCharsMax = 4096;
constexpr uint64_t kWorldSizeMax = 1u << 20;

// A descriptor that becomes readable when the peer's process ends: also when a
// child it forked keeps the socket open. None: errno is ESRCH when it has ended
// already, else it is of another pid namespace and the kernel is older
// than 6.5.
Fd PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    return Fd(fd);
  }
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

double CpuSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    seconds +=
        static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
        1e-6 * static_cast<double>(usage.ru_utime.tv_usec +
                                   usage.ru_stime.tv_usec);
  }
  return seconds;
}

}  // namespace

ControlServer::ControlServer(EventLoop* loop, JobTable* jobs,
                             WorkerPool* workers, const Topology* topology,
                             Disposal* disposal, LifeJournal* life,
                             Options options)
    : loop_(loop),
      jobs_(jobs),
      workers_(workers),
      topology_(topology),
      disposal_(disposal),
      life_(life),
      options_(std::move(options)) {
  for (const LifeJournal::Dataset& dataset : life->TakeDatasets()) {
    auto spec = ParseDatasetSpec(dataset.spec, "journal", "/");
    if (spec.ok()) {
      datasets_[{dataset.uid, dataset.name}] = *std::move(spec);
    } else {
      spdlog::warn("dataset '{}' is not registered any more: {}", dataset.name,
                   spec.status().message());
    }
  }
}

ControlServer::~ControlServer() = default;

Status ControlServer::Listen(Fd listener) {
  listener_ = std::move(listener);
  return StartAccepting();
}

Status ControlServer::StartAccepting() {
  accepting_ = true;
  return loop_->Watch(listener_.get(), [this](uint32_t) { Accept(); });
}

void ControlServer::Accept() {
  // Bounded: who connects in a loop takes turns with everything else.
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd socket(accept4(listener_.get(), nullptr, nullptr,
                      SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        // EMFILE and the like: who connects waits in the backlog until the next
        // tick.
        spdlog::warn("no new connections for now: accept: {}", strerror(errno));
        loop_->Unwatch(listener_.get());
        accepting_ = false;
      }
      return;
    }
    ucred peer{};
    socklen_t length = sizeof(peer);
    getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
    const auto of_uid = std::count_if(
        connections_.begin(), connections_.end(),
        [&](const auto& item) { return item.second.uid == peer.uid; });
    Status refusal;
    if (connections_.size() >= kConnectionsMax) {
      refusal = ResourceExhaustedError(
          "the broker has {} connections, all it may have: it takes more when "
          "processes that hold some end",
          kConnectionsMax);
    } else if (static_cast<size_t>(of_uid) >= kConnectionsPerUidMax) {
      refusal = ResourceExhaustedError(
          "user {} has {} connections, all one user may have: end processes "
          "that hold some (`penstock status` shows the ranks)",
          peer.uid, kConnectionsPerUidMax);
    } else if (options_.private_broker && peer.uid != geteuid() &&
               peer.uid != 0) {
      refusal =
          PermissionDeniedError("this broker is private to user {}", geteuid());
    }
    if (!refusal.ok()) {
      (void)SendMessage(socket.get(), ErrorReply(refusal));
      continue;
    }
    Fd pidfd = PidfdOf(socket.get(), peer.pid);
    // What a dead process asked for would be kept for one that nobody can see
    // die.
    if (!pidfd && errno == ESRCH) continue;
    const uint64_t id = next_id_++;
    Connection& connection = connections_[id];
    connection.id = id;
    connection.pidfd = std::move(pidfd);
    connection.socket = std::move(socket);
    connection.uid = peer.uid;
    connection.pid = peer.pid;
    connection.opened = std::chrono::steady_clock::now();
    Status status = loop_->Watch(connection.socket.get(),
                                 [this, id](uint32_t) { OnReadable(id); });
    if (status.ok() && connection.pidfd) {
      status = loop_->Watch(connection.pidfd.get(),
                            [this, id](uint32_t) { Drop(id); });
    }
    if (!status.ok()) {
      spdlog::warn("a connection: {}", status.message());
      Drop(id);
    }
  }
}

ControlServer::Connection* ControlServer::Find(uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

void ControlServer::OnReadable(uint64_t id) {
  Connection* connection = Find(id);
  // One message a turn: a flood takes its turn with the others.
  StatusOr<std::optional<Message>> message =
      ReceiveMessage(connection->socket.get(), kRequestBytesMax);
  if (!message.ok()) {
    if (message.status().code() != StatusCode::kUnavailable) {
      Reply(connection, ErrorReply(message.status()));
    }
    Lose(id);
    return;
  }
  if (!*message) return;
  std::vector<Fd> fds = std::move((*message)->fds);
  Handle(connection, (*message)->json, fds);
  disposal_->Close(std::move(fds));
}

void ControlServer::Handle(Connection* connection,
                           const nlohmann::json& request,
                           std::vector<Fd>& fds) {
  connection->greeted = true;
  const auto version = request.find("penstock");
  if (version == request.end() || !version->is_number_integer() ||
      version->get<int64_t>() != kProtocolVersion) {
    Reply(connection, ErrorReply(FailedPreconditionError(
                          "this broker speaks protocol version {}: install "
                          "client and broker of the same Penstock release",
                          kProtocolVersion)));
    Lose(connection->id);
    return;
  }
  const StatusOr<std::string> op = TextField(request, "op", kNameCharsMax);
  if (!op.ok()) {
    Reply(connection, ErrorReply(op.status()));
    return;
  }
  if (connection->waiting) {
    Reply(connection, ErrorReply(FailedPreconditionError(
                          "a request of this connection is under way")));
    Lose(connection->id);
    return;
  }
  if (*op == "detach") {
    // Everything of this connection is unmapped. No answer: it hangs up.
    End(connection->id, true);
    return;
  }
  if (*op == "unmapped") {  // what it had of former lives; no answer
    connection->former_memory.reset();
    return;
  }
  const auto answer_with = [&](const StatusOr<nlohmann::json>& answer) {
    Reply(connection, answer.ok() ? *answer : ErrorReply(answer.status()));
  };
  Status status;
  if (*op == "attach") {
    status = StartAttach(connection, request, fds);
    if (status.ok()) return;  // answered later
  } else if (*op == "index") {
    status = StartIndex(connection, request);
    if (status.ok()) return;
  } else if (*op == "register") {
    answer_with(Register(*connection, request));
    return;
  } else if (*op == "unregister") {
    answer_with(Unregister(*connection, request));
    return;
  } else if (*op == "state") {
    answer_with(JobStateOf(*connection, request));
    return;
  } else if (*op == "evict") {
    answer_with(Evict(*connection, request));
    return;
  } else if (*op == "stop") {
    answer_with(StopJob(*connection, request));
    return;
  } else if (*op == "ping") {
    nlohmann::json answer = OkReply();
    answer["version"] = PENSTOCK_VERSION;
    answer["pid"] = getpid();
    answer["private"] = options_.private_broker;
    Reply(connection, answer);
    return;
  } else if (*op == "datasets") {
    Reply(connection, DatasetsJson());
    return;
  } else if (*op == "jobs") {
    nlohmann::json answer = OkReply();
    answer["jobs"] = jobs_->StatusJson(false);
    Reply(connection, answer);
    return;
  } else if (*op == "status") {
    Reply(connection, StatusJson());
    return;
  } else if (*op == "shutdown") {
    if (options_.private_broker) {
      Reply(connection, OkReply());
      loop_->Stop();
      return;
    }
    status = PermissionDeniedError(
        "this broker is a service: stop it with systemctl");
  } else {
    status = InvalidArgumentError("unknown operation '{}'", *op);
  }
  Reply(connection, ErrorReply(status));
}

StatusOr<DatasetSpec> ControlServer::SpecOf(const Connection& connection,
                                            const nlohmann::json& request) {
  if (request.contains("spec")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                              TextField(request, "spec", kSpecBytesMax));
    PENSTOCK_ASSIGN_OR_RETURN(const std::string file,
                              TextField(request, "file", kPathCharsMax));
    PENSTOCK_ASSIGN_OR_RETURN(const std::string base,
                              TextField(request, "base", kPathCharsMax));
    return ParseDatasetSpec(text, file, base);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name,
                            TextField(request, "dataset", kNameCharsMax));
  auto found = datasets_.find({connection.uid, name});
  if (found != datasets_.end()) return found->second;
  std::string known;
  for (const auto& [key, spec] : datasets_) {
    if (key.first == connection.uid) {
      known += (known.empty() ? "" : ", ") + key.second;
    }
  }
  return NotFoundError(
      "no dataset '{}' is registered by user {} ({}); register it with "
      "`penstock register SPEC.yaml`, or attach with the spec file's path",
      name, connection.uid,
      known.empty() ? "none is" : "registered are: " + known);
}

Status ControlServer::StartAttach(Connection* connection,
                                  const nlohmann::json& request,
                                  std::vector<Fd>& fds) {
  if (connection->job != nullptr) {
    return FailedPreconditionError("this connection is attached already");
  }
  if (fds.empty() || fds.size() > 2) {
    return InvalidArgumentError(
        "attach: wanted the descriptor of the cursor page, and perhaps that of "
        "the former one; found {}",
        fds.size());
  }
  JobTable::AttachRequest attach;
  JobOptions& options = attach.options;
  PENSTOCK_ASSIGN_OR_RETURN(options.spec, SpecOf(*connection, request));
  PENSTOCK_ASSIGN_OR_RETURN(options.delivery, DeliveryOf(request));
  const DeliveryMode mode = options.delivery.mode;
  const bool ranks_are_numbered =
      mode == DeliveryMode::kSplit || mode == DeliveryMode::kDynamic;
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t world,
      NumberField(request, "world_size", 1, kWorldSizeMax));
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t local,
      NumberField(request, "local_world_size", 1, kLocalRanksMax));
  if (local > world) {
    return InvalidArgumentError(
        "attach: local world size {} is more than world size {}", local, world);
  }
  uint64_t consumers = local;
  if (mode == DeliveryMode::kBroadcast) {
    consumers = std::max(local, kConsumersDefault);
    if (request.contains("consumers")) {
      PENSTOCK_ASSIGN_OR_RETURN(
          consumers, NumberField(request, "consumers", 1, kLocalRanksMax));
    }
    if (options.delivery.window == 0) {
      options.delivery.window = options.spec.prefetch;
    }
  } else if (mode == DeliveryMode::kIndependent) {
    consumers = 1;
  }
  if (request.contains("rank") || ranks_are_numbered) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t rank,
        NumberField(request, "rank", 0,
                    ranks_are_numbered ? world - 1 : kWorldSizeMax));
    attach.joining.rank = static_cast<uint32_t>(rank);
  } else {
    attach.joining.rank = Delivery::kAnyRank;
  }
  // The ranks of other hosts would have to shrink at the same step.
  if (mode == DeliveryMode::kSplit && local != world &&
      options.delivery.on_rank_death == OnRankDeath::kShrink) {
    return InvalidArgumentError(
        "attach: on_rank_death: shrink is offered when all {} ranks are on "
        "one host, here are {}",
        world, local);
  }
  if (request.contains("incarnation")) {
    attach.incarnation.emplace();
    PENSTOCK_ASSIGN_OR_RETURN(
        attach.incarnation->number,
        NumberField(request, "incarnation", 1, UINT64_MAX));
    PENSTOCK_ASSIGN_OR_RETURN(attach.incarnation->token,
                              NumberField(request, "token", 0, UINT64_MAX));
  }
  attach.key.uid = connection->uid;
  attach.key.dataset = options.spec.name;
  PENSTOCK_ASSIGN_OR_RETURN(attach.key.name,
                            TextField(request, "job", kNameCharsMax));
  // It comes in messages and logs.
  if (std::any_of(attach.key.name.begin(), attach.key.name.end(), [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
      })) {
    return InvalidArgumentError(
        "attach: a job's name is text without control characters");
  }
  if (!request.contains("spec")) {
    // By name: the name may have got another spec since the job began.
    JobKey key = attach.key;
    if (mode == DeliveryMode::kIndependent) key.consumer = attach.joining.rank;
    if (const DatasetSpec* spec = jobs_->SpecOf(
            key, key.consumer ? 0 : attach.joining.rank, attach.incarnation)) {
      options.spec = *spec;
    }
  }
  options.world_size = static_cast<uint32_t>(world);
  options.local_world_size = static_cast<uint32_t>(local);
  options.consumers_max = static_cast<uint32_t>(consumers);
  PENSTOCK_ASSIGN_OR_RETURN(options.repeat_first,
                            FlagField(request, "repeat_first"));
  PENSTOCK_ASSIGN_OR_RETURN(attach.joining.full_epoch,
                            FlagField(request, "full_epoch"));
  PENSTOCK_ASSIGN_OR_RETURN(attach.named, FlagField(request, "named"));
  if (request.contains("wait_s")) {
    const nlohmann::json& wait = request["wait_s"];
    if (!wait.is_number() || !(wait.get<double>() > 0) ||
        wait.get<double>() > 1e9) {
      return InvalidArgumentError("attach: 'wait_s' is not a time in seconds");
    }
    options.wait_s = wait.get<double>();
  }
  if (request.contains("state")) {
    auto state = JobStateFromJson(request["state"]);
    if (!state.ok()) return state.status().Prepend("attach");
    PENSTOCK_ASSIGN_OR_RETURN(const bool of_same,
                              FlagField(request, "state_of_same_dataset"));
    if (!of_same || state->dataset == options.spec.name) {
      options.start = *std::move(state);
    }
  }
  if (attach.incarnation) {
    PENSTOCK_ASSIGN_OR_RETURN(
        attach.joining.position,
        NumberField(request, "position", 0, Plan::kTotalRowsMax));
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t phase,
        NumberField(request, "phase", 0, kLocalRanksMax - 1));
    attach.joining.phase = static_cast<uint32_t>(phase);
    if (attach.joining.full_epoch) {
      PENSTOCK_ASSIGN_OR_RETURN(
          attach.joining.epochs_from,
          NumberField(request, "epochs_from", 0, Plan::kTotalRowsMax));
    }
    PENSTOCK_ASSIGN_OR_RETURN(attach.joining.owed, PositionsField(request));
    PENSTOCK_ASSIGN_OR_RETURN(
        attach.joining.taken,
        NumberField(request, "taken", 0, Plan::kTotalRowsMax));
    if (fds.size() == 2) {
      PENSTOCK_ASSIGN_OR_RETURN(Mapping former, OpenCursor(fds[1].get()));
      attach.joining.former = PageOf(std::move(former));
      attach.former_inode = CursorInode(fds[1].get());
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const RankPlacement placement,
                            PlacementOf(request));
  RankNode node = NodeOfRank(placement, topology_->node_of_cpus(),
                             topology_->node_numbers());
  if (placement.node && !node.node) {
    spdlog::warn("job '{}': rank {}: {}; its memory is where there is room",
                 attach.key.name, attach.joining.rank, node.from);
  }
  attach.joining.node = node.node;
  attach.joining.node_from = std::move(node.from);
  PENSTOCK_ASSIGN_OR_RETURN(Mapping cursor, OpenCursor(fds[0].get()));
  attach.joining.cursor = PageOf(std::move(cursor));
  attach.cursor_fd = std::move(fds[0]);
  attach.pidfd = connection->pidfd.get();
  PENSTOCK_ASSIGN_OR_RETURN(WakePair wake, MakeWakePair());
  attach.joining.wake_socket = wake.broker.get();
  connection->wake = std::move(wake.broker);
  connection->wake_of_rank = std::move(wake.rank);
  // The answer may come at once (and the connection may then be gone) or after
  // the dataset is open.
  const uint64_t id = connection->id;
  connection->waiting = true;
  const uint64_t number = jobs_->Attach(
      std::move(attach),
      [this, id](auto result) { OnAttached(id, std::move(result)); });
  if (Connection* still = Find(id); still != nullptr && still->waiting) {
    still->attach = number;
  }
  return OkStatus();
}

void ControlServer::OnAttached(uint64_t id,
                               StatusOr<JobTable::Attached> result) {
  Connection* connection = Find(id);
  connection->waiting = false;
  connection->attach = 0;
  if (!result.ok()) {
    connection->wake.Reset();
    connection->wake_of_rank.Reset();
    Reply(connection, ErrorReply(result.status()));
    return;
  }
  connection->job = result->job;
  connection->seat = result->joined.seat;
  connection->former_memory = std::move(result->former_memory);
  const Job& job = *connection->job;
  if (const Status status = loop_->Watch(connection->wake.get(),
                                         [this, id](uint32_t) { OnWake(id); });
      !status.ok()) {
    // Without its wakes the rank would wait for ever once its slots are used.
    Reply(connection, ErrorReply(status));
    connection->job->Mute(connection->seat);
    jobs_->Leave(std::exchange(connection->job, nullptr), connection->seat,
                 true);
    return;
  }
  // Spinning pays when every rank and worker has a processor of its own.
  const bool spare = workers_->workers() + job.options().local_world_size <=
                     topology_->allowed();
  const Plan& plan = job.plan();
  nlohmann::json answer = OkReply();
  answer["dataset"] = job.key().dataset;
  answer["job"] = job.key().name;
  answer["rank"] = job.key().consumer.value_or(result->joined.rank);
  answer["seat"] = connection->seat;
  answer["incarnation"] = result->incarnation.number;
  answer["token"] = result->incarnation.token;
  answer["hold"] = job.options().spec.hold;
  answer["records"] = plan.records();
  answer["steps_per_epoch"] = plan.steps_per_epoch();
  answer["rows_per_epoch"] = plan.rows_per_epoch();
  answer["epochs"] = plan.epochs().value_or(0);
  answer["position"] = result->joined.position;
  answer["handed_over"] = result->joined.backlog;
  answer["replaces"] = result->joined.replaces;
  // What a state is made of: identity, and what was owed at the beginning.
  answer["state"] = JobStateToJson(job.StateAt(plan.start()));
  const Delivery::Joined& joined = result->joined;
  answer["phase"] = joined.phase;
  answer["plan_rank"] = joined.place;
  answer["plan_ranks"] = joined.ranks;
  answer["owed"] =
      JobStateToJson(job.StateAt({joined.position, joined.owed})).at("owed");
  answer["spin_ns"] = spare ? 50'000 : 0;
  answer["element_spec"] =
      ElementSpecToJson(job.dataset().program->element_spec());
  Reply(connection, answer,
        {job.segment().fd(), connection->wake_of_rank.get()});
  connection->wake_of_rank.Reset();
  TellRanksChanged(connection->job);
  connection->job->Advance();
}

void ControlServer::TellRanksChanged(const std::shared_ptr<Job>& job) {
  for (const Delivery::RanksChanged& change : job->TakeRanksChanged()) {
    for (auto& [id, connection] : connections_) {
      if (connection.job != job || connection.seat != change.seat) continue;
      Reply(&connection,
            {{"event", "ranks"},
             {"phase", change.phase},
             {"rank", change.rank},
             {"world_size", change.world_size},
             {"state", JobStateToJson(job->StateAt(change.start))}});
      job->RanksTold(change.seat, change.phase);
    }
  }
}

StatusOr<std::vector<std::shared_ptr<Job>>> ControlServer::JobsOf(
    const Connection& connection, const nlohmann::json& request) {
  if (!request.contains("job") && connection.job != nullptr) {
    return std::vector<std::shared_ptr<Job>>{connection.job};
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name,
                            TextField(request, "job", kNameCharsMax));
  std::string dataset;
  if (request.contains("dataset")) {
    PENSTOCK_ASSIGN_OR_RETURN(dataset,
                              TextField(request, "dataset", kNameCharsMax));
  }
  std::vector<std::shared_ptr<Job>> jobs =
      jobs_->Find(connection.uid, name, dataset);
  if (jobs.empty()) {
    return NotFoundError(
        "user {} runs no job '{}'{}; `penstock jobs` lists them",
        connection.uid, name,
        dataset.empty() ? "" : " of dataset '" + dataset + "'");
  }
  return jobs;
}

StatusOr<nlohmann::json> ControlServer::JobStateOf(
    const Connection& connection, const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            JobsOf(connection, request));
  if (jobs.size() > 1) {
    return InvalidArgumentError(
        "there are {} jobs '{}': say which dataset's state is wanted",
        jobs.size(), jobs[0]->key().name);
  }
  // Sees what was released before the request was sent.
  jobs[0]->Advance();
  if (jobs[0]->Unsettled()) {
    return UnavailableError(
        "job '{}' waits for its ranks to reconnect after a restart of the "
        "broker: where it stands is not known yet, ask again",
        jobs[0]->key().name);
  }
  nlohmann::json answer = OkReply();
  answer["state"] = JobStateToJson(jobs[0]->State());
  return answer;
}

StatusOr<nlohmann::json> ControlServer::Evict(const Connection& connection,
                                              const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            JobsOf(connection, request));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t rank,
                            NumberField(request, "rank", 0, kWorldSizeMax));
  Status status = NotFoundError("job '{}' has no rank {} that is attached",
                                jobs[0]->key().name, rank);
  for (const std::shared_ptr<Job>& job : jobs) {
    const std::optional<uint32_t> consumer = job->key().consumer;
    if (consumer && *consumer != rank) continue;
    const Status evicted =
        job->Evict(consumer ? 0 : static_cast<uint32_t>(rank),
                   fmt::format("evicted by user {}", connection.uid));
    if (evicted.ok()) status = evicted;
    TellRanksChanged(job);
  }
  if (!status.ok()) return status;
  return OkReply();
}

StatusOr<nlohmann::json> ControlServer::StopJob(const Connection& connection,
                                                const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            JobsOf(connection, request));
  PENSTOCK_ASSIGN_OR_RETURN(const bool now, FlagField(request, "now"));
  for (const std::shared_ptr<Job>& job : jobs) {
    if (now) {
      job->Recall(fmt::format("job '{}' was stopped by user {}",
                              job->key().name, connection.uid));
    } else {
      job->Drain();
      // Only those that died are to come.
      if (!job->HasAttached()) job->Recall("it was stopped");
    }
  }
  return OkReply();
}

void ControlServer::OnWake(uint64_t id) {
  Connection* connection = Find(id);
  if (!DrainWakes(connection->wake.get())) {
    // The rank closed its end: it is leaving, its control socket says so too.
    loop_->Unwatch(connection->wake.get());
    return;
  }
  AdvanceSoon(connection->job);
}

// Ranks that keep step wake us together, and each look is at all of them.
void ControlServer::AdvanceSoon(const std::shared_ptr<Job>& job) {
  if (to_advance_.empty()) {
    loop_->AfterEvents([this] {
      for (const auto& each : std::exchange(to_advance_, {})) each->Advance();
    });
  }
  if (std::find(to_advance_.begin(), to_advance_.end(), job) ==
      to_advance_.end()) {
    to_advance_.push_back(job);
  }
}

Status ControlServer::StartIndex(Connection* connection,
                                 const nlohmann::json& request) {
  JobOptions options;
  PENSTOCK_ASSIGN_OR_RETURN(options.spec, SpecOf(*connection, request));
  if (request.contains("world_size")) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t world,
        NumberField(request, "world_size", 1, kLocalRanksMax));
    options.consumers_max = options.world_size = options.local_world_size =
        static_cast<uint32_t>(world);
  }
  const uint64_t id = connection->id;
  connection->waiting = true;
  connection->inspect =
      jobs_->Inspect(std::move(options), [this, id](auto result) {
        Connection* asking = Find(id);
        asking->waiting = false;
        asking->inspect = 0;
        Reply(asking, result.ok() ? *result : ErrorReply(result.status()));
      });
  return OkStatus();
}

StatusOr<nlohmann::json> ControlServer::Register(
    const Connection& connection, const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(DatasetSpec spec, SpecOf(connection, request));
  PENSTOCK_ASSIGN_OR_RETURN(const bool replace, FlagField(request, "replace"));
  const std::pair<uid_t, std::string> key = {connection.uid, spec.name};
  const auto found = datasets_.find(key);
  const std::string field =
      found == datasets_.end() ? "" : DifferingField(spec, found->second);
  if (!field.empty() && !replace) {
    return AlreadyExistsError(
        "dataset '{}' is registered with another spec: {}; --replace it, or "
        "give one of them another name",
        spec.name, field);
  }
  if (found == datasets_.end()) {
    const auto of_uid = std::count_if(
        datasets_.begin(), datasets_.end(),
        [&](const auto& item) { return item.first.first == connection.uid; });
    if (static_cast<size_t>(of_uid) >= kDatasetsPerUidMax) {
      return ResourceExhaustedError(
          "user {} has registered {} datasets, all one user may have; take "
          "some "
          "back (penstock unregister)",
          connection.uid, kDatasetsPerUidMax);
    }
  }
  if (found == datasets_.end() || !field.empty()) {
    PENSTOCK_RETURN_IF_ERROR(life_->DatasetRegistered(
        {connection.uid, spec.name, DatasetSpecToJson(spec).dump()}));
    datasets_[key] = spec;
  }
  nlohmann::json answer = OkReply();
  answer["dataset"] = spec.name;
  return answer;
}

StatusOr<nlohmann::json> ControlServer::Unregister(
    const Connection& connection, const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetSpec spec,
                            SpecOf(connection, request));
  PENSTOCK_RETURN_IF_ERROR(
      life_->DatasetUnregistered(connection.uid, spec.name));
  datasets_.erase({connection.uid, spec.name});
  nlohmann::json answer = OkReply();
  answer["dataset"] = spec.name;
  return answer;
}

nlohmann::json ControlServer::DatasetsJson() const {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [key, spec] : datasets_) {
    const nlohmann::ordered_json source =
        DatasetSpecToJson(spec).value("source", nlohmann::ordered_json());
    list.push_back({{"name", key.second},
                    {"uid", key.first},
                    {"source", source.empty() ? "" : source.begin().key()}});
  }
  nlohmann::json answer = OkReply();
  answer["datasets"] = std::move(list);
  return answer;
}

nlohmann::json ControlServer::NodesJson() const {
  const std::map<uint32_t, uint32_t> workers = workers_->workers_of_nodes();
  nlohmann::json nodes = nlohmann::json::array();
  for (const Topology::Node& node : topology_->nodes()) {
    const auto found = workers.find(node.os_index);
    nodes.push_back({{"node", node.os_index},
                     {"cpus", node.cpus},
                     {"memory_bytes", node.memory_bytes},
                     {"workers", found == workers.end() ? 0 : found->second}});
  }
  return nodes;
}

std::string ControlServer::NumaText() const {
  const size_t nodes = topology_->nodes().size();
  if (nodes < 2) return "one node";
  if (!topology_->unbound().empty()) return "off: " + topology_->unbound();
  const uint64_t elsewhere = jobs_->PagesElsewhere();
  return elsewhere == 0
             ? fmt::format("{} nodes, bound and verified", nodes)
             : fmt::format("{} nodes, bound, but {} pages were found elsewhere",
                           nodes, elsewhere);
}

nlohmann::json ControlServer::StatusJson() const {
  const std::chrono::duration<double> uptime =
      std::chrono::steady_clock::now() - started_;
  nlohmann::json answer = OkReply();
  answer["broker"] = {{"version", PENSTOCK_VERSION},
                      {"pid", getpid()},
                      {"uptime_s", uptime.count()},
                      {"cpu_s", CpuSeconds()},
                      {"rows", jobs_->RowsMade()},
                      {"workers", workers_->workers()},
                      {"workers_chosen", workers_->Description()},
                      {"read_backend", workers_->read_backend()},
                      {"read_depth", workers_->read_depth()},
                      {"nodes", NodesJson()},
                      {"numa", NumaText()},
                      {"connections", connections_.size()},
                      {"journal", life_->Trouble()},
                      {"socket", options_.socket_path},
                      {"private", options_.private_broker},
                      {"suspect_samples", workers_->samples()->suspects()},
                      {"condemned_samples", workers_->samples()->condemned()}};
  nlohmann::json late = nlohmann::json::array();
  for (const WorkerPool::LateRead& read : workers_->LateReads()) {
    late.push_back({{"worker", read.worker},
                    {"uid", read.uid},
                    {"job", read.job},
                    {"dataset", read.dataset},
                    {"file", read.file},
                    {"seconds", read.seconds}});
  }
  answer["late_reads"] = std::move(late);
  answer["jobs"] = jobs_->StatusJson(true);
  // The rank's process is known here, not in the job.
  for (nlohmann::json& job : answer["jobs"]) {
    if (!job.contains("ranks")) continue;
    for (nlohmann::json& rank : job["ranks"]) {
      for (const auto& [id, connection] : connections_) {
        if (connection.job != nullptr &&
            connection.job->key().name == job["job"] &&
            connection.job->key().uid == job["uid"] &&
            connection.job->key().dataset == job["dataset"] &&
            connection.seat == rank["seat"]) {
          rank["pid"] = connection.pid;
        }
      }
    }
  }
  return answer;
}

void ControlServer::Reply(Connection* connection, const nlohmann::json& json,
                          const std::vector<int>& fds) {
  if (!connection->socket) return;  // it hung up
  const Status status = SendMessage(connection->socket.get(), json, fds);
  if (status.ok()) return;
  loop_->Post([this, id = connection->id] { Lose(id); });
}

void ControlServer::Lose(uint64_t id) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  // Only a process that has batches mapped is waited for.
  if (connection->job == nullptr || !connection->pidfd) {
    Drop(id);
    return;
  }
  if (connection->lost) return;
  connection->lost = std::chrono::steady_clock::now();
  loop_->Unwatch(connection->socket.get());
  connection->socket.Reset();
}

void ControlServer::End(uint64_t id, bool orderly) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  if (connection->attach != 0) jobs_->CancelAttach(connection->attach);
  if (connection->inspect != 0) jobs_->CancelInspect(connection->inspect);
  for (const Fd* fd :
       {&connection->socket, &connection->pidfd, &connection->wake}) {
    if (*fd) loop_->Unwatch(fd->get());
  }
  if (const std::shared_ptr<Job> job = std::move(connection->job)) {
    // Before the wake socket closes: a worker may be about to use it.
    job->Mute(connection->seat);
    jobs_->Leave(job, connection->seat, orderly);
    TellRanksChanged(job);
  }
  connections_.erase(id);
}

bool ControlServer::WantsTick() const {
  return jobs_->busy() || !accepting_ ||
         std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& item) {
                       return !item.second.greeted || item.second.lost;
                     });
}

void ControlServer::Tick() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<uint64_t> silent;
  for (auto& [id, connection] : connections_) {
    if (!connection.greeted &&
        now - connection.opened > std::chrono::seconds(kHelloSeconds)) {
      silent.push_back(id);
    }
    uint64_t done = 0;
    uint64_t total = 0;
    if (connection.waiting &&
        jobs_->Progress(std::max(connection.attach, connection.inspect), &done,
                        &total)) {
      Reply(&connection, {{"event", "progress"},
                          {"stage", "indexing"},
                          {"done", done},
                          {"total", total}});
    }
  }
  for (const uint64_t id : silent) Drop(id);
  for (auto& [id, connection] : connections_) {
    if (!connection.lost || now - *connection.lost < kLostGrace ||
        connection.job == nullptr || !connection.wake) {
      continue;
    }
    // It lives on: what it has is quarantined until it is gone.
    spdlog::warn("job '{}': process {} hung up without detaching: evicted",
                 connection.job->key().name, connection.pid);
    connection.job->Mute(connection.seat);
    loop_->Unwatch(connection.wake.get());
    connection.wake.Reset();
    connection.job->EvictSeat(connection.seat,
                              "its connection to the broker is closed");
    TellRanksChanged(connection.job);
  }
  if (!accepting_) {
    if (const Status status = StartAccepting(); !status.ok()) {
      accepting_ = false;
      spdlog::warn("accept: {}", status.message());
    }
  }
  jobs_->Sweep();
  // A worker may have taken a rank off that wrote impossible values, a job of a
  // former life may have found that one is dead.
  for (auto& [id, connection] : connections_) {
    if (connection.job != nullptr) TellRanksChanged(connection.job);
  }
}

}  // namespace penstock
