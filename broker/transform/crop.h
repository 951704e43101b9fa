// Chooses the part of an image that an op uses. Pure functions.
#ifndef BROKER_TRANSFORM_CROP_H_
#define BROKER_TRANSFORM_CROP_H_

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "broker/transform/augmentation.h"
#include "broker/transform/picture.h"

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
  std::array<double, 2> scale = {0.08, 1.0};
  std::array<double, 2> ratio = {0.75, 4.0 / 3.0};
  bool operator==(const RandomResizedCrop&) const = default;

  static const Declaration<RandomResizedCrop>& Declared();
};

using CropSpec = std::variant<CenterCrop, RandomResizedCrop>;

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

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CROP_H_
