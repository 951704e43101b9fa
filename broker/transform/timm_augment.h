// map: timm_rand_augment. uint8 [h, w] or [h, w, 1 or 3] -> the same. The
// operations, their strengths and distributions are those of the class
// RandAugment of timm 1.0.31 (timm/data/auto_augment.py), whose
// `--aa rand-m9-mstd0.5-inc1` is {magnitude: 9, magnitude_std: 0.5,
// increasing: true}; the pixels are Pillow's (bilinear at most 1 off). Masks
// take part in what moves pixels.
#ifndef BROKER_TRANSFORM_TIMM_AUGMENT_H_
#define BROKER_TRANSFORM_TIMM_AUGMENT_H_

#include <cstdint>
#include <optional>

#include "broker/transform/picture.h"

namespace penstock {

// Draws of operation i: 6i which of timm's 15, in timm's order; 6i + 1 below
// probability applies it; 6i + 2 and 6i + 3 make the normal number
// (augmentation.h) that is multiplied by magnitude_std and added to magnitude;
// 6i + 4 below 0.5 turns the sign of what has one; 6i + 5 below 0.5 makes a
// random interpolation bilinear, else bicubic. The draws of other operations
// stay where they are, whatever this one needs.
struct TimmRandAugmentOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  // In this order n, m, mstd, mmax, inc and p of timm's --aa, with its
  // defaults.
  int64_t operations = 2;
  double magnitude = 10;
  double magnitude_std = 0;
  double magnitude_max = 10;
  bool increasing = false;
  double probability = 0.5;
  std::optional<Interpolation> interpolation;  // absent: at random
  Fill fill = {128};
  int64_t mask_fill = 0;
  bool operator==(const TimmRandAugmentOp&) const = default;

  static const Declaration<TimmRandAugmentOp>& Declared();
  PictureStep Step(std::vector<std::byte> fill) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_TIMM_AUGMENT_H_
