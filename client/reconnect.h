// When a client takes the broker for gone, and when for one that comes back:
// the same for ranks and producers.
#ifndef CLIENT_RECONNECT_H_
#define CLIENT_RECONNECT_H_

#include <algorithm>
#include <chrono>

#include "common/status.h"

namespace penstock {

// For the broker to come back, unless an option says otherwise.
inline constexpr double kReconnectSeconds = 60;

// Without its socket there is no broker to come back: systemd and penstock run
// keep it while they restart one.
inline constexpr std::chrono::seconds kNoSocketTimeout{2};

// After an attempt to reconnect that ended so another may help.
inline bool MayComeBack(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kNotFound ||
         code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kAlreadyExists;
}

// Before the next attempt; delay is that before the last one, at first 0.
inline std::chrono::milliseconds NextRetryDelay(
    std::chrono::milliseconds delay) {
  constexpr std::chrono::milliseconds kMin{10};
  constexpr std::chrono::milliseconds kMax{1000};
  return std::clamp(2 * delay, kMin, kMax);
}

}  // namespace penstock
#endif  // CLIENT_RECONNECT_H_
