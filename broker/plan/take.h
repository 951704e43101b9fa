// `take` and `skip`: the first records, and all but them.
#ifndef BROKER_PLAN_TAKE_H_
#define BROKER_PLAN_TAKE_H_

#include "broker/plan/select_context.h"

namespace penstock {

struct TakeStep {
  uint64_t records = 0;
  bool operator==(const TakeStep&) const = default;

  static const Declaration<TakeStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

struct SkipStep {
  uint64_t records = 0;
  bool operator==(const SkipStep&) const = default;

  static const Declaration<SkipStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_TAKE_H_
