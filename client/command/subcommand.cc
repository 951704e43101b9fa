#include "client/command/subcommand.h"

#include <cstdio>

#include "common/printable.h"

namespace penstock {

void PrintError(const std::string& message) {
  // One write: ranks and the broker share this stderr.
  const std::string line = "penstock: " + PrintableLines(message) + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace penstock
