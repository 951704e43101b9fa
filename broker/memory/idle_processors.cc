#include "broker/memory/idle_processors.h"

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace penstock {

std::optional<double> IdleProcessors::SinceLastCall() {
  std::ifstream file(files_.proc + "/stat");
  uint64_t idle = 0;
  uint64_t all = 0;
  for (std::string line; std::getline(file, line);) {
    // "cpu12 user nice system idle iowait ..."; "cpu " is the sum.
    if (line.compare(0, 3, "cpu") != 0) break;
    if (line.size() < 4 || line[3] == ' ') continue;
    std::istringstream words(line.substr(3));
    uint32_t number = 0;
    if (!(words >> number) || processors_.count(number) == 0) continue;
    constexpr int kTimes = 8;  // those after them are part of others
    constexpr int kIdle = 3;
    constexpr int kIoWait = 4;
    uint64_t ticks = 0;
    for (int i = 0; i < kTimes && words >> ticks; ++i) {
      all += ticks;
      if (i == kIdle || i == kIoWait) idle += ticks;
    }
  }
  const uint64_t idle_before = std::exchange(idle_, idle);
  const uint64_t all_before = std::exchange(all_, all);
  // iowait may fall (proc(5)).
  if (all_before == 0 || all <= all_before || idle < idle_before) {
    return std::nullopt;
  }
  return static_cast<double>(idle - idle_before) /
         static_cast<double>(all - all_before);
}

}  // namespace penstock
