// penstock top: a running broker and its jobs, live.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "client/command/job_options.h"
#include "client/command/screen.h"
#include "client/command/subcommand.h"
#include "client/command/top.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/interrupt.h"
#include "common/command_line.h"
#include "common/deadline.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr double kIntervalMin_s = 0.2;
constexpr double kIntervalMax_s = 3600;
constexpr int kAnswer_ms = 5000;

struct TopOptions {
  std::string socket;
  double interval_s = 1;
  uint64_t count = 0;  // 0: no end
};

double Now() { return static_cast<double>(MonotonicNs()) / 1e9; }

std::string TimeOfDay() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return Format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

StatusOr<TopSample> Ask(const TopOptions& options, const SocketWait& wait) {
  PENSTOCK_ASSIGN_OR_RETURN(
      nlohmann::json status,
      CallBroker(options.socket, {{"op", "status"}}, wait));
  return TopSample{std::move(status), Now()};
}

// In a pipe: lines, for as long as they are read.
StatusOr<int> PrintLines(const TopOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(TopSample before, Ask(options, nullptr));
  for (uint64_t i = 0; options.count == 0 || i < options.count; ++i) {
    pollfd interrupt{InterruptFd(), POLLIN, 0};
    poll(&interrupt, 1, static_cast<int>(1000 * options.interval_s));
    if (InterruptSignal() != 0) return 128 + InterruptSignal();
    StatusOr<TopSample> now = Ask(options, nullptr);
    if (InterruptSignal() != 0) return 128 + InterruptSignal();
    if (!now.ok()) {
      // It may come back.
      Print(stdout, "{} no answer: {}\n", TimeOfDay(),
            Printable(now.status().message()));
    } else {
      for (const std::string& line : TopLines(before, *now, TimeOfDay())) {
        Print(stdout, "{}\n", line);
      }
      before = *std::move(now);
    }
    // A reader that has gone shows as an error of main's.
    if (std::fflush(stdout) != 0) return 0;
  }
  return 0;
}

class Live {
 public:
  explicit Live(const TopOptions& options) : options_(options) {
    settings_.interval_s = options.interval_s;
  }

  StatusOr<int> Run() {
    // Before the screen: a broker that is not there is an error to read.
    PENSTOCK_ASSIGN_OR_RETURN(now_, Ask(options_, nullptr));
    before_ = now_;
    settings_.clock = TimeOfDay();
    PENSTOCK_ASSIGN_OR_RETURN(screen_, Screen::Open());
    const Status ended = Loop();
    screen_.reset();
    if (const int signal = InterruptSignal(); signal != 0) return 128 + signal;
    if (!ended.ok() && !quit_) return ended;
    return 0;
  }

 private:
  Status Loop() {
    double next = Now() + std::min(settings_.interval_s, kIntervalMin_s);
    uint64_t asked = 0;
    for (;;) {
      std::tie(settings_.columns, settings_.rows) = screen_->Size();
      PENSTOCK_RETURN_IF_ERROR(
          screen_->Draw(TopScreen(before_, now_, &settings_)));
      if (options_.count > 0 && asked >= options_.count) return OkStatus();
      const double left = std::max(0.0, next - Now());
      PENSTOCK_RETURN_IF_ERROR(Heed(-1, static_cast<int>(1000 * left) + 1));
      if (quit_) return OkStatus();
      if (Now() < next) continue;
      next = Now() + settings_.interval_s;
      if (settings_.paused) continue;
      ++asked;
      StatusOr<TopSample> sample =
          Ask(options_, [this](int fd) { return WaitForAnswer(fd); });
      if (quit_ || InterruptSignal() != 0) return OkStatus();
      settings_.trouble = sample.ok() ? "" : sample.status().message();
      settings_.clock = TimeOfDay();
      if (sample.ok()) before_ = std::exchange(now_, *std::move(sample));
    }
  }

  // Keys work also while the broker does not answer.
  Status WaitForAnswer(int fd) {
    const double end = Now() + kAnswer_ms / 1000.0;
    for (;;) {
      pollfd entry{fd, POLLIN, 0};
      if (poll(&entry, 1, 0) > 0) return OkStatus();
      const double left = end - Now();
      if (left <= 0) {
        return DeadlineExceededError("nothing for {} s", kAnswer_ms / 1000);
      }
      PENSTOCK_RETURN_IF_ERROR(Heed(fd, static_cast<int>(1000 * left) + 1));
      if (quit_) return CancelledError("quit");
    }
  }

  Status Heed(int fd, int timeout_ms) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Key> keys,
                              screen_->Wait(fd, timeout_ms));
    const size_t page = std::max<size_t>(settings_.rows / 2, 1);
    for (const Key key : keys) {
      size_t& first = settings_.first;
      switch (key) {
        case Key::kQuit:
          quit_ = true;
          break;
        case Key::kUp:
          first -= std::min<size_t>(first, 1);
          break;
        case Key::kDown:
          ++first;
          break;
        case Key::kPageUp:
          first -= std::min(first, page);
          break;
        case Key::kPageDown:
          first += page;
          break;
        case Key::kHome:
          first = 0;
          break;
        case Key::kPause:
          settings_.paused = !settings_.paused;
          break;
        case Key::kRanks:
          settings_.ranks = !settings_.ranks;
          break;
        case Key::kFaster:
          settings_.interval_s =
              std::max(settings_.interval_s / 2, kIntervalMin_s);
          break;
        case Key::kSlower:
          settings_.interval_s =
              std::min(settings_.interval_s * 2, kIntervalMax_s);
          break;
        case Key::kOther:
          break;
      }
    }
    return OkStatus();
  }

  const TopOptions& options_;
  std::unique_ptr<Screen> screen_;
  TopSettings settings_;
  TopSample before_;
  TopSample now_;
  bool quit_ = false;
};

}  // namespace

Subcommand AddTop(Command parent) {
  Command top =
      parent.AddCommand("top", "Show a running broker and its jobs live");
  const auto options = std::make_shared<TopOptions>();
  AddSocketOption(top, &options->socket);
  top.AddOption("--interval", &options->interval_s,
                "Seconds from one look to the next (default: 1)")
      .InRange(kIntervalMin_s, kIntervalMax_s)
      .Type("SECONDS");
  top.AddOption("--count", &options->count, "End after so many looks")
      .InRange(uint64_t{1})
      .Type("N");
  top.SetFooter(R"(
Keys: q quit; arrows, PgUp, PgDn, j, k, g scroll; space pause; r with
or without ranks; + and - ask more and less often. In a pipe, or with
TERM=dumb, one line is printed for each job and look.

Examples:
  penstock top
  penstock top --interval 10 | tee log)");
  return {top, [options]() -> StatusOr<int> {
            if (!Screen::IsThere()) return PrintLines(*options);
            return Live(*options).Run();
          }};
}

}  // namespace penstock
