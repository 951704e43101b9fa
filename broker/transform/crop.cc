#include "broker/transform/crop.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

constexpr uint32_t kTries = 10;

// Half to even, like Python's round(); the process never changes the rounding
// mode.
int64_t RoundToEven(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

CropBox Centred(const ImageSize& picture, int64_t width, int64_t height) {
  width = std::clamp<int64_t>(width, 1, picture.width);
  height = std::clamp<int64_t>(height, 1, picture.height);
  return {.left = (picture.width - width) / 2,
          .top = (picture.height - height) / 2,
          .width = width,
          .height = height};
}

CropBox Boxed(const CenterCrop& spec, const ImageSize& picture,
              const ImageSize& target, const AugmentationDraws&) {
  double width = static_cast<double>(picture.width);
  double height = static_cast<double>(picture.height);
  const double aspect =
      static_cast<double>(target.width) / static_cast<double>(target.height);
  if (width > height * aspect) {
    width = height * aspect;
  } else {
    height = width / aspect;
  }
  return Centred(picture, RoundToEven(width * spec.fraction),
                 RoundToEven(height * spec.fraction));
}

CropBox Boxed(const RandomResizedCrop& spec, const ImageSize& picture,
              const ImageSize&, const AugmentationDraws& draws) {
  const double area =
      static_cast<double>(picture.height) * static_cast<double>(picture.width);
  const double log_ratio[2] = {std::log(spec.ratio[0]),
                               std::log(spec.ratio[1])};
  for (uint32_t t = 0; t < kTries; ++t) {
    const double target_area =
        area * (spec.scale[0] +
                draws.Uniform(4 * t) * (spec.scale[1] - spec.scale[0]));
    const double ratio =
        std::exp(log_ratio[0] +
                 draws.Uniform(4 * t + 1) * (log_ratio[1] - log_ratio[0]));
    const int64_t width = RoundToEven(std::sqrt(target_area * ratio));
    const int64_t height = RoundToEven(std::sqrt(target_area / ratio));
    if (width < 1 || width > picture.width || height < 1 ||
        height > picture.height) {
      continue;
    }
    const double tops = static_cast<double>(picture.height - height + 1);
    const double lefts = static_cast<double>(picture.width - width + 1);
    return {.left = static_cast<int64_t>(draws.Uniform(4 * t + 3) * lefts),
            .top = static_cast<int64_t>(draws.Uniform(4 * t + 2) * tops),
            .width = width,
            .height = height};
  }
  const double in_ratio =
      static_cast<double>(picture.width) / static_cast<double>(picture.height);
  if (in_ratio < spec.ratio[0]) {
    return Centred(
        picture, picture.width,
        RoundToEven(static_cast<double>(picture.width) / spec.ratio[0]));
  }
  if (in_ratio > spec.ratio[1]) {
    return Centred(
        picture,
        RoundToEven(static_cast<double>(picture.height) * spec.ratio[1]),
        picture.height);
  }
  return Centred(picture, picture.width, picture.height);
}

}  // namespace

CropBox ChooseCrop(const std::optional<CropSpec>& spec,
                   const ImageSize& picture, const ImageSize& target,
                   const AugmentationDraws& draws) {
  if (!spec) return Centred(picture, picture.width, picture.height);
  return std::visit(
      [&](const auto& crop) { return Boxed(crop, picture, target, draws); },
      *spec);
}

}  // namespace penstock
