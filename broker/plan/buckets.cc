#include "broker/plan/buckets.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "broker/plan/orders.h"
#include "broker/plan/steps.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// The beginning of every so many steps is kept, those between are added up.
constexpr uint64_t kStepsKept = 16;
constexpr uint32_t kBuckets = 8;  // without a count
constexpr uint64_t kLengthsTried = 1024;

// The longest lengths of at most `count` buckets that make the fewest tokens of
// all rows, each as wide as its bucket. Each has at least a quarter of the rows
// that it had if all had equally many: a few long rows would fill no batch.
// Dynamic programming over at most kLengthsTried lengths.
std::vector<uint64_t> WithLeastPadding(std::vector<uint64_t> lengths,
                                       uint64_t count) {
  std::sort(lengths.begin(), lengths.end());
  // Rows up to each length.
  std::vector<std::pair<uint64_t, uint64_t>> tried = {{0, 0}};
  const uint64_t stride = lengths.size() / kLengthsTried + 1;
  for (uint64_t row = 0; row < lengths.size();) {
    const uint64_t length =
        lengths[std::min<uint64_t>(row + stride, lengths.size()) - 1];
    row = static_cast<uint64_t>(
        std::upper_bound(lengths.begin() + static_cast<ptrdiff_t>(row),
                         lengths.end(), length) -
        lengths.begin());
    tried.push_back({length, row});
  }
  const uint64_t least = lengths.size() / count / 4;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<double> tokens(tried.size(), kNone);
  tokens[0] = 0;
  // By number of buckets and length: the length before its last bucket.
  std::vector<std::vector<size_t>> before;
  double best = kNone;
  size_t buckets = 0;
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<double> next(tried.size(), kNone);
    before.emplace_back(tried.size(), 0);
    for (size_t end = 1; end < tried.size(); ++end) {
      for (size_t begin = 0; begin < end; ++begin) {
        const uint64_t rows = tried[end].second - tried[begin].second;
        if (rows < least) break;
        const double all =
            tokens[begin] +
            static_cast<double>(rows) * static_cast<double>(tried[end].first);
        if (all >= next[end]) continue;
        next[end] = all;
        before.back()[end] = begin;
      }
    }
    tokens = std::move(next);
    if (tokens.back() < best) {
      best = tokens.back();
      buckets = before.size();
    }
  }
  std::vector<uint64_t> ends;
  for (size_t end = tried.size() - 1; buckets > 0; --buckets) {
    ends.push_back(tried[end].first);
    end = before[buckets - 1][end];
  }
  std::reverse(ends.begin(), ends.end());
  return ends;
}

// What a thread keeps of the step that it was last in.
struct LastStep final : Shuffles::Kept {
  uint64_t begin = 0;
  uint64_t end = 0;  // 0: none yet
  size_t bucket = 0;
  uint64_t first = 0;  // of the bucket
};

class Bucketed final : public Derived, private Steps {
 public:
  Bucketed(std::unique_ptr<Order> of, std::shared_ptr<const Buckets> buckets,
           std::vector<uint64_t> sizes, std::vector<uint64_t> used,
           std::vector<uint64_t> step_ends, uint64_t rows,
           const ShuffleSpec* shuffle)
      : Derived(std::move(of), rows),
        Steps(rows, step_ends.back(),
              *std::max_element(sizes.begin(), sizes.end())),
        buckets_(std::move(buckets)),
        sizes_(std::move(sizes)),
        used_(std::move(used)),
        step_ends_(std::move(step_ends)) {
    if (shuffle != nullptr) {
      shuffled_.emplace(
          count(), shuffle->SeedOf(static_cast<uint32_t>(buckets_->size()) + 1),
          0);
    }
    begins_.reserve(count() / kStepsKept + 1);
    uint64_t row = 0;
    for (uint64_t step = 0; step < count(); ++step) {
      if (step % kStepsKept == 0) begins_.push_back(row);
      row += BatchAt(step).rows;
    }
  }

  const Steps* steps() const override { return this; }
  uint32_t shuffled_parts() const override {
    return static_cast<uint32_t>(buckets_->size()) + 1;
  }
  uint64_t memory_bytes() const override {
    return Derived::memory_bytes() + begins_.capacity() * sizeof(uint64_t);
  }

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    LastStep alone;
    LastStep* last = &alone;
    if (shuffling.last != nullptr) {
      auto& kept = shuffling.last->KeptOf(
          shuffling.first_part + static_cast<uint32_t>(buckets_->size()));
      if (kept == nullptr) kept = std::make_unique<LastStep>();
      last = static_cast<LastStep*>(kept.get());
    }
    if (index < last->begin || index >= last->end) Enter(index, last);
    uint64_t row = last->first + index - last->begin;
    if (shuffling.spec != nullptr) {
      row = shuffling.last->Of(
          shuffling.first_part + static_cast<uint32_t>(last->bucket),
          *shuffling.spec, buckets_->Rows(last->bucket), pass)(row);
    }
    return of_->At(buckets_->RowOf(last->bucket, row), pass, {});
  }

 private:
  struct Batch {
    size_t bucket = 0;
    uint64_t first = 0;  // of the bucket's rows
    uint64_t rows = 0;
  };

  // ---- in steps of its own

  uint64_t Begin(uint64_t step) const override {
    if (step >= count()) return Steps::rows();
    uint64_t row = begins_[step / kStepsKept];
    for (uint64_t i = step / kStepsKept * kStepsKept; i < step; ++i) {
      row += BatchAt(i).rows;
    }
    return row;
  }
  uint64_t StepAt(uint64_t row) const override {
    if (row >= Steps::rows()) return count();
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), row);
    const auto kept = static_cast<uint64_t>(after - begins_.begin()) - 1;
    uint64_t step = kept * kStepsKept;
    for (uint64_t begin = begins_[kept]; begin < row; ++step) {
      begin += BatchAt(step).rows;
    }
    return step;
  }
  const char* fixed_by() const override { return "batch.buckets"; }
  uint64_t Following(uint64_t row, uint64_t i, uint64_t) const override {
    LastStep step;
    Enter(row, &step);
    return step.begin + (row - step.begin + i) % (step.end - step.begin);
  }
  std::optional<uint32_t> PartOf(uint64_t step) const override {
    return static_cast<uint32_t>(BatchAt(step).bucket);
  }
  uint64_t RowsOfPart(uint32_t part) const override { return sizes_[part]; }
  uint64_t ShapeRows(uint64_t step) const override {
    return sizes_[BatchAt(step).bucket];
  }

  Batch BatchAt(uint64_t step) const {
    const uint64_t batch = shuffled_ ? (*shuffled_)(step) : step;
    const auto bucket = static_cast<size_t>(
        std::upper_bound(step_ends_.begin(), step_ends_.end(), batch) -
        step_ends_.begin());
    const uint64_t before = bucket == 0 ? 0 : step_ends_[bucket - 1];
    const uint64_t first = (batch - before) * sizes_[bucket];
    return {bucket, first, std::min(sizes_[bucket], used_[bucket] - first)};
  }
  void Enter(uint64_t index, LastStep* step) const {
    const uint64_t number = StepAt(index + 1) - 1;
    const Batch batch = BatchAt(number);
    step->begin = Begin(number);
    step->end = step->begin + batch.rows;
    step->bucket = batch.bucket;
    step->first = batch.first;
  }

  const std::shared_ptr<const Buckets> buckets_;
  // By bucket: rows of a batch, rows that a pass has, steps up to its last.
  const std::vector<uint64_t> sizes_;
  const std::vector<uint64_t> used_;
  const std::vector<uint64_t> step_ends_;
  std::optional<Permutation> shuffled_;  // the batch of a step
  std::vector<uint64_t> begins_;
};

}  // namespace

StatusOr<std::shared_ptr<const Buckets>> Buckets::Make(
    const BucketsSpec& spec, const Order& order, const SelectContext& context) {
  if (order.draws() || order.shuffled_parts() > 0) {
    return InvalidArgumentError(
        "{} has other records in each pass, and buckets are sorted once: {}"
        "`penstock convert` the rows first",
        order.draws() ? "a sample" : "a mix",
        order.draws() ? ""
                      : "use a `concat` of the parts, or `batch.by_part` "
                        "(batches of one part each), or ");
  }
  const StatusOr<Column> found = FindColumn(spec.by, context);
  if (!found.ok() && spec.by.ends_with(kLengthSuffix)) {
    return InvalidArgumentError(
        "{}; a list that `map` makes is no column: go by what it is made of "
        "(of text that `tokenize` takes, NAME_bytes), or `penstock convert` "
        "the rows first",
        found.status().message());
  }
  PENSTOCK_RETURN_IF_ERROR(found.status());
  const Column& column = *found;
  PENSTOCK_RETURN_IF_ERROR(
      context.budget.reserve(order.size() * 3 * sizeof(uint64_t)));
  std::vector<uint64_t> lengths(order.size());
  PENSTOCK_RETURN_IF_ERROR(
      ForEachRow(order.size(), context.budget, [&](uint64_t row) -> Status {
        PENSTOCK_ASSIGN_OR_RETURN(lengths[row],
                                  LengthAt(column, RecordAt(order, row)));
        return OkStatus();
      }));
  const bool chosen = spec.boundaries.empty();
  std::vector<uint64_t> bounds =
      chosen ? WithLeastPadding(lengths, spec.count.value_or(kBuckets))
             : spec.boundaries;
  if (!chosen) bounds.push_back(UINT64_MAX);
  const auto bucket_of = [&](uint64_t length) {
    return static_cast<size_t>(
        std::lower_bound(bounds.begin(), bounds.end(), length) -
        bounds.begin());
  };
  auto made = std::make_shared<Buckets>();
  // Ends, then where the next row of each goes.
  std::vector<uint64_t> next(bounds.size() + 1, 0);
  std::vector<uint64_t> longest(bounds.size(), 0);
  for (const uint64_t length : lengths) {
    const size_t bucket = bucket_of(length);
    ++next[bucket + 1];
    longest[bucket] = std::max(longest[bucket], length);
  }
  for (size_t i = 0; i < bounds.size(); ++i) {
    const bool empty = next[i + 1] == 0;
    next[i + 1] += next[i];
    if (empty) continue;
    made->ends_.push_back(next[i + 1]);
    made->longest_.push_back(longest[i]);
    const bool given = !chosen && i < spec.boundaries.size();
    made->boundaries_.push_back(given ? bounds[i] : 0);
  }
  made->rows_.resize(order.size());
  for (uint64_t row = 0; row < lengths.size(); ++row) {
    made->rows_[next[bucket_of(lengths[row])]++] = row;
  }
  return std::shared_ptr<const Buckets>(std::move(made));
}

StatusOr<std::vector<uint64_t>> Buckets::LongestOf(
    const Column& column, const Order& order, const OrderBudget& budget) const {
  std::vector<uint64_t> longest(size(), 0);
  size_t bucket = 0;
  PENSTOCK_RETURN_IF_ERROR(
      ForEachRow(rows_.size(), budget, [&](uint64_t i) -> Status {
        while (i >= ends_[bucket]) ++bucket;
        PENSTOCK_ASSIGN_OR_RETURN(const uint64_t length,
                                  LengthAt(column, RecordAt(order, rows_[i])));
        longest[bucket] = std::max(longest[bucket], length);
        return OkStatus();
      }));
  return longest;
}

StatusOr<std::unique_ptr<Order>> InBuckets(
    std::unique_ptr<Order> of, std::shared_ptr<const Buckets> buckets,
    const BatchSpec& batch, uint64_t ranks, const ShuffleSpec* shuffle,
    const OrderBudget& budget) {
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> used;
  std::vector<uint64_t> step_ends;
  uint64_t rows = 0;
  uint64_t steps = 0;
  const auto width = [&buckets](size_t i) {
    return std::max<uint64_t>({1, buckets->longest(i), buckets->boundary(i)});
  };
  // The last bucket has the longest rows.
  if (const uint64_t longest = width(buckets->size() - 1);
      batch.tokens && batch.size < longest) {
    return InvalidArgumentError(
        "batch.{}: {}, and rows have up to {}: allow so many, or leave longer "
        "rows out (`select: filter`)",
        batch.per_rank ? "tokens_per_rank" : "tokens", batch.size, longest);
  }
  for (size_t i = 0; i < buckets->size(); ++i) {
    const uint64_t size =
        (batch.tokens ? batch.size / width(i) : batch.size) * ranks;
    const uint64_t present = buckets->Rows(i);
    const bool drop = batch.last == LastBatch::kDrop;
    used.push_back(present - (drop ? present % size : 0));
    // No slot needs room for more rows than there are.
    sizes.push_back(std::min(size, present));
    rows += used.back();
    steps += (used.back() + sizes.back() - 1) / sizes.back();
    step_ends.push_back(steps);
  }
  if (steps == 0) {
    return InvalidArgumentError(
        "batch.buckets: no bucket of {} fills a batch, and batch.last is drop: "
        "use fewer buckets, a smaller batch or last: partial",
        buckets->size());
  }
  PENSTOCK_RETURN_IF_ERROR(budget.CheckWanted());
  PENSTOCK_RETURN_IF_ERROR(
      budget.reserve((steps / kStepsKept + 1) * sizeof(uint64_t)));
  return std::unique_ptr<Order>(std::make_unique<Bucketed>(
      std::move(of), std::move(buckets), std::move(sizes), std::move(used),
      std::move(step_ends), rows, shuffle));
}

}  // namespace penstock
