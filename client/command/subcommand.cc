#include "client/command/subcommand.h"

#include <cstdio>

#include "client/command/interrupt.h"
#include "common/printable.h"

namespace penstock {

void PrintError(const std::string& message) {
  // One write, because ranks and the broker share stderr.
  const std::string line = "penstock: " + PrintableLines(message) + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int ExitStatus(const StatusOr<int>& result) {
  if (!result.ok()) {
    PrintError(result.status().message());
    const int signal = InterruptSignal();
    return result.status().code() == StatusCode::kCancelled && signal != 0
               ? 128 + signal
               : kExitFailure;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    PrintError("cannot write to standard output");
    return kExitFailure;
  }
  return *result;
}

}  // namespace penstock
