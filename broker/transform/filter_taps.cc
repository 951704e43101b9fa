#include "broker/transform/filter_taps.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock {
namespace {

double Sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

// How far it reaches to each side.
double Support(Interpolation filter) {
  switch (filter) {
    case Interpolation::kBicubic:
      return 2;
    case Interpolation::kLanczos:
      return 3;
    default:
      return 1;
  }
}

double Weight(Interpolation filter, double x) {
  if (filter == Interpolation::kLanczos) {
    return x >= -3 && x < 3 ? Sinc(x) * Sinc(x / 3) : 0;
  }
  x = std::abs(x);
  if (filter == Interpolation::kBicubic) {
    constexpr double kA = -0.5;
    if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * kA : 0;
  }
  return std::max(0.0, 1.0 - x);
}

}  // namespace

void FilterTaps::Compute(double box_start, double box_length, int64_t target,
                         Interpolation filter, int64_t first_wanted,
                         int64_t wanted) {
  // Relative to the first pixel of the box: the weights do not depend on its
  // position.
  const auto first_pixel = static_cast<int64_t>(std::floor(box_start));
  const auto pixels =
      static_cast<int64_t>(std::ceil(box_start + box_length)) - first_pixel;
  const double start = box_start - static_cast<double>(first_pixel);
  const double scale = box_length / static_cast<double>(target);
  const double widening = std::max(scale, 1.0);
  const double support = Support(filter) * widening;
  taps_max = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  first.resize(wanted);
  count.resize(wanted);
  weights.resize(wanted * taps_max);
  for (int64_t i = 0; i < wanted; ++i) {
    const double centre =
        start + (static_cast<double>(first_wanted + i) + 0.5) * scale;
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
      of_pixel[t] = Weight(filter, distance * (1.0 / widening));
      total += of_pixel[t];
    }
    for (int64_t t = 0; t < end - begin; ++t) of_pixel[t] /= total;
  }
}

}  // namespace penstock
