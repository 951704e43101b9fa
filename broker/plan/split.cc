#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"
#include "broker/plan/permutation.h"
#include "broker/plan/select_fields.h"
#include "common/hash.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// The end of a part whose fractions, with those before it, add up to share.
uint64_t EndOf(double share, uint64_t records) {
  return std::min(records, static_cast<uint64_t>(std::llround(
                               share * static_cast<double>(records))));
}

// A number in [0, 1) for a value, the same whatever else there is.
double DrawOf(const std::string& value, uint64_t seed) {
  const uint64_t bits = Mix64(Fnv1a(value, kFnv1aBasis ^ seed));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Parts of an order would have records in common, in a pass or in two.
Status CheckDivisible(const Order& order, std::string_view step) {
  if (order.repeats()) {
    return InvalidArgumentError(
        "a record may come several times in a pass, in both parts: put `{}` "
        "before what repeats it, or into the `select` of each part of a mix",
        step);
  }
  if (order.shuffled_parts() > 0) {
    return InvalidArgumentError(
        "a mix has its records in another order in each pass, in other parts: "
        "put `{}` into the `select` of each part of the mix",
        step);
  }
  return OkStatus();
}

Status CheckSplit(const YamlValue& value, SplitStep* split) {
  double sum = 0;
  bool found = false;
  for (const auto& [name, fraction] : split->parts) {
    sum += fraction;
    found |= name == split->part;
  }
  if (sum > 1 + 1e-9) {
    return value.Required("of").Error(
        Format("the fractions add up to {:g}, more than 1", sum));
  }
  for (const auto& [name, fraction] : split->parts) {
    if (name != split->part || fraction > 0) continue;
    return value.Required("part").Error(
        Format("'{}' has the fraction 0: give it more", name));
  }
  if (!found) {
    return value.Required("part").Error(Format(
        "'{}' is none of the parts: {}", split->part,
        JoinText(split->parts, ", ", &std::pair<std::string, double>::first)));
  }
  return OkStatus();
}

Status CheckFold(const YamlValue& value, FoldStep* fold) {
  if (fold->number < fold->of) return OkStatus();
  return value.Required("number").Error(Format(
      "fold {} of {}: wanted less than {}", fold->number, fold->of, fold->of));
}

}  // namespace

const Declaration<SplitStep>& SplitStep::Declared() {
  const auto fractions = ValueOfEach(
      Number(0, 1), "{NAME: a fraction, ...}, such as {train: 0.9, test: 0.1}",
      CheckNames);
  static const auto declared =
      Declaration<SplitStep>(
          "split", "One part of several: no record is in two of them.")
          .Example("{of: {train: 0.9, validation: 0.1}, part: train}")
          .Required("of", &SplitStep::parts, fractions,
                    "the parts; each has its fraction of the records, to the "
                    "nearest record")
          .Required("part", &SplitStep::part, Name(), "which of them")
          .Optional("by", &SplitStep::by, LeftOutAt({}, ColumnName()),
                    "records with one value of this column stay together, "
                    "also when others are added; the fractions are those of "
                    "the values, on average")
          .Optional("seed", &SplitStep::seed, Seeds(),
                    "records are drawn by it")
          .Check(CheckSplit);
  return declared;
}

StatusOr<std::unique_ptr<Order>> SplitStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const uint64_t size = of->size();
  PENSTOCK_RETURN_IF_ERROR(CheckDivisible(*of, "split"));
  if (size == 0) return NothingLeft(size);
  double begin_share = 0;
  double share = 0;
  for (const auto& [name, fraction] : parts) {
    begin_share = share;
    share += fraction;
    if (name == part) break;
  }
  // The last part has what rounding leaves.
  if (share > 1 - 1e-9) share = 1;
  if (by.empty()) {
    const uint64_t begin = EndOf(begin_share, size);
    const uint64_t end = EndOf(share, size);
    const Permutation drawn(size, seed, 0);
    return Pick(
        std::move(of),
        [&](uint64_t i) {
          const uint64_t number = drawn(i);
          return begin <= number && number < end;
        },
        context.budget);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, FindColumn(by, context));
  const Order& all = *of;
  return Pick(
      std::move(of),
      [&](uint64_t i) {
        const double number =
            DrawOf(TextOf(column.value(RecordAt(all, i))), seed);
        return begin_share <= number && number < share;
      },
      context.budget);
}

const Declaration<FoldStep>& FoldStep::Declared() {
  static const auto declared =
      Declaration<FoldStep>("fold", "One fold of k-fold cross-validation.")
          .Example("{number: 0, of: 5, part: validation}")
          .Required("number", &FoldStep::number,
                    WholeNumber<uint32_t>(0, kPartsMax - 1), "of the fold")
          .Optional("of", &FoldStep::of, WholeNumber<uint32_t>(2, kPartsMax),
                    "the number of folds")
          .Optional("part", &FoldStep::part,
                    Words<Part>({{"train", Part::kTrain},
                                 {"validation", Part::kValidation}}),
                    "validation: the records of the fold; train: all others")
          .Optional("by", &FoldStep::by, LeftOutAt({}, ColumnName()),
                    "records with one value of this column stay together")
          .Optional("seed", &FoldStep::seed, Seeds(), "records are drawn by it")
          .Check(CheckFold);
  return declared;
}

StatusOr<std::unique_ptr<Order>> FoldStep::Apply(
    std::unique_ptr<Order> order, const SelectContext& context) const {
  PENSTOCK_RETURN_IF_ERROR(CheckDivisible(*order, "fold"));
  const uint64_t size = order->size();
  if (size < of) {
    return InvalidArgumentError(
        "{} folds of {}: at most as many folds as records may be", of,
        Counted(size, "record", "records"));
  }
  if (by.empty()) {
    const Permutation drawn(size, seed, 0);
    return Pick(
        std::move(order),
        [&](uint64_t i) {
          return (drawn(i) % of == number) == (part == Part::kValidation);
        },
        context.budget);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, FindColumn(by, context));
  const Order& all = *order;
  return Pick(
      std::move(order),
      [&](uint64_t i) {
        const double drawn =
            DrawOf(TextOf(column.value(RecordAt(all, i))), seed);
        return (static_cast<uint32_t>(drawn * of) == number) ==
               (part == Part::kValidation);
      },
      context.budget);
}

}  // namespace penstock
