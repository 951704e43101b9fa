// When a process that died may be restarted: at once, then after ever longer
// pauses, and at most kRestartsMax times per window (as systemd's
// StartLimitBurst= and StartLimitIntervalSec=) without progress.
#ifndef CLIENT_PRIVATE_BROKER_RESTART_POLICY_H_
#define CLIENT_PRIVATE_BROKER_RESTART_POLICY_H_

#include <chrono>
#include <optional>
#include <vector>

#include "common/deadline.h"

namespace penstock {

class RestartPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kRestartsMax = 5;
  static constexpr std::chrono::seconds kWindow{60};
  // Pause before the second restart within the window; doubles with each more.
  static constexpr std::chrono::milliseconds kPause{200};

  struct Restart {
    int number;  // within the window, from 1
    Clock::duration pause;
  };

  // Progress was made: former restarts do not count.
  void NoteProgress() { restarts_.clear(); }

  // To be called at a death. nullopt: it was restarted kRestartsMax times
  // within kWindow without progress.
  std::optional<Restart> Next(Clock::time_point now) {
    std::erase_if(restarts_, [&](Clock::time_point restart) {
      return restart + kWindow <= now;
    });
    const int done = static_cast<int>(restarts_.size());
    if (done >= kRestartsMax) return std::nullopt;
    const Clock::duration pause =
        done == 0 ? Clock::duration::zero() : kPause * (1 << (done - 1));
    restarts_.push_back(now + pause);
    return Restart{done + 1, pause};
  }

 private:
  std::vector<Clock::time_point> restarts_;
};

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_RESTART_POLICY_H_
