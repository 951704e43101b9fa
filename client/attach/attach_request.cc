#include "client/attach/attach_request.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <vector>

#include "client/attach/gpu_node.h"
#include "common/job_state.h"
#include "common/text_file.h"

namespace penstock {
namespace {

bool IsSpecFile(const std::string& dataset) {
  const auto ends = [&](const char* suffix) {
    return dataset.ends_with(suffix);
  };
  return dataset.find('/') != std::string::npos || ends(".yaml") ||
         ends(".yml") || ends(".json");
}

StatusOr<std::string> ReadSpecFile(const std::string& path) {
  const auto failed = [&path] {
    return ErrnoError(errno, "cannot read spec file '" + path + "'");
  };
  std::ifstream file(path, std::ios::binary);
  if (!file) return failed();
  std::string text(kSpecBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return failed();
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kSpecBytesMax) {
    return InvalidArgumentError("spec file '{}' is longer than {} bytes", path,
                                kSpecBytesMax);
  }
  return text;
}

// The processors this thread may run on, as a list such as "0-3,8"; "":
// unknown.
std::string AllowedCpus() {
  // A mask that is too small fails with EINVAL.
  for (size_t cpus = 1024; cpus <= 8192; cpus *= 2) {
    std::vector<cpu_set_t> set(cpus / CPU_SETSIZE);
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) != 0) continue;
    std::string list;
    for (size_t cpu = 0; cpu < cpus; ++cpu) {
      if (!CPU_ISSET_S(cpu, bytes, set.data())) continue;
      const size_t first = cpu;
      while (cpu + 1 < cpus && CPU_ISSET_S(cpu + 1, bytes, set.data())) ++cpu;
      list += Format("{}{}", list.empty() ? "" : ",", first);
      if (cpu > first) list += Format("-{}", cpu);
    }
    return list;
  }
  return "";
}

// Whether the machine, not this process, has several NUMA nodes.
bool HasSeveralNodes() {
  std::string online;
  std::getline(std::ifstream("/sys/devices/system/node/online"), online);
  return online.find_first_of("-,") != std::string::npos;
}

// Puts the dataset name or the spec text into the request.
Status DescribeDataset(const AttachOptions& options,
                       const Environment& environment,
                       nlohmann::json* request) {
  std::error_code error;
  if (!options.spec.empty()) {
    (*request)["spec"] = options.spec;
    (*request)["file"] = options.spec_generated ? "" : "spec";
    (*request)["base"] = std::filesystem::current_path(error).string();
    return OkStatus();
  }
  std::string dataset = options.dataset;
  if (dataset.empty()) {
    dataset = environment("PENSTOCK_DATASET").value_or("");
  }
  if (dataset.empty()) {
    return InvalidArgumentError(
        "no dataset given: pass a spec file, a registered name, or set "
        "PENSTOCK_DATASET");
  }
  if (!IsSpecFile(dataset)) {
    (*request)["dataset"] = dataset;
    return OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN((*request)["spec"], ReadSpecFile(dataset));
  (*request)["file"] = dataset;
  (*request)["base"] =
      std::filesystem::absolute(dataset, error).parent_path().string();
  return OkStatus();
}

// The rank and the sizes of its world.
struct RankNumbers {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_world_size = 1;
  int64_t replica = 0;
  int64_t replicas = 1;
  int64_t local_replicas = 1;
  // Trainers that share a job but no launcher have no rank numbers.
  bool any_number = false;
};

// The number in a variable.
StatusOr<int64_t> CountIn(const char* name, const std::string& text,
                          int64_t least) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || number < least) {
    return InvalidArgumentError("{}='{}' is not a number, {} or more", name,
                                text, least);
  }
  return number;
}

// none: the value for "not given".
Status CheckNumbers(const AttachOptions& options) {
  const struct {
    const char* name;
    int64_t value;
    int64_t none;
  } numbers[] = {{"rank", options.rank, -1},
                 {"world_size", options.world_size, 0},
                 {"local_world_size", options.local_world_size, 0},
                 {"replica", options.replica, -1},
                 {"replicas", options.replicas, 0},
                 {"local_replicas", options.local_replicas, 0},
                 {"window", options.window, 0},
                 {"consumers", options.consumers, 0},
                 {"node", options.node, -1}};
  for (const auto& [name, value, none] : numbers) {
    if (value >= none) continue;
    return InvalidArgumentError(
        "{} is {}; wanted {} or more, or {} for the default", name, value,
        none + 1, none);
  }
  return OkStatus();
}

// How many of the n replicas of a rank run on this host, if it is one of
// several; 0: not equally many of each rank, or not known.
int64_t LocalReplicas(const LaunchInfo& launch, int64_t n) {
  const int64_t local = launch.local_world_size;
  if (launch.world_size == n) return local;
  if (launch.stride == 0) return 0;
  if (launch.stride > 1) {
    if (launch.stride >= n) return 1;
    return n % launch.stride == 0 ? n / launch.stride : 0;
  }
  if (local % n != 0 && n % local != 0) return 0;
  const int64_t most = std::min(local, n);
  // Where ranks are dealt out to hosts in turn, and nothing says so, one of
  // them begins its host in the middle of others.
  const bool dealt =
      launch.local_rank >= 0 && (launch.rank - launch.local_rank) % most != 0;
  return dealt ? 0 : most;
}

// Replicas follow one another in the launcher's numbers, as those of
// the innermost dimensions of a mesh do.
StatusOr<RankNumbers> FindReplicaNumbers(const AttachOptions& options,
                                         const LaunchInfo& launch, int64_t n) {
  RankNumbers numbers;
  numbers.replicas = n;
  if ((options.rank < 0) != (options.replica < 0)) {
    return InvalidArgumentError(
        "`{}` is given and `{}` is not: with replicas: {}, give both, or "
        "neither if they follow one another in the launcher's ranks",
        options.rank < 0 ? "replica" : "rank",
        options.rank < 0 ? "rank" : "replica", n);
  }
  const bool from_launcher = options.rank < 0;
  if ((from_launcher || options.world_size == 0) &&
      launch.world_size % n != 0) {
    return InvalidArgumentError(
        "replicas: {}: the world of {} processes is no multiple of it "
        "(launcher: {})",
        n, launch.world_size, launch.launcher);
  }
  numbers.rank = from_launcher ? launch.rank / n : options.rank;
  numbers.replica = from_launcher ? launch.rank % n : options.replica;
  numbers.world_size =
      options.world_size > 0 ? options.world_size : launch.world_size / n;
  if (numbers.replica >= n) {
    return InvalidArgumentError(
        "replica {} of {} replicas: they count from 0 to {}", numbers.replica,
        n, n - 1);
  }
  numbers.local_world_size = options.local_world_size;
  numbers.local_replicas = options.local_replicas;
  if (numbers.local_world_size > 0 && numbers.local_replicas > 0) {
    return numbers;
  }
  // All are on this host, as far as is known.
  if (numbers.world_size * n != launch.world_size ||
      launch.local_world_size == launch.world_size) {
    if (numbers.local_world_size == 0) {
      numbers.local_world_size = numbers.world_size;
    }
    if (numbers.local_replicas == 0) numbers.local_replicas = n;
    return numbers;
  }
  const int64_t local = launch.local_world_size;
  numbers.local_replicas = numbers.rank * n + numbers.replica == launch.rank
                               ? LocalReplicas(launch, n)
                               : 0;
  if (numbers.local_replicas == 0) {
    return InvalidArgumentError(
        "replicas: {}: {} of {} processes are on this host{}: give "
        "`local_world_size`, the ranks that have replicas here, and "
        "`local_replicas`, how many of each, or start equally many on each "
        "host that follow one another (mpirun --map-by slot)",
        n, local, launch.world_size,
        launch.local_rank < 0 ? ""
                              : Format(", and process {} is number {} of these",
                                       launch.rank, launch.local_rank));
  }
  numbers.local_world_size = local / numbers.local_replicas;
  return numbers;
}

StatusOr<int64_t> ReplicasOf(const AttachOptions& options,
                             const Environment& environment) {
  int64_t replicas = options.replicas;
  // A trainer may have other jobs, too, where each process is a rank.
  const bool split = options.delivery.empty() || options.delivery == "split";
  if (const auto text = environment("PENSTOCK_REPLICAS");
      replicas == 0 && split && text.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(replicas, CountIn("PENSTOCK_REPLICAS", *text, 1));
  }
  replicas = std::max<int64_t>(replicas, 1);
  if (replicas == 1 && (options.replica > 0 || options.local_replicas > 1)) {
    return InvalidArgumentError(
        "{} is given and `replicas` is not: say how many processes are one "
        "rank",
        options.replica > 0
            ? Format("replica {}", options.replica)
            : Format("local_replicas {}", options.local_replicas));
  }
  return replicas;
}

StatusOr<RankNumbers> FindRankNumbers(const AttachOptions& options,
                                      const LaunchInfo& launch,
                                      int64_t replicas) {
  if (replicas > 1) return FindReplicaNumbers(options, launch, replicas);
  RankNumbers numbers;
  numbers.world_size =
      options.world_size > 0 ? options.world_size : launch.world_size;
  numbers.rank = options.rank >= 0 ? options.rank : launch.rank;
  if (numbers.rank >= numbers.world_size) {
    return InvalidArgumentError(
        "rank {} of a world of {}: ranks count from 0 to {} (launcher: {}){}",
        numbers.rank, numbers.world_size, numbers.world_size - 1,
        launch.launcher,
        options.world_size > 0 ? "" : "; `world_size` was not given");
  }
  numbers.local_world_size = options.local_world_size;
  if (numbers.local_world_size == 0) {
    // The launcher's number holds for the launcher's world alone.
    numbers.local_world_size = numbers.world_size == launch.world_size
                                   ? launch.local_world_size
                                   : numbers.world_size;
  }
  const bool split_like = options.delivery.empty() ||
                          options.delivery == "split" ||
                          options.delivery == "dynamic";
  numbers.any_number =
      !split_like && options.rank < 0 && launch.world_size <= 1;
  return numbers;
}

// The NUMA node for its batches, if it is given or can be found out.
Status DescribeNode(const AttachOptions& options,
                    const Environment& environment, LaunchInfo launch,
                    const RankNumbers& numbers, nlohmann::json* request) {
  int64_t node = options.node;
  if (const auto text = environment("PENSTOCK_NODE");
      node < 0 && text.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(node, CountIn("PENSTOCK_NODE", *text, 0));
  }
  if (node >= 0) (*request)["node"] = node;
  if (!HasSeveralNodes()) return OkStatus();
  if (numbers.replicas == 1 && (launch.rank != numbers.rank ||
                                launch.world_size != numbers.world_size)) {
    launch.local_rank =
        numbers.local_world_size == numbers.world_size ? numbers.rank : -1;
  }
  if (const auto gpu = FindGpuNode(environment, launch)) {
    (*request)["gpu"] = gpu->gpu;
    (*request)["gpu_node"] = gpu->node;
  }
  return OkStatus();
}

// Options that were not given are left out: the broker has the defaults.
void DescribeDelivery(const AttachOptions& options, nlohmann::json* request) {
  const auto put = [&](const char* key, const auto& value, bool given) {
    if (given) (*request)[key] = value;
  };
  put("delivery", options.delivery, !options.delivery.empty());
  put("lag", options.lag, !options.lag.empty());
  put("on_rank_death", options.on_rank_death, !options.on_rank_death.empty());
  put("window", options.window, options.window > 0);
  put("consumers", options.consumers, options.consumers > 0);
  put("full_epoch", true, options.full_epoch);
  put("per_host", true, options.per_host);
  put("wait_s", options.wait_s, options.wait_s > 0);
}

Status DescribeStart(const AttachOptions& options,
                     const Environment& environment, nlohmann::json* request) {
  StatusOr<JobState> state = JobState();
  if (!options.state.empty()) {
    state = ParseJobState(options.state);
  } else if (const auto file = environment("PENSTOCK_STATE")) {
    state = ReadJobState(*file);
    // The state is of one dataset; a trainer may use others too.
    (*request)["state_of_same_dataset"] = true;
  } else {
    return OkStatus();
  }
  if (!state.ok()) return state.status();
  (*request)["state"] = JobStateToJson(*state);
  return OkStatus();
}

}  // namespace

std::string JobName(const std::string& given, const Environment& environment) {
  std::string job = given;
  if (job.empty()) job = environment("PENSTOCK_JOB").value_or("");
  if (job.empty()) {
    const StatusOr<LaunchInfo> launch = DetectLaunch(environment);
    if (launch.ok()) job = launch->job;
  }
  return job.empty() ? "default" : job;
}

void DescribePlacement(nlohmann::json* request) {
  constexpr size_t kListCharsMax = 4096;  // the broker's limit
  const std::string cpus = AllowedCpus();
  if (!cpus.empty() && cpus.size() <= kListCharsMax) (*request)["cpus"] = cpus;
  if (const int cpu = sched_getcpu(); cpu >= 0) (*request)["cpu"] = cpu;
}

StatusOr<AttachRequest> MakeAttachRequest(const AttachOptions& options,
                                          const Environment& environment) {
  PENSTOCK_RETURN_IF_ERROR(CheckNumbers(options));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t replicas,
                            ReplicasOf(options, environment));
  const bool all_given = options.rank >= 0 && options.world_size > 0 &&
                         (replicas == 1 || options.replica >= 0);
  LaunchInfo launch;
  if (!all_given || options.local_world_size == 0 || options.job.empty()) {
    StatusOr<LaunchInfo> detected = DetectLaunch(environment);
    if (detected.ok()) {
      launch = *detected;
    } else if (!all_given) {
      return detected.status();
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const RankNumbers numbers,
                            FindRankNumbers(options, launch, replicas));
  std::string job = options.job;
  if (job.empty()) job = environment("PENSTOCK_JOB").value_or(launch.job);

  AttachRequest request;
  request.repeat_first =
      options.repeat_first ||
      environment("PENSTOCK_REPEAT_FIRST").value_or("0") != "0";
  request.job = {{"op", "attach"},
                 {"job", job.empty() ? "default" : job},
                 {"named", !job.empty()},
                 {"world_size", numbers.world_size},
                 {"local_world_size", numbers.local_world_size},
                 {"repeat_first", request.repeat_first}};
  if (numbers.replicas > 1) {
    request.job["replica"] = numbers.replica;
    request.job["replicas"] = numbers.replicas;
    request.job["local_replicas"] = numbers.local_replicas;
  }
  if (!numbers.any_number) request.job["rank"] = numbers.rank;
  DescribeDelivery(options, &request.job);
  PENSTOCK_RETURN_IF_ERROR(
      DescribeNode(options, environment, launch, numbers, &request.job));
  PENSTOCK_RETURN_IF_ERROR(DescribeDataset(options, environment, &request.job));
  request.start = nlohmann::json::object();
  PENSTOCK_RETURN_IF_ERROR(DescribeStart(options, environment, &request.start));
  return request;
}

}  // namespace penstock
