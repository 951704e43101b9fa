#include "broker/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "broker/base/journald.h"
#include "broker/base/log_limiter.h"
#include "broker/base/mutex.h"
#include "common/printable.h"

namespace penstock {
namespace {

// Relaxed: it orders nothing else.
std::atomic<LogLevel> least_level = LogLevel::kInfo;

// Never destroyed: threads may log until the process has ended.
struct Output {
  Mutex mutex;
  LogLimiter limiter ABSL_GUARDED_BY(mutex);
  std::unique_ptr<Journald> journald;  // nullptr: lines
  std::atomic<uint64_t> lost{0};       // messages that journald did not take
  std::vector<const LogMessage*> left_out;  // set before threads are started
};
Output& TheOutput() {
  static Output* const output = new Output;
  return *output;
}

// As syslog numbers them.
int PriorityOf(LogLevel level) {
  constexpr int kPriorities[] = {6, 4, 3, 2};
  return kPriorities[static_cast<size_t>(level)];
}

std::string TextOf(const LogValue& value) {
  if (const auto* const job = std::get_if<LogJob>(&value)) {
    return std::string(job->name);
  }
  if (const auto* const user = std::get_if<LogUser>(&value)) {
    return std::to_string(user->uid);
  }
  return std::get<std::string>(value);
}

LogCause CauseOf(std::span<const LogValue> values) {
  for (const LogValue& value : values) {
    if (const auto* const job = std::get_if<LogJob>(&value)) {
      return {job->uid, std::string(job->name)};
    }
    if (const auto* const user = std::get_if<LogUser>(&value)) {
      return {user->uid, ""};
    }
  }
  return {};
}

// The text of a message, and what its values are as fields.
struct Filled {
  std::string text;
  JournalFields fields;
};

Filled Fill(const LogMessage& message, std::span<const LogValue> values) {
  Filled filled;
  const auto add = [&filled](std::string_view name, std::string value) {
    std::string field = "PENSTOCK_";
    for (const char c : name) {
      field += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
    filled.fields.emplace_back(std::move(field), std::move(value));
  };
  std::string_view rest = message.text;
  for (const LogValue& value : values) {
    const size_t begin = rest.find('{');
    const size_t end = rest.find('}', begin);
    filled.text += rest.substr(0, begin);
    filled.text += TextOf(value);
    add(rest.substr(begin + 1, end - begin - 1), TextOf(value));
    if (const auto* const job = std::get_if<LogJob>(&value)) {
      // A message that names the dataset has it as a value of its own.
      if (message.text.find("{dataset}") == message.text.npos) {
        add("dataset", std::string(job->dataset));
      }
      add("uid", std::to_string(job->uid));
      if (job->consumer) add("consumer", std::to_string(*job->consumer));
    }
    rest.remove_prefix(end + 1);
  }
  filled.text += rest;
  return filled;
}

// False: it is lost.
bool WriteNow(const LogMessage& message, LogLevel level,
              std::span<const LogValue> values) {
  Filled filled = Fill(message, values);
  const std::string text = PrintableLines(filled.text);
  Output& output = TheOutput();
  if (output.journald != nullptr) {
    JournalFields fields = {
        {"MESSAGE", text},
        {"PRIORITY", std::to_string(PriorityOf(level))},
        {"SYSLOG_IDENTIFIER", "penstockd"},
        {"MESSAGE_ID", std::string(message.id)},
        {"PENSTOCK_MESSAGE", std::string(message.name)},
    };
    fields.insert(fields.end(), filled.fields.begin(), filled.fields.end());
    const int error = output.journald->Send(fields);
    if (error == 0) return true;
    // Standard error would wait for the same reader, and without an end.
    if (error == EAGAIN) return false;
  }
  // One call per line: stdio locks the stream, which is unbuffered.
  const std::string line = "penstockd: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return true;
}

void WriteOrCount(const LogMessage& message, LogLevel level,
                  std::span<const LogValue> values, uint64_t count = 1) {
  if (WriteNow(message, level, values)) return;
  // Relaxed: a count.
  TheOutput().lost.fetch_add(count, std::memory_order_relaxed);
}

void Tell(const std::vector<HeldBack>& all) {
  constexpr const LogMessage* kMessage = MessageNamed("more-like-this");
  for (const HeldBack& each : all) {
    WriteOrCount(*kMessage, each.message->level,
                 std::vector<LogValue>{
                     std::to_string(each.count), std::to_string(each.seconds),
                     std::string(each.message->name), each.cause.ToString()});
  }
}

}  // namespace

void SetLogLevel(LogLevel least) {
  least_level.store(least, std::memory_order_relaxed);
}

bool IsLogged(LogLevel level) {
  return level >= least_level.load(std::memory_order_relaxed);
}

bool LeaveOutOfLog(std::string_view name) {
  for (const LogMessage& message : kLogMessages) {
    if (message.name != name) continue;
    TheOutput().left_out.push_back(&message);
    return true;
  }
  return false;
}

void LogToJournal() {
  if (IsJournal(STDERR_FILENO)) LogToJournalAt(kJournalSocket);
}

void LogToJournalAt(const std::string& socket) {
  TheOutput().journald = std::make_unique<Journald>(socket);
}

bool LogHoldsBack() {
  Output& output = TheOutput();
  MutexLock lock(&output.mutex);
  // Relaxed: the next tick sees it.
  return output.limiter.holds_back() ||
         output.lost.load(std::memory_order_relaxed) != 0;
}

void FlushLog(bool all) {
  Output& output = TheOutput();
  std::vector<HeldBack> held_back;
  {
    MutexLock lock(&output.mutex);
    held_back =
        output.limiter.TakeHeldBack(std::chrono::steady_clock::now(), all);
  }
  Tell(held_back);
  if (const uint64_t lost =
          output.lost.exchange(0, std::memory_order_relaxed)) {
    constexpr const LogMessage* kMessage = MessageNamed("messages-lost");
    WriteOrCount(*kMessage, kMessage->level,
                 std::vector<LogValue>{std::to_string(lost)}, lost);
  }
}

void WriteLog(const LogMessage& message, std::span<const LogValue> values) {
  Output& output = TheOutput();
  if (std::find(output.left_out.begin(), output.left_out.end(), &message) !=
      output.left_out.end()) {
    return;
  }
  std::vector<HeldBack> before;
  {
    MutexLock lock(&output.mutex);
    if (!output.limiter.Admit(message, CauseOf(values),
                              std::chrono::steady_clock::now(), &before)) {
      return;
    }
  }
  Tell(before);
  WriteOrCount(message, message.level, values);
}

}  // namespace penstock
