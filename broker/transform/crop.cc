#include "broker/transform/crop.h"

#include <algorithm>
#include <cmath>

#include "broker/transform/op_declaration.h"

namespace penstock {
namespace {

constexpr uint32_t kTries = 10;
constexpr double kFractionMin = 0.001;
constexpr double kAreaMin = 0.0001;
constexpr double kRatioMax = 100;

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
  const Range log_ratio = {std::log(spec.ratio[0]), std::log(spec.ratio[1])};
  for (uint32_t t = 0; t < kTries; ++t) {
    const double target_area = area * draws.Within(4 * t, spec.scale);
    const double ratio = std::exp(draws.Within(4 * t + 1, log_ratio));
    const int64_t width = RoundToEven(std::sqrt(target_area * ratio));
    const int64_t height = RoundToEven(std::sqrt(target_area / ratio));
    if (width < 1 || width > picture.width || height < 1 ||
        height > picture.height) {
      continue;
    }
    return {.left = draws.Choice(4 * t + 3, picture.width - width + 1),
            .top = draws.Choice(4 * t + 2, picture.height - height + 1),
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

// The whole picture: its views differ.
template <typename Pixels>
CropBox Boxed(const Pixels&, const ImageSize& picture, const ImageSize&,
              const AugmentationDraws&) {
  return Centred(picture, picture.width, picture.height);
}

CropBox Boxed(const PartAt& part, const ImageSize&, const ImageSize&,
              const AugmentationDraws&) {
  return {.left = part.left,
          .top = part.top,
          .width = part.width,
          .height = part.height};
}

// Where the target's side begins in the middle of a picture's.
int64_t Middle(int64_t picture, int64_t target) {
  return picture >= target
             ? RoundToEven(static_cast<double>(picture - target) / 2)
             : -((target - picture) / 2);
}

void Place(const CenterPixels& pixels, const ImageSize& target,
           const AugmentationDraws&, CropView* view) {
  if (pixels.shorter > 0) {
    view->scaled = WithShorterSide(view->scaled, pixels.shorter);
  }
  view->left = Middle(view->scaled.width, target.width);
  view->top = Middle(view->scaled.height, target.height);
}

void Place(const RandomPixels& pixels, const ImageSize& target,
           const AugmentationDraws& draws, CropView* view) {
  const auto [low, high] = pixels.shorter;
  if (high > 0) {
    view->scaled = WithShorterSide(
        view->scaled,
        std::max<int64_t>(low + draws.Choice(0, high - low + 1), 1));
  }
  const auto place = [&](uint32_t draw, int64_t side, int64_t wanted,
                         int64_t before, int64_t after) {
    if (before + side + after < wanted) {
      const int64_t missing = wanted - (before + side + after);
      before += missing;
      after += missing;
    }
    return draws.Choice(draw, before + side + after - wanted + 1) - before;
  };
  const auto& [left, top, right, bottom] = pixels.padding;
  view->top = place(1, view->scaled.height, target.height, top, bottom);
  view->left = place(2, view->scaled.width, target.width, left, right);
}

void Place(const FitCrop&, const ImageSize& target, const AugmentationDraws&,
           CropView* view) {
  const auto width = static_cast<double>(view->scaled.width);
  const auto height = static_cast<double>(view->scaled.height);
  const auto target_width = static_cast<double>(target.width);
  const auto target_height = static_cast<double>(target.height);
  view->scaled = target;
  if (width / height > target_width / target_height) {
    view->scaled.height = std::clamp<int64_t>(
        RoundToEven(height / width * target_width), 1, target.height);
  } else {
    view->scaled.width = std::clamp<int64_t>(
        RoundToEven(width / height * target_height), 1, target.width);
  }
  view->left = -RoundToEven(
      static_cast<double>(target.width - view->scaled.width) * 0.5);
  view->top = -RoundToEven(
      static_cast<double>(target.height - view->scaled.height) * 0.5);
}

// The box is scaled to the target.
template <typename Part>
void Place(const Part&, const ImageSize& target, const AugmentationDraws&,
           CropView* view) {
  view->scaled = target;
}

// The longer side of a narrow picture whose shorter side grows.
constexpr int64_t kScaledSideMax = int64_t{1} << 20;
constexpr char kShorterText[] =
    "the shorter side is resized to it first; 0: no resize";

}  // namespace

const Declaration<CenterPixels>& CenterPixels::Declared() {
  static const auto declared = WithFill(
      Declaration<CenterPixels>("center_pixels",
                                "The middle pixels of it, as many as size: "
                                "torchvision's Resize and CenterCrop.")
          .Example("{shorter: 256}")
          .Optional("shorter", &CenterPixels::shorter,
                    WholeNumber<int64_t>(0, kImageSideMax), kShorterText)
          .Optional("mode", &CenterPixels::mode, PadModeType(), kPadModeText));
  return declared;
}

const Declaration<RandomPixels>& RandomPixels::Declared() {
  static const auto declared = WithFill(
      Declaration<RandomPixels>("random_pixels",
                                "Pixels of it at random, as many as size: "
                                "torchvision's RandomCrop with "
                                "pad_if_needed.")
          .Example("{padding: 4}")
          .Optional("shorter", &RandomPixels::shorter,
                    WholeRange(0, kImageSideMax), kShorterText)
          .Optional("padding", &RandomPixels::padding, FourSides(),
                    "added before")
          .Optional("mode", &RandomPixels::mode, PadModeType(), kPadModeText));
  return declared;
}

const Declaration<PartAt>& PartAt::Declared() {
  static const auto declared =
      Declaration<PartAt>("at", "A part of it, in pixels.")
          .Example("{top: 10, left: 20, height: 100, width: 100}")
          .Required("top", &PartAt::top, WholeNumber<int64_t>(0, kImageSideMax),
                    "its first row")
          .Required("left", &PartAt::left,
                    WholeNumber<int64_t>(0, kImageSideMax), "its first column")
          .Required("height", &PartAt::height,
                    WholeNumber<int64_t>(1, kImageSideMax), "its rows")
          .Required("width", &PartAt::width,
                    WholeNumber<int64_t>(1, kImageSideMax), "its columns");
  return declared;
}

const Declaration<FitCrop>& FitCrop::Declared() {
  static const auto declared = WithFill(
      Declaration<FitCrop>("fit",
                           "All of it, as large as fits into size, in the "
                           "middle of fill.")
          .Example("{fill: 114}"));
  return declared;
}

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

ImageSize WithShorterSide(const ImageSize& picture, int64_t shorter) {
  const auto longer = [shorter](int64_t of_long, int64_t of_short) {
    return static_cast<int64_t>(static_cast<double>(shorter * of_long) /
                                static_cast<double>(of_short));
  };
  return picture.width <= picture.height
             ? ImageSize{.height = longer(picture.height, picture.width),
                         .width = shorter}
             : ImageSize{.height = shorter,
                         .width = longer(picture.width, picture.height)};
}

StatusOr<CropView> ChooseView(const std::optional<CropSpec>& spec,
                              const ImageSize& picture, const ImageSize& target,
                              const AugmentationDraws& draws) {
  CropView view = {.box = ChooseCrop(spec, picture, target, draws),
                   .scaled = picture};
  if (view.box.left + view.box.width > picture.width ||
      view.box.top + view.box.height > picture.height) {
    return DataLossError(
        "`at` takes rows to {} and columns to {} of a picture of {} x {}",
        view.box.top + view.box.height, view.box.left + view.box.width,
        picture.width, picture.height);
  }
  if (!spec) {
    view.scaled = target;
    return view;
  }
  std::visit([&](const auto& crop) { Place(crop, target, draws, &view); },
             *spec);
  if (view.scaled.height > kScaledSideMax ||
      view.scaled.width > kScaledSideMax) {
    return DataLossError(
        "a picture of {} x {} would be resized to {} x {}; a side has at most "
        "{}",
        picture.width, picture.height, view.scaled.width, view.scaled.height,
        kScaledSideMax);
  }
  return view;
}

Padding PaddingOf(const std::optional<CropSpec>& spec) {
  if (!spec) return {};
  return std::visit(
      [](const auto& crop) -> Padding {
        if constexpr (requires { crop.fill; }) {
          return crop;
        } else {
          return {};
        }
      },
      *spec);
}

}  // namespace penstock
