// The runs of rows of an order that are of one file.
#ifndef BROKER_PLAN_FILE_RUNS_H_
#define BROKER_PLAN_FILE_RUNS_H_

#include "broker/plan/select_context.h"

namespace penstock {

// The ends of the runs of rows, in a pass, that are of one file.
// same_file: whether the records of two rows are. The rows of a file come one
// after the other. O(runs * log(rows)) calls. InvalidArgument: the order
// repeats records, or shuffles parts of its own.
StatusOr<std::vector<uint64_t>> FileRuns(
    const Order& order,
    const std::function<bool(uint64_t record, uint64_t other)>& same_file,
    const OrderBudget& budget);

// The same by the column `file`.
StatusOr<std::vector<uint64_t>> FileRunsOf(const Order& order,
                                           const SelectContext& context);

// The same of what is read at once: row groups, where the records have them.
StatusOr<std::vector<uint64_t>> ReadRunsOf(const Order& order,
                                           const SelectContext& context);

// An order of the runs of another, so many files at a time.
class InRuns : public Order {
 public:
  bool repeats() const override { return of_->repeats(); }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + ends_.capacity() * sizeof(uint64_t);
  }

 protected:
  InRuns(std::unique_ptr<Order> of, std::vector<uint64_t> ends, uint64_t files)
      : Order(of->size()),
        of_(std::move(of)),
        ends_(std::move(ends)),
        files_(files) {}

  uint64_t BeginOf(uint64_t run) const { return run == 0 ? 0 : ends_[run - 1]; }
  uint64_t SizeOf(uint64_t run) const { return ends_[run] - BeginOf(run); }
  uint64_t runs() const { return ends_.size(); }
  uint64_t windows() const { return (runs() + files_ - 1) / files_; }

  const std::unique_ptr<Order> of_;
  const std::vector<uint64_t> ends_;
  const uint64_t files_;  // of a window
};

}  // namespace penstock
#endif  // BROKER_PLAN_FILE_RUNS_H_
