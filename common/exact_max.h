// The largest whole number up to which a double, and so every reader of JSON,
// has all of them.
#ifndef COMMON_EXACT_MAX_H_
#define COMMON_EXACT_MAX_H_

#include <cstdint>

namespace penstock {

inline constexpr uint64_t kExactMax = uint64_t{1} << 53;

}  // namespace penstock
#endif  // COMMON_EXACT_MAX_H_
