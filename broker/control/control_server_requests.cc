// Requests of a connection.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "broker/base/log.h"
#include "broker/control/control_server.h"
#include "broker/control/request_fields.h"
#include "common/job_state.h"
#include "common/message.h"
#include "common/text_file.h"
#include "common/wake.h"

namespace penstock {
namespace {

// Consumers of a broadcast job that does not give a number of its own.
constexpr uint64_t kConsumersDefault = 8;
constexpr size_t kNameCharsMax = 256;
// In an error message.
constexpr size_t kNamesShown = 10;
constexpr size_t kPathCharsMax = 4096;
constexpr uint64_t kWorldSizeMax = 1u << 20;

std::shared_ptr<const CursorPage> PageOf(Mapping mapping) {
  const auto shared = std::make_shared<Mapping>(std::move(mapping));
  return {shared, reinterpret_cast<const CursorPage*>(shared->data())};
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

void ControlServer::Handle(Connection* connection,
                           const nlohmann::json& request,
                           std::vector<Fd>& fds) {
  connection->greeted = true;
  const auto version = request.find("penstock");
  if (version == request.end() || !version->is_number_integer() ||
      version->get<int64_t>() != kProtocolVersion) {
    Reply(connection,
          ErrorReply(FailedPreconditionError(
              "this broker speaks protocol version {}: install the client and "
              "the broker from the same Penstock release",
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
    Reply(connection,
          ErrorReply(FailedPreconditionError(
              "a request on this connection is still in progress")));
    Lose(connection->id);
    return;
  }
  if (*op == "detach") {
    // The process has unmapped everything. No answer: it hangs up.
    End(connection->id, true);
    return;
  }
  if (*op == "unmapped") {  // from former broker instances; no answer
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
  } else if (*op == "produce") {
    status = StartProduce(connection, request, fds);
    if (status.ok()) return;
  } else if (*op == "put") {
    // A quiet put is answered only if refused: an answer would wake the
    // producer, which does not wait for it.
    const StatusOr<bool> quiet = FlagField(request, "quiet");
    const StatusOr<nlohmann::json> put =
        quiet.ok() ? Put(connection, request) : quiet.status();
    if (!put.ok() || !*quiet) answer_with(put);
    if (connection->producer) connection->producer->job->StreamChanged();
    return;
  } else if (*op == "finish") {
    answer_with(FinishProducer(connection, request));
    return;
  } else if (*op == "parse") {
    answer_with(Parse(*connection, request));
    return;
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
  } else if (*op == "workers") {
    answer_with(SetWorkers(*connection, request));
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
    answer["jobs"] = jobs_->StatusJson(nullptr);
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
  if (request.contains("incarnation")) {
    return AbortedError(
        "the broker was restarted and has no record of dataset '{}': it has no "
        "state directory (--state-dir), or its journal there is missing or "
        "damaged; register the dataset again and begin all ranks at a state",
        name);
  }
  std::string known;
  size_t names = 0;
  for (const auto& [key, spec] : datasets_) {
    if (key.first != connection.uid) continue;
    if (names++ < kNamesShown) known += (names == 1 ? "" : ", ") + key.second;
  }
  if (names > kNamesShown) {
    known += Format(", and {} more: `penstock datasets`", names - kNamesShown);
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
    return FailedPreconditionError("this connection is already attached");
  }
  if (fds.empty() || fds.size() > 2) {
    return InvalidArgumentError(
        "attach: wanted the descriptor of the cursor page and optionally that "
        "of the former one; found {}",
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
    // Later consumers may come and go, but these all come before the first
    // batch.
    if (consumers < local) {
      return InvalidArgumentError(
          "attach: consumers is {}, but the first batch waits for the {} ranks "
          "of this host (local world size): leave it out, or set it to {} or "
          "more",
          consumers, local, local);
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
  // Brokers on several hosts do not agree on which rank gets which batch.
  PENSTOCK_ASSIGN_OR_RETURN(const bool per_host,
                            FlagField(request, "per_host"));
  if (mode == DeliveryMode::kDynamic && local != world && !per_host) {
    return InvalidArgumentError(
        "attach: dynamic divides the data among the ranks of one host, and "
        "{} of {} ranks are on this one: every host would deliver every row. "
        "Use delivery `split`, which divides them over all hosts, or set "
        "`per_host` if each host is to have all of the data",
        local, world);
  }
  // The ranks of other hosts would have to shrink at the same step.
  if (mode == DeliveryMode::kSplit && local != world &&
      options.delivery.on_rank_death == OnRankDeath::kShrink) {
    return InvalidArgumentError(
        "attach: on_rank_death: shrink needs all {} ranks on one host; {} are "
        "on this one",
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
  // The name appears in messages and logs.
  if (std::any_of(attach.key.name.begin(), attach.key.name.end(), [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
      })) {
    return InvalidArgumentError(
        "attach: a job name must not contain control characters");
  }
  if (!request.contains("spec")) {
    // Given by name: the name may have another spec since the job began.
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
  attach.named = attach.named || world > 1;
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
    LogWarning("job '{}': rank {}: {}; its memory may be on any node",
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
  // The answer may come at once, and the connection may then be gone, or after
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

// Workers serve all users.
StatusOr<nlohmann::json> ControlServer::SetWorkers(
    const Connection& connection, const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t count,
                            NumberField(request, "workers", 0, kWorkersMax));
  if (connection.uid != 0 && connection.uid != geteuid()) {
    return PermissionDeniedError(
        "only root and the broker's own user (uid {}) may set its workers",
        geteuid());
  }
  PENSTOCK_RETURN_IF_ERROR(workers_->SetWorkers(static_cast<uint32_t>(count)));
  LogInfo("{} workers, set by user {}", workers_->workers(), connection.uid);
  nlohmann::json answer = OkReply();
  answer["workers"] = workers_->workers();
  answer["workers_chosen"] = workers_->Description();
  return answer;
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
    // Without its wakes the rank would wait forever once its slots are used.
    Reply(connection, ErrorReply(status));
    connection->job->Mute(connection->seat);
    jobs_->Leave(std::exchange(connection->job, nullptr), connection->seat,
                 true);
    return;
  }
  // Spinning pays if every rank and worker has a processor of its own.
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
  // The length of a stream is unknown.
  const bool endless = job.stream() != nullptr;
  answer["records"] = endless ? 0 : plan.records();
  answer["steps_per_epoch"] = endless ? 0 : plan.steps_per_epoch();
  answer["rows_per_epoch"] = plan.rows_per_epoch();
  answer["epochs"] = plan.epochs().value_or(0);
  answer["position"] = result->joined.position;
  answer["handed_over"] = result->joined.backlog;
  answer["replaces"] = result->joined.replaces;
  // The parts of a state: identity, and rows owed at the beginning.
  answer["state"] = JobStateToJson(job.StateAt(plan.start()));
  const Delivery::Joined& joined = result->joined;
  answer["phase"] = joined.phase;
  answer["plan_rank"] = joined.rank_index;
  answer["plan_ranks"] = joined.ranks;
  answer["owed"] =
      JobStateToJson(job.StateAt({joined.position, joined.owed})).at("owed");
  answer["warning"] = job.warning();
  answer["spin_ns"] = spare ? 50'000 : 0;
  answer["element_spec"] =
      ElementSpecToJson(job.dataset().program->element_spec());
  Reply(connection, answer,
        {job.segment().fd(), connection->wake_of_rank.get()});
  connection->wake_of_rank.Reset();
  SendRanksChanged(connection->job);
  connection->job->Advance({connection->seat});
  LetInProducers();
}

void ControlServer::SendRanksChanged(const std::shared_ptr<Job>& job) {
  for (const Delivery::RanksChanged& change : job->TakeRanksChanged()) {
    for (auto& [id, connection] : connections_) {
      if (connection.job != job || connection.seat != change.seat) continue;
      Reply(&connection,
            {{"event", "ranks"},
             {"phase", change.phase},
             {"rank", change.rank},
             {"world_size", change.world_size},
             {"state", JobStateToJson(job->StateAt(change.start))}});
      job->RanksAnnounced(change.seat, change.phase);
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
    return InvalidArgumentError("{} jobs are named '{}': name the dataset too",
                                jobs.size(), jobs[0]->key().name);
  }
  // Sees releases that came before the request.
  jobs[0]->AdvanceAll();
  if (jobs[0]->Unsettled()) {
    return UnavailableError(
        "job '{}' waits for its ranks to reconnect after a restart of the "
        "broker: its position is not known yet; try again later",
        jobs[0]->key().name);
  }
  nlohmann::json answer = OkReply();
  answer["state"] = JobStateToJson(jobs[0]->State());
  return answer;
}

StatusOr<nlohmann::json> ControlServer::Evict(const Connection& connection,
                                              const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t rank,
                            NumberField(request, "rank", 0, kWorldSizeMax));
  const StatusOr<std::vector<std::shared_ptr<Job>>> jobs =
      JobsOf(connection, request);
  if (jobs.status().code() == StatusCode::kInvalidArgument) {
    return jobs.status();
  }
  Status status = jobs.ok() ? NotFoundError("job '{}' has no attached rank {}",
                                            (*jobs)[0]->key().name, rank)
                            : jobs.status();
  for (size_t i = 0; jobs.ok() && i < jobs->size(); ++i) {
    const std::shared_ptr<Job>& job = (*jobs)[i];
    const std::optional<uint32_t> consumer = job->key().consumer;
    if (consumer && *consumer != rank) continue;
    const Status evicted =
        job->Evict(consumer ? 0 : static_cast<uint32_t>(rank),
                   Format("evicted by user {}", connection.uid));
    if (evicted.ok()) {
      jobs_->NoteEvicted(job);
      status = evicted;
    }
    SendRanksChanged(job);
  }
  // A rank that has not reconnected is in no job yet.
  if (!status.ok() && request.contains("job")) {
    const Status away = jobs_->EvictAway(connection.uid, request["job"],
                                         request.value("dataset", ""),
                                         static_cast<uint32_t>(rank));
    if (away.code() != StatusCode::kNotFound) status = away;
  }
  if (!status.ok()) return status;
  return OkReply();
}

StatusOr<nlohmann::json> ControlServer::StopJob(const Connection& connection,
                                                const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool now, FlagField(request, "now"));
  StatusOr<std::vector<std::shared_ptr<Job>>> found =
      JobsOf(connection, request);
  // An ended job is forgotten, so that its late ranks begin anew.
  const bool forgotten =
      found.status().code() != StatusCode::kInvalidArgument &&
      jobs_->ForgetEnded(connection.uid, request.value("job", ""),
                         request.value("dataset", ""));
  if (!found.ok() && forgotten) return OkReply();
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            std::move(found));
  for (const std::shared_ptr<Job>& job : jobs) {
    if (now) {
      job->Recall(Format("job '{}' was stopped by user {}", job->key().name,
                         connection.uid));
    } else {
      job->Drain();
      // No rank is attached; only replacements of dead ones could come.
      if (!job->HasAttached()) job->Recall("it was stopped");
    }
  }
  return OkReply();
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
  connection->inspect = jobs_->Inspect(
      connection->uid, std::move(options), [this, id](auto result) {
        Connection* asking = Find(id);
        asking->waiting = false;
        asking->inspect = 0;
        Reply(asking, result.ok() ? *result : ErrorReply(result.status()));
      });
  return OkStatus();
}

StatusOr<nlohmann::json> ControlServer::Parse(const Connection& connection,
                                              const nlohmann::json& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetSpec spec,
                            SpecOf(connection, request));
  nlohmann::json answer = OkReply();
  answer["dataset"] = spec.name;
  answer["spec"] = DatasetSpecToJson(spec).dump();
  return answer;
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
        "dataset '{}' is registered with another spec: {}; replace it with "
        "--replace, or rename one of them",
        spec.name, field);
  }
  if (found == datasets_.end()) {
    const auto of_uid = std::count_if(
        datasets_.begin(), datasets_.end(),
        [&](const auto& item) { return item.first.first == connection.uid; });
    if (static_cast<size_t>(of_uid) >= kDatasetsPerUidMax) {
      return ResourceExhaustedError(
          "user {} has reached the limit of {} registered datasets; remove "
          "some with `penstock unregister`",
          connection.uid, kDatasetsPerUidMax);
    }
  }
  if (found == datasets_.end() || !field.empty()) {
    PENSTOCK_RETURN_IF_ERROR(recovery_journal_->DatasetRegistered(
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
      recovery_journal_->DatasetUnregistered(connection.uid, spec.name));
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
  const uint64_t elsewhere = jobs_->placement().pages_elsewhere();
  return elsewhere == 0
             ? Format("{} nodes, bound and verified", nodes)
             : Format("{} nodes, bound, but {} pages were found elsewhere",
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
                      {"pinned_bytes", workers_->pinned_bytes()},
                      {"memory_bytes", jobs_->reserved_bytes()},
                      {"read_depth", workers_->read_depth()},
                      {"read_depth_auto", workers_->read_depth_is_automatic()},
                      {"nodes", NodesJson()},
                      {"numa", NumaText()},
                      {"connections", connections_.size()},
                      {"journal", recovery_journal_->Trouble()},
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
  // The connections know the processes, the jobs do not.
  JobTable::ProcessIds pids;
  for (const auto& [id, connection] : connections_) {
    if (connection.job != nullptr) {
      pids.of_seats[{connection.job.get(), connection.seat}] = connection.pid;
    }
    if (connection.producer && connection.producer->job != nullptr) {
      pids.of_producers[{connection.producer->job.get(),
                         connection.producer->number}] = connection.pid;
    }
  }
  answer["jobs"] = jobs_->StatusJson(&pids);
  return answer;
}

}  // namespace penstock
