#include "broker/plan/file_runs.h"

#include <algorithm>

namespace penstock {

StatusOr<std::vector<uint64_t>> FileRuns(
    const Order& order,
    const std::function<bool(uint64_t, uint64_t)>& same_file,
    const OrderBudget& budget) {
  constexpr uint64_t kRunsAtOnce = 1 << 16;
  if (order.repeats() || order.shuffled_parts() > 0) {
    return InvalidArgumentError(
        "the records of a file come in several places of a pass: it goes with "
        "no repeat, sample, balance or mix");
  }
  const auto record = [&](uint64_t i) { return order.At(i, 0, {}).record; };
  std::vector<uint64_t> ends;
  for (uint64_t begin = 0; begin < order.size();) {
    if (ends.size() % kRunsAtOnce == 0) {
      PENSTOCK_RETURN_IF_ERROR(budget.CheckWanted());
      // The old and the new array, while it grows.
      if (!ends.empty()) {
        PENSTOCK_RETURN_IF_ERROR(
            budget.reserve(3 * kRunsAtOnce * sizeof(uint64_t)));
      }
    }
    // From a row of the run on in steps that double, then between the last that
    // is of it and the first that is not.
    const uint64_t of = record(begin);
    uint64_t inside = begin;
    uint64_t step = 1;
    while (inside + step < order.size() &&
           same_file(of, record(inside + step))) {
      inside += step;
      step *= 2;
    }
    uint64_t outside = std::min(inside + step, order.size());
    while (outside - inside > 1) {
      const uint64_t middle = inside + (outside - inside) / 2;
      if (same_file(of, record(middle))) {
        inside = middle;
      } else {
        outside = middle;
      }
    }
    ends.push_back(begin = outside);
  }
  ends.shrink_to_fit();
  return ends;
}

StatusOr<std::vector<uint64_t>> FileRunsOf(const Order& order,
                                           const SelectContext& context) {
  PENSTOCK_ASSIGN_OR_RETURN(const Column file, FindColumn("file", context));
  return FileRuns(
      order,
      [&](uint64_t record, uint64_t other) {
        return file.value(record) == file.value(other);
      },
      context.budget);
}

StatusOr<std::vector<uint64_t>> ReadRunsOf(const Order& order,
                                           const SelectContext& context) {
  const StatusOr<Column> group = FindColumn("row_group", context);
  if (!group.ok()) return FileRunsOf(order, context);
  PENSTOCK_ASSIGN_OR_RETURN(const Column file, FindColumn("file", context));
  return FileRuns(
      order,
      [&](uint64_t record, uint64_t other) {
        return group->value(record) == group->value(other) &&
               file.value(record) == file.value(other);
      },
      context.budget);
}

}  // namespace penstock
