// The daemon's log: entries of systemd's journal with their fields where
// standard error is the journal, else lines there. What is written are messages
// of messages.h, so many of each cause only. Thread-safe.
//
//   Log<"rank-died">(job.key(), rank);
#ifndef BROKER_BASE_LOG_H_
#define BROKER_BASE_LOG_H_

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "broker/base/log_value.h"
#include "broker/base/messages.h"
#include "common/format.h"

namespace penstock {

// Suppresses messages below `least`; default kInfo.
void SetLogLevel(LogLevel least);

// Messages of this name are not written. To be called before threads are
// started. False: messages.h has none of it.
bool LeaveOutOfLog(std::string_view name);

// From now on entries go to systemd's journal, if that is what standard error
// is. To be called once, before threads are started.
void LogToJournal();

// As LogToJournal, whatever standard error is, to a socket there.
void LogToJournalAt(const std::string& socket);

// What was held back is told when its cause may write again: FlushLog once a
// second, for as long as LogHoldsBack.
bool LogHoldsBack();
// all: the process ends.
void FlushLog(bool all = false);

using LogValue = std::variant<std::string, LogJob, LogUser>;

// The values are those of the message's text, in its order. Control characters
// in the line are escaped: it may contain names chosen by any user.
void WriteLog(const LogMessage& message, std::span<const LogValue> values);
bool IsLogged(LogLevel level);

template <size_t kBytes>
struct MessageName {
  // Implicit: it makes a literal a template argument.
  constexpr MessageName(const char (&name)[kBytes]) {
    std::copy_n(name, kBytes, text);
  }
  char text[kBytes];
};

consteval const LogMessage* MessageNamed(std::string_view name) {
  for (const LogMessage& message : kLogMessages) {
    if (message.name == name) return &message;
  }
  return nullptr;
}

template <typename T>
LogValue LogValueOf(const T& value) {
  if constexpr (std::convertible_to<const T&, LogJob>) {
    return static_cast<LogJob>(value);
  } else if constexpr (std::same_as<T, LogUser>) {
    return value;
  } else {
    return Format("{}", value);
  }
}

// A value is a number, a text, a LogUser, or what is a LogJob.
template <MessageName kName, typename... Values>
void Log(const Values&... values) {
  static constexpr const LogMessage* kMessage = MessageNamed(kName.text);
  static_assert(kMessage != nullptr, "messages.h has no such message");
  static_assert(std::ranges::count(kMessage->text, '{') == sizeof...(Values),
                "a value for each {name} of the message");
  if (!IsLogged(kMessage->level)) return;
  const std::initializer_list<LogValue> all = {LogValueOf(values)...};
  WriteLog(*kMessage, {all.begin(), all.size()});
}

}  // namespace penstock
#endif  // BROKER_BASE_LOG_H_
