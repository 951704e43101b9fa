// Orders one after the other.
#ifndef BROKER_PLAN_CONCATENATE_H_
#define BROKER_PLAN_CONCATENATE_H_

#include <memory>
#include <vector>

#include "broker/plan/order.h"
#include "common/status.h"

namespace penstock {

// InvalidArgument: too many rows.
StatusOr<std::unique_ptr<Order>> Concatenate(
    std::vector<std::unique_ptr<Order>> parts);

}  // namespace penstock
#endif  // BROKER_PLAN_CONCATENATE_H_
