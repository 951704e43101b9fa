// map: rand_augment, trivial_augment and aug_mix: uint8 [h, w] or [h, w, 1 or
// 3] -> the same. The operations, their magnitudes and distributions are those
// of torchvision.transforms.v2 on Pillow's pictures; the pixels are Pillow's. A
// bilinear operation is at most 1 off, which a threshold after it may make more
// (OPERATIONS.md). Masks take part in what moves pixels.
#ifndef BROKER_TRANSFORM_POLICIES_H_
#define BROKER_TRANSFORM_POLICIES_H_

#include <cstdint>

#include "broker/transform/picture.h"

namespace penstock {

// v2.RandAugment. Draws of operation i: 2i which, 2i + 1 below 0.5 turns the
// sign of its magnitude.
struct RandAugmentOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  int64_t operations = 2;
  int64_t magnitude = 9;
  int64_t bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {0};
  int64_t mask_fill = 0;
  bool operator==(const RandAugmentOp&) const = default;

  static const Declaration<RandAugmentOp>& Declared();
  PictureStep Step(std::vector<std::byte> fill) const;
};

// v2.TrivialAugmentWide. Draw 0: which operation, 1: the bin of its magnitude,
// 2 below 0.5 turns its sign.
struct TrivialAugmentOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  int64_t bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {0};
  int64_t mask_fill = 0;
  bool operator==(const TrivialAugmentOp&) const = default;

  static const Declaration<TrivialAugmentOp>& Declared();
  PictureStep Step(std::vector<std::byte> fill) const;
};

// v2.AugMix. Of its weights, number g is gamma variate g of alpha
// (augmentation.h), divided by their sum: g = 0 and 1 are those of the picture
// and of the mixture, 2 + i that of chain i in it. Chain i begins at draw 4096
// + 64i: its depth, and three draws as in TrivialAugmentOp for each of its
// operations.
struct AugMixOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  int64_t severity = 3;
  int64_t width = 3;
  int64_t depth = 0;  // 0: 1 to 3, at random
  double alpha = 1;
  bool all_operations = true;
  Interpolation interpolation = Interpolation::kBilinear;
  Fill fill = {0};
  bool operator==(const AugMixOp&) const = default;

  static const Declaration<AugMixOp>& Declared();
  PictureStep Step(std::vector<std::byte> fill) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_POLICIES_H_
