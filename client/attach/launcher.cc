#include "client/attach/launcher.h"

#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

// Names of one launcher's variables; of the two of a job, the first that is set
// counts.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_world_size;  // unset: all ranks are local
  const char* local_rank;
  const char* job = nullptr;
  const char* other_job = nullptr;
};

// In order of preference: the innermost launcher first.
const Launcher kLaunchers[] = {
    {"penstock run", "PENSTOCK_RANK", "PENSTOCK_WORLD_SIZE",
     "PENSTOCK_LOCAL_WORLD_SIZE", "PENSTOCK_LOCAL_RANK"},
    {"Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE",
     "HOROVOD_LOCAL_RANK", "PMIX_NAMESPACE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK",
     "TORCHELASTIC_RUN_ID"},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
};

StatusOr<int64_t> Number(const std::string& name, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return InvalidArgumentError("{}='{}' is not a number, 0 or more", name,
                                text);
  }
  return value;
}

StatusOr<int64_t> NumberOf(const Environment& environment,
                           const std::string& name) {
  const std::optional<std::string> text = environment(name);
  if (!text) return InvalidArgumentError("{} is not set", name);
  return Number(name, *text);
}

// Only a hint: a missing or wrong variable is no error.
int64_t LocalRank(const Environment& environment, const char* name,
                  const LaunchInfo& info) {
  const StatusOr<int64_t> number = NumberOf(environment, name);
  if (number.ok()) return *number;
  return info.local_world_size == info.world_size ? info.rank : -1;
}

// How a launcher places ranks: "node:PE=2" is "node".
std::string PolicyIn(const Environment& environment, const char* name) {
  const std::string text = environment(name).value_or("");
  return text.substr(0, text.find_first_of(":,="));
}

// Ranks that are dealt out to hosts in turn, each of which has equally many.
void DealInTurn(LaunchInfo* info) {
  if (info->local_world_size == info->world_size) return;
  info->stride = 0;
  const int64_t local = info->local_world_size;
  if (local < 1 || info->world_size % local != 0) return;
  const int64_t hosts = info->world_size / local;
  const int64_t number = info->rank / hosts;
  if (info->local_rank >= 0 && info->local_rank != number) return;
  info->local_rank = number;
  info->stride = hosts;
}

// mpirun --map-by node, --rank-by node, --bynode: version 4 tells its ranks.
bool OpenMpiDealsInTurn(const Environment& environment) {
  const std::string ranking =
      PolicyIn(environment, "OMPI_MCA_rmaps_base_ranking_policy");
  if (!ranking.empty()) return ranking == "node";
  return PolicyIn(environment, "OMPI_MCA_rmaps_base_mapping_policy") ==
             "node" ||
         environment("OMPI_MCA_rmaps_base_bynode").value_or("0") == "1";
}

// Parses "4" or "2(x3),1", the tasks on each node of the step; returns those of
// `node`.
StatusOr<int64_t> SlurmTasksOfNode(const std::string& text, int64_t node) {
  int64_t seen = 0;
  for (const std::string& item : SplitText(text, ',')) {
    const size_t times_at = item.find("(x");
    int64_t times = 1;
    if (times_at != std::string::npos && item.back() == ')') {
      PENSTOCK_ASSIGN_OR_RETURN(
          times, Number("SLURM_STEP_TASKS_PER_NODE",
                        item.substr(times_at + 2, item.size() - times_at - 3)));
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const int64_t tasks,
        Number("SLURM_STEP_TASKS_PER_NODE", item.substr(0, times_at)));
    seen += times;
    if (node < seen) return tasks;
  }
  return InvalidArgumentError(
      "SLURM_STEP_TASKS_PER_NODE='{}' does not list node {}", text, node);
}

StatusOr<LaunchInfo> FromSlurm(const Environment& environment) {
  LaunchInfo info;
  info.launcher = "Slurm";
  PENSTOCK_ASSIGN_OR_RETURN(info.rank, NumberOf(environment, "SLURM_PROCID"));
  PENSTOCK_ASSIGN_OR_RETURN(info.world_size,
                            NumberOf(environment, "SLURM_NTASKS"));
  std::optional<std::string> tasks = environment("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks) tasks = environment("SLURM_TASKS_PER_NODE");
  info.local_world_size = info.world_size;
  if (tasks) {
    int64_t node = 0;
    if (environment("SLURM_NODEID")) {
      PENSTOCK_ASSIGN_OR_RETURN(node, NumberOf(environment, "SLURM_NODEID"));
    }
    PENSTOCK_ASSIGN_OR_RETURN(info.local_world_size,
                              SlurmTasksOfNode(*tasks, node));
  }
  info.local_rank = LocalRank(environment, "SLURM_LOCALID", info);
  const std::string distribution = PolicyIn(environment, "SLURM_DISTRIBUTION");
  if (distribution == "cyclic") DealInTurn(&info);
  if (distribution == "plane" || distribution == "arbitrary") {
    info.stride = info.local_world_size == info.world_size ? 1 : 0;
  }
  info.job = environment("SLURM_JOB_ID").value_or("");
  if (!info.job.empty()) {
    info.job =
        "slurm-" + info.job + "." + environment("SLURM_STEP_ID").value_or("0");
  }
  return info;
}

// TF_CONFIG: {"cluster": {"chief": [host:port], "worker": [...]}, "task":
// {"type": "worker", "index": 1}}. The chief is rank 0; evaluators and
// parameter servers are no ranks.
StatusOr<LaunchInfo> FromTfConfig(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto bad = [](const char* what) {
    return InvalidArgumentError("TF_CONFIG: {}", what);
  };
  if (!json.is_object() || !json.contains("cluster") ||
      !json["cluster"].is_object() || !json.contains("task") ||
      !json["task"].is_object()) {
    return bad("is not a JSON object with cluster and task");
  }
  const nlohmann::json& task = json["task"];
  if (!task.contains("type") || !task["type"].is_string() ||
      !task.contains("index") || !task["index"].is_number_integer()) {
    return bad("task needs a type and an index");
  }
  LaunchInfo info;
  info.launcher = "TF_CONFIG";
  const std::string type = task["type"].get<std::string>();
  const int64_t index = task["index"].get<int64_t>();
  std::vector<std::string> hosts;
  int64_t rank = -1;
  for (const char* role : {"chief", "master", "worker"}) {
    if (!json["cluster"].contains(role)) continue;
    const nlohmann::json& list = json["cluster"][role];
    if (!list.is_array()) return bad("a cluster role is not a list");
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_string()) return bad("an address is not a string");
      if (type == role && index == static_cast<int64_t>(i)) {
        rank = static_cast<int64_t>(hosts.size());
      }
      const std::string address = list[i].get<std::string>();
      hosts.push_back(address.substr(0, address.rfind(':')));
    }
  }
  if (rank < 0) {
    return bad("task is not one of the cluster's chief and workers");
  }
  info.rank = rank;
  info.world_size = static_cast<int64_t>(hosts.size());
  info.local_world_size = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i] != hosts[static_cast<size_t>(rank)]) continue;
    if (static_cast<int64_t>(i) == rank)
      info.local_rank = info.local_world_size;
    ++info.local_world_size;
  }
  return info;
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

StatusOr<LaunchInfo> DetectLaunch(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const bool has_rank = environment(launcher.rank).has_value();
    const bool has_size = environment(launcher.world_size).has_value();
    if (!has_rank || !has_size) {
      // RANK or WORLD_SIZE alone are too common names to mean torchrun.
      if (has_rank == has_size || launcher.rank == std::string_view("RANK")) {
        continue;
      }
      return InvalidArgumentError(
          "{} is set, {} is not",
          has_rank ? launcher.rank : launcher.world_size,
          has_rank ? launcher.world_size : launcher.rank);
    }
    LaunchInfo info;
    info.launcher = launcher.name;
    PENSTOCK_ASSIGN_OR_RETURN(info.rank, NumberOf(environment, launcher.rank));
    PENSTOCK_ASSIGN_OR_RETURN(info.world_size,
                              NumberOf(environment, launcher.world_size));
    info.local_world_size = info.world_size;
    if (environment(launcher.local_world_size)) {
      PENSTOCK_ASSIGN_OR_RETURN(
          info.local_world_size,
          NumberOf(environment, launcher.local_world_size));
    }
    info.local_rank = LocalRank(environment, launcher.local_rank, info);
    if (info.launcher == "OpenMPI" && OpenMpiDealsInTurn(environment)) {
      DealInTurn(&info);
    }
    for (const char* name : {launcher.job, launcher.other_job}) {
      if (name == nullptr || !info.job.empty()) continue;
      info.job = environment(name).value_or("");
    }
    return info;
  }
  // SLURM_PROCID is also set in a batch script itself, as task 0 of many: only
  // a step (srun) is a launch.
  if (environment("SLURM_PROCID") && environment("SLURM_STEP_ID")) {
    return FromSlurm(environment);
  }
  if (const auto text = environment("TF_CONFIG")) return FromTfConfig(*text);
  return LaunchInfo{};
}

}  // namespace penstock
