#include "broker/transform/augmentation.h"

#include <cmath>
#include <numbers>

namespace penstock {

double NormalVariate(const AugmentationDraws& draws, uint32_t draw) {
  return std::sqrt(-2 * std::log(1 - draws.Uniform(draw))) *
         std::cos(2 * std::numbers::pi * draws.Uniform(draw + 1));
}

double GammaVariate(double alpha, const AugmentationDraws& draws, uint32_t g) {
  constexpr uint32_t kAttempts = 21;
  constexpr double kTiny = 1e-300;
  const uint32_t first = 64 * g;
  const double shape = alpha < 1 ? alpha + 1 : alpha;
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  double value = d;
  for (uint32_t t = 0; t < kAttempts; ++t) {
    const double normal = NormalVariate(draws, first + 3 * t);
    const double root = 1 + c * normal;
    if (root <= 0) continue;
    const double v = root * root * root;
    value = d * v;
    const double u = 1 - draws.Uniform(first + 3 * t + 2);
    if (std::log(u) < 0.5 * normal * normal + d - d * v + d * std::log(v)) {
      break;
    }
  }
  if (alpha < 1) {
    value *= std::pow(1 - draws.Uniform(first + 63), 1 / alpha);
  }
  return value + kTiny;
}

}  // namespace penstock
