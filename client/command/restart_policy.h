// When a process that died may be started again: at once, then after ever
// longer pauses, and not too often (systemd's StartLimitBurst= and
// StartLimitIntervalSec=) unless it makes progress.
#ifndef CLIENT_COMMAND_RESTART_POLICY_H_
#define CLIENT_COMMAND_RESTART_POLICY_H_

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
  // Before the second restart within the window; doubles with each further one.
  static constexpr std::chrono::milliseconds kPause{200};

  struct Restart {
    int number;  // within the window, from 1
    Clock::duration pause;
  };

  // Something was achieved in between: what was before does not count.
  void NoteProgress() { restarts_.clear(); }

  // It has died now. nullopt: it has been restarted kRestartsMax times within
  // kWindow already, and made no progress.
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
#endif  // CLIENT_COMMAND_RESTART_POLICY_H_
