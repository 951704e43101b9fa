// `select`: which records of a source a pass has. Each step makes an order of
// the one before it.
#ifndef BROKER_PLAN_SELECT_H_
#define BROKER_PLAN_SELECT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "broker/plan/columns.h"
#include "broker/plan/order.h"
#include "common/status.h"

namespace penstock {

template <typename T>
class Declaration;
template <typename V>
struct ValueType;

// What a selection may go by and take.
struct SelectContext {
  Columns columns;
  OrderBudget budget;
  // Features that are columns once records are read, for messages.
  std::vector<std::string> readable;
  // Whether the file that a filter names has kept a record.
  std::function<bool(const std::string& file, uint64_t record)> kept;
};

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

struct RepeatStep {
  uint32_t times = 1;
  bool operator==(const RepeatStep&) const = default;

  static const Declaration<RepeatStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

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
  StatusOr<std::unique_ptr<Order>> EachOnce(std::unique_ptr<Order> of,
                                            const SelectContext& context) const;
};

// As tf.data.Dataset.interleave over files.
struct InterleaveStep {
  uint32_t files = 16;
  uint32_t block = 1;
  bool operator==(const InterleaveStep&) const = default;

  static const Declaration<InterleaveStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

using SelectSpec =
    std::variant<FilterStep, TakeStep, SkipStep, ShardStep, RepeatStep,
                 SplitStep, FoldStep, BalanceStep, SampleStep, InterleaveStep>;

// The columns that it goes by.
std::vector<std::string> ColumnsOf(const SelectSpec& step);

ValueType<WhenOut> WhenOutWords();

// `shard: file`: the files, in the order in which they come, are dealt to so
// many shards, as tf.data deals them. InvalidArgument: no files, fewer files
// than shards, an order that repeats or mixes, fewer rows in a batch than
// shards.
StatusOr<std::unique_ptr<Order>> ShardByFile(std::unique_ptr<Order> of,
                                             uint32_t shards,
                                             uint64_t global_batch,
                                             const SelectContext& context);

// `select`, as a list.
inline constexpr char kSelectText[] =
    "which of them a pass has, in this order; all if there is none";
ValueType<std::vector<SelectSpec>> SelectSteps();

// Errors name the step: "select[1].skip: ...".
StatusOr<std::unique_ptr<Order>> Select(const std::vector<SelectSpec>& steps,
                                        std::unique_ptr<Order> of,
                                        const SelectContext& context = {});

// Shuffles within windows of files, if there are any (shuffle.window_files).
StatusOr<std::unique_ptr<Order>> InWindows(const ShuffleSpec& shuffle,
                                           std::unique_ptr<Order> of,
                                           const SelectContext& context);

}  // namespace penstock
#endif  // BROKER_PLAN_SELECT_H_
