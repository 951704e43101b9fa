#include "broker/plan/fit.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>

namespace penstock {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// A set of numbers below a bound, as bits; a bit of each level says whether a
// word of the level below has any.
class SetOfRooms {
 public:
  explicit SetOfRooms(uint32_t bound) {
    for (size_t words = bound; words > 1 || levels_.empty();) {
      words = (words + 63) / 64;
      levels_.emplace_back(words, 0);
    }
  }
  void Add(uint32_t number) {
    for (std::vector<uint64_t>& level : levels_) {
      level[number / 64] |= uint64_t{1} << number % 64;
      number /= 64;
    }
  }
  void Remove(uint32_t number) {
    for (std::vector<uint64_t>& level : levels_) {
      uint64_t& word = level[number / 64];
      word &= ~(uint64_t{1} << number % 64);
      if (word != 0) return;
      number /= 64;
    }
  }
  // The smallest that is at least this; kNone: there is none.
  uint32_t From(uint32_t number) const {
    for (size_t level = 0; level < levels_.size(); ++level) {
      const size_t word = number / 64;
      if (word >= levels_[level].size()) return kNone;
      const uint64_t bits = levels_[level][word] >> number % 64;
      if (bits == 0) {
        // Those of the next words.
        number = number / 64 + 1;
        continue;
      }
      number += static_cast<uint32_t>(std::countr_zero(bits));
      while (level > 0) {
        number = number * 64 + static_cast<uint32_t>(
                                   std::countr_zero(levels_[--level][number]));
      }
      return number;
    }
    return kNone;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace

Fitted BestFit(std::span<const uint32_t> sizes, uint32_t room,
               uint32_t items_max) {
  Fitted fitted;
  fitted.bins.reserve(sizes.size());
  SetOfRooms rooms(room + 1);
  // By room left: the bin that got so much last, and by bin the one before it.
  std::vector<uint32_t> last(room + 1, kNone);
  std::vector<uint32_t> before;
  std::vector<uint32_t> items;
  for (const uint32_t size : sizes) {
    assert(size > 0 && size <= room);
    uint32_t left = rooms.From(size);
    uint32_t bin = fitted.count;
    if (left == kNone) {
      left = room;
      ++fitted.count;
      before.push_back(kNone);
      items.push_back(0);
    } else {
      bin = last[left];
      last[left] = before[bin];
      if (last[left] == kNone) rooms.Remove(left);
    }
    fitted.bins.push_back(bin);
    left -= size;
    if (++items[bin] == items_max || left == 0) continue;
    before[bin] = last[left];
    if (last[left] == kNone) rooms.Add(left);
    last[left] = bin;
  }
  return fitted;
}

Fitted FirstFit(std::span<const uint32_t> sizes, uint32_t room,
                uint32_t items_max) {
  Fitted fitted;
  fitted.bins.reserve(sizes.size());
  // The room of each bin, those without items last; above them the most of two.
  const size_t leaves = std::bit_ceil(std::max<size_t>(sizes.size(), 1));
  std::vector<uint32_t> most(2 * leaves, room);
  std::vector<uint32_t> items;
  for (const uint32_t size : sizes) {
    assert(size > 0 && size <= room);
    size_t node = 1;
    while (node < leaves) {
      node *= 2;
      if (most[node] < size) ++node;
    }
    const auto bin = static_cast<uint32_t>(node - leaves);
    if (bin == fitted.count) {
      ++fitted.count;
      items.push_back(0);
    }
    fitted.bins.push_back(bin);
    most[node] = ++items[bin] == items_max ? 0 : most[node] - size;
    while (node > 1) {
      node /= 2;
      const uint32_t now = std::max(most[2 * node], most[2 * node + 1]);
      if (most[node] == now) break;
      most[node] = now;
    }
  }
  return fitted;
}

}  // namespace penstock
