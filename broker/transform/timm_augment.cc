#include "broker/transform/timm_augment.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

// In timm's order.
enum class Operation {
  kAutoContrast,
  kEqualize,
  kInvert,
  kRotate,
  kPosterize,
  kSolarize,
  kSolarizeAdd,
  kColor,
  kContrast,
  kBrightness,
  kSharpness,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
};
constexpr int64_t kOperations = 15;

constexpr int64_t kOperationsMax = 64;
// At this magnitude an operation is as strong as its paper had it.
constexpr double kMagnitudeScale = 10;
constexpr double kMagnitudeMax = 100;

// At a magnitude of kMagnitudeScale.
constexpr double kDegrees = 30;
constexpr double kShear = 0.3;
constexpr double kTranslation = 0.45;  // of the width or height
constexpr double kFactorRange = 1.8;   // from kFactorMin up
constexpr double kFactorChange = 0.9;  // from 1 up or down, if increasing
constexpr double kBits = 4;
constexpr double kThreshold = 256;
constexpr double kAddition = 110;

constexpr double kFactorMin = 0.1;
constexpr int64_t kAdditionMax = 128;

int64_t Truncated(double value) { return static_cast<int64_t>(value); }

// One operation, as the draws have chosen it.
struct Chosen {
  Operation what;
  double level;  // magnitude / kMagnitudeScale
  bool increasing;
  bool negative;
  Interpolation interpolation;

  double Signed(double value) const { return negative ? -value : value; }
  // The factor of the enhancements; 1 changes nothing.
  double Factor() const {
    if (!increasing) return level * kFactorRange + kFactorMin;
    return std::max(kFactorMin, 1 + Signed(level * kFactorChange));
  }
  int64_t BitsToKeep() const {
    const int64_t bits = Truncated(level * kBits);
    // None is black, as in Pillow up to 12; Pillow 13 refuses it, and timm
    // fails. More than all is all.
    return std::clamp<int64_t>(increasing ? Truncated(kBits) - bits : bits, 0,
                               8);
  }
  double Threshold() const {
    const double threshold =
        std::min(kThreshold, std::trunc(level * kThreshold));
    return increasing ? kThreshold - threshold : threshold;
  }
  int64_t Addition() const {
    return std::min(kAdditionMax, Truncated(level * kAddition));
  }
};

void Apply(const Chosen& chosen, const std::vector<std::byte>& fill,
           Canvas* canvas) {
  const auto width = static_cast<double>(canvas->size().width);
  const auto height = static_cast<double>(canvas->size().height);
  const auto warp = [&](const Projection& projection) {
    Warp(projection, chosen.interpolation, fill, canvas);
  };
  const double shear = chosen.Signed(chosen.level * kShear);
  const double translation = chosen.Signed(chosen.level * kTranslation);
  switch (chosen.what) {
    case Operation::kAutoContrast:
      return canvas->AutoContrast();
    case Operation::kEqualize:
      return canvas->Equalize();
    case Operation::kInvert:
      return canvas->Invert();
    case Operation::kRotate:
      return warp(RotationProjection(chosen.Signed(chosen.level * kDegrees),
                                     {width * 0.5, height * 0.5}));
    case Operation::kPosterize:
      return canvas->Posterize(chosen.BitsToKeep());
    case Operation::kSolarize:
      return canvas->Solarize(chosen.Threshold());
    case Operation::kSolarizeAdd:
      return canvas->SolarizeAdd(chosen.Addition());
    case Operation::kColor:
      return canvas->Saturation(chosen.Factor());
    case Operation::kContrast:
      return canvas->Contrast(chosen.Factor());
    case Operation::kBrightness:
      return canvas->Brightness(chosen.Factor());
    case Operation::kSharpness:
      return canvas->Sharpness(chosen.Factor());
    // Whole pixels or not: unlike torchvision's, and not around the centre.
    case Operation::kShearX:
      return warp({.a = {1, shear, 0, 0, 1, 0, 0, 0}});
    case Operation::kShearY:
      return warp({.a = {1, 0, 0, shear, 1, 0, 0, 0}});
    case Operation::kTranslateX:
      return warp({.a = {1, 0, translation * width, 0, 1, 0, 0, 0}});
    case Operation::kTranslateY:
      return warp({.a = {1, 0, 0, 0, 1, translation * height, 0, 0}});
  }
}

}  // namespace

const Declaration<TimmRandAugmentOp>& TimmRandAugmentOp::Declared() {
  static const auto declared = WithFill(
      PictureOp<TimmRandAugmentOp>(
          "timm_rand_augment",
          "Applies random operations of timm's RandAugment, whose operations "
          "and strengths are not torchvision's: operations is n of its --aa "
          "rand-..., magnitude m, magnitude_std mstd, magnitude_max mmax, "
          "increasing inc, probability p.")
          .Example("{magnitude: 9, magnitude_std: 0.5, increasing: true}")
          .Optional("operations", &TimmRandAugmentOp::operations,
                    WholeNumber<int64_t>(0, kOperationsMax),
                    "how many are chosen, one after another")
          .Optional("magnitude", &TimmRandAugmentOp::magnitude,
                    Number(0, kMagnitudeMax), "the mean of their strengths")
          .Optional("magnitude_std", &TimmRandAugmentOp::magnitude_std,
                    Number(0, kMagnitudeMax),
                    "the standard deviation of their strengths, which are "
                    "normal")
          .Optional("magnitude_max", &TimmRandAugmentOp::magnitude_max,
                    Number(1, kMagnitudeMax),
                    "the greatest strength: stronger is this; weaker than 0 "
                    "is 0")
          .Optional("increasing", &TimmRandAugmentOp::increasing, Bool(),
                    "all change more at a greater strength; if false, "
                    "posterize and solarize less, and color, contrast, "
                    "brightness and sharpness go from 0.1 to 1.9")
          .Optional("probability", &TimmRandAugmentOp::probability,
                    Number(0, 1), "that of applying each")
          .Optional("interpolation", &TimmRandAugmentOp::interpolation,
                    Maybe(WarpInterpolationType()),
                    "of operations that move pixels; by default bilinear or "
                    "bicubic, at random"));
  return declared;
}

PictureStep TimmRandAugmentOp::Step(std::vector<std::byte> outside) const {
  return [op = *this, outside = std::move(outside)](
             const AugmentationDraws& draws, Canvas& canvas) {
    constexpr uint32_t kDraws = 6;
    for (int64_t i = 0; i < op.operations; ++i) {
      const uint32_t draw = kDraws * static_cast<uint32_t>(i);
      if (draws.Uniform(draw + 1) >= op.probability) continue;
      const double drawn =
          op.magnitude + op.magnitude_std * NormalVariate(draws, draw + 2);
      const bool bilinear = draws.Uniform(draw + 5) < 0.5;
      Apply(
          {.what = static_cast<Operation>(draws.Choice(draw, kOperations)),
           .level = std::clamp(drawn, 0.0, op.magnitude_max) / kMagnitudeScale,
           .increasing = op.increasing,
           .negative = draws.Uniform(draw + 4) < 0.5,
           .interpolation = op.interpolation.value_or(
               bilinear ? Interpolation::kBilinear : Interpolation::kBicubic)},
          outside, &canvas);
    }
  };
}

}  // namespace penstock
