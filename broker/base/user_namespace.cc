#include "broker/base/user_namespace.h"

#include <cstdint>
#include <fstream>

namespace penstock {
namespace {

// Ids are 32 bits wide; the last is none.
constexpr uint64_t kAllIds = UINT32_MAX;

std::optional<uint32_t> UnknownId(const char* map, const char* overflow) {
  uint64_t first = 0;
  uint64_t outside = 0;
  uint64_t count = 0;
  std::ifstream(map) >> first >> outside >> count;
  if (count == kAllIds) return std::nullopt;
  uint32_t shown = 65534;
  std::ifstream(overflow) >> shown;
  return shown;
}

}  // namespace

std::optional<uid_t> UnknownUser() {
  return UnknownId("/proc/self/uid_map", "/proc/sys/kernel/overflowuid");
}

std::optional<gid_t> UnknownGroup() {
  return UnknownId("/proc/self/gid_map", "/proc/sys/kernel/overflowgid");
}

}  // namespace penstock
