// Orders of some rows of another.
#ifndef BROKER_PLAN_SUBSET_H_
#define BROKER_PLAN_SUBSET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "broker/plan/order.h"
#include "common/status.h"

namespace penstock {

// Every stride-th row from first on, count of them: take, skip and shard.
std::unique_ptr<Order> Slice(std::unique_ptr<Order> of, uint64_t first,
                             uint64_t count, uint64_t stride = 1);

// The rows of a pass whose positions satisfy keep. InvalidArgument: there is
// none. Other errors: those of the budget, Cancelled.
StatusOr<std::unique_ptr<Order>> Pick(
    std::unique_ptr<Order> of, const std::function<bool(uint64_t index)>& keep,
    const OrderBudget& budget);

// These rows of a pass, in this order. Several share one list.
using RowList = std::shared_ptr<const std::vector<uint64_t>>;
std::unique_ptr<Order> ListRows(std::shared_ptr<const Order> of, RowList rows,
                                size_t first, size_t count);

}  // namespace penstock
#endif  // BROKER_PLAN_SUBSET_H_
