#include "broker/watchdog.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "broker/base/log.h"
#include "broker/base/service_protocol.h"

namespace penstock {
namespace {

// 0: not set, or not a number.
uint64_t Number(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return 0;
  const std::string_view text(value);
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

}  // namespace

Status Watchdog::Start(EventLoop* loop,
                       std::function<std::optional<uint32_t>()> stands_still,
                       Watchdog* watchdog) {
  const uint64_t period_us = Number("WATCHDOG_USEC");
  const uint64_t pid = Number("WATCHDOG_PID");
  if (period_us == 0 || (pid != 0 && pid != static_cast<uint64_t>(getpid()))) {
    return OkStatus();
  }
  // Twice as often as sd_watchdog_enabled(3) wants: one turn late is no death.
  const uint64_t ns = period_us * 1000 / 4;
  itimerspec times{};
  times.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  times.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  times.it_interval = times.it_value;
  watchdog->timer_ =
      Fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const int timer = watchdog->timer_.get();
  if (timer < 0 || timerfd_settime(timer, 0, &times, nullptr) != 0) {
    return ErrnoError(errno, "timer of the watchdog");
  }
  return loop->Watch(timer, [timer, stands_still = std::move(stands_still),
                             said = std::make_shared<bool>(false)](uint32_t) {
    uint64_t expired = 0;
    (void)!read(timer, &expired, sizeof(expired));
    const std::optional<uint32_t> worker = stands_still();
    if (!worker) {
      RemindServiceManager("WATCHDOG=1");
    } else if (!std::exchange(*said, true)) {
      Log<"worker-makes-no-turn">(*worker);
    }
    if (!worker) *said = false;
  });
}

}  // namespace penstock
