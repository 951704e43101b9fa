// The daemon's log: lines on standard error, which systemd keeps. Thread-safe.
#ifndef BROKER_BASE_LOG_H_
#define BROKER_BASE_LOG_H_

#include <string_view>
#include <utility>

#include "common/format.h"

namespace penstock {

enum class LogLevel { kInfo, kWarning, kError, kCritical };

// Lines below `least` are left out; kInfo at the start.
void SetLogLevel(LogLevel least);
// Control characters in `text`, which may hold names that anybody chose, are
// escaped.
void LogLine(LogLevel level, std::string_view text);

// Arguments as Format takes them.
#define PENSTOCK_LOG(name, level)                                 \
  template <typename... Args>                                     \
  void name(fmt::format_string<Args...> format, Args&&... args) { \
    LogLine(level, Format(format, std::forward<Args>(args)...));  \
  }
PENSTOCK_LOG(LogInfo, LogLevel::kInfo)
PENSTOCK_LOG(LogWarning, LogLevel::kWarning)
PENSTOCK_LOG(LogError, LogLevel::kError)
PENSTOCK_LOG(LogCritical, LogLevel::kCritical)
#undef PENSTOCK_LOG

}  // namespace penstock
#endif  // BROKER_BASE_LOG_H_
