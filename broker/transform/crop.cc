#include "broker/transform/crop.h"

#include <algorithm>
#include <cmath>

#include "broker/declare/declaration.h"

namespace penstock {
namespace {

constexpr uint32_t kTries = 10;
constexpr double kFractionMin = 0.001;
constexpr double kAreaMin = 0.0001;
constexpr double kRatioMax = 100;

// [low, high] with min <= low <= high <= max.
ValueType<std::array<double, 2>> Interval(double min, double max) {
  const ValueType<double> number = Number(min, max);
  return {"a list [low, high]",
          [number](const YamlValue& value, std::string_view wanted,
                   std::array<double, 2>* out) {
            PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(2, 2, wanted));
            for (size_t i = 0; i < 2; ++i) {
              PENSTOCK_RETURN_IF_ERROR(number.Read(value.Item(i), &(*out)[i]));
            }
            if ((*out)[0] <= (*out)[1]) return OkStatus();
            return value.Error(
                Format("[low, high]: {} is above {}", (*out)[0], (*out)[1]));
          },
          [number](const std::array<double, 2>& interval,
                   nlohmann::ordered_json* out) {
            WriteList(
                2,
                [&](size_t i, auto* each) { number.write(interval[i], each); },
                out);
          }};
}

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

const Declaration<CenterCrop>& CenterCrop::Declared() {
  static const auto declared =
      Declaration<CenterCrop>("center",
                              "The largest centred part of the target's aspect "
                              "ratio, its sides times fraction.")
          .Example("{fraction: 0.875}")
          .Optional("fraction", &CenterCrop::fraction, Number(kFractionMin, 1),
                    "the factor of the sides");
  return declared;
}

const Declaration<RandomResizedCrop>& RandomResizedCrop::Declared() {
  static const auto declared =
      Declaration<RandomResizedCrop>(
          "random_resized",
          "A random part, drawn as by torchvision's RandomResizedCrop.")
          .Example("{scale: [0.08, 1.0], ratio: [0.75, 1.3333]}")
          .Optional("scale", &RandomResizedCrop::scale, Interval(kAreaMin, 1),
                    "the range of its area, as a part of the picture's")
          .Optional("ratio", &RandomResizedCrop::ratio,
                    Interval(1 / kRatioMax, kRatioMax),
                    "the range of its aspect ratio, width / height");
  return declared;
}

CropBox ChooseCrop(const std::optional<CropSpec>& spec,
                   const ImageSize& picture, const ImageSize& target,
                   const AugmentationDraws& draws) {
  if (!spec) return Centred(picture, picture.width, picture.height);
  return std::visit(
      [&](const auto& crop) { return Boxed(crop, picture, target, draws); },
      *spec);
}

}  // namespace penstock
