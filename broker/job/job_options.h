// What a rank asks of its job, and which job that is.
//
// Plain data. The options that all ranks of a job must agree on are listed once
// (job_options.cc): they are compared, recorded and restored by that list.
#ifndef BROKER_JOB_JOB_OPTIONS_H_
#define BROKER_JOB_JOB_OPTIONS_H_

#include <compare>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/base/log_value.h"
#include "broker/job/launch.h"
#include "broker/spec/dataset_spec.h"
#include "common/delivery_options.h"
#include "common/job_state.h"
#include "common/status.h"

namespace penstock {

// One run of a job. The number is for people; a rank that reconnects shows the
// token, which is never reused.
struct Incarnation {
  uint64_t number = 1;
  uint64_t token = 0;
};

// A job's owner, and what its ranks must agree on.
struct JobKey {
  uint32_t uid = 0;
  std::string name;
  std::string dataset;
  // independent: each consumer has a job of its own.
  std::optional<uint32_t> consumer;
  auto operator<=>(const JobKey&) const = default;
  // As people number the job's processes: that of its own number `rank`, of so
  // many that are one rank.
  uint32_t ProcessOf(uint32_t rank, uint32_t replicas) const {
    return consumer.value_or(0) * replicas + rank;
  }
  // Implicit: as a value of a message.
  operator LogJob() const { return {name, dataset, uid, consumer}; }
};

// What a request names jobs by.
struct JobQuery {
  std::optional<uint32_t> uid;  // none: of any user
  std::string name;
  std::string dataset;  // "": any
  bool Matches(const JobKey& key) const {
    return key.name == name && (!uid || *uid == key.uid) &&
           (dataset.empty() || dataset == key.dataset);
  }
};

// InvalidArgument, and what tells them apart: they are of several users or
// datasets.
Status CheckOneJob(std::span<const JobKey> keys);

struct JobOptions {
  DatasetSpec spec;
  uint32_t world_size = 1;
  uint32_t local_world_size = 1;
  // split and independent: processes that are one rank and get the same
  // batches; those of each
  // rank of this host that run on it.
  uint32_t replicas = 1;
  uint32_t local_replicas = 1;
  bool repeat_first = false;  // one batch is made, and the ranks repeat it
  DeliveryOptions delivery;
  uint32_t consumer = 0;  // independent: its number, which selects the order
  uint32_t consumers_max = 1;     // broadcast: at once; else those of this host
  std::optional<JobState> start;  // absent: the beginning
  // Changes of the weights of its mix, after those of start.
  std::vector<WeightsChange> weights;
  double wait_s = 600;  // the job fails if ranks are missing this long
  // All of its data were delivered: it only tells late ranks the end.
  bool at_end = false;

  // Processes of all hosts, and of this one.
  uint64_t processes() const { return uint64_t{world_size} * replicas; }
  uint32_t local_processes() const { return local_world_size * local_replicas; }
  bool several_hosts() const { return local_processes() != processes(); }
};

// independent: each consumer is a launch of its own.
inline Launch LaunchOf(const JobOptions& options) {
  return options.delivery.mode == DeliveryMode::kIndependent
             ? Launch(options.replicas, options.local_replicas)
             : Launch(options.processes(), options.local_processes());
}

// All changes of its mix's weights, of these and those of a job.
std::vector<WeightsChange> AllWeights(std::vector<WeightsChange> weights,
                                      const std::vector<WeightsChange>& of_job);

// The first option that differs, with both values ("window: 4 here, 8 there"),
// or "": the ranks agree.
std::string DifferingOption(const JobOptions& here, const JobOptions& there);
// Equal for options that agree and begin at the same state, in every process.
uint32_t AgreementDigest(const JobOptions& options);

// For the journal: all but consumer and at_end.
nlohmann::json JobOptionsToJson(const JobOptions& options);
// Throws what nlohmann::json throws, also for an unknown word.
StatusOr<JobOptions> JobOptionsFromJson(const nlohmann::json& json);

}  // namespace penstock
#endif  // BROKER_JOB_JOB_OPTIONS_H_
