// `shuffle.window_files`: runs of rows (files) in an order of their own in each
// pass, and the rows shuffled within windows of so many of them.
#ifndef BROKER_PLAN_WINDOWS_H_
#define BROKER_PLAN_WINDOWS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "broker/plan/order.h"
#include "broker/plan/select_context.h"

namespace penstock {

// Constant; any thread. A thread keeps 8 bytes a window; a pass begins with
// O(runs) work, a window with O(files).
class Windows {
 public:
  // The ends of the runs, and how many are a window. InvalidArgument: more than
  // kWindowsMax windows.
  static StatusOr<Windows> Make(std::vector<uint64_t> run_ends, uint64_t files);
  // Runs of an order: what is read at once (ReadRunsOf). InvalidArgument: there
  // are less than a window has.
  static StatusOr<Windows> In(const Order& order, uint64_t files,
                              const SelectContext& context);

  // The row that comes at this place of a pass. part: that it shuffles.
  uint64_t Of(uint64_t index, uint64_t pass, const ShuffleSpec& shuffle,
              uint32_t part, Shuffles* shuffles) const;
  uint64_t memory_bytes() const { return ends_.capacity() * sizeof(uint64_t); }

 private:
  struct Last;

  Windows(std::vector<uint64_t> ends, uint64_t files)
      : ends_(std::move(ends)), files_(files) {}
  uint64_t BeginOf(uint64_t run) const { return run == 0 ? 0 : ends_[run - 1]; }
  uint64_t SizeOf(uint64_t run) const { return ends_[run] - BeginOf(run); }
  std::unique_ptr<Last> BeginPass(uint64_t seed, uint64_t key) const;
  void Enter(uint64_t index, uint64_t seed, Last* last) const;

  std::vector<uint64_t> ends_;
  uint64_t files_;
};

}  // namespace penstock
#endif  // BROKER_PLAN_WINDOWS_H_
