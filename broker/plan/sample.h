// `sample`: rows drawn in proportion to weights.
#ifndef BROKER_PLAN_SAMPLE_H_
#define BROKER_PLAN_SAMPLE_H_

#include "broker/plan/select_context.h"

namespace penstock {

class ValueWeights;

// rows of a pass, each drawn from all of them in proportion to its weight, with
// replacement, by the seed and anew in each pass. weights: of each row, 0 or
// more, of fewer than 2^32, their sum above 0 and finite; empty: all have the
// same. kDrawBytes a row meanwhile, 8 afterwards.
inline constexpr uint64_t kDrawBytes = 20;
std::unique_ptr<Order> Draw(std::unique_ptr<Order> of, uint64_t rows,
                            uint64_t seed, std::vector<double> weights);

// Rows drawn in proportion to weights: as PyTorch's WeightedRandomSampler.
struct SampleStep {
  std::optional<uint64_t> rows;  // nullopt: as many as there are
  std::string weight;            // a column of numbers; "": see by
  std::string by;  // a column; each value has a weight. "": all have the same
  std::vector<std::pair<std::string, double>> weights;  // value, weight; else 1
  bool replacement = true;
  uint64_t seed = 0;
  bool operator==(const SampleStep&) const = default;

  static const Declaration<SampleStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;

 private:
  // The weight of a record with this value in the column that decides it.
  StatusOr<double> WeightOf(const ColumnValue& value, uint64_t record,
                            ValueWeights* of_values) const;
  StatusOr<std::unique_ptr<Order>> EachOnce(std::unique_ptr<Order> of,
                                            const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_SAMPLE_H_
