// Stage 1 of the flow, "plan": which records are in which step, in which order
// and for which rank.
//
// A pure function of (spec, number of records, world size): no state, no I/O.
// Constant after Make; called by any number of threads at once. What a step
// holds does not depend on the number of ranks (unless batch.per_rank asks for
// it) nor on workers, so every host computes the same plan without talking.
//
// Epochs and passes. A pass goes once over all records. Without
// steps_per_epoch an epoch is one pass, cut into steps of a global batch:
//
//   last: partial   ceil(n / G) steps, the last one short
//   last: pad       ceil(n / G) steps, the last one short in a full shape
//   last: drop      floor(n / G) steps; the rest of that epoch's order is left
//                   out (with shuffle: other records every epoch)
//
// With steps_per_epoch S an epoch has exactly S steps, and every epoch starts
// at the beginning of its order. While S is not more than the steps above, the
// epoch is cut short and that is all: with n = 100, G = 16, last: partial,
// S = 5 gives 5 x 16 rows and S = 7 gives 6 x 16 + 4. Only a larger S goes
// round: the epoch runs on into a further pass, and then every batch is full,
// across the seam too, whatever `last` says (S = 8: 8 x 16, the seam after the
// 100th row). So every epoch has the same number of steps, always.
//
// A row's pass is counted over the whole job, epoch * passes_per_epoch + k; it
// keys the order (shuffle.each_epoch) and always the augmentation.
//
// A plan may begin at any row of any epoch (resume): from there on each step is
// the next G rows of the epoch, the last one short; the epochs after it are cut
// as always. Rows before that are passed over without any work, but for the
// ranges that are still owed: each is a step of its own, at the very beginning.
//
// Dividing a step over R ranks: of the rows present, the first (rows mod R)
// ranks get one more; ranks take them in order, without gaps.
#ifndef BROKER_PLAN_PLAN_H_
#define BROKER_PLAN_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "broker/plan/permutation.h"
#include "common/dataset_spec.h"
#include "common/layout.h"
#include "common/status.h"

namespace penstock {

// Rows of one epoch that follow one another. A position counts the rows that a
// job delivers over all its epochs: epoch * rows_per_epoch + row of the epoch.
struct RowRange {
  uint64_t position = 0;
  uint64_t rows = 0;
  bool redelivered = false;  // somebody took them once and did not finish
  bool operator==(const RowRange&) const = default;
};

// Where a job begins.
struct PlanStart {
  uint64_t position = 0;
  std::vector<RowRange> owed;  // of the rows before, those still to deliver
  bool operator==(const PlanStart&) const = default;
};

class Plan {
 public:
  // A job's rows over all its epochs: positions never wrap, share a word with
  // the phase (StepId), and are exact in every reader of JSON.
  static constexpr uint64_t kTotalRowsMax = uint64_t{1} << 53;
  static_assert(kTotalRowsMax < uint64_t{1} << kPositionBits &&
                kTotalRowsMax <= Permutation::kRecordsMax);

  // records: of the source, repeats included. InvalidArgument: no records, no
  // ranks, an epoch without a single batch (last: drop), or more rows in all
  // than kTotalRowsMax. A job without end (epochs: forever) may be planned up
  // to the same position.
  static StatusOr<Plan> Make(const DatasetSpec& spec, uint64_t records,
                             uint32_t world_size);

  // The same plan, with the same global batch, for another number of ranks and
  // begun elsewhere. InvalidArgument: a position beyond the end, an owed range
  // that is empty, larger than a global batch, over the end of an epoch or not
  // before the position.
  StatusOr<Plan> From(PlanStart start, uint32_t world_size) const;

  // Of a stream: the same plan, now that it is known how many records there
  // are. nullopt: none of them is behind its start.
  std::optional<Plan> Ending(uint64_t records) const;

  const PlanStart& start() const { return start_; }
  uint64_t records() const { return records_; }
  uint32_t world_size() const { return world_size_; }
  // Rows of a full step, over all ranks.
  uint64_t global_batch() const { return global_batch_; }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Rows delivered in one epoch, padding not counted.
  uint64_t rows_per_epoch() const { return rows_per_epoch_; }
  // nullopt: forever.
  std::optional<uint64_t> epochs() const { return epochs_; }
  // From the start on, owed ones included.
  std::optional<uint64_t> total_steps() const { return total_steps_; }
  // Where a step begins; of total_steps(): where the data end. The steps that
  // are owed are all at the start.
  uint64_t PositionOf(uint64_t step) const;
  // The first step that is not owed and begins at position or after it.
  uint64_t StepAt(uint64_t position) const;
  // The step that begins just there, also one that is owed; nullopt: none does.
  std::optional<uint64_t> StepFrom(uint64_t position) const;

  // One rank's share of one global step.
  struct RankBatch {
    uint64_t position = 0;  // of the whole step
    uint64_t epoch = 0;
    uint64_t step_in_epoch = 0;
    uint64_t first_row = 0;    // its first row's position in the epoch
    uint64_t rows = 0;         // present; 0: an empty batch
    uint64_t shape_rows = 0;   // rows and padding; = rows without last: pad
    uint64_t global_rows = 0;  // present in the step, over all ranks
    bool last_of_epoch = false;
    bool last_of_data = false;  // of the last epoch; never with forever
    bool extra = false;         // owed
    bool redelivered = false;
  };
  // step, counted from the start, < total_steps(); rank < world_size().
  RankBatch RankBatchOf(uint64_t step, uint32_t rank) const;

  // The largest shape_rows this rank ever gets: the size of its slots.
  uint64_t max_batch_rows(uint32_t rank) const;

  // What is at a position of an epoch.
  struct Row {
    uint64_t record = 0;  // below records()
    uint64_t pass = 0;    // the "epoch" of AugmentationKey
    bool operator==(const Row&) const = default;
  };

  // The order last used, kept by a caller (one thread, one plan) so that not
  // every call builds it again. No heap memory.
  class OrderCache {
    friend class Plan;
    std::optional<Permutation> permutation_;
    uint64_t key_ = 0;  // the pass that keyed permutation_
  };

  // Fills out[0, count) for the positions from first_row on, which end at
  // rows_per_epoch(). About 20 ns for each with shuffle, 1 ns without.
  void Rows(uint64_t epoch, uint64_t first_row, uint64_t count,
            OrderCache* cache, Row* out) const;
  void Rows(uint64_t epoch, uint64_t first_row, uint64_t count,
            Row* out) const {
    OrderCache cache;
    Rows(epoch, first_row, count, &cache, out);
  }

 private:
  Plan() = default;
  // Steps of an epoch from this row of it on.
  uint64_t StepsFrom(uint64_t row) const;

  PlanStart start_;
  uint64_t first_epoch_steps_ = 0;  // regular ones, of the epoch of the start
  uint64_t records_ = 0;
  uint32_t world_size_ = 0;
  uint64_t global_batch_ = 0;
  LastBatch last_ = LastBatch::kPartial;
  uint64_t steps_per_epoch_ = 0;
  uint64_t rows_per_epoch_ = 0;
  uint64_t passes_per_epoch_ = 0;
  std::optional<uint64_t> epochs_;
  std::optional<uint64_t> total_steps_;
  std::optional<ShuffleSpec> shuffle_;
};

}  // namespace penstock
#endif  // BROKER_PLAN_PLAN_H_
