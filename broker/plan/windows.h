// Orders that keep the records of a file together, for storage that reads a
// file from its beginning to its end much faster than here and there.
#ifndef BROKER_PLAN_WINDOWS_H_
#define BROKER_PLAN_WINDOWS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "broker/plan/order.h"
#include "common/status.h"

namespace penstock {

// The ends of the runs of rows, in a pass, that are of one file.
// same_file: whether the records of two rows are. The rows of a file come one
// after the other. O(runs * log(rows)) calls. InvalidArgument: the order
// repeats records, or shuffles parts of its own.
StatusOr<std::vector<uint64_t>> FileRuns(
    const Order& order,
    const std::function<bool(uint64_t record, uint64_t other)>& same_file,
    const OrderBudget& budget);

// The runs (files) in an order of their own in each pass, and the rows shuffled
// within windows of so many of them: a window is read before the next begins.
// A thread keeps 8 bytes a window; a pass begins with O(runs) work, a window
// with O(files). InvalidArgument: more than kWindowsMax windows.
inline constexpr uint64_t kWindowsMax = uint64_t{1} << 20;
StatusOr<std::unique_ptr<Order>> ShuffleWindows(std::unique_ptr<Order> of,
                                                std::vector<uint64_t> run_ends,
                                                uint64_t files);

// `block` rows of each of `files` runs in turn, until all of them are out; then
// the next `files`. A row costs O(files * log(rows of a run)).
std::unique_ptr<Order> Interleave(std::unique_ptr<Order> of,
                                  std::vector<uint64_t> run_ends,
                                  uint64_t files, uint64_t block);

}  // namespace penstock
#endif  // BROKER_PLAN_WINDOWS_H_
