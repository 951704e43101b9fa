// `shuffle.window_files`: the files in a random order, and the records shuffled
// within windows of so many of them, for storage that reads a file from its
// beginning to its end much faster than here and there.
#ifndef BROKER_PLAN_WINDOWS_H_
#define BROKER_PLAN_WINDOWS_H_

#include "broker/plan/select_context.h"

namespace penstock {

// The runs (files) in an order of their own in each pass, and the rows shuffled
// within windows of so many of them: a window is read before the next begins.
// A thread keeps 8 bytes a window; a pass begins with O(runs) work, a window
// with O(files). InvalidArgument: more than kWindowsMax windows.
inline constexpr uint64_t kWindowsMax = uint64_t{1} << 20;
StatusOr<std::unique_ptr<Order>> ShuffleWindows(std::unique_ptr<Order> of,
                                                std::vector<uint64_t> run_ends,
                                                uint64_t files);

// Shuffles within windows of files, if there are any (shuffle.window_files).
StatusOr<std::unique_ptr<Order>> InWindows(const ShuffleSpec& shuffle,
                                           std::unique_ptr<Order> of,
                                           const SelectContext& context);

}  // namespace penstock
#endif  // BROKER_PLAN_WINDOWS_H_
