#include "broker/plan/plan.h"

#include <algorithm>
#include <cassert>

#include "common/quantity.h"

namespace penstock {
namespace {

// The rows of `rank` when rows are divided over world_size ranks.
uint64_t RowsOfRank(uint64_t rows, uint32_t world_size, uint32_t rank) {
  return rows / world_size + (rank < rows % world_size ? 1 : 0);
}

// The rows of all ranks before `rank`.
uint64_t RowsBeforeRank(uint64_t rows, uint32_t world_size, uint32_t rank) {
  return rows / world_size * rank + std::min<uint64_t>(rank, rows % world_size);
}

uint64_t CeilDivide(uint64_t x, uint64_t y) { return x / y + (x % y != 0); }

}  // namespace

StatusOr<Plan> Plan::Make(const PlanSpec& spec, uint64_t records,
                          uint32_t world_size) {
  if (records == 0) {
    return InvalidArgumentError("the dataset has no records");
  }
  if (records > kTotalRowsMax) {
    return InvalidArgumentError("{} records; at most {}", records,
                                kTotalRowsMax);
  }
  if (world_size == 0) {
    return InvalidArgumentError("world size 0: wanted at least one rank");
  }
  const uint64_t ranks = spec.batch.per_rank ? world_size : 1;
  if (spec.batch.size == 0 || spec.batch.size > kTotalRowsMax / ranks) {
    return InvalidArgumentError("batch of {} rows: wanted 1 to {}",
                                spec.batch.size, kTotalRowsMax / ranks);
  }

  Plan plan;
  plan.records_ = records;
  plan.world_size_ = world_size;
  plan.global_batch_ = spec.batch.size * ranks;
  plan.last_ = spec.batch.last;
  plan.epochs_ = spec.epochs;
  plan.shuffle_ = spec.shuffle;

  const uint64_t steps_of_pass = spec.batch.last == LastBatch::kDrop
                                     ? records / plan.global_batch_
                                     : CeilDivide(records, plan.global_batch_);
  plan.steps_per_epoch_ = spec.steps_per_epoch.value_or(steps_of_pass);
  if (plan.steps_per_epoch_ == 0) {
    return InvalidArgumentError(
        "{} less than one global batch of {}, and batch.last is drop: an epoch "
        "would be empty; use a smaller batch, last: partial, or "
        "steps_per_epoch",
        Counted(records, "record is", "records are"), plan.global_batch_);
  }
  // Divide first: the products wrap for large values.
  if (plan.steps_per_epoch_ <= records / plan.global_batch_) {
    plan.rows_per_epoch_ = plan.steps_per_epoch_ * plan.global_batch_;
  } else if (plan.steps_per_epoch_ <= steps_of_pass) {
    plan.rows_per_epoch_ = records;  // the last step is short
  } else if (plan.steps_per_epoch_ <= kTotalRowsMax / plan.global_batch_) {
    plan.rows_per_epoch_ = plan.steps_per_epoch_ * plan.global_batch_;
  } else {
    return InvalidArgumentError(
        "steps_per_epoch {} of {} rows: more than {} rows in an epoch",
        plan.steps_per_epoch_, plan.global_batch_, kTotalRowsMax);
  }
  plan.passes_per_epoch_ = CeilDivide(plan.rows_per_epoch_, records);
  if (plan.epochs_) {
    if (*plan.epochs_ > kTotalRowsMax / plan.rows_per_epoch_) {
      return InvalidArgumentError("{} epochs of {} rows: more than {} in all",
                                  *plan.epochs_, plan.rows_per_epoch_,
                                  kTotalRowsMax);
    }
  }
  return plan.From({}, world_size);
}

StatusOr<Plan> Plan::From(PlanStart start, uint32_t world_size) const {
  Plan plan = *this;
  plan.world_size_ = world_size;
  const uint64_t epoch = start.position / rows_per_epoch_;
  const uint64_t end =
      epochs_ ? *epochs_ * rows_per_epoch_ : uint64_t{kTotalRowsMax};
  if (start.position > end) {
    return InvalidArgumentError("position {} is beyond the end of the data, {}",
                                start.position, end);
  }
  for (const RowRange& range : start.owed) {
    if (range.rows == 0 || range.rows > global_batch_ ||
        range.position > start.position ||
        range.rows > start.position - range.position ||
        range.rows > rows_per_epoch_ - range.position % rows_per_epoch_) {
      return InvalidArgumentError(
          "{} rows owed from position {}: wanted 1 to {} rows of one epoch, "
          "before position {}",
          range.rows, range.position, global_batch_, start.position);
    }
  }
  plan.first_epoch_steps_ = StepsFrom(start.position % rows_per_epoch_);
  if (epochs_) {
    // Make has bounded the products: none exceeds the total number of rows.
    plan.total_steps_ = start.owed.size() + plan.first_epoch_steps_ +
                        (*epochs_ - epoch) * steps_per_epoch_ -
                        steps_per_epoch_;
    if (epoch == *epochs_) plan.total_steps_ = start.owed.size();
  }
  plan.start_ = std::move(start);
  return plan;
}

std::optional<Plan> Plan::Ending(uint64_t records) const {
  Plan plan = *this;
  plan.records_ = records;
  plan.steps_per_epoch_ =
      std::min(steps_per_epoch_, last_ == LastBatch::kDrop
                                     ? records / global_batch_
                                     : CeilDivide(records, global_batch_));
  plan.rows_per_epoch_ =
      std::min(records, plan.steps_per_epoch_ * global_batch_);
  if (plan.rows_per_epoch_ <= start_.position) return std::nullopt;
  auto from = plan.From(start_, world_size_);
  return from.ok() ? std::optional(*std::move(from)) : std::nullopt;
}

uint64_t Plan::StepsFrom(uint64_t row) const {
  const uint64_t rows = rows_per_epoch_ - row;
  return last_ == LastBatch::kDrop ? rows / global_batch_
                                   : CeilDivide(rows, global_batch_);
}

uint64_t Plan::PositionOf(uint64_t step) const {
  if (step < start_.owed.size()) return start_.owed[step].position;
  step -= start_.owed.size();
  const uint64_t epoch = start_.position / rows_per_epoch_;
  if (step < first_epoch_steps_) return start_.position + step * global_batch_;
  step -= first_epoch_steps_;
  return (epoch + 1 + step / steps_per_epoch_) * rows_per_epoch_ +
         step % steps_per_epoch_ * global_batch_;
}

uint64_t Plan::StepAt(uint64_t position) const {
  const uint64_t owed = start_.owed.size();
  if (position <= start_.position) return owed;
  const uint64_t epochs =
      position / rows_per_epoch_ - start_.position / rows_per_epoch_;
  if (epochs == 0) {
    return owed +
           std::min(first_epoch_steps_,
                    CeilDivide(position - start_.position, global_batch_));
  }
  return owed + first_epoch_steps_ + (epochs - 1) * steps_per_epoch_ +
         std::min(steps_per_epoch_,
                  CeilDivide(position % rows_per_epoch_, global_batch_));
}

std::optional<uint64_t> Plan::StepFrom(uint64_t position) const {
  if (position < start_.position) {  // where all owed steps are
    for (uint64_t step = 0; step < start_.owed.size(); ++step) {
      if (start_.owed[step].position == position) return step;
    }
    return std::nullopt;
  }
  const uint64_t step = StepAt(position);
  if (total_steps_ && step >= *total_steps_) return std::nullopt;
  return PositionOf(step) == position ? std::optional(step) : std::nullopt;
}

Plan::RankBatch Plan::RankBatchOf(uint64_t step, uint32_t rank) const {
  assert(rank < world_size_);
  assert(!total_steps_ || step < *total_steps_);
  RankBatch share;
  share.position = PositionOf(step);
  share.epoch = share.position / rows_per_epoch_;
  const uint64_t step_first_row = share.position % rows_per_epoch_;
  share.step_in_epoch = step_first_row / global_batch_;
  share.extra = step < start_.owed.size();
  share.redelivered = share.extra && start_.owed[step].redelivered;
  share.global_rows =
      share.extra ? start_.owed[step].rows
                  : std::min(global_batch_, rows_per_epoch_ - step_first_row);
  share.first_row =
      step_first_row + RowsBeforeRank(share.global_rows, world_size_, rank);
  share.rows = RowsOfRank(share.global_rows, world_size_, rank);
  share.shape_rows = last_ == LastBatch::kPad
                         ? RowsOfRank(global_batch_, world_size_, rank)
                         : share.rows;
  share.last_of_epoch =
      !share.extra && StepsFrom(step_first_row + share.global_rows) == 0;
  share.last_of_data = total_steps_ && step + 1 == *total_steps_;
  return share;
}

uint64_t Plan::max_batch_rows(uint32_t rank) const {
  assert(rank < world_size_);
  // The first step of an epoch is never smaller than a later one.
  return RowsOfRank(last_ == LastBatch::kPad
                        ? global_batch_
                        : std::min(global_batch_, rows_per_epoch_),
                    world_size_, rank);
}

void Plan::Rows(uint64_t epoch, uint64_t first_row, uint64_t count,
                OrderCache* cache, Row* out) const {
  assert(first_row <= rows_per_epoch_);
  assert(count <= rows_per_epoch_ - first_row);
  uint64_t pass = epoch * passes_per_epoch_ + first_row / records_;
  uint64_t position = first_row % records_;
  while (count > 0) {
    const uint64_t rows = std::min(count, records_ - position);
    if (shuffle_) {
      const uint64_t key = shuffle_->each_epoch ? pass : 0;
      if (!cache->permutation_ || cache->key_ != key) {
        cache->permutation_.emplace(records_, shuffle_->seed, key);
        cache->key_ = key;
      }
      const Permutation& order = *cache->permutation_;
      for (uint64_t i = 0; i < rows; ++i) out[i] = {order(position + i), pass};
    } else {
      for (uint64_t i = 0; i < rows; ++i) out[i] = {position + i, pass};
    }
    out += rows;
    count -= rows;
    position = 0;
    ++pass;
  }
}

}  // namespace penstock
