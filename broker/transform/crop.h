// Chooses the part of an image that an op uses. Pure functions.
#ifndef BROKER_TRANSFORM_CROP_H_
#define BROKER_TRANSFORM_CROP_H_

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "broker/transform/augmentation.h"
#include "broker/transform/picture.h"
#include "common/status.h"

namespace penstock {

// The largest centred rectangle of the target's aspect ratio, with its sides
// multiplied by fraction.
struct CenterCrop {
  double fraction = 1.0;
  bool operator==(const CenterCrop&) const = default;

  static const Declaration<CenterCrop>& Declared();
};

// Ranges of area and aspect ratio (width / height), drawn like torchvision's
// RandomResizedCrop.
struct RandomResizedCrop {
  Range scale = {0.08, 1.0};
  Range ratio = {0.75, 4.0 / 3.0};
  bool operator==(const RandomResizedCrop&) const = default;

  static const Declaration<RandomResizedCrop>& Declared();
};

// What CropSpec's kinds take from beside the picture.
struct Padding {
  PadMode mode = PadMode::kConstant;
  Fill fill = {0};
  int64_t mask_fill = 0;
  bool operator==(const Padding&) const = default;
};

// The middle pixels, as many as the target has: torchvision's CenterCrop, after
// its Resize.
struct CenterPixels : Padding {
  int64_t shorter = 0;  // the shorter side after a resize; 0: no resize
  bool operator==(const CenterPixels&) const = default;

  static const Declaration<CenterPixels>& Declared();
};

// As many pixels at a random place: torchvision's RandomCrop, of what is padded
// first, and where it is smaller than the target. low to high: as above.
struct RandomPixels : Padding {
  std::array<int64_t, 2> shorter = {0, 0};
  std::array<int64_t, 4> padding = {0, 0, 0, 0};  // left, top, right, bottom
  bool operator==(const RandomPixels&) const = default;

  static const Declaration<RandomPixels>& Declared();
};

// A part of the picture.
struct PartAt {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 1;
  int64_t width = 1;
  bool operator==(const PartAt&) const = default;

  static const Declaration<PartAt>& Declared();
};

// All of it, as large as fits into the target, in its middle: Pillow's
// ImageOps.pad.
struct FitCrop : Padding {
  bool operator==(const FitCrop&) const = default;

  static const Declaration<FitCrop>& Declared();
};

using CropSpec = std::variant<CenterCrop, RandomResizedCrop, CenterPixels,
                              RandomPixels, PartAt, FitCrop>;

// In whole pixels; non-empty and inside the image.
struct CropBox {
  int64_t left = 0;
  int64_t top = 0;
  int64_t width = 0;
  int64_t height = 0;
  bool operator==(const CropBox&) const = default;
};

// The box in `picture` that spec chooses and that will become target. Both
// sizes are at least 1 x 1.
//
// Absent: the whole image.
// CenterCrop: the largest rectangle of target's aspect ratio, both sides times
//   fraction, rounded half to even and at least 1; left and top are half of
//   the remainder, rounded down. No random number.
// RandomResizedCrop: torchvision.transforms.RandomResizedCrop.get_params,
//   including its rounding (half to even). Try t of 0..9 uses
//     draw 4t     the area: uniform in scale, times the image's area
//     draw 4t + 1 the aspect ratio: log-uniform in ratio
//     draw 4t + 2 top  = floor(draw * (picture.height - height + 1))
//     draw 4t + 3 left = floor(draw * (picture.width - width + 1))
//   and is accepted if width and height fit into the image. If none is:
//   the largest centred rectangle whose aspect ratio lies in ratio.
CropBox ChooseCrop(const std::optional<CropSpec>& spec,
                   const ImageSize& picture, const ImageSize& target,
                   const AugmentationDraws& draws);

// The box becomes a picture of size `scaled`; the result is the part of it, of
// the target's size, whose corner is left, top. It may reach beyond.
struct CropView {
  CropBox box;
  ImageSize scaled;
  int64_t left = 0;
  int64_t top = 0;

  bool IsInside(const ImageSize& target) const {
    return left >= 0 && top >= 0 && left + target.width <= scaled.width &&
           top + target.height <= scaled.height;
  }
};

// What spec makes of a picture.
//
// CenterPixels: scaled to torchvision's Resize(shorter); left and top are half
//   of the difference, rounded to even if positive, else down.
// RandomPixels: draw 0: shorter, uniform; draws 1 and 2: top and left, uniform
//   in the padded picture. One smaller than the target is padded on both sides
//   by the difference.
// FitCrop: the longer side in proportion fits; the other is rounded.
// Others: ChooseCrop's box, scaled to target.
// DataLoss: PartAt is outside.
StatusOr<CropView> ChooseView(const std::optional<CropSpec>& spec,
                              const ImageSize& picture, const ImageSize& target,
                              const AugmentationDraws& draws);
Padding PaddingOf(const std::optional<CropSpec>& spec);
// torchvision's Resize of one number.
ImageSize WithShorterSide(const ImageSize& picture, int64_t shorter);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CROP_H_
