#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"

namespace penstock {

const Declaration<ExcludeStep>& ExcludeStep::Declared() {
  static const auto declared =
      Declaration<ExcludeStep>(
          "exclude",
          "All but the records of a list: a file of `penstock check --all`, or "
          "one written by hand. Each line begins with the number of a record "
          "of the source; anything may follow a blank. Comment lines begin with "
          "#.")
          .Example("broken.txt")
          .Brief("a path", &ExcludeStep::records, PathOrAddress())
          .Required("records", &ExcludeStep::records, PathOrAddress(), "the list");
  return declared;
}

StatusOr<std::unique_ptr<Order>> ExcludeStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "exclude"));
  const Order& all = *of;
  return Pick(
      std::move(of),
      [&](uint64_t i) { return !context.file_has(records, RecordAt(all, i)); },
      context.budget);
}

}  // namespace penstock
