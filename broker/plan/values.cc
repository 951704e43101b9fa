#include "broker/plan/values.h"

#include <algorithm>
#include <set>

#include "broker/declare/yaml.h"

namespace penstock {

StatusOr<std::map<std::string, std::vector<uint64_t>>> RowsByValue(
    const Order& order, const Column& column, const SelectContext& context) {
  // The positions, by value and then in one list.
  PENSTOCK_RETURN_IF_ERROR(
      context.budget.reserve(3 * order.size() * sizeof(uint64_t)));
  std::map<std::string, std::vector<uint64_t>> of_value;
  PENSTOCK_RETURN_IF_ERROR(
      ForEachRow(order.size(), context.budget, [&](uint64_t i) {
        of_value[TextOf(column.value(RecordAt(order, i)))].push_back(i);
        if (of_value.size() <= kValuesMax) return OkStatus();
        return InvalidArgumentError(
            "column '{}' has more than {} values: go by one that has fewer",
            column.name, kValuesMax);
      }));
  return of_value;
}

std::string ValuesShown(const Order& order, const Column& column) {
  constexpr size_t kShown = 8;
  constexpr size_t kValuesLookedAt = 1'000;
  constexpr uint64_t kLookedAt = 10'000;
  std::set<ColumnValue> values;
  const uint64_t looked_at = std::min(order.size(), kLookedAt);
  uint64_t i = 0;
  for (; i < looked_at && values.size() < kValuesLookedAt; ++i) {
    values.insert(column.value(RecordAt(order, i)));
  }
  std::string shown;
  size_t count = 0;
  for (const ColumnValue& each : values) {
    if (++count > kShown) break;
    shown += (shown.empty() ? "" : ", ") + Quoted(TextOf(each));
  }
  const bool all = count <= kShown && i == order.size();
  return shown.empty() ? "no values" : shown + (all ? "" : ", ...");
}

ValueWeights::ValueWeights(
    const std::vector<std::pair<std::string, double>>& weights) {
  for (const auto& [value, weight] : weights) named_[value] = {weight, false};
}

double ValueWeights::Of(const std::string& value) {
  const auto found = named_.find(value);
  if (found == named_.end()) return 1;
  found->second.asked = true;
  return found->second.weight;
}

Status ValueWeights::CheckAllAsked(const Order& order,
                                   const Column& column) const {
  for (const auto& [value, weight] : named_) {
    if (weight.asked) continue;
    return InvalidArgumentError(
        "weights: no record has {} in column '{}'; it has {}", Quoted(value),
        column.name, ValuesShown(order, column));
  }
  return OkStatus();
}

Status AllWeightsAreZero() {
  return InvalidArgumentError("all weights are 0: one at least has to be more");
}

}  // namespace penstock
