// The monotonic clock, and deadlines of waits by it.
#ifndef COMMON_DEADLINE_H_
#define COMMON_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace penstock {

inline uint64_t MonotonicNs() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// Negative: no deadline.
inline Deadline DeadlineAfter(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  if (timeout_s < 0) return std::nullopt;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(std::min(timeout_s, 1e9)));
}
// For an option, where 0 means no deadline.
inline Deadline DeadlineOf(double timeout_s) {
  return DeadlineAfter(timeout_s > 0 ? timeout_s : -1);
}

// Upper bound of the time a wait ignores a request to stop.
inline constexpr std::chrono::milliseconds kPause{100};

}  // namespace penstock
#endif  // COMMON_DEADLINE_H_
