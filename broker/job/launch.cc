#include "broker/job/launch.h"

#include <nlohmann/json.hpp>

namespace penstock {

nlohmann::json Launch::ToJson() const {
  nlohmann::json json = {{"world_size", world_size_},
                         {"local_world_size", local_world_size_},
                         {"ranks", nlohmann::json::array()}};
  for (const auto& [rank, standing] : standings_) {
    json["ranks"].push_back({rank, static_cast<uint32_t>(standing)});
  }
  return json;
}

Launch Launch::FromJson(const nlohmann::json& json) {
  Launch launch(json.at("world_size").get<uint32_t>(),
                json.at("local_world_size").get<uint32_t>());
  for (const auto& each : json.at("ranks")) {
    const auto standing = std::min<uint32_t>(each.at(1).get<uint32_t>(),
                                             uint32_t{Standing::kFinished});
    launch.standings_[each.at(0).get<uint32_t>()] =
        static_cast<Standing>(standing);
  }
  return launch;
}

}  // namespace penstock
