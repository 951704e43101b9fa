// The values of a column, as texts: the rows of each, and weights of each.
#ifndef BROKER_PLAN_VALUES_H_
#define BROKER_PLAN_VALUES_H_

#include <map>

#include "broker/plan/select_context.h"

namespace penstock {

// More values than this are those of no label.
inline constexpr size_t kValuesMax = 65'536;

// The positions of each value. InvalidArgument: it has more than kValuesMax.
StatusOr<std::map<std::string, std::vector<uint64_t>>> RowsByValue(
    const Order& order, const Column& column, const SelectContext& context);

// The first values of a column, for a message: numbers by size, texts by bytes.
std::string ValuesShown(const Order& order, const Column& column);

// Weights that people give to values: those that they do not name have 1.
class ValueWeights {
 public:
  explicit ValueWeights(
      const std::vector<std::pair<std::string, double>>& weights);
  double Of(const std::string& value);
  // InvalidArgument: a value that is named was never asked for.
  Status CheckAllAsked(const Order& order, const Column& column) const;

 private:
  struct Weight {
    double weight = 1;
    bool asked = false;
  };
  std::map<std::string, Weight> named_;
};

Status AllWeightsAreZero();

}  // namespace penstock
#endif  // BROKER_PLAN_VALUES_H_
