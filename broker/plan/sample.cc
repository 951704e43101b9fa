#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/mix.h"
#include "broker/plan/orders.h"
#include "broker/plan/permutation.h"
#include "broker/plan/select_fields.h"
#include "broker/plan/values.h"
#include "common/exact_max.h"
#include "common/hash.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Rows by their weights, in O(1): a column for each row, as high as the mean
// weight, holds its own row's weight up to there and is filled up by one
// other's. Vose, "A linear algorithm for generating random numbers with a given
// distribution", IEEE Transactions on Software Engineering 17 (1991).
class AliasTable {
 public:
  explicit AliasTable(std::vector<double> weights) : columns_(weights.size()) {
    if (weights.empty()) return;
    const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) /
                        static_cast<double>(weights.size());
    std::vector<uint32_t> below;
    std::vector<uint32_t> above;
    for (uint32_t row = 0; row < weights.size(); ++row) {
      weights[row] /= mean;
      (weights[row] < 1 ? below : above).push_back(row);
      columns_[row] = {UINT32_MAX, row};
    }
    uint32_t fills_up = above.empty() ? 0 : above.back();
    while (!below.empty() && !above.empty()) {
      const uint32_t row = below.back();
      below.pop_back();
      fills_up = above.back();
      columns_[row] = {static_cast<uint32_t>(weights[row] * 0x1p32), fills_up};
      weights[fills_up] -= 1 - weights[row];
      if (weights[fills_up] >= 1) continue;
      above.pop_back();
      below.push_back(fills_up);
    }
    // By rounding: such a row has the mean weight, or none.
    for (const uint32_t row : below) {
      if (weights[row] < 0.5) columns_[row] = {0, fills_up};
    }
  }

  bool empty() const { return columns_.empty(); }
  uint64_t memory_bytes() const { return columns_.capacity() * sizeof(Column); }
  // bits: 64 random ones.
  uint64_t At(uint64_t bits) const {
    const auto place = static_cast<unsigned __int128>(bits) * columns_.size();
    const auto row = static_cast<uint64_t>(place >> 64);
    const Column& column = columns_[row];
    return static_cast<uint32_t>(place >> 32) < column.own ? row : column.other;
  }

 private:
  struct Column {
    uint32_t own = 0;  // its own row's part, in 2^-32
    uint32_t other = 0;
  };
  std::vector<Column> columns_;
};

class Drawn final : public Derived {
 public:
  Drawn(std::unique_ptr<Order> of, uint64_t rows, uint64_t seed,
        std::vector<double> weights)
      : Derived(std::move(of), rows), seed_(seed), table_(std::move(weights)) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const uint64_t draw = pass * size() + index;
    const uint64_t bits = Mix64(Mix64(seed_) + draw * kGolden64);
    const uint64_t row =
        table_.empty()
            ? static_cast<uint64_t>(
                  (static_cast<unsigned __int128>(bits) * of_->size()) >> 64)
            : table_.At(bits);
    return of_->At(row, draw, shuffling);
  }
  bool repeats() const override { return true; }
  bool draws() const override { return true; }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + table_.memory_bytes();
  }

 private:
  const uint64_t seed_;
  const AliasTable table_;
};

// A pass, shuffled by the seed and anew each time, whatever else shuffles it.
class Shuffled final : public Derived {
 public:
  Shuffled(std::unique_ptr<Order> of, uint64_t size, uint64_t seed)
      : Derived(std::move(of), size), seed_(seed) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At(Permutation(size(), seed_, pass)(index), pass, shuffling);
  }
  bool draws() const override { return true; }

 private:
  const uint64_t seed_;
};

std::unique_ptr<Order> ShuffledEachPass(std::unique_ptr<Order> of,
                                        uint64_t seed) {
  const uint64_t size = of->size();
  return std::make_unique<Shuffled>(std::move(of), size, seed);
}

Status CheckSample(const YamlValue& value, SampleStep* sample) {
  if (!sample->weights.empty() && sample->by.empty()) {
    return value.Required("weights").Error(
        "wanted `by` as well, the column whose values have these weights");
  }
  if (!sample->weight.empty() && !sample->by.empty()) {
    return value.Required("weight").Error(
        "wanted weight, a column of numbers, or by and weights, not both");
  }
  return OkStatus();
}

Status NoWeight(double weight, uint64_t record) {
  return InvalidArgumentError("the weight {} of record {}: wanted 0 or more",
                              weight, record);
}

// So that no quotient overflows.
constexpr double kWeightsMin = 1e-280;

}  // namespace

std::unique_ptr<Order> Draw(std::unique_ptr<Order> of, uint64_t rows,
                            uint64_t seed, std::vector<double> weights) {
  return std::make_unique<Drawn>(std::move(of), rows, seed, std::move(weights));
}

const Declaration<SampleStep>& SampleStep::Declared() {
  static const auto declared =
      Declaration<SampleStep>(
          "sample",
          "Records drawn in proportion to weights, anew in each pass; each row "
          "has random numbers of augmentation of its own. For exact "
          "proportions of values see `balance`.")
          .Example("{by: label, weights: {0: 1, 1: 9}, rows: 10000}")
          .Optional("rows", &SampleStep::rows,
                    Maybe(WholeNumber<uint64_t>(1, kExactMax)),
                    "of a pass; as many as there are records if absent")
          .Optional("weight", &SampleStep::weight, LeftOutAt({}, ColumnName()),
                    "the column that has the weight of each record (see "
                    "filter)")
          .Optional("by", &SampleStep::by, LeftOutAt({}, ColumnName()),
                    "the column whose values have weights")
          .Optional("weights", &SampleStep::weights, WeightsOfValues(),
                    "of a record of each value; those that are not named have "
                    "1")
          .Optional("replacement", &SampleStep::replacement, Bool(),
                    "a record may come again in a pass; false: each comes once "
                    "at most, and those of larger weight come earlier and "
                    "more often among the rows")
          .Optional("seed", &SampleStep::seed, Seeds(),
                    "records are drawn by it")
          .Check(CheckSample);
  return declared;
}

StatusOr<double> SampleStep::WeightOf(const ColumnValue& value, uint64_t record,
                                      ValueWeights* of_values) const {
  if (weight.empty()) return of_values->Of(TextOf(value));
  const std::optional<double> number = NumberOf(value);
  if (!number) {
    return InvalidArgumentError(
        "weight: column '{}' is text: give `by` and `weights` instead", weight);
  }
  if (!(*number >= 0) || !std::isfinite(*number)) {
    return NoWeight(*number, record);
  }
  return *number;
}

StatusOr<std::unique_ptr<Order>> SampleStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const uint64_t size = of->size();
  if (size == 0) return NothingLeft(size);
  if (of->shuffled_parts() > 0) {
    return InvalidArgumentError(
        "a mix has proportions of its own: put `sample` into the `select` of "
        "its parts");
  }
  if (!replacement) return EachOnce(std::move(of), context);
  std::vector<double> each_weight;
  if (!weight.empty() || !by.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "sample"));
    PENSTOCK_ASSIGN_OR_RETURN(
        const Column column, FindColumn(weight.empty() ? by : weight, context));
    ValueWeights of_values(weights);
    PENSTOCK_RETURN_IF_ERROR(context.budget.reserve(size * kDrawBytes));
    if (size >= UINT32_MAX) {
      return InvalidArgumentError(
          "weights of {} records: at most {}; take fewer of them before it",
          size, UINT32_MAX - 1);
    }
    each_weight.reserve(size);
    double sum = 0;
    const auto add = [&](uint64_t i) {
      const uint64_t record = RecordAt(*of, i);
      PENSTOCK_ASSIGN_OR_RETURN(
          const double each,
          WeightOf(column.value(record), record, &of_values));
      sum += each;
      if (!std::isfinite(sum)) return NoWeight(each, record);
      each_weight.push_back(each);
      return OkStatus();
    };
    PENSTOCK_RETURN_IF_ERROR(ForEachRow(size, context.budget, add));
    PENSTOCK_RETURN_IF_ERROR(of_values.CheckAllAsked(*of, column));
    if (sum == 0) return AllWeightsAreZero();
    if (sum < kWeightsMin) {
      return InvalidArgumentError(
          "the sum of the weights is {}: wanted {} or "
          "more; multiply them by a number",
          sum, kWeightsMin);
    }
  }
  return Draw(std::move(of), rows.value_or(size), seed, std::move(each_weight));
}

// Records of one weight are one part of a mix, whose share is the sum of their
// weights; a part that has no more records drops out. So a position costs what
// it costs in a mix, whatever was drawn before it.
StatusOr<std::unique_ptr<Order>> SampleStep::EachOnce(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const auto first =
      [this](std::unique_ptr<Order> all) -> StatusOr<std::unique_ptr<Order>> {
    const uint64_t wanted = rows.value_or(all->size());
    if (wanted <= all->size()) return Slice(std::move(all), 0, wanted);
    return InvalidArgumentError(
        "rows: {} of {} with a weight, without replacement: give at most as "
        "many, or replacement: true",
        wanted, Counted(all->size(), "record"));
  };
  if (weight.empty() && by.empty()) {
    return first(ShuffledEachPass(std::move(of), seed));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "sample"));
  PENSTOCK_ASSIGN_OR_RETURN(const Column column,
                            FindColumn(weight.empty() ? by : weight, context));
  const std::shared_ptr<const Order> all = std::move(of);
  PENSTOCK_ASSIGN_OR_RETURN(auto rows_of, RowsByValue(*all, column, context));
  ValueWeights of_values(weights);
  std::vector<double> shares;
  std::vector<std::unique_ptr<Order>> parts;
  for (auto& [value, indices] : rows_of) {
    const uint64_t record = RecordAt(*all, indices[0]);
    PENSTOCK_ASSIGN_OR_RETURN(
        const double each, WeightOf(column.value(record), record, &of_values));
    if (each == 0) continue;
    shares.push_back(each * static_cast<double>(indices.size()));
    const size_t count = indices.size();
    parts.push_back(ShuffledEachPass(
        ListRows(
            all,
            std::make_shared<const std::vector<uint64_t>>(std::move(indices)),
            0, count),
        seed + parts.size()));
  }
  PENSTOCK_RETURN_IF_ERROR(of_values.CheckAllAsked(*all, column));
  if (parts.empty()) return AllWeightsAreZero();
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<uint32_t> whole;
  for (const double share : shares) {
    constexpr double kPeriod = kMixPeriodMax / 2;  // room for those below 1
    whole.push_back(static_cast<uint32_t>(
        std::max(1LL, std::llround(share / sum * kPeriod))));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Order> mix,
                            Mix(std::move(parts), {{0, std::move(whole)}},
                                WhenOut::kDrop, context.budget));
  return first(std::move(mix));
}

}  // namespace penstock
