// All steps of `select`, in the order in which people are told of them. A new
// one is a struct with its Declared and its Apply, which are in a file of its
// own, and an alternative of SelectSpec.
#ifndef BROKER_PLAN_KINDS_H_
#define BROKER_PLAN_KINDS_H_

#include <variant>

#include "broker/plan/mix.h"
#include "broker/plan/select_context.h"

namespace penstock {

class ValueWeights;

// ---- filter.cc

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

// ---- exclude.cc

// All but the records of a list (common/record_list.h).
struct ExcludeStep {
  std::string records;  // the file
  bool operator==(const ExcludeStep&) const = default;

  static const Declaration<ExcludeStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// ---- take.cc

struct TakeStep {
  uint64_t records = 0;
  bool operator==(const TakeStep&) const = default;

  static const Declaration<TakeStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

struct SkipStep {
  uint64_t records = 0;
  bool operator==(const SkipStep&) const = default;

  static const Declaration<SkipStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// ---- shard.cc

// As tf.data.Dataset.shard. by: of the values of this column, numbered as they
// come; "": of records.
struct ShardStep {
  uint32_t index = 0;
  uint32_t of = 1;
  std::string by;
  bool operator==(const ShardStep&) const = default;

  static const Declaration<ShardStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// ---- repeat.cc

struct RepeatStep {
  uint32_t times = 1;
  bool operator==(const RepeatStep&) const = default;

  static const Declaration<RepeatStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// ---- split.cc

// Parts that have no record in common and together have all.
struct SplitStep {
  std::vector<std::pair<std::string, double>> parts;  // name, fraction
  std::string part;
  std::string by;  // a column whose values stay together; "": records are drawn
  uint64_t seed = 0;
  bool operator==(const SplitStep&) const = default;

  static const Declaration<SplitStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// k-fold cross-validation.
struct FoldStep {
  enum class Part { kTrain, kValidation };
  uint32_t number = 0;
  uint32_t of = 5;
  Part part = Part::kTrain;
  std::string by;  // as in SplitStep
  uint64_t seed = 0;
  bool operator==(const FoldStep&) const = default;

  static const Declaration<FoldStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// ---- balance.cc

// The same number of rows of each value of a column, or in proportion to
// weights: a mix whose parts are the records of one value.
struct BalanceStep {
  std::string by;
  std::vector<std::pair<std::string, double>> weights;  // value, weight; else 1
  WhenOut when_out = WhenOut::kRepeat;
  bool operator==(const BalanceStep&) const = default;

  static const Declaration<BalanceStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

// ---- sample.cc

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

// ---- interleave.cc

// As tf.data.Dataset.interleave over files.
struct InterleaveStep {
  uint32_t files = 16;
  uint32_t block = 1;
  bool operator==(const InterleaveStep&) const = default;

  static const Declaration<InterleaveStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

using SelectSpec = std::variant<  //
    FilterStep,                   //
    ExcludeStep,                  //
    TakeStep,                     //
    SkipStep,                     //
    ShardStep,                    //
    RepeatStep,                   //
    SplitStep,                    //
    FoldStep,                     //
    BalanceStep,                  //
    SampleStep,                   //
    InterleaveStep>;

}  // namespace penstock
#endif  // BROKER_PLAN_KINDS_H_
