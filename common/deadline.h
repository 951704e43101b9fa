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

inline std::chrono::steady_clock::duration DurationOf(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// Negative: no deadline.
inline Deadline DeadlineAfter(double timeout_s) {
  if (timeout_s < 0) return std::nullopt;
  return std::chrono::steady_clock::now() +
         DurationOf(std::min(timeout_s, 1e9));
}
// For an option, where 0 means no deadline.
inline Deadline DeadlineOf(double timeout_s) {
  return DeadlineAfter(timeout_s > 0 ? timeout_s : -1);
}

// What poll takes to wait until then: rounded up, 0 if it has passed.
inline int MillisecondsUntil(std::chrono::steady_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

// Upper bound of the time a wait ignores a request to stop.
inline constexpr std::chrono::milliseconds kPause{100};

}  // namespace penstock
#endif  // COMMON_DEADLINE_H_
