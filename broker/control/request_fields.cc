#include "broker/control/request_fields.h"

#include <utility>

#include "common/job_state.h"
#include "common/layout.h"

namespace penstock {

std::string FoundText(const nlohmann::json& json, const char* name) {
  constexpr size_t kChars = 40;
  const auto found = json.find(name);
  return found == json.end() ? "missing" : found->dump().substr(0, kChars);
}

StatusOr<std::string> TextField(const nlohmann::json& json, const char* name,
                                size_t chars_max) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) {
    return InvalidArgumentError("request: '{}' is {}; wanted a string", name,
                                FoundText(json, name));
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
        "request: '{}' is {}; wanted a number from {} to {}", name,
        FoundText(json, name), min, max);
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
  options.on_rank_death = DefaultOnRankDeath(options.mode);
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
  if (request.contains("gpu_node")) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t node,
        NumberField(request, "gpu_node", 0, kNodesMax - 1));
    placement.gpu_node = static_cast<uint32_t>(node);
    PENSTOCK_ASSIGN_OR_RETURN(placement.gpu,
                              TextField(request, "gpu", kGpuCharsMax));
  }
  return placement;
}

}  // namespace penstock
