// Points where a process may die. In a build for the crash storm (CMake option
// PENSTOCK_KILL_POINTS) KillPoint kills its own process with SIGKILL at given
// odds; in any other build it does nothing.
//
// Any thread may call it. The environment is read at the first call:
//   PENSTOCK_KILL_ODDS  NAME=N,... one death in N passes of that point;
//                       default=N: for all others; 0 or absent: none
//   PENSTOCK_KILL_SEED  seed of the random numbers; absent: 0
#ifndef COMMON_KILL_POINT_H_
#define COMMON_KILL_POINT_H_

#if defined(PENSTOCK_KILL_POINTS) && !defined(PENSTOCK_SIMULATION)

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "common/hash.h"

namespace penstock {
namespace internal {

class KillOdds {
 public:
  static KillOdds& OfThisProcess() {
    static KillOdds odds;
    return odds;
  }

  bool DiesAt(std::string_view name) {
    if (odds_.empty()) return false;
    auto found = odds_.find(name);
    if (found == odds_.end()) found = odds_.find("default");
    if (found == odds_.end() || found->second == 0) return false;
    return Next() % found->second == 0;
  }

 private:
  KillOdds() {
    const char* seed = std::getenv("PENSTOCK_KILL_SEED");
    if (seed != nullptr) state_ = std::strtoull(seed, nullptr, 10);
    const char* text = std::getenv("PENSTOCK_KILL_ODDS");
    std::string_view rest = text == nullptr ? "" : text;
    while (!rest.empty()) {
      const std::string item(rest.substr(0, rest.find(',')));
      rest.remove_prefix(std::min(rest.size(), item.size() + 1));
      const size_t equals = item.find('=');
      if (equals == std::string::npos) continue;
      odds_[item.substr(0, equals)] =
          std::strtoull(item.c_str() + equals + 1, nullptr, 10);
    }
  }

  // SplitMix64.
  uint64_t Next() {
    // Relaxed: each thread needs distinct numbers, in no particular order.
    return Mix64(state_.fetch_add(kGolden64, std::memory_order_relaxed) +
                 kGolden64);
  }

  std::map<std::string, uint64_t, std::less<>> odds_;
  std::atomic<uint64_t> state_{0};
};

}  // namespace internal

inline void KillPoint(std::string_view name) {
  if (internal::KillOdds::OfThisProcess().DiesAt(name)) {
    kill(getpid(), SIGKILL);
  }
}

}  // namespace penstock

#else

namespace penstock {
inline void KillPoint(const char*) {}
}  // namespace penstock

#endif
#endif  // COMMON_KILL_POINT_H_
