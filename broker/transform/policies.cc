#include "broker/transform/policies.h"

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

// In the order of torchvision's spaces.
enum class Augmentation {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
};

// The greatest magnitudes.
struct Space {
  float shear;
  float rotate;
  float factor;  // of brightness, color, contrast, sharpness
  // Posterize keeps bits_most bits, and bits_range fewer at its strongest.
  float bits_most;
  float bits_range;
  float pixels;      // of the translation, if size_part is 0
  double size_part;  // of it, of the width or height
};
constexpr Space kRandSpace = {.shear = 0.3f,
                              .rotate = 30,
                              .factor = 0.9f,
                              .bits_most = 8,
                              .bits_range = 4,
                              .pixels = 0,
                              .size_part = 150.0 / 331.0};
constexpr Space kWideSpace = {.shear = 0.99f,
                              .rotate = 135,
                              .factor = 0.99f,
                              .bits_most = 8,
                              .bits_range = 6,
                              .pixels = 32,
                              .size_part = 0};
constexpr Space kMixSpace = {.shear = 0.3f,
                             .rotate = 30,
                             .factor = 0.9f,
                             .bits_most = 4,
                             .bits_range = 4,
                             .pixels = 0,
                             .size_part = 1.0 / 3.0};

constexpr int64_t kAugmentations = 14;
// AugMix has no identity, and its partial space no colours.
constexpr Augmentation kMixAugmentations[] = {
    Augmentation::kShearX,     Augmentation::kShearY,
    Augmentation::kTranslateX, Augmentation::kTranslateY,
    Augmentation::kRotate,     Augmentation::kPosterize,
    Augmentation::kSolarize,   Augmentation::kAutoContrast,
    Augmentation::kEqualize,   Augmentation::kBrightness,
    Augmentation::kColor,      Augmentation::kContrast,
    Augmentation::kSharpness};
constexpr int64_t kPartialMixAugmentations = 9;

constexpr int64_t kBinsMax = 1000;
constexpr int64_t kOperationsMax = 64;
constexpr int64_t kMixWidthMax = 16;
constexpr int64_t kMixDepthMax = 16;
constexpr int64_t kSeverityMax = 10;

// How a policy's operations sample.
struct Sampling {
  Interpolation interpolation;
  std::vector<std::byte> fill;
};

// torch.linspace(from, to, bins)[bin]: from both ends, a step in single
// precision, rounded once.
double Linear(float from, float to, int64_t bins, int64_t bin) {
  if (bins == 1) return from;
  const double step = (to - from) / static_cast<float>(bins - 1);
  return static_cast<float>(
      bin < bins / 2 ? from + step * static_cast<double>(bin)
                     : to - step * static_cast<double>(bins - 1 - bin));
}

// Applies an operation at a bin of its magnitudes; negative: of the other sign.
void Augment(Augmentation what, const Space& space, int64_t bins, int64_t bin,
             bool negative, const Sampling& sampling, Canvas* canvas) {
  const auto [height, width] = canvas->size();
  const double sign = negative ? -1 : 1;
  const auto signed_up_to = [&](float most) {
    return sign * Linear(0, most, bins, bin);
  };
  const auto warp = [&](const Projection& projection) {
    Warp(projection, sampling.interpolation, sampling.fill, canvas);
  };
  const std::array<double, 2> centre = {static_cast<double>(width) * 0.5,
                                        static_cast<double>(height) * 0.5};
  const auto shear = [&] {
    return std::atan(signed_up_to(space.shear)) * (180 / std::numbers::pi);
  };
  const auto translation = [&](int64_t side) {
    const double most = space.size_part == 0
                            ? space.pixels
                            : space.size_part * static_cast<double>(side);
    return std::trunc(signed_up_to(static_cast<float>(most)));
  };
  switch (what) {
    case Augmentation::kIdentity:
      return;
    case Augmentation::kShearX:
      return warp(AffineProjection({.shear_x = shear()}, {0, 0}));
    case Augmentation::kShearY:
      return warp(AffineProjection({.shear_y = shear()}, {0, 0}));
    case Augmentation::kTranslateX:
      return warp(AffineProjection({.right = translation(width)}, centre));
    case Augmentation::kTranslateY:
      return warp(AffineProjection({.down = translation(height)}, centre));
    case Augmentation::kRotate:
      return warp(RotationProjection(signed_up_to(space.rotate), centre));
    case Augmentation::kBrightness:
      return canvas->Brightness(1 + signed_up_to(space.factor));
    case Augmentation::kColor:
      return canvas->Saturation(1 + signed_up_to(space.factor));
    case Augmentation::kContrast:
      return canvas->Contrast(1 + signed_up_to(space.factor));
    case Augmentation::kSharpness:
      return canvas->Sharpness(1 + signed_up_to(space.factor));
    case Augmentation::kPosterize: {
      const float fewer =
          bins == 1 ? 0
                    : static_cast<float>(bin) /
                          (static_cast<float>(bins - 1) / space.bits_range);
      return canvas->Posterize(
          static_cast<int64_t>(std::nearbyint(space.bits_most - fewer)));
    }
    case Augmentation::kSolarize:
      return canvas->Solarize(255 * Linear(1, 0, bins, bin));
    case Augmentation::kAutoContrast:
      return canvas->AutoContrast();
    case Augmentation::kEqualize:
      return canvas->Equalize();
  }
}

// ---- aug_mix

void Mix(const AugMixOp& op, const Sampling& sampling,
         const AugmentationDraws& draws, Canvas& canvas) {
  constexpr uint32_t kFirstChain = 4096;
  constexpr uint32_t kChainDraws = 64;
  const double of_picture = GammaVariate(op.alpha, draws, 0);
  const double of_mixture = GammaVariate(op.alpha, draws, 1);
  const double picture_weight = of_picture / (of_picture + of_mixture);
  std::array<double, kMixWidthMax> weights;
  double sum = 0;
  for (int64_t i = 0; i < op.width; ++i) {
    weights[i] = GammaVariate(op.alpha, draws, static_cast<uint32_t>(2 + i));
    sum += weights[i];
  }
  const uint64_t bytes = canvas.bytes();
  std::vector<float>& mixture = canvas.sums();
  if (mixture.size() < bytes) mixture.resize(bytes);
  const auto add = [&](double weight, bool first) {
    const auto* const pixels =
        reinterpret_cast<const uint8_t*>(canvas.Pixels());
    const auto factor = static_cast<float>(weight);
    for (uint64_t i = 0; i < bytes; ++i) {
      const float value = factor * static_cast<float>(pixels[i]);
      mixture[i] = first ? value : mixture[i] + value;
    }
  };
  canvas.Keep();
  add(picture_weight, true);
  for (int64_t i = 0; i < op.width; ++i) {
    const uint32_t chain = kFirstChain + static_cast<uint32_t>(i) * kChainDraws;
    const int64_t depth = op.depth > 0 ? op.depth : 1 + draws.Choice(chain, 3);
    canvas.Restore();
    for (int64_t k = 0; k < depth; ++k) {
      const uint32_t draw = chain + 1 + 3 * static_cast<uint32_t>(k);
      const int64_t which = draws.Choice(
          draw, op.all_operations
                    ? static_cast<int64_t>(std::size(kMixAugmentations))
                    : kPartialMixAugmentations);
      Augment(kMixAugmentations[which], kMixSpace, kSeverityMax,
              draws.Choice(draw + 1, op.severity),
              draws.Uniform(draw + 2) < 0.5, sampling, &canvas);
    }
    add((1 - picture_weight) * weights[i] / sum, false);
  }
  auto* const out = reinterpret_cast<uint8_t*>(canvas.Next());
  for (uint64_t i = 0; i < bytes; ++i) {
    out[i] =
        static_cast<uint8_t>(static_cast<int>(std::min(mixture[i], 255.0f)));
  }
  canvas.TakeNext();
}

Status CheckMagnitude(const YamlValue& value, RandAugmentOp* op) {
  if (op->magnitude < op->bins) return OkStatus();
  return value.Optional("magnitude")
      .Error(Format("{} of {} bins, which begin with 0: wanted at most {}",
                    op->magnitude, op->bins, op->bins - 1));
}

}  // namespace

const Declaration<RandAugmentOp>& RandAugmentOp::Declared() {
  static const auto declared = WithFill(
      PictureOp<RandAugmentOp>("rand_augment",
                               "Applies random operations of one magnitude: "
                               "torchvision's RandAugment.")
          .Example("{operations: 2, magnitude: 9}")
          .Optional("operations", &RandAugmentOp::operations,
                    WholeNumber<int64_t>(0, kOperationsMax),
                    "how many, one after another")
          .Optional("magnitude", &RandAugmentOp::magnitude,
                    WholeNumber<int64_t>(0, kBinsMax - 1),
                    "their strength, below bins")
          .Optional("bins", &RandAugmentOp::bins,
                    WholeNumber<int64_t>(1, kBinsMax),
                    "how many strengths there are")
          .Optional("interpolation", &RandAugmentOp::interpolation,
                    WarpInterpolationType(), "of operations that move pixels")
          .Check(CheckMagnitude));
  return declared;
}

PictureStep RandAugmentOp::Step(std::vector<std::byte> outside) const {
  return [operations = operations, bins = bins, bin = magnitude,
          sampling = Sampling{interpolation, std::move(outside)}](
             const AugmentationDraws& draws, Canvas& canvas) {
    for (int64_t i = 0; i < operations; ++i) {
      const auto draw = static_cast<uint32_t>(2 * i);
      Augment(static_cast<Augmentation>(draws.Choice(draw, kAugmentations)),
              kRandSpace, bins, bin, draws.Uniform(draw + 1) < 0.5, sampling,
              &canvas);
    }
  };
}

const Declaration<TrivialAugmentOp>& TrivialAugmentOp::Declared() {
  static const auto declared = WithFill(
      PictureOp<TrivialAugmentOp>(
          "trivial_augment",
          "Applies one random operation of random magnitude: torchvision's "
          "TrivialAugmentWide.")
          .Example("{}")
          .Optional("bins", &TrivialAugmentOp::bins,
                    WholeNumber<int64_t>(1, kBinsMax),
                    "how many strengths there are")
          .Optional("interpolation", &TrivialAugmentOp::interpolation,
                    WarpInterpolationType(), "of operations that move pixels"));
  return declared;
}

PictureStep TrivialAugmentOp::Step(std::vector<std::byte> outside) const {
  return [bins = bins, sampling = Sampling{interpolation, std::move(outside)}](
             const AugmentationDraws& draws, Canvas& canvas) {
    Augment(static_cast<Augmentation>(draws.Choice(0, kAugmentations)),
            kWideSpace, bins, draws.Choice(1, bins), draws.Uniform(2) < 0.5,
            sampling, &canvas);
  };
}

const Declaration<AugMixOp>& AugMixOp::Declared() {
  static const auto declared =
      PictureOp<AugMixOp>("aug_mix",
                          "Mixes a picture with chains of random operations "
                          "on it: torchvision's AugMix.")
          .Example("{severity: 3, width: 3}")
          .Optional("severity", &AugMixOp::severity,
                    WholeNumber<int64_t>(1, kSeverityMax),
                    "the greatest strength of an operation")
          .Optional("width", &AugMixOp::width,
                    WholeNumber<int64_t>(1, kMixWidthMax), "chains")
          .Optional("depth", &AugMixOp::depth,
                    WholeNumber<int64_t>(0, kMixDepthMax),
                    "operations of a chain; 0: 1 to 3, at random")
          .Optional("alpha", &AugMixOp::alpha, Number(0.01, 100),
                    "of the Dirichlet and beta distributions of the weights")
          .Optional("all_operations", &AugMixOp::all_operations, Bool(),
                    "also brightness, color, contrast and sharpness")
          .Optional("interpolation", &AugMixOp::interpolation,
                    WarpInterpolationType(), "of operations that move pixels")
          .Optional("fill", &AugMixOp::fill, FillType(), kFillText);
  return declared;
}

PictureStep AugMixOp::Step(std::vector<std::byte> outside) const {
  return [op = *this, sampling = Sampling{interpolation, std::move(outside)}](
             const AugmentationDraws& draws, Canvas& canvas) {
    Mix(op, sampling, draws, canvas);
  };
}

}  // namespace penstock
