// Chooses the part of an image that an op uses. Pure functions.
#ifndef BROKER_TRANSFORM_CROP_H_
#define BROKER_TRANSFORM_CROP_H_

#include <cstdint>

#include "broker/transform/augmentation.h"
#include "common/dataset_spec.h"

namespace penstock {

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
