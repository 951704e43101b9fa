#include "client/command/subcommand.h"

#include <cstdio>

namespace penstock {

void PrintError(const std::string& message) {
  // One write: ranks and the broker share this stderr.
  const std::string line = "penstock: " + message + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace penstock
