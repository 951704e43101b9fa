// Checked access to the fields of a request, which is untrusted.
// InvalidArgument names the field and what is wanted.
#ifndef BROKER_CONTROL_REQUEST_FIELDS_H_
#define BROKER_CONTROL_REQUEST_FIELDS_H_

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "broker/memory/placement.h"
#include "common/delivery_options.h"
#include "common/format.h"
#include "common/status.h"

namespace penstock {

// The value found, for a message: "missing", or the beginning of its text.
std::string FoundText(const nlohmann::json& json, const char* name);

StatusOr<std::string> TextField(const nlohmann::json& json, const char* name,
                                size_t chars_max);
StatusOr<uint64_t> NumberField(const nlohmann::json& json, const char* name,
                               uint64_t min, uint64_t max);
// Absent: false.
StatusOr<bool> FlagField(const nlohmann::json& json, const char* name);
// "owed", from a rank that reconnects.
StatusOr<std::vector<uint64_t>> PositionsField(const nlohmann::json& json);

// One of the names; absent: the first.
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
                              FoundText(json, name), JoinText(names, ", "));
}

// How an attach wants its batches delivered.
StatusOr<DeliveryOptions> DeliveryOf(const nlohmann::json& request);
// Where a rank says it runs.
StatusOr<RankPlacement> PlacementOf(const nlohmann::json& request);

}  // namespace penstock
#endif  // BROKER_CONTROL_REQUEST_FIELDS_H_
