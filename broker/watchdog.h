// systemd's watchdog (WatchdogSec=; sd_watchdog_enabled(3)): this process says
// that it lives as long as the control thread and every worker make turns. It
// does not depend on reads, samples and functions, which have timeouts of their
// own, so storage that hangs restarts nothing.
#ifndef BROKER_WATCHDOG_H_
#define BROKER_WATCHDOG_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "broker/base/event_loop.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class Watchdog {
 public:
  // stands_still: the number of a worker that has made no turn since the last
  // call. Nothing happens where the service manager has no watchdog.
  static Status Start(EventLoop* loop,
                      std::function<std::optional<uint32_t>()> stands_still,
                      Watchdog* watchdog);

 private:
  Fd timer_;
};

}  // namespace penstock
#endif  // BROKER_WATCHDOG_H_
