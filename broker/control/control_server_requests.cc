// Requests of a connection: their dispatch, and all but a rank's attach.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>

#include "broker/base/log.h"
#include "broker/control/control_server.h"
#include "broker/io/stores.h"
#include "broker/request/requests.h"
#include "broker/sandbox/program_launcher.h"
#include "broker/transform/draws.h"
#include "common/job_state.h"
#include "common/message.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// In an error message.
constexpr size_t kNamesShown = 10;

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
  const ProgramLauncher* const launcher = ProgramLauncher::Get();
  return launcher == nullptr ? seconds : seconds + launcher->CpuSeconds();
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void ControlServer::Handle(Connection* connection,
                           const nlohmann::json& request,
                           std::vector<Fd>& fds) {
  connection->greeted = true;
  const auto version = request.find("penstock");
  if (version == request.end() || !version->is_number_integer() ||
      version->get<int64_t>() != kProtocolVersion) {
    return Break(connection,
                 FailedPreconditionError(
                     "this broker speaks protocol version {}: install the "
                     "client and the broker from the same Penstock release",
                     kProtocolVersion));
  }
  if (connection->waiting) {
    return Break(connection,
                 FailedPreconditionError(
                     "a request on this connection is still in progress"));
  }
  const auto answer = [&]() -> Answer {
    PENSTOCK_RETURN_IF_ERROR(CheckRequest(request));
    const auto& op = request.at("op").get_ref<const std::string&>();
    return (this->*HandlerOf(op))({connection, request, fds});
  }();
  if (!answer.ok()) {
    const auto op = request.find("op");
    Refuse(connection,
           op != request.end() && op->is_string()
               ? op->get_ref<const std::string&>()
               : "a request without op",
           answer.status());
  } else if (!answer->is_null()) {
    Reply(connection, *answer);
  }
}

ControlServer::Handler ControlServer::HandlerOf(std::string_view op) {
  // One of each declared request (requests_test).
  static const std::map<std::string_view, Handler> handlers = {
      {"ping", &ControlServer::Ping},
      {"register", &ControlServer::Register},
      {"unregister", &ControlServer::Unregister},
      {"datasets", &ControlServer::ListDatasets},
      {"jobs", &ControlServer::ListJobs},
      {"status", &ControlServer::ShowStatus},
      {"parse", &ControlServer::Parse},
      {"index", &ControlServer::Index},
      {"attach", &ControlServer::Attach},
      {"detach", &ControlServer::Detach},
      {"unmapped", &ControlServer::Unmapped},
      {"produce", &ControlServer::Produce},
      {"put", &ControlServer::Put},
      {"finish", &ControlServer::Finish},
      {"state", &ControlServer::JobStateOf},
      {"fingerprint", &ControlServer::Fingerprint},
      {"weights", &ControlServer::Weights},
      {"evict", &ControlServer::Evict},
      {"stop", &ControlServer::StopJob},
      {"trace", &ControlServer::StartTrace},
      {"measure", &ControlServer::Measure},
      {"failures", &ControlServer::TakeFailures},
      {"ask", &ControlServer::Ask},
      {"link", &ControlServer::Link},
      {"made", &ControlServer::Made},
      {"makers", &ControlServer::Makers},
      {"workers", &ControlServer::SetWorkers},
      {"shutdown", &ControlServer::Shutdown},
  };
  return handlers.at(op);
}

ControlServer::Answer ControlServer::Ping(const Call&) {
  nlohmann::json answer = OkReply();
  answer["version"] = PENSTOCK_VERSION;
  answer["pid"] = getpid();
  answer["private"] = options_.private_broker;
  return answer;
}

bool ControlServer::MaySee(uid_t user, uid_t owner) const {
  return user == owner || user == 0 || user == geteuid() ||
         std::find(options_.observers.begin(), options_.observers.end(),
                   user) != options_.observers.end();
}

ControlServer::Answer ControlServer::ListJobs(const Call& call) {
  nlohmann::json answer = OkReply();
  answer["jobs"] = jobs_->StatusJson(nullptr, [&](uid_t owner) {
    return MaySee(call.connection->uid, owner);
  });
  return answer;
}

ControlServer::Answer ControlServer::Shutdown(const Call&) {
  if (!options_.private_broker) {
    return PermissionDeniedError(
        "this broker is a service: stop it with systemctl");
  }
  loop_->Stop();
  return OkReply();
}

StatusOr<DatasetSpec> ControlServer::SpecOf(const Call& call) const {
  const auto& [connection, request, fds] = call;
  if (request.contains("spec")) {
    return ParseDatasetSpec(request.at("spec").get<std::string>(),
                            request.at("file").get<std::string>(),
                            request.at("base").get<std::string>());
  }
  PENSTOCK_RETURN_IF_ERROR(RequireField(request, "dataset"));
  const auto name = request.at("dataset").get<std::string>();
  const auto found = datasets_.find({connection->uid, name});
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
    if (key.first != connection->uid) continue;
    if (names++ < kNamesShown) known += (names == 1 ? "" : ", ") + key.second;
  }
  if (names > kNamesShown) {
    known += Format(", and {} more: `penstock datasets`", names - kNamesShown);
  }
  return NotFoundError(
      "no dataset '{}' is registered by user {} ({}); register it with "
      "`penstock register SPEC.yaml`, or attach with the spec file's path",
      name, connection->uid,
      known.empty() ? "none is" : "registered are: " + known);
}

// Workers serve all users.
ControlServer::Answer ControlServer::SetWorkers(const Call& call) {
  const uid_t uid = call.connection->uid;
  if (uid != 0 && uid != geteuid()) {
    return PermissionDeniedError(
        "only root and the broker's own user (uid {}) may set its workers",
        geteuid());
  }
  PENSTOCK_RETURN_IF_ERROR(workers_->SetWorkers(
      call.request.at("workers").get<uint32_t>(), "`penstock workers`"));
  Log<"workers-set">(workers_->workers(), LogUser{uid});
  nlohmann::json answer = OkReply();
  answer["workers"] = workers_->workers();
  answer["workers_chosen"] = workers_->Description();
  return answer;
}

JobQuery ControlServer::QueryOf(const Call& call) {
  const auto& [connection, request, fds] = call;
  const uid_t asking = connection->uid;
  JobQuery query = {.uid = asking,
                    .name = request.value("job", ""),
                    .dataset = request.value("dataset", "")};
  if (asking == 0) query.uid.reset();
  if (request.contains("uid")) query.uid = request.at("uid").get<uint32_t>();
  // Only root finds the jobs of other users.
  if (asking != 0 && query.uid != asking) query.name.clear();
  return query;
}

StatusOr<std::vector<std::shared_ptr<Job>>> ControlServer::JobsOf(
    const Call& call) const {
  const auto& [connection, request, fds] = call;
  if (!request.contains("job") && connection->job != nullptr) {
    return std::vector<std::shared_ptr<Job>>{connection->job};
  }
  PENSTOCK_RETURN_IF_ERROR(RequireField(request, "job"));
  const JobQuery query = QueryOf(call);
  std::vector<std::shared_ptr<Job>> jobs = jobs_->Find(query);
  if (jobs.empty()) {
    return NotFoundError(
        "user {} runs no job '{}'{}; `penstock jobs` lists them",
        request.value("uid", uint32_t{connection->uid}),
        request.at("job").get<std::string>(),
        query.dataset.empty() ? "" : " of dataset '" + query.dataset + "'");
  }
  return jobs;
}

StatusOr<std::vector<std::shared_ptr<Job>>> ControlServer::OneJobOf(
    const Call& call) const {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<Job>> jobs,
                            JobsOf(call));
  std::vector<JobKey> keys;
  for (const std::shared_ptr<Job>& job : jobs) keys.push_back(job->key());
  PENSTOCK_RETURN_IF_ERROR(CheckOneJob(keys));
  return jobs;
}

StatusOr<std::shared_ptr<Job>> ControlServer::OnlyJobOf(
    const Call& call) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            OneJobOf(call));
  if (jobs.size() > 1) {
    return FailedPreconditionError(
        "job '{}' has {} independent consumers, each with a position of its "
        "own: there is no answer for all of them",
        jobs[0]->key().name, jobs.size());
  }
  return jobs[0];
}

ControlServer::Answer ControlServer::JobStateOf(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, OnlyJobOf(call));
  // Sees releases that came before the request.
  job->Change(&Delivery::HeardAll);
  if (job->Locked(&Delivery::Unsettled)) {
    return UnavailableError(
        "job '{}' waits for its ranks to reconnect after a restart of the "
        "broker: its position is not known yet; try again later",
        job->key().name);
  }
  nlohmann::json answer = OkReply();
  answer["state"] = JobStateToJson(job->StateAt(job->Locked(&Delivery::State)));
  if (call.request.value("spec", false)) {
    answer["spec"] = DatasetSpecToJson(job->options().spec).dump();
  }
  return answer;
}

ControlServer::Answer ControlServer::Fingerprint(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            OneJobOf(call));
  const Job& job = *jobs[0];  // consumers of `independent` have all the same
  nlohmann::json answer = OkReply();
  if (!call.request.contains("part")) {
    answer["parts"] = job.agreement().Parts();
    return answer;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      answer["part"],
      job.agreement().Part(job.dataset(),
                           call.request.at("part").get<std::string>()));
  return answer;
}

ControlServer::Answer ControlServer::Weights(const Call& call) {
  const nlohmann::json& request = call.request;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            OneJobOf(call));
  std::vector<double> weights;
  for (const nlohmann::json& each :
       request.value("weights", nlohmann::json::array())) {
    if (!each.is_number() || !(each.get<double>() >= 0) ||
        each.get<double>() > WeightsChange::kWeightMax) {
      return InvalidArgumentError(
          "weights: {}: wanted numbers from 0 to {}",
          each.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              .substr(0, 60),
          WeightsChange::kWeightMax);
    }
    weights.push_back(each.get<double>());
  }
  std::optional<Job::Place> from;
  if (request.contains("epoch")) {
    from = Job::Place{request.at("epoch").get<uint64_t>(),
                      request.value("row", uint64_t{0})};
  }
  nlohmann::json answer = OkReply();
  answer["changes"] = nlohmann::json::array();
  // A consumer of an independent job may be at its end already.
  Status refused;
  bool changed = false;
  for (const std::shared_ptr<Job>& job : jobs) {
    if (request.contains("weights")) {
      const auto tell = [&](const WeightsChange& change) {
        for (auto& [id, connection] : connections_) {
          if (connection.job != job) continue;
          Reply(&connection, {{"event", "weights"},
                              {"change", WeightsChangeToJson(change)}});
        }
      };
      // Sees what ranks did before the request.
      job->Change(&Delivery::HeardAll);
      const StatusOr<WeightsChange> change =
          job->ChangeWeights(weights, from, tell);
      if (change.ok()) {
        changed = true;
        const uint64_t rows = job->plan().rows_per_epoch();
        answer["epoch"] = change->epoch;
        answer["row"] = change->row;
        answer["step"] =
            job->plan().StepOfEpoch(change->epoch * rows + change->row);
      } else if (refused.ok()) {
        refused = change.status();
      }
    }
    if (!request.contains("weights") && jobs.size() == 1) {
      if (const auto free = job->FirstFreeRow(); free.ok()) {
        answer["free_epoch"] = free->epoch;
        answer["free_row"] = free->row;
      }
    }
    const MixOrder* const mix = job->plan().mix();
    answer["parts"] = mix == nullptr ? 0 : mix->parts();
    for (const WeightsChange& change : job->weights()) {
      answer["changes"].push_back(WeightsChangeToJson(change));
    }
  }
  if (!changed && !refused.ok()) return refused;
  return answer;
}

ControlServer::Answer ControlServer::Measure(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, OnlyJobOf(call));
  job->Measure(call.request.at("seconds").get<double>());
  nlohmann::json answer = OkReply();
  answer.update(job->PartsJson());
  return answer;
}

ControlServer::Answer ControlServer::TakeFailures(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, OnlyJobOf(call));
  nlohmann::json answer = OkReply();
  answer.update(job->TakeFailuresJson());
  return answer;
}

ControlServer::Answer ControlServer::StartTrace(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            JobsOf(call));
  Connection* const connection = call.connection;
  const auto may_see = [this, uid = connection->uid](uid_t owner) {
    return MaySee(uid, owner);
  };
  const auto done = [this, connection](const nlohmann::json& answer,
                                       Fd events) {
    connection->waiting = connection->traces = false;
    Reply(connection, answer,
          events ? std::vector<int>{events.get()} : std::vector<int>());
  };
  connection->waiting = connection->traces = true;
  const Status status = tracing_.Start(
      jobs, call.request.at("seconds").get<double>(), may_see, done);
  if (status.ok()) return nlohmann::json();
  connection->waiting = connection->traces = false;
  return status;
}

ControlServer::Answer ControlServer::Produce(const Call& call) {
  const auto& [connection, request, fds] = call;
  if (connection->job != nullptr || producers_.Has(connection->id)) {
    return FailedPreconditionError(
        "this connection already belongs to a rank or a producer");
  }
  PENSTOCK_RETURN_IF_ERROR(CheckWatched(*connection));
  connection->waiting = true;
  producers_.Produce(connection->id, connection->uid, connection->pidfd.get(),
                     request, fds);
  return nlohmann::json();
}

ControlServer::Answer ControlServer::Put(const Call& call) {
  return producers_.Put(call.connection->id, call.request);
}

ControlServer::Answer ControlServer::Finish(const Call& call) {
  return producers_.Finish(call.connection->id, call.request);
}

ControlServer::Answer ControlServer::Ask(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, OnlyJobOf(call));
  PENSTOCK_RETURN_IF_ERROR(
      job->Ask(call.request.at("rows").get<std::vector<uint64_t>>()));
  return nlohmann::json();
}

ControlServer::Answer ControlServer::Link(const Call& call) {
  const auto& [connection, request, fds] = call;
  if (connection->job != nullptr || producers_.Has(connection->id)) {
    return FailedPreconditionError(
        "this connection already belongs to a rank or a producer");
  }
  PENSTOCK_RETURN_IF_ERROR(CheckWatched(*connection));
  return links_.Link(connection->id, connection->uid, request);
}

ControlServer::Answer ControlServer::Made(const Call& call) {
  return links_.Made(call.connection->id, call.request);
}

ControlServer::Answer ControlServer::Makers(const Call& call) {
  return links_.Makers(call.connection->id, call.request);
}

ControlServer::Answer ControlServer::Evict(const Call& call) {
  const auto& [connection, request, fds] = call;
  const auto rank = request.at("rank").get<uint32_t>();
  const StatusOr<std::vector<std::shared_ptr<Job>>> jobs = OneJobOf(call);
  if (jobs.status().code() == StatusCode::kInvalidArgument) {
    return jobs.status();
  }
  const bool is_replica = request.contains("replica");
  const auto replica = request.value("replica", 0u);
  const std::string name = is_replica ? Format("{} (replica {})", rank, replica)
                                      : std::to_string(rank);
  Status status = jobs.ok() ? NotFoundError("job '{}' has no attached rank {}",
                                            (*jobs)[0]->key().name, name)
                            : jobs.status();
  for (size_t i = 0; jobs.ok() && i < jobs->size(); ++i) {
    const std::shared_ptr<Job>& job = (*jobs)[i];
    const std::optional<uint32_t> consumer = job->key().consumer;
    if (consumer && *consumer != rank) continue;
    const uint32_t replicas = job->options().replicas;
    if (replicas > 1 && !is_replica) {
      return InvalidArgumentError(
          "rank {} of job '{}' is {} processes: say which `replica`", rank,
          job->key().name, replicas);
    }
    if (replica >= replicas ||
        (replicas > 1 && rank >= job->options().world_size))
      continue;
    const Status evicted =
        job->Evict(consumer ? replica : rank * replicas + replica,
                   Format("evicted by user {}", connection->uid));
    if (evicted.ok()) {
      jobs_->NoteEvicted(job);
      status = evicted;
    }
    SendRanksChanged(job);
  }
  // A rank that has not reconnected is in no job yet.
  if (!status.ok() && request.contains("job")) {
    const Status away =
        jobs_->EvictAway(QueryOf(call), rank, replica, connection->uid);
    if (away.code() != StatusCode::kNotFound) status = away;
  }
  if (!status.ok()) return status;
  return OkReply();
}

ControlServer::Answer ControlServer::StopJob(const Call& call) {
  const auto& [connection, request, fds] = call;
  StatusOr<std::vector<std::shared_ptr<Job>>> found = OneJobOf(call);
  if (found.status().code() == StatusCode::kInvalidArgument) {
    return found.status();
  }
  JobQuery query = QueryOf(call);
  if (found.ok()) {  // no other user's, nor of another dataset
    query.uid = (*found)[0]->key().uid;
    query.dataset = (*found)[0]->key().dataset;
  }
  // An ended job is forgotten, so that its late ranks begin anew.
  PENSTOCK_ASSIGN_OR_RETURN(const bool forgotten, jobs_->ForgetEnded(query));
  nlohmann::json answer = OkReply();
  answer["ended"] = true;
  if (!found.ok() && forgotten) return answer;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            std::move(found));
  for (const std::shared_ptr<Job>& job : jobs) {
    if (request.value("now", false)) {
      job->Recall(Format("job '{}' was stopped by user {}", job->key().name,
                         connection->uid));
      continue;
    }
    job->Drain();
    if (job->Locked(&Delivery::AnyAttached)) {
      answer["ended"] = false;
    } else {
      // Only replacements of dead ranks could come.
      job->Recall("it was stopped");
    }
  }
  return answer;
}

ControlServer::Answer ControlServer::Index(const Call& call) {
  JobOptions options;
  PENSTOCK_ASSIGN_OR_RETURN(options.spec, SpecOf(call));
  options.world_size = call.request.value("world_size", options.world_size);
  const uint32_t hosts = call.request.value("hosts", uint32_t{1});
  options.local_world_size = (options.world_size + hosts - 1) / hosts;
  options.replicas = call.request.value("replicas", options.replicas);
  options.local_replicas = options.replicas;
  options.consumers_max = options.local_processes();
  if (options.consumers_max > kLocalRanksMax) {
    return InvalidArgumentError(
        "index: {} ranks of {} replicas: at most {} processes are allowed",
        options.world_size, options.replicas, kLocalRanksMax);
  }
  if (options.spec.shard == ShardPolicy::kOff) {  // as attach has it
    if (options.replicas > 1) {
      return InvalidArgumentError(
          "index: with shard: off every process gets all batches: leave out "
          "`replicas`");
    }
    options.delivery.mode = DeliveryMode::kBroadcast;
    options.delivery.window = options.spec.prefetch.value_or(kPrefetchFirst);
    options.consumers_max =
        std::max(options.local_world_size, kConsumersDefault);
  }
  std::optional<Job::Place> row;
  if (call.request.contains("row")) {
    row = Job::Place{call.request.at("epoch").get<uint64_t>(),
                     call.request.at("row").get<uint64_t>()};
  }
  Connection* const connection = call.connection;
  const uint64_t id = connection->id;
  connection->waiting = true;
  const bool scan = call.request.value("scan", true);
  connection->inspect = jobs_->Inspect(
      connection->uid, std::move(options), row, scan, [this, id](auto result) {
        Connection* asking = Find(id);
        asking->waiting = false;
        asking->inspect = 0;
        if (!result.ok()) return Refuse(asking, "index", result.status());
        Reply(asking, *result);
      });
  return nlohmann::json();
}

ControlServer::Answer ControlServer::Parse(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetSpec spec, SpecOf(call));
  nlohmann::json answer = OkReply();
  answer["dataset"] = spec.name;
  answer["spec"] = DatasetSpecToJson(spec).dump();
  // A function may draw some, or none.
  nlohmann::json& random = answer["random_steps"] = nlohmann::json::array();
  for (size_t i = 0; i < spec.map.size(); ++i) {
    const TransformSpec& step = spec.map[i];
    if (Draws(step) && !std::holds_alternative<PythonOp>(step) &&
        !std::holds_alternative<PluginOp>(step)) {
      random.push_back(i);
    }
  }
  return answer;
}

ControlServer::Answer ControlServer::Register(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(DatasetSpec spec, SpecOf(call));
  const uid_t uid = call.connection->uid;
  const std::pair<uid_t, std::string> key = {uid, spec.name};
  const auto found = datasets_.find(key);
  const std::string field =
      found == datasets_.end() ? "" : DifferingField(spec, found->second);
  if (!field.empty() && !call.request.value("replace", false)) {
    return AlreadyExistsError(
        "dataset '{}' is registered with another spec: {}; replace it with "
        "--replace, or rename one of them",
        spec.name, field);
  }
  if (found == datasets_.end()) {
    const auto of_uid = std::count_if(
        datasets_.begin(), datasets_.end(),
        [uid](const auto& item) { return item.first.first == uid; });
    if (static_cast<size_t>(of_uid) >= kDatasetsPerUidMax) {
      return ResourceExhaustedError(
          "user {} has reached the limit of {} registered datasets; remove "
          "some with `penstock unregister`",
          uid, kDatasetsPerUidMax);
    }
  }
  if (found == datasets_.end() || !field.empty()) {
    PENSTOCK_RETURN_IF_ERROR(recovery_journal_->DatasetRegistered(
        {uid, spec.name, DatasetSpecToJson(spec).dump()}));
  }
  datasets_[key] = spec;  // also of the same meaning: its lines may have moved
  nlohmann::json answer = OkReply();
  answer["dataset"] = spec.name;
  return answer;
}

ControlServer::Answer ControlServer::Unregister(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetSpec spec, SpecOf(call));
  const uid_t uid = call.connection->uid;
  PENSTOCK_RETURN_IF_ERROR(
      recovery_journal_->DatasetUnregistered(uid, spec.name));
  datasets_.erase({uid, spec.name});
  nlohmann::json answer = OkReply();
  answer["dataset"] = spec.name;
  return answer;
}

ControlServer::Answer ControlServer::ListDatasets(const Call& call) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [key, spec] : datasets_) {
    if (!MaySee(call.connection->uid, key.first)) continue;
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

ControlServer::Answer ControlServer::ShowStatus(const Call& call) {
  const auto accepts = [&](uid_t owner) {
    return MaySee(call.connection->uid, owner);
  };
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
                      {"memory_bytes", jobs_->reserved().bytes()},
                      {"resident_bytes", ResidentBytes()},
                      {"read_depth", workers_->read_depth()},
                      {"read_depth_auto", workers_->read_depth_is_automatic()},
                      {"read_depth_chosen", workers_->ReadDepthReason()},
                      {"nodes", NodesJson()},
                      {"numa", NumaText()},
                      {"connections", connections_.size()},
                      {"journal", recovery_journal_->Trouble()},
                      {"socket", options_.socket_path},
                      {"private", options_.private_broker},
                      {"sandbox", options_.sandbox},
                      {"suspect_samples", workers_->samples()->suspects()},
                      {"condemned_samples", workers_->samples()->condemned()}};
  if (const std::optional<uint64_t> limit = jobs_->reserved().limits().bytes) {
    answer["broker"]["memory_limit_bytes"] = *limit;
  }
  if (const Stores* const stores = FileAccess::stores()) {
    if (nlohmann::json use = stores->UseJson(); !use.empty()) {
      // Which whoever waits for them is shown.
      for (const char* key :
           {"listing", "silent", "silent_s", "silent_max_s"}) {
        use.erase(key);
      }
      answer["stores"] = std::move(use);
    }
  }
  nlohmann::json late = nlohmann::json::array();
  for (const WorkerPool::LateRead& read : workers_->LateReads()) {
    if (!accepts(read.uid)) continue;
    late.push_back({{"worker", read.worker},
                    {"uid", read.uid},
                    {"job", read.job},
                    {"dataset", read.dataset},
                    {"file", read.file},
                    {"seconds", read.seconds}});
  }
  answer["late_reads"] = std::move(late);
  if (nlohmann::json makers = links_.MakersJson(accepts); !makers.empty()) {
    answer["makers"] = std::move(makers);
  }
  // The connections know the processes, the jobs do not.
  JobTable::ProcessIds pids;
  for (const auto& [id, connection] : connections_) {
    if (connection.job != nullptr) {
      pids.of_seats[{connection.job.get(), connection.seat}] = connection.pid;
    }
  }
  for (const auto& [id, producer] : producers_.Numbers()) {
    pids.of_producers[producer] = connections_.at(id).pid;
  }
  answer["jobs"] = jobs_->StatusJson(&pids, accepts);
  answer["broker"]["hidden_jobs"] = jobs_->jobs() - answer["jobs"].size();
  return answer;
}

}  // namespace penstock
