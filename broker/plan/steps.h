// How the rows of an epoch are cut into steps, and a step is divided over
// ranks: steps of one size; those of `shard: file` (ShardSteps); those of a mix
// whose batches have the size of their part (batch.by_part); those of one
// bucket each (batch.buckets).
#ifndef BROKER_PLAN_STEPS_H_
#define BROKER_PLAN_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/status.h"

namespace penstock {

// Rows that are divided over ranks: in order, without gaps, and the first (rows
// mod ranks) ranks get one more.
inline uint64_t RowsOfRank(uint64_t rows, uint32_t rank, uint32_t ranks) {
  return rows / ranks + (rank < rows % ranks);
}
inline uint64_t RowsBeforeRank(uint64_t rows, uint32_t rank, uint32_t ranks) {
  return rows / ranks * rank + std::min<uint64_t>(rank, rows % ranks);
}

// Steps repeat after so many rows, which are so many steps; the functions know
// those before they do. Constant; any thread.
class Steps {
 public:
  struct RankRows {
    uint64_t before = 0;  // rows of the step that earlier ranks have
    uint64_t rows = 0;
  };

  virtual ~Steps() = default;
  uint64_t rows() const { return rows_; }
  uint64_t count() const { return count_; }
  // Rows of the largest step.
  uint64_t global_batch() const { return global_batch_; }
  // The steps before the first that lacks rows.
  virtual uint64_t full_count() const { return UINT64_MAX; }
  // The row with which a step begins; after the last: rows().
  virtual uint64_t Begin(uint64_t step) const = 0;
  // The first step that begins at this row or after it.
  virtual uint64_t StepAt(uint64_t row) const = 0;
  // At most so many rows from this one on are of one step.
  virtual uint64_t RowsFrom(uint64_t row) const {
    return Begin(StepAt(row + 1)) - row;
  }
  // The row of a pass that `on_error: substitute` takes for this one, the i-th
  // that it tries.
  virtual uint64_t Following(uint64_t row, uint64_t i,
                             uint64_t pass_rows) const = 0;
  // The part of the source, or the bucket, that all rows of a step are of;
  // nullopt: of any.
  virtual std::optional<uint32_t> PartOf(uint64_t /*step*/) const {
    return std::nullopt;
  }
  // Rows of the largest step of a part.
  virtual uint64_t RowsOfPart(uint32_t /*part*/) const { return global_batch_; }
  // Rows of a step once it is padded (`last: pad`).
  virtual uint64_t ShapeRows(uint64_t step) const {
    return Begin(step + 1) - Begin(step);
  }
  // What of a spec says where steps begin: a plan begins only there. nullptr: a
  // plan begins at any row, and its first epoch is cut from there.
  virtual const char* fixed_by() const { return nullptr; }
  // A plan may owe a part of a step.
  virtual bool divisible() const { return true; }
  // Whether an epoch may have so many, where a pass has so many.
  virtual Status CheckEpoch(uint64_t /*steps*/, uint64_t /*of_pass*/) const {
    return OkStatus();
  }
  // A rank's of the `rows` present in a step.
  virtual RankRows OfRank(uint64_t /*step*/, uint64_t rows, uint32_t rank,
                          uint32_t ranks) const {
    return {RowsBeforeRank(rows, rank, ranks), RowsOfRank(rows, rank, ranks)};
  }
  // At least what a rank gets of any step that has at most `rows`.
  virtual uint64_t RankRowsMax(uint64_t rows, uint32_t rank,
                               uint32_t ranks) const {
    return RowsOfRank(std::min(rows, global_batch_), rank, ranks);
  }

 protected:
  Steps(uint64_t rows, uint64_t count, uint64_t global_batch)
      : rows_(rows), count_(count), global_batch_(global_batch) {}

 private:
  const uint64_t rows_;
  const uint64_t count_;
  const uint64_t global_batch_;
};

// Steps of one size, of an epoch that is cut without regard to its passes.
class UniformSteps final : public Steps {
 public:
  explicit UniformSteps(uint64_t global_batch)
      : Steps(global_batch, 1, global_batch) {}
  uint64_t Begin(uint64_t step) const override { return step * rows(); }
  uint64_t StepAt(uint64_t row) const override { return row > 0; }
  uint64_t RowsFrom(uint64_t) const override { return rows(); }
  uint64_t Following(uint64_t row, uint64_t i,
                     uint64_t pass_rows) const override {
    return (row + i) % pass_rows;
  }
};

}  // namespace penstock
#endif  // BROKER_PLAN_STEPS_H_
