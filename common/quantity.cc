#include "common/quantity.h"

#include <charconv>

namespace penstock {

StatusOr<uint32_t> ParseCount(const std::string& text, uint32_t max,
                              uint32_t min) {
  uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min ||
      value > max) {
    return InvalidArgumentError("'{}' is not a number from {} to {}", text, min,
                                max);
  }
  return value;
}

StatusOr<uint32_t> ParseCountOrAuto(const std::string& text, uint32_t max) {
  if (text == "auto") return 0u;
  StatusOr<uint32_t> count = ParseCount(text, max);
  if (count.ok()) return count;
  return Status(count.status().code(),
                count.status().message() + " or \"auto\"");
}

StatusOr<uint64_t> ParseBytes(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  int shift = -1;
  if (unit.empty()) shift = 0;
  if (unit == "K" || unit == "KiB") shift = 10;
  if (unit == "M" || unit == "MiB") shift = 20;
  if (unit == "G" || unit == "GiB") shift = 30;
  if (unit == "T" || unit == "TiB") shift = 40;
  if (error != std::errc() || shift < 0 || value == 0 ||
      value > (UINT64_MAX >> shift)) {
    return InvalidArgumentError(
        "'{}' is not a size such as 8G, 512M or 1073741824", text);
  }
  return value << shift;
}

StatusOr<uint64_t> ParseDuration(const std::string& text) {
  constexpr uint64_t kMsMin = 100;  // on the order of the clock's ticks
  constexpr uint64_t kMsMax = 24 * 60 * 60 * 1000;
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  uint64_t ms = 0;
  if (unit == "ms") ms = 1;
  if (unit == "s") ms = 1000;
  if (unit == "m") ms = 60 * 1000;
  if (unit == "h") ms = 60 * 60 * 1000;
  if (error != std::errc() || ms == 0 || value > kMsMax / ms ||
      value * ms < kMsMin) {
    return InvalidArgumentError(
        "'{}' is not a time such as 500ms, 60s, 5m or 1h, from 100ms to 24h",
        text);
  }
  return value * ms * 1'000'000;
}

}  // namespace penstock
