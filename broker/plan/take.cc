#include <algorithm>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"
#include "common/exact_max.h"

namespace penstock {

const Declaration<TakeStep>& TakeStep::Declared() {
  const auto count = WholeNumber<uint64_t>(1, kExactMax);
  static const auto declared =
      Declaration<TakeStep>("take", "The first records.")
          .Example("1000")
          .Brief("a number of records", &TakeStep::records, count)
          .Required("records", &TakeStep::records, count,
                    "how many; all if there are fewer");
  return declared;
}

StatusOr<std::unique_ptr<Order>> TakeStep::Apply(std::unique_ptr<Order> of,
                                                 const SelectContext&) const {
  const uint64_t count = std::min(records, of->size());
  return Slice(std::move(of), 0, count);
}

const Declaration<SkipStep>& SkipStep::Declared() {
  const auto count = WholeNumber<uint64_t>(0, kExactMax);
  static const auto declared =
      Declaration<SkipStep>("skip", "All but the first records.")
          .Example("1000")
          .Brief("a number of records", &SkipStep::records, count)
          .Required("records", &SkipStep::records, count, "how many to leave");
  return declared;
}

StatusOr<std::unique_ptr<Order>> SkipStep::Apply(std::unique_ptr<Order> of,
                                                 const SelectContext&) const {
  const uint64_t size = of->size();
  if (records >= size) return NothingLeft(size);
  return Slice(std::move(of), records, size - records);
}

}  // namespace penstock
