// `filter`: records by the value of a column.
#ifndef BROKER_PLAN_FILTER_H_
#define BROKER_PLAN_FILTER_H_

#include "broker/plan/select_context.h"

namespace penstock {

// Records whose value in a column is one of some, or in a range, or matches a
// pattern: those of what is given, all of it; or those that a predicate kept.
struct FilterStep {
  std::string records;  // the file that says which these are; "": see column
  std::string column;
  std::vector<std::string> in;  // texts or numbers
  std::vector<std::string> except;
  std::optional<double> min;
  std::optional<double> max;
  std::string matches;  // fnmatch(3)
  bool operator==(const FilterStep&) const = default;

  static const Declaration<FilterStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_FILTER_H_
