// The steps of an order that lies in steps of its own, where others are cut
// into steps of one size: those of `shard: file` (ShardSteps), and those of a
// mix whose batches have the size of their part (batch.by_part).
#ifndef BROKER_PLAN_ORDER_STEPS_H_
#define BROKER_PLAN_ORDER_STEPS_H_

#include <cstdint>
#include <optional>

namespace penstock {

class ShardSteps;

// Rows and steps are those of one pass. Constant; any thread.
class OrderSteps {
 public:
  virtual ~OrderSteps() = default;
  virtual uint64_t count() const = 0;
  // Those before the first that lacks rows.
  virtual uint64_t full_count() const = 0;
  // Rows of the largest step.
  virtual uint64_t global_batch() const = 0;
  // The row with which a step begins; after the last: the end.
  virtual uint64_t Begin(uint64_t step) const = 0;
  // The first step that begins at this row or after it.
  virtual uint64_t StepAt(uint64_t row) const = 0;
  // The row that `on_error: substitute` takes for this one, the i-th it tries.
  virtual uint64_t Following(uint64_t row, uint64_t i) const = 0;
  // The part of the source that all rows of a step are of; nullopt: of any.
  virtual std::optional<uint32_t> PartOf(uint64_t /*step*/) const {
    return std::nullopt;
  }
  // This, if ranks take whole shards.
  virtual const ShardSteps* shards() const { return nullptr; }
};

}  // namespace penstock
#endif  // BROKER_PLAN_ORDER_STEPS_H_
