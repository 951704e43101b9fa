// The time by which a wait must have ended.
#ifndef COMMON_DEADLINE_H_
#define COMMON_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <optional>

namespace penstock {

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// Negative: none.
inline Deadline DeadlineAfter(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  if (timeout_s < 0) return std::nullopt;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(std::min(timeout_s, 1e9)));
}
// Of an option; 0: none.
inline Deadline DeadlineOf(double timeout_s) {
  return DeadlineAfter(timeout_s > 0 ? timeout_s : -1);
}

// How long a wait may be deaf to the one who wants it to end.
inline constexpr std::chrono::milliseconds kPause{100};

}  // namespace penstock
#endif  // COMMON_DEADLINE_H_
