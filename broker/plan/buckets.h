// `batch.buckets`: the rows of a batch are alike in a column, as a rule in the
// length of a list, so that little of a padded batch is padding.
//
// All rows of a pass are sorted into buckets once, when the dataset opens. A
// pass shuffles each bucket and cuts it into batches. Which step has a batch of
// which bucket is shuffled too, but is the same in each pass: steps then begin
// at the same rows in each, which resume relies on.
#ifndef BROKER_PLAN_BUCKETS_H_
#define BROKER_PLAN_BUCKETS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "broker/plan/plan_spec.h"
#include "broker/plan/select_context.h"

namespace penstock {

// Which rows of a pass each bucket has. Constant; any thread.
class Buckets {
 public:
  // order: the rows; it outlives the call only. InvalidArgument: no such
  // column, one of texts or of negative numbers, an order of other rows in each
  // pass. Errors of the budget: 8 bytes a row, 16 more meanwhile.
  static StatusOr<std::shared_ptr<const Buckets>> Make(
      const BucketsSpec& spec, const Order& order,
      const SelectContext& context);

  size_t size() const { return ends_.size(); }
  // Its largest value of `by`, rounded up.
  uint64_t longest(size_t bucket) const { return longest_[bucket]; }
  // The boundary that the spec gives it; 0: it gives none.
  uint64_t boundary(size_t bucket) const { return boundaries_[bucket]; }
  // The largest value of another column in each bucket.
  StatusOr<std::vector<uint64_t>> LongestOf(const Column& column,
                                            const Order& order,
                                            const OrderBudget& budget) const;
  // The rows of the pass that are in it, ascending.
  uint64_t Begin(size_t bucket) const {
    return bucket == 0 ? 0 : ends_[bucket - 1];
  }
  uint64_t Rows(size_t bucket) const { return ends_[bucket] - Begin(bucket); }
  uint64_t RowOf(size_t bucket, uint64_t index) const {
    return rows_[Begin(bucket) + index];
  }
  uint64_t memory_bytes() const { return rows_.capacity() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> rows_;  // by bucket
  std::vector<uint64_t> ends_;
  std::vector<uint64_t> longest_;
  std::vector<uint64_t> boundaries_;
};

// The rows of a pass of `of`, of which `buckets` was made, in batches of one
// bucket each. ranks: which the sizes are multiplied with (batch.per_rank).
// shuffle: nullptr: rows in their order, buckets from the shortest.
// InvalidArgument: a row is longer than the tokens of a batch; `drop` leaves no
// batch.
StatusOr<std::unique_ptr<Order>> InBuckets(
    std::unique_ptr<Order> of, std::shared_ptr<const Buckets> buckets,
    const BatchSpec& batch, uint64_t ranks, const ShuffleSpec* shuffle,
    const OrderBudget& budget);

}  // namespace penstock
#endif  // BROKER_PLAN_BUCKETS_H_
