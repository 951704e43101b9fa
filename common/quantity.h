// Parses numbers that people write: counts, sizes, times. Writes counts for
// them.
#ifndef COMMON_QUANTITY_H_
#define COMMON_QUANTITY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "common/format.h"
#include "common/status.h"

namespace penstock {

// A number from min to max, without anything after it.
StatusOr<uint32_t> ParseCount(const std::string& text, uint32_t max,
                              uint32_t min = 1);

// Likewise; "auto" gives 0.
StatusOr<uint32_t> ParseCountOrAuto(const std::string& text, uint32_t max);

// "8G", "512M", "1073741824" in bytes; K, M, G, T are powers of 1024. Not 0.
StatusOr<uint64_t> ParseBytes(const std::string& text);

// "500ms", "60s", "5m", "1h" in nanoseconds; from 100 ms to 24 h.
StatusOr<uint64_t> ParseDuration(const std::string& text);

// "1 rank", "2 ranks". number: as it is to be shown; many: of what is not one,
// "": with an "s".
inline std::string Counted(std::string_view number, std::string_view one,
                           std::string_view many = "") {
  if (number == "1") return Format("{} {}", number, one);
  return many.empty() ? Format("{} {}s", number, one)
                      : Format("{} {}", number, many);
}
inline std::string Counted(uint64_t number, std::string_view one,
                           std::string_view many = "") {
  return Counted(std::to_string(number), one, many);
}

// A process among those of a job by its number: "3" or, where several are one
// rank, "1 (replica 1)".
inline std::string RankName(uint32_t number, uint32_t replicas) {
  if (replicas == 1) return std::to_string(number);
  return Format("{} (replica {})", number / replicas, number % replicas);
}

}  // namespace penstock
#endif  // COMMON_QUANTITY_H_
