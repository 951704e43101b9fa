#include "broker/base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "common/printable.h"

namespace penstock {
namespace {

// Relaxed: it orders nothing else.
std::atomic<LogLevel> least_level = LogLevel::kInfo;

}  // namespace

void SetLogLevel(LogLevel least) {
  least_level.store(least, std::memory_order_relaxed);
}

void LogLine(LogLevel level, std::string_view text) {
  if (level < least_level.load(std::memory_order_relaxed)) return;
  // One call per line: stdio locks the stream, which is unbuffered.
  const std::string line = "penstockd: " + PrintableLines(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace penstock
