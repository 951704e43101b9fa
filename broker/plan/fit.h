// Puts items into bins of one size, the longest first: bin packing by best fit
// and by first fit decreasing (Johnson, "Near-Optimal Bin Packing Algorithms",
// 1973).
#ifndef BROKER_PLAN_FIT_H_
#define BROKER_PLAN_FIT_H_

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

struct Fitted {
  std::vector<uint32_t> bins;  // of each item
  uint32_t count = 0;          // of bins
};

// sizes: of fewer than 2^32 items, descending, from 1 to room. A bin has at
// most items_max of them (1 or more). How many bins there are, and of which
// sizes, depends on the sizes alone. O(items * log64(room) + room).
Fitted BestFit(std::span<const uint32_t> sizes, uint32_t room,
               uint32_t items_max);
// The same into the first bin that has room. O(items * log(items)).
Fitted FirstFit(std::span<const uint32_t> sizes, uint32_t room,
                uint32_t items_max);

}  // namespace penstock
#endif  // BROKER_PLAN_FIT_H_
