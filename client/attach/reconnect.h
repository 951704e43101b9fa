// When a client waits for a dead broker to come back, and when it gives up: the
// same for ranks and producers.
#ifndef CLIENT_ATTACH_RECONNECT_H_
#define CLIENT_ATTACH_RECONNECT_H_

#include <algorithm>
#include <chrono>
#include <string>

#include "common/deadline.h"
#include "common/format.h"
#include "common/status.h"

namespace penstock {

// Default of the option reconnect_s.
inline constexpr double kReconnectSeconds = 60;

// A broker whose socket is missing this long does not come back: systemd and
// penstock run keep the socket while they restart it.
inline constexpr std::chrono::seconds kNoSocketTimeout{2};

// Whether to retry after an attempt to reconnect that ended with this code.
inline bool MayComeBack(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kNotFound ||
         code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kAlreadyExists;
}

// The delay before the next attempt, from that before the last one (at first
// 0).
inline std::chrono::milliseconds NextRetryDelay(
    std::chrono::milliseconds delay) {
  constexpr std::chrono::milliseconds kMin{10};
  constexpr std::chrono::milliseconds kMax{1000};
  return std::clamp(2 * delay, kMin, kMax);
}

// doing: "job 'x' ran"; lost: when the broker was lost; last: why the last
// attempt failed.
inline Status BrokerGoneError(const std::string& doing,
                              std::chrono::steady_clock::time_point lost,
                              double reconnect_s, const std::string& last) {
  return UnavailableError(
      "the broker is gone: its process was stopped, died or was killed while "
      "{} (see its log, or journalctl -u penstockd){}",
      doing,
      reconnect_s > 0
          ? Format(
                "; it did not come back within {:.1f} s (reconnect_s: {}): {}",
                SecondsSince(lost), reconnect_s, last)
          : "");
}

}  // namespace penstock
#endif  // CLIENT_ATTACH_RECONNECT_H_
