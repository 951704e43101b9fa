// The daemon's log: lines on standard error, which systemd keeps. Thread-safe.
#ifndef BROKER_BASE_LOG_H_
#define BROKER_BASE_LOG_H_

#include <string_view>
#include <utility>

#include "common/format.h"

namespace penstock {

enum class LogLevel { kInfo, kWarning, kError, kCritical };

// Suppresses lines below `least`; default kInfo.
void SetLogLevel(LogLevel least);
// Escapes control characters in `text`, which may contain names chosen by any
// user.
void LogLine(LogLevel level, std::string_view text);

// Arguments as for Format.
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
