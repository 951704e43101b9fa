// Parses numbers that people write: counts, sizes, times.
#ifndef COMMON_QUANTITY_H_
#define COMMON_QUANTITY_H_

#include <cstdint>
#include <string>

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

}  // namespace penstock
#endif  // COMMON_QUANTITY_H_
