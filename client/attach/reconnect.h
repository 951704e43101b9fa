// When a client takes the broker for gone, and when for one that comes back:
// the same for ranks and producers.
#ifndef CLIENT_ATTACH_RECONNECT_H_
#define CLIENT_ATTACH_RECONNECT_H_

#include <algorithm>
#include <chrono>
#include <string>

#include "common/format.h"
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

// doing: "job 'x' ran"; lost: when it was; last: why the last attempt failed.
inline Status BrokerGoneError(const std::string& doing,
                              std::chrono::steady_clock::time_point lost,
                              double reconnect_s, const std::string& last) {
  const std::chrono::duration<double> away =
      std::chrono::steady_clock::now() - lost;
  return UnavailableError(
      "the broker is gone: its process was stopped, died or was killed while "
      "{} (see its log, or journalctl -u penstockd){}",
      doing,
      reconnect_s > 0
          ? Format("; it was not back after {:.1f} s (reconnect_s: {}): {}",
                   away.count(), reconnect_s, last)
          : "");
}

}  // namespace penstock
#endif  // CLIENT_ATTACH_RECONNECT_H_
