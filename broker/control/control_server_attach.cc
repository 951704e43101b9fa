// The attach of a rank: its options, its reconnect, its answer.
#include <algorithm>
#include <array>

#include "broker/base/log.h"
#include "broker/control/control_server.h"
#include "broker/memory/placement.h"
#include "broker/request/requests.h"
#include "common/delivery_options.h"
#include "common/job_state.h"
#include "common/message.h"
#include "common/printable.h"
#include "common/segment.h"
#include "common/wake.h"

namespace penstock {
namespace {

std::shared_ptr<const CursorPage> PageOf(Mapping mapping) {
  const auto shared = std::make_shared<Mapping>(std::move(mapping));
  return {shared, reinterpret_cast<const CursorPage*>(shared->data())};
}

// The value whose name the field has.
template <typename E, size_t N>
E ChoiceOf(const nlohmann::json& request, const char* key,
           const std::array<std::string_view, N>& names, E absent) {
  const auto found = request.find(key);
  if (found == request.end()) return absent;
  return static_cast<E>(std::find(names.begin(), names.end(),
                                  found->get_ref<const std::string&>()) -
                        names.begin());
}

bool RanksAreNumbered(DeliveryMode mode) {
  return mode == DeliveryMode::kSplit || mode == DeliveryMode::kDynamic;
}

// `shard` says how `split` divides the data.
Status CheckShard(const DatasetSpec& spec, const DeliveryOptions& options) {
  const DeliveryMode mode = options.mode;
  if (spec.shard == ShardPolicy::kOff && mode != DeliveryMode::kBroadcast) {
    return InvalidArgumentError(
        "attach: with shard: off every rank gets all batches, but delivery is "
        "{}: leave out one of the two",
        kDeliveryModeNames[static_cast<size_t>(mode)]);
  }
  if (spec.shard != ShardPolicy::kFile) return OkStatus();
  if (mode != DeliveryMode::kSplit) {
    return InvalidArgumentError(
        "attach: shard: file says how delivery `split` divides the data; "
        "delivery is {}: leave out one of the two",
        kDeliveryModeNames[static_cast<size_t>(mode)]);
  }
  if (options.on_rank_death == OnRankDeath::kShrink) {
    return InvalidArgumentError(
        "attach: on_rank_death: shrink hands the rows of a dead rank to the "
        "others, which shard: file excludes: use wait or fail, or shard: data");
  }
  return OkStatus();
}

StatusOr<DeliveryOptions> DeliveryOf(const nlohmann::json& request,
                                     const DatasetSpec& spec) {
  DeliveryOptions options;
  options.mode =
      ChoiceOf(request, "delivery", kDeliveryModeNames, options.mode);
  if (spec.shard == ShardPolicy::kOff && options.mode == DeliveryMode::kSplit) {
    options.mode = DeliveryMode::kBroadcast;
  }
  options.lag = ChoiceOf(request, "lag", kLagNames, options.lag);
  options.on_rank_death = ChoiceOf(request, "on_rank_death", kOnRankDeathNames,
                                   DefaultOnRankDeath(options.mode));
  options.window = request.value("window", options.window);
  PENSTOCK_RETURN_IF_ERROR(CheckShard(spec, options));
  if (options.mode == DeliveryMode::kDynamic &&
      options.on_rank_death == OnRankDeath::kWait) {
    return InvalidArgumentError(
        "attach: on_rank_death: wait is not offered in dynamic, where the "
        "batches of a dead rank go to the others at once; use shrink or fail");
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

// How many consumers there may be at once.
StatusOr<uint32_t> ConsumersOf(const nlohmann::json& request,
                               const JobOptions& options) {
  const DeliveryMode mode = options.delivery.mode;
  const uint32_t local = options.local_processes();
  // Each has a job of its own.
  if (mode == DeliveryMode::kIndependent) return options.local_replicas;
  if (mode != DeliveryMode::kBroadcast) return local;
  const uint32_t consumers =
      request.value("consumers", std::max(local, kConsumersDefault));
  // Later consumers may come and go, but these all come before the first
  // batch.
  if (consumers < local) {
    return InvalidArgumentError(
        "attach: consumers is {}, but the first batch waits for the {} ranks "
        "of this host (local world size): leave it out, or set it to {} or "
        "more",
        consumers, local, local);
  }
  return consumers;
}

// Brokers on several hosts do not agree on which rank gets which batch.
Status CheckHosts(const nlohmann::json& request, const JobOptions& options) {
  if (!options.several_hosts()) return OkStatus();
  const uint64_t world = options.processes();
  const uint32_t local = options.local_processes();
  const DeliveryMode mode = options.delivery.mode;
  if (mode == DeliveryMode::kDynamic && !request.value("per_host", false)) {
    return InvalidArgumentError(
        "attach: dynamic divides the data among the ranks of one host, and "
        "{} of {} ranks are on this one: every host would deliver every row. "
        "Use delivery `split`, which divides them over all hosts, or set "
        "`per_host` if each host is to have all of the data",
        local, world);
  }
  // The ranks of other hosts would have to shrink at the same step.
  if (mode == DeliveryMode::kSplit &&
      options.delivery.on_rank_death == OnRankDeath::kShrink) {
    return InvalidArgumentError(
        "attach: on_rank_death: shrink needs all {} ranks on one host; {} are "
        "on this one: let the launcher start those that are left again, at a "
        "state (torchrun --nnodes 1:4 --max-restarts 3, Horovod elastic)",
        world, local);
  }
  return OkStatus();
}

// Several processes that are one rank.
Status ReadReplicas(const nlohmann::json& request, JobOptions* options) {
  const DeliveryMode mode = options->delivery.mode;
  options->replicas = request.value("replicas", options->replicas);
  options->local_replicas = request.value("local_replicas", options->replicas);
  if (options->replicas > 1 && mode != DeliveryMode::kSplit &&
      mode != DeliveryMode::kIndependent) {
    return InvalidArgumentError(
        "attach: 'replicas' is an option of split and independent; delivery is "
        "{}: {}",
        kDeliveryModeNames[static_cast<size_t>(mode)],
        mode == DeliveryMode::kBroadcast
            ? "leave it out, every process gets every batch"
            : "a batch goes to one process, the next that has none");
  }
  if (options->local_replicas > options->replicas) {
    return InvalidArgumentError(
        "attach: local_replicas {} is more than replicas {}",
        options->local_replicas, options->replicas);
  }
  if (options->local_processes() > kLocalRanksMax ||
      options->processes() > JobState::kShardsMax) {
    return InvalidArgumentError(
        "attach: {} ranks of {} replicas, {} of {} on this host: at most {} "
        "processes are allowed, {} on a host",
        options->world_size, options->replicas, options->local_world_size,
        options->local_replicas, JobState::kShardsMax, kLocalRanksMax);
  }
  return OkStatus();
}

// All but spec and start; its spec is in *options.
Status ReadOptions(const nlohmann::json& request, JobOptions* options) {
  PENSTOCK_ASSIGN_OR_RETURN(options->delivery,
                            DeliveryOf(request, options->spec));
  const DeliveryMode mode = options->delivery.mode;
  if (mode == DeliveryMode::kBroadcast && options->delivery.window == 0) {
    options->delivery.window = options->spec.prefetch.value_or(kPrefetchFirst);
  }
  options->world_size = request.at("world_size");
  options->local_world_size = request.at("local_world_size");
  if (options->local_world_size > options->world_size) {
    return InvalidArgumentError(
        "attach: local world size {} is more than world size {}",
        options->local_world_size, options->world_size);
  }
  PENSTOCK_RETURN_IF_ERROR(ReadReplicas(request, options));
  PENSTOCK_ASSIGN_OR_RETURN(options->consumers_max,
                            ConsumersOf(request, *options));
  options->repeat_first = request.value("repeat_first", false);
  options->wait_s = request.value("wait_s", options->wait_s);
  return CheckHosts(request, *options);
}

// Its number among all processes of the job.
StatusOr<uint32_t> RankOf(const nlohmann::json& request,
                          const JobOptions& options) {
  const bool numbered =
      RanksAreNumbered(options.delivery.mode) || options.replicas > 1;
  if (numbered) PENSTOCK_RETURN_IF_ERROR(RequireField(request, "rank"));
  const uint32_t rank = request.value("rank", Delivery::kAnyRank);
  if (numbered && rank >= options.world_size) {
    return InvalidArgumentError(
        "request: 'rank' is {}; wanted a number from 0 to {}", rank,
        options.world_size - 1);
  }
  const uint32_t replica = request.value("replica", 0u);
  if (replica >= options.replicas) {
    return InvalidArgumentError(
        "request: 'replica' is {}; wanted a number from 0 to {}, as "
        "'replicas' is {}",
        replica, options.replicas - 1, options.replicas);
  }
  return numbered ? rank * options.replicas + replica : rank;
}

StatusOr<std::string> JobNameOf(const nlohmann::json& request) {
  const auto name = request.at("job").get<std::string>();
  // The name appears in messages and logs, and on the terminals of others.
  if (Printable(name) != name) {
    return InvalidArgumentError(
        "attach: a job name must not contain control characters, ends of lines "
        "or marks of direction");
  }
  return name;
}

// What a rank knows of its job from before the death of a broker.
Status ReadReconnect(const nlohmann::json& request, const std::vector<Fd>& fds,
                     JobTable::AttachRequest* attach) {
  attach->incarnation = {request.at("incarnation").get<uint64_t>(),
                         request.at("token").get<uint64_t>()};
  Delivery::Joining& joining = attach->joining;
  joining.position = request.at("position").get<uint64_t>();
  joining.phase = request.at("phase");
  joining.owed = request.at("owed").get<std::vector<uint64_t>>();
  joining.taken = request.at("taken");
  if (joining.full_epoch) {
    PENSTOCK_RETURN_IF_ERROR(RequireField(request, "epochs_from"));
    joining.epochs_from = request.at("epochs_from").get<uint64_t>();
  }
  if (fds.size() == 2) {
    PENSTOCK_ASSIGN_OR_RETURN(Mapping former, OpenCursor(fds[1].get()));
    joining.former = PageOf(std::move(former));
    attach->former_inode = CursorInode(fds[1].get());
  }
  return OkStatus();
}

// The state it begins at, if the request has one for this dataset.
Status ReadState(const nlohmann::json& request, JobOptions* options) {
  const auto found = request.find("state");
  if (found == request.end()) return OkStatus();
  StatusOr<JobState> state = JobStateFromJson(*found);
  if (!state.ok()) return state.status().Prepend("attach");
  if (!request.value("state_of_same_dataset", false) ||
      state->dataset == options->spec.name) {
    options->start = *std::move(state);
  }
  return OkStatus();
}

// Where a rank says it runs.
StatusOr<RankPlacement> PlacementOf(const nlohmann::json& request) {
  RankPlacement placement;
  if (const auto cpus = request.find("cpus"); cpus != request.end()) {
    StatusOr<std::vector<uint32_t>> list =
        ParseCpuList(cpus->get_ref<const std::string&>());
    if (!list.ok()) return list.status().Prepend("attach: 'cpus'");
    placement.cpus = *std::move(list);
  }
  const std::pair<const char*, std::optional<uint32_t>*> numbers[] = {
      {"cpu", &placement.cpu},
      {"node", &placement.node},
      {"gpu_node", &placement.gpu_node}};
  for (const auto& [key, number] : numbers) {
    if (request.contains(key)) *number = request.at(key).get<uint32_t>();
  }
  placement.gpu = request.value("gpu", "");
  return placement;
}

}  // namespace

ControlServer::Answer ControlServer::Attach(const Call& call) {
  const auto& [connection, request, fds] = call;
  if (connection->job != nullptr) {
    return FailedPreconditionError("this connection is already attached");
  }
  PENSTOCK_RETURN_IF_ERROR(CheckWatched(*connection));
  if (fds.empty() || fds.size() > 2) {
    return InvalidArgumentError(
        "attach: wanted the descriptor of the cursor page and optionally that "
        "of the former one; found {}",
        fds.size());
  }
  JobTable::AttachRequest attach;
  JobOptions& options = attach.options;
  Delivery::Joining& joining = attach.joining;
  PENSTOCK_ASSIGN_OR_RETURN(options.spec, SpecOf(call));
  PENSTOCK_RETURN_IF_ERROR(ReadOptions(request, &options));
  PENSTOCK_ASSIGN_OR_RETURN(joining.rank, RankOf(request, options));
  joining.full_epoch = request.value("full_epoch", false);
  PENSTOCK_ASSIGN_OR_RETURN(attach.key.name, JobNameOf(request));
  attach.key.uid = connection->uid;
  attach.key.dataset = options.spec.name;
  attach.named = request.value("named", false) || options.processes() > 1;
  if (request.contains("incarnation")) {
    PENSTOCK_RETURN_IF_ERROR(ReadReconnect(request, fds, &attach));
  }
  if (!request.contains("spec")) {
    // Given by name: the name may have another spec since the job began.
    JobKey key = attach.key;
    if (options.delivery.mode == DeliveryMode::kIndependent) {
      key.consumer = joining.rank / options.replicas;
    }
    if (const DatasetSpec* spec = jobs_->SpecOf(
            key, joining.rank - key.ProcessOf(0, options.replicas),
            attach.incarnation)) {
      options.spec = *spec;
    }
  }
  PENSTOCK_RETURN_IF_ERROR(ReadState(request, &options));
  PENSTOCK_ASSIGN_OR_RETURN(const RankPlacement placement,
                            PlacementOf(request));
  RankNode node = NodeOfRank(placement, topology_->node_of_cpus(),
                             topology_->node_numbers());
  if (placement.node && !node.node) {
    Log<"rank-node-unknown">(
        attach.key, RankName(joining.rank, options.replicas), node.from);
  }
  joining.node = node.node;
  joining.node_from = std::move(node.from);
  PENSTOCK_ASSIGN_OR_RETURN(Mapping cursor, OpenCursor(fds[0].get()));
  joining.cursor = PageOf(std::move(cursor));
  attach.cursor_fd = std::move(fds[0]);
  attach.pidfd = connection->pidfd.get();
  PENSTOCK_ASSIGN_OR_RETURN(WakePair wake, MakeWakePair());
  joining.wake_socket = wake.broker.get();
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
  return nlohmann::json();
}

// Everything is unmapped. It hangs up.
ControlServer::Answer ControlServer::Detach(const Call& call) {
  End(call.connection->id, true);
  return nlohmann::json();
}

ControlServer::Answer ControlServer::Unmapped(const Call& call) {
  call.connection->former_memory.reset();
  return nlohmann::json();
}

void ControlServer::OnAttached(uint64_t id,
                               StatusOr<JobTable::Attached> result) {
  Connection* connection = Find(id);
  connection->waiting = false;
  connection->attach = 0;
  if (!result.ok()) {
    connection->wake.Reset();
    connection->wake_of_rank.Reset();
    return Refuse(connection, "attach", result.status());
  }
  connection->job = result->job;
  connection->seat = result->joined.seat;
  connection->former_memory = std::move(result->former_memory);
  const Job& job = *connection->job;
  if (const Status status = loop_->Watch(connection->wake.get(),
                                         [this, id](uint32_t) { OnWake(id); });
      !status.ok()) {
    // Without its wakes the rank would wait forever once its slots are used.
    Refuse(connection, "attach", status);
    connection->job->Locked(&Delivery::Mute, connection->seat);
    jobs_->Leave(std::exchange(connection->job, nullptr), connection->seat,
                 true);
    return;
  }
  // Spinning pays if every rank and worker has a processor of its own.
  const bool spare = workers_->workers() + job.options().local_processes() <=
                     topology_->allowed();
  const Plan& plan = job.plan();
  nlohmann::json answer = OkReply();
  answer["dataset"] = job.key().dataset;
  answer["job"] = job.key().name;
  const uint32_t replicas = job.options().replicas;
  answer["rank"] = job.key().consumer.value_or(result->joined.rank / replicas);
  answer["replica"] = result->joined.rank % replicas;
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
  PlanStart start{joined.position, {}};
  answer["owed_steps"] = nlohmann::json::array();
  for (const Delivery::OwedStep& each : joined.owed) {
    answer["owed_steps"].push_back(each.id);
    start.owed.push_back(each.rows);
  }
  answer["owed"] = JobStateToJson(job.StateAt(start)).at("owed");
  answer["warning"] = job.warning();
  answer["spin_ns"] = spare ? 50'000 : 0;
  job.dataset().DescribeRows(&answer);
  Reply(connection, answer,
        {job.segment().fd(), connection->wake_of_rank.get()});
  connection->wake_of_rank.Reset();
  SendRanksChanged(connection->job);
  connection->job->Advance({connection->seat});
  producers_.LetIn();
}

void ControlServer::SendRanksChanged(const std::shared_ptr<Job>& job) {
  for (const Delivery::RanksChanged& change :
       job->Locked(&Delivery::TakeRanksChanged)) {
    for (auto& [id, connection] : connections_) {
      if (connection.job != job || connection.seat != change.seat) continue;
      Reply(&connection,
            {{"event", "ranks"},
             {"phase", change.phase},
             {"rank", change.rank},
             {"world_size", change.world_size},
             {"state", JobStateToJson(job->StateAt(change.start))}});
      job->Change(&Delivery::RanksAnnounced, change.seat, change.phase);
    }
  }
}

}  // namespace penstock
