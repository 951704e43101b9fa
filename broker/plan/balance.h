// `balance`: as many rows of each value of a column.
#ifndef BROKER_PLAN_BALANCE_H_
#define BROKER_PLAN_BALANCE_H_

#include "broker/plan/mix.h"
#include "broker/plan/select_context.h"

namespace penstock {

// The same number of rows of each value of a column, or in proportion to
// weights: a mix whose parts are the records of one value.
struct BalanceStep {
  std::string by;
  std::vector<std::pair<std::string, double>> weights;  // value, weight; else 1
  WhenOut when_out = WhenOut::kRepeat;
  bool operator==(const BalanceStep&) const = default;

  static const Declaration<BalanceStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_BALANCE_H_
