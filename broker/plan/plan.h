// Stage 1 of the flow, "plan": which records each step has, in which order and
// for which rank.
//
// A pure function of (spec, number of records, world size): no state, no I/O.
// Constant after Make; any number of threads may call it at once. The contents
// of a step depend neither on the number of ranks (unless batch.per_rank asks
// for it) nor on the workers, so every host computes the same plan without
// communicating.
//
// Epochs and passes. A pass visits all records once. Without steps_per_epoch an
// epoch is one pass, cut into steps of one global batch G:
//
//   last: partial   ceil(n / G) steps, the last one short
//   last: pad       ceil(n / G) steps, the last one short in a full shape
//   last: drop      floor(n / G) steps; the rest of that epoch's order is left
//                   out (with shuffle: other records every epoch)
//
// With steps_per_epoch S every epoch has exactly S steps and starts at the
// beginning of its order. An S up to the number of steps above just cuts the
// epoch short: with n = 100, G = 16, last: partial, S = 5 gives 5 x 16 rows and
// S = 7 gives 6 x 16 + 4. A larger S wraps: the epoch runs on into a further
// pass, and every batch is full, across the seam too, whatever `last` says (S =
// 8: 8 x 16, the seam after the 100th row). Every epoch thus has the same
// number of steps.
//
// Passes are numbered over the whole job: epoch * passes_per_epoch + k. The
// number keys the augmentation and, with shuffle.each_epoch, the order.
//
// A plan may begin at any row of any epoch (resume). From there each step is
// the next G rows of the epoch, the last one short; later epochs are cut as
// always. Earlier rows are skipped at no cost, except for owed ranges: each is
// a step of its own, before all others.
//
// Dividing a step over R ranks: ranks take the rows present in order, without
// gaps, and the first (rows mod R) ranks get one more.
//
// The weights of a mix may change from a row of an epoch on (WithWeights).
// Epochs keep their number of rows: an order that is shorter then wraps, as
// with steps_per_epoch. Rows before are what they were, to the bit. A mix may
// also begin at a row with parts that have come so far elsewhere (BegunAt):
// then nothing is known of rows before.
//
// Steps says where each step begins, and divides it. An order may have steps of
// its own; a plan of it begins at a step. Those of shards (`shard: file`) have
// fewer rows once shards run out; `drop` ends the epoch there. Those of batches
// of one part each (batch.by_part) are all full, and G is the largest; those of
// buckets (batch.buckets) are full but for the last of each bucket.
#ifndef BROKER_PLAN_PLAN_H_
#define BROKER_PLAN_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/plan/order.h"
#include "broker/plan/plan_spec.h"
#include "broker/plan/steps.h"
#include "common/exact_max.h"
#include "common/job_state.h"
#include "common/layout.h"
#include "common/status.h"

namespace penstock {

// Consecutive rows of one epoch. A position counts the rows that a job delivers
// over all its epochs: epoch * rows_per_epoch + row of the epoch.
struct RowRange {
  uint64_t position = 0;
  uint64_t rows = 0;
  bool redelivered = false;  // a rank took them but did not finish
  bool operator==(const RowRange&) const = default;
};

// Where a job begins.
struct PlanStart {
  uint64_t position = 0;
  std::vector<RowRange> owed;  // earlier rows still to deliver
  bool operator==(const PlanStart&) const = default;
};

class Plan {
 public:
  // Limit on a job's rows over all epochs: positions then never wrap, share a
  // word with the phase (StepId), and are exact in every reader of JSON.
  static constexpr uint64_t kTotalRowsMax = kExactMax;
  static_assert(kTotalRowsMax < uint64_t{1} << kPositionBits &&
                kTotalRowsMax <= Permutation::kRecordsMax);

  // order: of one pass. records: those of the pass that an epoch is as long as;
  // nullopt: those of the order. InvalidArgument: no records, no ranks, an
  // epoch without a single batch (last: drop), or more than kTotalRowsMax rows
  // in all. A job without end (epochs: forever) may be planned up to the same
  // position.
  static StatusOr<Plan> Make(const PlanSpec& spec,
                             std::shared_ptr<const Order> order,
                             uint32_t world_size,
                             std::optional<uint64_t> records = std::nullopt);
  // All records of a source with so many, as they come.
  static StatusOr<Plan> Make(const PlanSpec& spec, uint64_t records,
                             uint32_t world_size) {
    return Make(spec, AllRecords(records), world_size);
  }

  // The same plan with the same global batch, for another number of ranks and
  // another start. InvalidArgument: the position is beyond the end, or an owed
  // range is empty, larger than a global batch, crosses the end of an epoch or
  // is not before the position.
  StatusOr<Plan> From(PlanStart start, uint32_t world_size) const;

  // The same plan, whose mix has other weights from a row on (of a mix of
  // blocks: from the next block). Not before any change that it has already.
  // InvalidArgument: it is no mix, or not of so many parts; errors of Mix.
  StatusOr<Plan> WithWeights(const WeightsChange& change,
                             const OrderBudget& budget) const;
  // The same plan without such changes.
  Plan WithoutChanges() const {
    Plan plan = *this;
    plan.course_ = begun_;
    return plan;
  }
  // nullptr: it is no mix.
  const MixOrder* mix() const { return order_->mix(); }
  // The same plan of a mix from a row on, at which its parts are there; of rows
  // before nothing is known. Errors: as of MixOrder.
  StatusOr<Plan> BegunAt(uint64_t epoch, uint64_t row,
                         const std::vector<PartPlace>& places,
                         const std::vector<uint32_t>& weights,
                         const OrderBudget& budget) const;
  // The first position whose row is known.
  uint64_t first_known() const {
    return begun_ == nullptr ? 0
                             : begun_->epochs[0].first * rows_per_epoch_ +
                                   begun_->epochs[0].runs[0].row;
  }

  // What of a part of a mix comes before a position.
  struct PartRows {
    uint64_t rows = 0;  // since the first that is known
    PartPlace place;
    double share = 0;  // of the rows, that its weight gives it there
  };
  // position: first_known() or after it. O(parts * log(period)), times the
  // changes of weights.
  std::vector<PartRows> PartsAt(uint64_t position) const;

  // For a stream: the same plan once the number of records is known. nullopt:
  // no record follows its start.
  std::optional<Plan> Ending(uint64_t records) const;

  const PlanStart& start() const { return start_; }
  // Memory of its order.
  uint64_t order_bytes() const { return order_->memory_bytes(); }
  // What works, but not as it should, for people.
  std::string warning() const { return order_->warning(); }
  // Records of a pass.
  uint64_t records() const { return records_; }
  uint32_t world_size() const { return world_size_; }
  // Rows of a full step over all ranks.
  uint64_t global_batch() const { return steps_->global_batch(); }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  // Rows delivered in one epoch, without padding.
  uint64_t rows_per_epoch() const { return rows_per_epoch_; }
  // nullopt: forever.
  std::optional<uint64_t> epochs() const { return epochs_; }
  // Counted from the start, owed steps included.
  std::optional<uint64_t> total_steps() const { return total_steps_; }
  // The position at which a step begins; for total_steps(), the end of the
  // data. Owed steps come first.
  uint64_t PositionOf(uint64_t step) const;
  // The first step that is not owed and begins at or after position.
  uint64_t StepAt(uint64_t position) const;
  // At most so many rows from a position on are of one step.
  uint64_t RowsOfOneStep(uint64_t position) const;
  // The step of its epoch that a position is in.
  uint64_t StepOfEpoch(uint64_t position) const;
  // The step that begins exactly at position, owed or not; nullopt: none.
  std::optional<uint64_t> StepFrom(uint64_t position) const;

  // One rank's rows of one global step.
  struct RankBatch {
    uint64_t position = 0;  // of the whole step
    uint64_t epoch = 0;
    uint64_t step_in_epoch = 0;
    uint64_t first_row = 0;    // position in the epoch of its first row
    uint64_t rows = 0;         // present; 0: an empty batch
    uint64_t shape_rows = 0;   // rows plus padding; = rows without last: pad
    uint64_t global_rows = 0;  // present in the step, over all ranks
    bool last_of_epoch = false;
    bool last_of_data = false;  // of the last epoch; never with forever
    bool extra = false;         // owed
    bool redelivered = false;
    // What all rows are of: a part of the source, or a bucket.
    std::optional<uint32_t> part;
  };
  // step is counted from the start and < total_steps(); rank < world_size().
  RankBatch RankBatchOf(uint64_t step, uint32_t rank) const;

  // At least the largest shape_rows this rank ever gets, never less than the
  // next rank's: its slots are this large.
  uint64_t max_batch_rows(uint32_t rank) const;
  // The same of the steps of one part.
  uint64_t max_batch_rows(uint32_t rank, uint32_t part) const {
    return RowsOfRank(steps_->RowsOfPart(part), rank, world_size_);
  }

  struct Row {
    uint64_t record = 0;  // of the source
    uint64_t pass = 0;    // the "epoch" of AugmentationKey
    // Where the order has it: the position in a pass and the pass.
    uint64_t place = 0;
    uint64_t pass_of_order = 0;
    bool operator==(const Row&) const = default;
  };

  // Fills out[0, count) for the positions from first_row on, which must not
  // pass rows_per_epoch(). About 20 ns per row with shuffle, 2 ns without.
  // shuffles: those that a caller (one thread, one plan) keeps.
  void Rows(uint64_t epoch, uint64_t first_row, uint64_t count,
            Shuffles* shuffles, Row* out) const;
  void Rows(uint64_t epoch, uint64_t first_row, uint64_t count,
            Row* out) const {
    Shuffles shuffles;
    Rows(epoch, first_row, count, &shuffles, out);
  }
  // The i-th row after this one in its order, which begins again after its
  // last: what `on_error: substitute` takes instead.
  Row Following(const Row& row, uint64_t i, Shuffles* shuffles) const;

 private:
  // Passes of changing orders.
  struct Course {
    // From this place of this pass on, until the next.
    struct Change {
      uint64_t pass = 0;
      uint64_t place = 0;
      std::shared_ptr<const Order> order;
    };
    // From this row of an epoch on, passes of so many rows.
    struct Run {
      uint64_t row = 0;
      uint64_t pass = 0;  // its first, counted in the epoch
      uint64_t size = 0;
    };
    // Epochs that are alike, until the next.
    struct Epochs {
      uint64_t first = 0;
      uint64_t first_pass = 0;
      uint64_t passes = 0;  // of each
      std::vector<Run> runs;
    };
    std::vector<Change> orders;
    std::vector<Epochs> epochs;  // before the first nothing is known

    const Order& OrderAt(uint64_t pass, uint64_t place) const;
    // The pass of a row, and its place there.
    std::pair<uint64_t, uint64_t> Find(uint64_t epoch, uint64_t row) const;
    const Epochs& EpochsOf(uint64_t epoch) const;
  };

  Plan() = default;
  // course_, or what stands for it.
  Course CourseNow() const;
  Row RowAt(const Order& order, uint64_t place, uint64_t pass,
            Shuffles* shuffles) const;
  void RowsOfCourse(uint64_t epoch, uint64_t first_row, uint64_t count,
                    Shuffles* shuffles, Row* out) const;
  // Steps of an epoch before this row, rounded up.
  uint64_t StepsBefore(uint64_t row) const;
  // The same, as `last` counts a short one.
  uint64_t StepsIn(uint64_t rows) const;
  // Steps and the rows of an epoch that they have.
  uint64_t RowsOfSteps(uint64_t steps) const;

  PlanStart start_;
  // In the epoch of the start, its first step (owed excluded) is like this one
  // of a whole epoch, which begins with this row; and it has so many.
  uint64_t first_step_ = 0;
  uint64_t first_step_row_ = 0;
  uint64_t first_epoch_steps_ = 0;
  uint64_t records_ = 0;
  uint32_t world_size_ = 0;
  LastBatch last_ = LastBatch::kPartial;
  uint64_t steps_per_epoch_ = 0;
  uint64_t rows_per_epoch_ = 0;
  uint64_t passes_per_epoch_ = 0;
  std::optional<uint64_t> epochs_;
  std::optional<uint64_t> total_steps_;
  std::optional<ShuffleSpec> shuffle_;
  std::shared_ptr<const Order> order_;
  std::shared_ptr<const Steps> steps_;
  std::shared_ptr<const Course> course_;  // nullptr: order_ in all passes
  std::shared_ptr<const Course> begun_;   // as BegunAt made it
};

}  // namespace penstock
#endif  // BROKER_PLAN_PLAN_H_
