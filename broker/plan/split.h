// `split` and `fold`: parts of the records that have none in common.
#ifndef BROKER_PLAN_SPLIT_H_
#define BROKER_PLAN_SPLIT_H_

#include "broker/plan/select_context.h"

namespace penstock {

// Parts that have no record in common and together have all.
struct SplitStep {
  std::vector<std::pair<std::string, double>> parts;  // name, fraction
  std::string part;
  std::string by;  // a column whose values stay together; "": records are drawn
  uint64_t seed = 0;
  bool operator==(const SplitStep&) const = default;

  static const Declaration<SplitStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// k-fold cross-validation.
struct FoldStep {
  enum class Part { kTrain, kValidation };
  uint32_t number = 0;
  uint32_t of = 5;
  Part part = Part::kTrain;
  std::string by;  // as in SplitStep
  uint64_t seed = 0;
  bool operator==(const FoldStep&) const = default;

  static const Declaration<FoldStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_SPLIT_H_
