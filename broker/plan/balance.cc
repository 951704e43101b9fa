#include <cstdint>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"
#include "broker/plan/select_fields.h"
#include "broker/plan/values.h"

namespace penstock {

const Declaration<BalanceStep>& BalanceStep::Declared() {
  static const auto declared =
      Declaration<BalanceStep>(
          "balance",
          "As many rows of each value of a column, such as a label, or in "
          "proportion to weights: a mix of the records of each value.")
          .Example("{by: label}")
          .Required("by", &BalanceStep::by, ColumnName(),
                    "the column (see filter)")
          .Optional("weights", &BalanceStep::weights, WeightsOfValues(),
                    "of values; those that are not named have 1")
          .Optional("when_out", &BalanceStep::when_out, WhenOutWords(),
                    "when a value has no more records, as in mix");
  return declared;
}

StatusOr<std::unique_ptr<Order>> BalanceStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "balance"));
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, FindColumn(by, context));
  const std::shared_ptr<const Order> all = std::move(of);
  PENSTOCK_ASSIGN_OR_RETURN(auto of_value, RowsByValue(*all, column, context));
  ValueWeights given(weights);
  std::vector<double> weight_of;
  auto rows = std::make_shared<std::vector<uint64_t>>();
  rows->reserve(all->size());
  std::vector<std::pair<size_t, size_t>> places;
  for (auto& [value, indices] : of_value) {
    const double weight = given.Of(value);
    if (weight == 0) continue;
    weight_of.push_back(weight);
    places.emplace_back(rows->size(), indices.size());
    rows->insert(rows->end(), indices.begin(), indices.end());
    std::vector<uint64_t>().swap(indices);
  }
  PENSTOCK_RETURN_IF_ERROR(given.CheckAllAsked(*all, column));
  if (places.empty()) return AllWeightsAreZero();
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> whole,
                            WholeWeights(weight_of));
  std::vector<std::unique_ptr<Order>> parts;
  for (const auto& [first, count] : places) {
    parts.push_back(ListRows(all, rows, first, count));
  }
  return Mix(std::move(parts), {{0, std::move(whole)}}, when_out,
             context.budget);
}

}  // namespace penstock
