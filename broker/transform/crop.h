// Which part of a picture an op looks at. Pure functions.
#ifndef BROKER_TRANSFORM_CROP_H_
#define BROKER_TRANSFORM_CROP_H_

#include <cstdint>

#include "broker/transform/augmentation.h"
#include "common/dataset_spec.h"

namespace penstock {

// Whole pixels; inside its picture and not empty.
struct CropBox {
  int64_t left = 0;
  int64_t top = 0;
  int64_t width = 0;
  int64_t height = 0;
  bool operator==(const CropBox&) const = default;
};

// The box that spec chooses in picture, to become target afterwards. Both sizes
// are at least 1 x 1.
//
// kNone: the whole picture.
// kCenter: the largest rectangle of target's aspect, both sides times fraction,
//   rounded to the nearest even on a tie and at least 1; left and top are half
//   of what remains, rounded down. No random number.
// kRandomResized: torchvision.transforms.RandomResizedCrop.get_params, its
//   rounding included (half to even). Try t of 0..9 uses
//     draw 4t     the area: uniform in scale, times the picture's area
//     draw 4t + 1 the aspect ratio: log-uniform in ratio
//     draw 4t + 2 top  = floor(draw * (picture.height - height + 1))
//     draw 4t + 3 left = floor(draw * (picture.width - width + 1))
//   and is taken when width and height fit into the picture. When none does:
//   the largest centred rectangle whose aspect lies in ratio.
CropBox ChooseCrop(const CropSpec& spec, const ImageSize& picture,
                   const ImageSize& target, const AugmentationDraws& draws);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CROP_H_
