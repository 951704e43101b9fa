#include "broker/transform/nearest.h"

#include <algorithm>
#include <cmath>

namespace penstock {

void FindNearest(int64_t from, int64_t to, std::vector<int64_t>* pixels) {
  pixels->resize(static_cast<size_t>(to));
  const double step = static_cast<double>(from) / static_cast<double>(to);
  // Pillow adds the steps up, which rounds otherwise than a product.
  double place = step * 0.5;
  for (int64_t& pixel : *pixels) {
    pixel = std::min(static_cast<int64_t>(std::floor(place)), from - 1);
    place += step;
  }
}

}  // namespace penstock
