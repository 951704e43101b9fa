#include "broker/base/text.h"

#include <algorithm>
#include <iterator>

#include "common/format.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {

std::string BytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? Counted(bytes, "byte")
                   : Format("{:.1f} {}", value, kUnits[unit]);
}

std::string ShortError(std::string_view message) {
  constexpr size_t kBytes = 300;
  constexpr size_t kFirstBytes = 200;
  const size_t line = message.find('\n');
  if (line == message.npos) {
    return Printable(message.substr(0, kBytes)) +
           (message.size() > kBytes ? " ..." : "");
  }
  std::string text;
  std::string_view rest = message;
  if (message.size() > kBytes) {
    const std::string_view first =
        message.substr(0, std::min(line, kFirstBytes));
    text = Printable(first) + "\n...";
    rest = message.substr(message.size() - (kBytes - first.size()));
    // From the beginning of a line, if one begins there.
    const size_t begin = rest.find('\n');
    if (begin != rest.npos && begin + 1 < rest.size()) {
      rest.remove_prefix(begin + 1);
    }
  }
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    text += (text.empty() ? "" : "\n") + Printable(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return text;
}

std::string RanksText(const std::vector<uint32_t>& ranks, uint32_t replicas) {
  constexpr size_t kNamed = 8;
  const size_t named = std::min(ranks.size(), kNamed);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < named; ++i) {
    const bool last = i > 0 && i + 1 == ranks.size();
    text += Format("{}{}",
                   i == 0 ? ""
                   : last ? " and "
                          : ", ",
                   RankName(ranks[i], replicas));
  }
  if (ranks.size() > named) {
    text += Format(" and {} more", ranks.size() - named);
  }
  return text;
}

std::vector<uint32_t> RanksOf(std::vector<uint32_t> numbers,
                              uint32_t replicas) {
  for (uint32_t& number : numbers) number /= replicas;
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::string AllGoneText(const std::vector<uint32_t>& waits_for, double kept_s,
                        uint32_t replicas) {
  return Format("all ranks are gone: kept {:.0f} s for {}", kept_s,
                waits_for.empty()
                    ? "ranks that may still attach"
                    : "replacements of " + RanksText(waits_for, replicas));
}

}  // namespace penstock
