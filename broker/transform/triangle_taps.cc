#include "broker/transform/triangle_taps.h"

#include <algorithm>
#include <cmath>

namespace penstock {

void TriangleTaps::Compute(double box_start, double box_length,
                           int64_t target) {
  // Relative to the first pixel of the box: the weights do not depend on its
  // position.
  const auto first_pixel = static_cast<int64_t>(std::floor(box_start));
  const auto pixels =
      static_cast<int64_t>(std::ceil(box_start + box_length)) - first_pixel;
  const double start = box_start - static_cast<double>(first_pixel);
  const double scale = box_length / static_cast<double>(target);
  const double widening = std::max(scale, 1.0);
  const double support = widening;  // a triangle reaches 1 to each side
  taps_max = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  first.resize(target);
  count.resize(target);
  weights.resize(target * taps_max);
  for (int64_t i = 0; i < target; ++i) {
    const double centre = start + (static_cast<double>(i) + 0.5) * scale;
    const int64_t begin =
        std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
    const int64_t end =
        std::min(pixels, static_cast<int64_t>(centre + support + 0.5));
    first[i] = first_pixel + begin;
    count[i] = end - begin;
    double* const of_pixel = weights.data() + i * taps_max;
    double total = 0;
    for (int64_t t = 0; t < end - begin; ++t) {
      const double distance = static_cast<double>(begin + t) - centre + 0.5;
      of_pixel[t] = std::max(0.0, 1.0 - std::abs(distance * (1.0 / widening)));
      total += of_pixel[t];
    }
    for (int64_t t = 0; t < end - begin; ++t) of_pixel[t] /= total;
  }
}

}  // namespace penstock
