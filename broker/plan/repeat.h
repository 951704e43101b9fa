// `repeat`: several passes in one.
#ifndef BROKER_PLAN_REPEAT_H_
#define BROKER_PLAN_REPEAT_H_

#include "broker/plan/select_context.h"

namespace penstock {

// times passes in one. InvalidArgument: too many rows.
StatusOr<std::unique_ptr<Order>> Repeat(std::unique_ptr<Order> of,
                                        uint64_t times);

struct RepeatStep {
  uint32_t times = 1;
  bool operator==(const RepeatStep&) const = default;

  static const Declaration<RepeatStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_REPEAT_H_
