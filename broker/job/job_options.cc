#include "broker/job/job_options.h"

#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "common/printable.h"

namespace penstock {
namespace {

using nlohmann::json;

// The options that ranks must agree on: the key in the journal and the value.
// Messages name options as the ranks do, without the journal's "_max".
template <typename Options, typename Visit>
void ForEachAgreed(Options& options, const Visit& visit) {
  visit("world_size", options.world_size);
  visit("local_world_size", options.local_world_size);
  visit("replicas", options.replicas);
  visit("local_replicas", options.local_replicas);
  visit("repeat_first", options.repeat_first);
  visit("delivery", options.delivery.mode);
  visit("lag", options.delivery.lag);
  visit("on_rank_death", options.delivery.on_rank_death);
  visit("window", options.delivery.window);
  visit("consumers_max", options.consumers_max);
}

constexpr const auto& NamesOf(DeliveryMode) { return kDeliveryModeNames; }
constexpr const auto& NamesOf(Lag) { return kLagNames; }
constexpr const auto& NamesOf(OnRankDeath) { return kOnRankDeathNames; }

template <typename T>
json ToJson(T value) {
  if constexpr (std::is_enum_v<T>) {
    return NamesOf(value)[static_cast<size_t>(value)];
  } else {
    return value;
  }
}

template <typename T>
void FromJson(const json& json, T* value) {
  if constexpr (std::is_enum_v<T>) {
    const auto& names = NamesOf(*value);
    const auto found =
        std::find(names.begin(), names.end(), json.get<std::string>());
    if (found == names.end()) throw std::runtime_error("an unknown word");
    *value = static_cast<T>(found - names.begin());
  } else {
    *value = json.get<T>();
  }
}

}  // namespace

std::vector<WeightsChange> AllWeights(
    std::vector<WeightsChange> weights,
    const std::vector<WeightsChange>& of_job) {
  if (!weights.empty() && !of_job.empty() &&
      weights.back().epoch == of_job.front().epoch &&
      weights.back().row == of_job.front().row) {
    weights.pop_back();  // it was replaced
  }
  weights.insert(weights.end(), of_job.begin(), of_job.end());
  return weights;
}

std::string DifferingOption(const JobOptions& here, const JobOptions& there) {
  json theirs;
  ForEachAgreed(there, [&](const char* key, const auto& value) {
    theirs[key] = ToJson(value);
  });
  std::string differing;
  ForEachAgreed(here, [&](const char* key, const auto& value) {
    if (!differing.empty() || ToJson(value) == theirs[key]) return;
    const auto text = [](const json& json) {
      return json.is_string() ? json.get<std::string>() : json.dump();
    };
    const std::string name(key);
    differing = Format("{}: {} here, {} there",
                       name == "consumers_max" ? "consumers" : name,
                       text(ToJson(value)), text(theirs[key]));
  });
  if (!differing.empty()) return differing;
  const std::string field = DifferingField(here.spec, there.spec);
  return field.empty() ? "" : "spec: " + field;
}

json JobOptionsToJson(const JobOptions& options) {
  json record = {{"spec", DatasetSpecToJson(options.spec).dump()},
                 {"wait_s", options.wait_s}};
  ForEachAgreed(options, [&](const char* key, const auto& value) {
    record[key] = ToJson(value);
  });
  // As ever: other brokers know the job by its digest.
  if (options.replicas == 1) {
    record.erase("replicas");
    record.erase("local_replicas");
  }
  if (options.start) record["start"] = JobStateToJson(*options.start);
  for (const WeightsChange& change : options.weights) {
    record["weights"].push_back(WeightsChangeToJson(change));
  }
  return record;
}

StatusOr<JobOptions> JobOptionsFromJson(const json& record) {
  JobOptions options;
  PENSTOCK_ASSIGN_OR_RETURN(
      options.spec, ParseJournaledSpec(record.at("spec").get<std::string>()));
  ForEachAgreed(options, [&](const char* key, auto& value) {
    // Those of one process for each rank are left out.
    if (record.contains(key)) FromJson(record[key], &value);
  });
  options.wait_s = record.at("wait_s").get<double>();
  if (record.contains("start")) {
    PENSTOCK_ASSIGN_OR_RETURN(options.start, JobStateFromJson(record["start"]));
  }
  for (const json& each : record.value("weights", json::array())) {
    PENSTOCK_ASSIGN_OR_RETURN(WeightsChange change,
                              WeightsChangeFromJson(each));
    options.weights.push_back(std::move(change));
  }
  return options;
}

uint32_t AgreementDigest(const JobOptions& options) {
  json agreement = JobOptionsToJson(options);
  agreement.erase("wait_s");   // each rank sets it for itself
  agreement.erase("weights");  // no rank asks for them
  const std::string text = agreement.dump();
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

Status CheckOneJob(std::span<const JobKey> keys) {
  std::set<uint32_t> users;
  std::set<std::string> datasets;
  std::set<std::pair<uint32_t, std::string>> jobs;
  for (const JobKey& key : keys) {
    users.insert(key.uid);
    datasets.insert(Format("'{}'", Printable(key.dataset)));
    jobs.insert({key.uid, key.dataset});
  }
  if (jobs.size() <= 1) return OkStatus();
  std::vector<std::string> of_users;
  for (const uint32_t uid : users) of_users.push_back(std::to_string(uid));
  const bool of_users_only = datasets.size() == 1;
  return InvalidArgumentError(
      "{} jobs are named '{}'{}{}: name the {}", jobs.size(), keys[0].name,
      users.size() > 1 ? ", of users " + JoinText(of_users, ", ") : "",
      of_users_only ? "" : ", of datasets " + JoinText(datasets, ", "),
      users.size() == 1 ? "dataset too (--dataset)"
      : of_users_only   ? "user too (--uid)"
                        : "dataset too (--dataset), or the user (--uid)");
}

}  // namespace penstock
