#include "broker/plan/plan.h"

#include <algorithm>
#include <cassert>

#include "broker/plan/mix.h"
#include "common/quantity.h"

namespace penstock {
namespace {

uint64_t CeilDivide(uint64_t x, uint64_t y) { return x / y + (x % y != 0); }

}  // namespace

StatusOr<Plan> Plan::Make(const PlanSpec& spec,
                          std::shared_ptr<const Order> order,
                          uint32_t world_size,
                          std::optional<uint64_t> of_pass) {
  const uint64_t records = of_pass.value_or(order->size());
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
    return InvalidArgumentError("batch: {} rows: wanted 1 to {}",
                                spec.batch.size, kTotalRowsMax / ranks);
  }

  Plan plan;
  plan.records_ = records;
  plan.world_size_ = world_size;
  plan.last_ = spec.batch.last;
  plan.epochs_ = spec.epochs;
  plan.shuffle_ = spec.shuffle;
  if (const Steps* const own = order->steps()) {
    plan.steps_ = std::shared_ptr<const Steps>(order, own);
  } else {
    plan.steps_ = std::make_shared<UniformSteps>(spec.batch.size * ranks);
  }
  plan.order_ = std::move(order);

  const Steps& steps = *plan.steps_;
  uint64_t steps_of_pass = plan.StepsIn(records);
  if (spec.batch.last == LastBatch::kDrop) {
    steps_of_pass = std::min(steps_of_pass, steps.full_count());
  }
  plan.steps_per_epoch_ = spec.steps_per_epoch.value_or(steps_of_pass);
  PENSTOCK_RETURN_IF_ERROR(
      steps.CheckEpoch(plan.steps_per_epoch_, steps_of_pass));
  if (plan.steps_per_epoch_ == 0) {
    return InvalidArgumentError(
        "batch: {} less than one global batch of {}, and batch.last is drop: "
        "an epoch "
        "would be empty; use a smaller batch, last: partial, or "
        "steps_per_epoch",
        Counted(records, "record is", "records are"), steps.global_batch());
  }
  const bool wraps = plan.steps_per_epoch_ > steps_of_pass;
  // Divide first: the products wrap for large values.
  if (wraps && CeilDivide(plan.steps_per_epoch_, steps.count()) >
                   kTotalRowsMax / steps.rows()) {
    return InvalidArgumentError(
        "steps_per_epoch: {} of {} rows: more than {} rows in an epoch",
        plan.steps_per_epoch_, steps.global_batch(), kTotalRowsMax);
  }
  plan.rows_per_epoch_ = plan.RowsOfSteps(plan.steps_per_epoch_);
  if (!wraps) plan.rows_per_epoch_ = std::min(plan.rows_per_epoch_, records);
  plan.passes_per_epoch_ = CeilDivide(plan.rows_per_epoch_, records);
  if (plan.epochs_) {
    if (*plan.epochs_ > kTotalRowsMax / plan.rows_per_epoch_) {
      return InvalidArgumentError("epochs: {} of {} rows: more than {} in all",
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
  const uint64_t row = start.position % rows_per_epoch_;
  const uint64_t end =
      epochs_ ? *epochs_ * rows_per_epoch_ : uint64_t{kTotalRowsMax};
  if (start.position > end) {
    return InvalidArgumentError("position {} is beyond the end of the data, {}",
                                start.position, end);
  }
  plan.first_step_ = StepsBefore(row);
  plan.first_step_row_ = RowsOfSteps(plan.first_step_);
  const bool owes = !steps_->divisible() && !start.owed.empty();
  const bool within = plan.first_step_row_ != row;
  if (steps_->fixed_by() != nullptr && (owes || within)) {
    return InvalidArgumentError(
        "row {} of epoch {}{}: with {} a job resumes where a step begins{}{}",
        row, epoch, owes ? " and rows owed before it" : "", steps_->fixed_by(),
        steps_->divisible() ? "" : ", with nothing owed",
        within ? Format(": the next is row {}", plan.first_step_row_) : "");
  }
  for (const RowRange& range : start.owed) {
    const uint64_t most =
        std::min(RowsOfOneStep(range.position),
                 rows_per_epoch_ - range.position % rows_per_epoch_);
    if (range.rows == 0 || range.rows > most ||
        range.position > start.position ||
        range.rows > start.position - range.position) {
      return InvalidArgumentError(
          "{} rows owed from position {}: wanted 1 to {} rows of one step, "
          "before position {}",
          range.rows, range.position, most, start.position);
    }
  }
  plan.first_epoch_steps_ =
      StepsIn(rows_per_epoch_ - row + plan.first_step_row_) - plan.first_step_;
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
  plan.steps_per_epoch_ = std::min(steps_per_epoch_, StepsIn(records));
  plan.rows_per_epoch_ = std::min(records, RowsOfSteps(plan.steps_per_epoch_));
  if (plan.rows_per_epoch_ <= start_.position) return std::nullopt;
  auto from = plan.From(start_, world_size_);
  return from.ok() ? std::optional(*std::move(from)) : std::nullopt;
}

uint64_t Plan::StepsBefore(uint64_t row) const {
  const uint64_t times = row / steps_->rows();
  return times * steps_->count() + steps_->StepAt(row - times * steps_->rows());
}

uint64_t Plan::StepsIn(uint64_t rows) const {
  return last_ == LastBatch::kDrop ? StepsBefore(rows + 1) - 1
                                   : StepsBefore(rows);
}

uint64_t Plan::RowsOfSteps(uint64_t steps) const {
  const uint64_t times = steps / steps_->count();
  return times * steps_->rows() +
         steps_->Begin(steps - times * steps_->count());
}

uint64_t Plan::StepOfEpoch(uint64_t position) const {
  return StepsBefore(position % rows_per_epoch_ + 1) - 1;
}

uint64_t Plan::RowsOfOneStep(uint64_t position) const {
  return steps_->RowsFrom(position % rows_per_epoch_ % steps_->rows());
}

uint64_t Plan::PositionOf(uint64_t step) const {
  if (step < start_.owed.size()) return start_.owed[step].position;
  step -= start_.owed.size();
  if (step < first_epoch_steps_) {
    return start_.position + RowsOfSteps(first_step_ + step) - first_step_row_;
  }
  step -= first_epoch_steps_;
  const uint64_t epoch = start_.position / rows_per_epoch_ + 1;
  return (epoch + step / steps_per_epoch_) * rows_per_epoch_ +
         RowsOfSteps(step % steps_per_epoch_);
}

uint64_t Plan::StepAt(uint64_t position) const {
  const uint64_t owed = start_.owed.size();
  if (position <= start_.position) return owed;
  const uint64_t epochs =
      position / rows_per_epoch_ - start_.position / rows_per_epoch_;
  if (epochs == 0) {
    const uint64_t steps =
        StepsBefore(position - start_.position + first_step_row_) - first_step_;
    return owed + std::min(first_epoch_steps_, steps);
  }
  return owed + first_epoch_steps_ + (epochs - 1) * steps_per_epoch_ +
         std::min(steps_per_epoch_, StepsBefore(position % rows_per_epoch_));
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
  RankBatch batch;
  batch.position = PositionOf(step);
  batch.epoch = batch.position / rows_per_epoch_;
  const uint64_t row = batch.position % rows_per_epoch_;
  batch.step_in_epoch = StepOfEpoch(batch.position);
  batch.extra = step < start_.owed.size();
  batch.redelivered = batch.extra && start_.owed[step].redelivered;
  const uint64_t of_pass = batch.step_in_epoch % steps_->count();
  const uint64_t full = steps_->Begin(of_pass + 1) - steps_->Begin(of_pass);
  batch.global_rows = batch.extra ? start_.owed[step].rows
                                  : std::min(full, rows_per_epoch_ - row);
  const auto [before, rows] =
      steps_->OfRank(of_pass, batch.global_rows, rank, world_size_);
  batch.part = steps_->PartOf(of_pass);
  batch.first_row = row + before;
  batch.rows = rows;
  batch.shape_rows =
      last_ == LastBatch::kPad
          ? steps_->RankRowsMax(steps_->ShapeRows(of_pass), rank, world_size_)
          : rows;
  // Epochs after the first have equally many steps.
  const uint64_t after = step + 1 - start_.owed.size();
  batch.last_of_epoch =
      !batch.extra &&
      (after + steps_per_epoch_ - first_epoch_steps_) % steps_per_epoch_ == 0;
  batch.last_of_data = total_steps_ && step + 1 == *total_steps_;
  return batch;
}

uint64_t Plan::max_batch_rows(uint32_t rank) const {
  assert(rank < world_size_);
  const uint64_t rows =
      last_ == LastBatch::kPad ? global_batch() : rows_per_epoch_;
  return steps_->RankRowsMax(rows, rank, world_size_);
}

const Order& Plan::Course::OrderAt(uint64_t pass, uint64_t place) const {
  return *std::prev(std::upper_bound(
                        orders.begin(), orders.end(), std::pair(pass, place),
                        [](const auto& at, const Change& each) {
                          return at < std::pair(each.pass, each.place);
                        }))
              ->order;
}

const Plan::Course::Epochs& Plan::Course::EpochsOf(uint64_t epoch) const {
  return *std::prev(std::upper_bound(
      epochs.begin(), epochs.end(), epoch,
      [](uint64_t at, const Epochs& each) { return at < each.first; }));
}

StatusOr<Plan> Plan::WithWeights(const WeightsChange& change,
                                 const OrderBudget& budget) const {
  const MixOrder* const mix = order_->mix();
  if (mix == nullptr) {
    return InvalidArgumentError(
        "they change where the source is a mix, with `select` in its parts and "
        "`pack` without `across_parts`");
  }
  if (steps_->fixed_by() != nullptr) {
    return InvalidArgumentError(
        "with batch.by_part other weights would give other steps: change them "
        "by mix.schedule in the spec");
  }
  if (change.weights.size() != mix->parts()) {
    return InvalidArgumentError(
        "{} for {}: give one for each",
        Counted(change.weights.size(), "weight", "weights"),
        Counted(mix->parts(), "part", "parts"));
  }
  uint64_t epoch = change.epoch;
  uint64_t row = change.row;
  if (row >= rows_per_epoch_) {
    ++epoch;
    row = 0;
  }
  if (begun_ != nullptr &&
      std::pair(epoch, row) <
          std::pair(begun_->epochs[0].first, begun_->epochs[0].runs[0].row)) {
    return InvalidArgumentError(
        "row {} of epoch {} is before the mix began with these parts", row,
        epoch);
  }
  Course course = CourseNow();
  // What a former change made of the epochs after its own.
  while (course.epochs.back().first > epoch) course.epochs.pop_back();
  const auto of_pass = [&](uint64_t size) {
    return CeilDivide(rows_per_epoch_, size);
  };
  {
    Course::Epochs& last = course.epochs.back();
    if (last.first < epoch) {
      Course::Epochs its = last;
      its.first_pass += (epoch - last.first) * last.passes;
      its.first = epoch;
      course.epochs.push_back(std::move(its));
    }
  }
  Course::Epochs& its = course.epochs.back();
  while (its.runs.back().row > row) its.runs.pop_back();
  const Course::Run run = its.runs.back();
  uint64_t pass_of_epoch = run.pass + (row - run.row) / run.size;
  const uint64_t begin =
      run.row + (row - run.row) / run.size * run.size;  // of the pass
  uint64_t place = CeilDivide(row - begin, mix->block()) * mix->block();
  const uint64_t pass = its.first_pass + pass_of_epoch;
  uint64_t next_row = begin;  // where whole passes begin
  while (!course.orders.empty() &&
         std::pair(pass, place) <
             std::pair(course.orders.back().pass, course.orders.back().place)) {
    course.orders.pop_back();
  }
  const MixOrder* former = course.orders.back().order->mix();
  uint64_t next_pass = pass;
  if (place >= run.size) {
    ++next_pass;
    ++pass_of_epoch;
    next_row += run.size;
  } else if (place > 0 ||
             (former->begun() && course.orders.back().pass == pass)) {
    PENSTOCK_ASSIGN_OR_RETURN(
        std::shared_ptr<const MixOrder> rest,
        former->ChangedAt(pass, place, change.weights, budget));
    former = rest.get();
    next_row = begin + rest->size();
    ++next_pass;
    // Parts may be where nothing is left of their pass.
    if (rest->size() > 0) {
      if (run.row < begin) its.runs.push_back({begin, pass_of_epoch, 0});
      its.runs.back() = {begin, pass_of_epoch, rest->size()};
    }
    ++pass_of_epoch;
    course.orders.push_back({pass, place, std::move(rest)});
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      std::shared_ptr<const MixOrder> whole,
      former->ChangedFrom(next_pass, change.weights, budget));
  const uint64_t size = whole->size();
  if (course.orders.back().pass == next_pass &&
      course.orders.back().place == 0) {
    course.orders.pop_back();
  }
  course.orders.push_back({next_pass, 0, std::move(whole)});
  if (next_row < rows_per_epoch_) {
    if (its.runs.back().row == next_row) its.runs.pop_back();
    its.runs.push_back({next_row, pass_of_epoch, size});
  }
  const Course::Run& end = its.runs.back();
  its.passes = end.pass + CeilDivide(rows_per_epoch_ - end.row, end.size);
  // The next pass of all is the first with these weights.
  its.passes = std::max(its.passes, next_pass - its.first_pass);
  course.epochs.push_back(
      {epoch + 1, its.first_pass + its.passes, of_pass(size), {{0, 0, size}}});
  Plan plan = *this;
  plan.course_ = std::make_shared<const Course>(std::move(course));
  return plan;
}

Plan::Course Plan::CourseNow() const {
  if (course_ != nullptr) return *course_;
  return {{{0, 0, order_}}, {{0, 0, passes_per_epoch_, {{0, 0, records_}}}}};
}

StatusOr<Plan> Plan::BegunAt(uint64_t epoch, uint64_t row,
                             const std::vector<PartPlace>& places,
                             const std::vector<uint32_t>& weights,
                             const OrderBudget& budget) const {
  assert(steps_->fixed_by() == nullptr);
  if (row >= rows_per_epoch_) {
    ++epoch;
    row = 0;
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const MixOrder> rest,
                            mix()->BegunAt(places, weights, budget));
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const MixOrder> whole,
                            rest->ChangedFrom(1, weights, budget));
  const uint64_t size = whole->size();
  Course course;
  Course::Epochs its = {epoch, 0, 0, {}};
  uint64_t next_row = row;
  if (rest->size() > 0) {
    its.runs.push_back({row, 0, rest->size()});
    next_row += rest->size();
    course.orders.push_back({0, 0, std::move(rest)});
  }
  course.orders.push_back({1, 0, std::move(whole)});
  if (next_row < rows_per_epoch_) its.runs.push_back({next_row, 1, size});
  const Course::Run& end = its.runs.back();
  its.passes = end.pass + CeilDivide(rows_per_epoch_ - end.row, end.size);
  course.epochs = {its,
                   {epoch + 1,
                    its.passes,
                    CeilDivide(rows_per_epoch_, size),
                    {{0, 0, size}}}};
  Plan plan = *this;
  plan.begun_ = std::make_shared<const Course>(std::move(course));
  plan.course_ = plan.begun_;
  return plan;
}

std::vector<Plan::PartRows> Plan::PartsAt(uint64_t position) const {
  assert(position >= first_known());
  const Course course = CourseNow();
  const uint64_t epoch = position / rows_per_epoch_;
  const uint64_t row = position % rows_per_epoch_;
  std::vector<PartRows> parts(mix()->parts());
  const auto add = [&parts](const MixOrder& of, uint64_t rows, uint64_t times) {
    const std::vector<uint64_t> before = of.RowsBefore(rows);
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].rows += times * before[i];
    }
  };
  // The rows up to `end` of so many epochs that are alike.
  const auto add_epochs = [&](const Course::Epochs& its, uint64_t end,
                              uint64_t times) {
    for (size_t i = 0; i < its.runs.size() && its.runs[i].row < end; ++i) {
      const Course::Run& run = its.runs[i];
      const uint64_t next =
          i + 1 < its.runs.size() ? its.runs[i + 1].row : rows_per_epoch_;
      const uint64_t rows = std::min(end, next) - run.row;
      const MixOrder& of =
          *course.OrderAt(its.first_pass + run.pass, run.size - 1).mix();
      add(of, run.size, times * (rows / run.size));
      add(of, rows % run.size, times);
    }
  };
  for (size_t i = 0; i < course.epochs.size(); ++i) {
    const Course::Epochs& its = course.epochs[i];
    if (its.first > epoch) break;
    const uint64_t next =
        i + 1 < course.epochs.size() ? course.epochs[i + 1].first : UINT64_MAX;
    add_epochs(its, rows_per_epoch_, std::min(next, epoch) - its.first);
    if (epoch < next) add_epochs(its, row, 1);
  }
  const auto [pass, place] = course.Find(epoch, row);
  const MixOrder& now = *course.OrderAt(pass, place).mix();
  const std::vector<PartPlace> places = now.PlacesAt(pass, place);
  const std::vector<double> shares = now.SharesAt(place);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].place = places[i];
    parts[i].share = shares[i];
  }
  return parts;
}

std::pair<uint64_t, uint64_t> Plan::Course::Find(uint64_t epoch,
                                                 uint64_t row) const {
  const Epochs& its = EpochsOf(epoch);
  const Run& run = *std::prev(std::upper_bound(
      its.runs.begin(), its.runs.end(), row,
      [](uint64_t at, const Run& each) { return at < each.row; }));
  return {its.first_pass + (epoch - its.first) * its.passes + run.pass +
              (row - run.row) / run.size,
          (row - run.row) % run.size};
}

void Plan::RowsOfCourse(uint64_t epoch, uint64_t first_row, uint64_t count,
                        Shuffles* shuffles, Row* out) const {
  const Course::Epochs& its = course_->EpochsOf(epoch);
  const uint64_t first_pass = its.first_pass + (epoch - its.first) * its.passes;
  size_t next = 0;
  for (uint64_t row = first_row; row < first_row + count; ++row) {
    while (next < its.runs.size() && its.runs[next].row <= row) ++next;
    const Course::Run& run = its.runs[next - 1];
    const uint64_t pass = first_pass + run.pass + (row - run.row) / run.size;
    const uint64_t place = (row - run.row) % run.size;
    *out++ = RowAt(course_->OrderAt(pass, place), place, pass, shuffles);
  }
}

Plan::Row Plan::RowAt(const Order& order, uint64_t place, uint64_t pass,
                      Shuffles* shuffles) const {
  const Order::Row row =
      order.At(place, pass, {shuffle_ ? &*shuffle_ : nullptr, shuffles});
  return {row.record, row.pass, place, pass};
}

void Plan::Rows(uint64_t epoch, uint64_t first_row, uint64_t count,
                Shuffles* shuffles, Row* out) const {
  assert(first_row <= rows_per_epoch_);
  assert(count <= rows_per_epoch_ - first_row);
  if (course_ != nullptr) {
    return RowsOfCourse(epoch, first_row, count, shuffles, out);
  }
  uint64_t pass = epoch * passes_per_epoch_ + first_row / records_;
  uint64_t position = first_row % records_;
  while (count > 0) {
    const uint64_t rows = std::min(count, records_ - position);
    if (shuffle_ && order_->shuffled_parts() == 0) {
      const Permutation& whole = shuffles->Of(0, *shuffle_, records_, pass);
      for (uint64_t i = 0; i < rows; ++i) {
        out[i] = RowAt(*order_, whole(position + i), pass, shuffles);
      }
    } else {
      for (uint64_t i = 0; i < rows; ++i) {
        out[i] = RowAt(*order_, position + i, pass, shuffles);
      }
    }
    out += rows;
    count -= rows;
    position = 0;
    ++pass;
  }
}

Plan::Row Plan::Following(const Row& row, uint64_t i,
                          Shuffles* shuffles) const {
  // By the weights of the row itself: those of a change that comes after it may
  // not be known yet.
  const Order& order = course_ == nullptr
                           ? *order_
                           : course_->OrderAt(row.pass_of_order, row.place);
  return RowAt(order, steps_->Following(row.place, i, order.size()),
               row.pass_of_order, shuffles);
}

}  // namespace penstock
