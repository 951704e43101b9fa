#include "broker/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace penstock {

std::string BytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes)
                   : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string NumbersText(const std::vector<uint32_t>& numbers) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), kNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  }
  if (numbers.size() > kNamed) {
    text += fmt::format(" and {} more", numbers.size() - kNamed);
  }
  return text;
}

std::string AllGoneText(const std::vector<uint32_t>& waits_for, double kept_s) {
  return fmt::format("all ranks are gone: kept {:.0f} s for {}", kept_s,
                     waits_for.empty()
                         ? "others"
                         : "replacements of rank " + NumbersText(waits_for));
}

}  // namespace penstock
