// map: flip, rotate, affine and perspective. A picture keeps its size: uint8
// [h, w] or [h, w, 1 or 3] -> the same (flip: of any dtype and channels); masks
// of any dtype are moved alike, each pixel taking the nearest. Draws have the
// distributions of torchvision.transforms.v2; draw 0 below `probability`
// changes the picture.
#ifndef BROKER_TRANSFORM_AFFINE_H_
#define BROKER_TRANSFORM_AFFINE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/transform/boxes.h"
#include "broker/transform/picture.h"
#include "broker/transform/warp.h"

namespace penstock {

// Mirrors left to right, or top to bottom.
struct FlipOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  // Probabilities.
  double horizontal = 0.5;
  double vertical = 0;
  bool operator==(const FlipOp&) const = default;

  static const Declaration<FlipOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

// v2.RandomRotation. Draw 1: the angle.
struct RotateOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  Range degrees = {0, 0};  // counterclockwise
  std::optional<std::array<double, 2>> center;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {0};
  int64_t mask_fill = 0;
  double probability = 1;
  bool operator==(const RotateOp&) const = default;

  static const Declaration<RotateOp>& Declared();
  PictureStep Step(std::vector<std::byte> fill) const;
  // What the draws make of a picture of this size; nullopt: no change.
  std::optional<Projection> ProjectionOf(const AugmentationDraws& draws,
                                         const ImageSize& size) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

// v2.RandomAffine. Draws 1 to 6: the angle, the translations to the right and
// down (rounded to whole pixels, half to even), the scale, the shears along x
// and y.
struct AffineOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  Range degrees = {0, 0};               // clockwise
  std::array<Range, 2> translate = {};  // of the width, of the height
  Range scale = {1, 1};
  std::array<Range, 2> shear = {};              // degrees
  std::optional<std::array<double, 2>> center;  // x, y; absent: the picture's
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = {0};
  int64_t mask_fill = 0;
  double probability = 1;
  bool operator==(const AffineOp&) const = default;

  static const Declaration<AffineOp>& Declared();
  PictureStep Step(std::vector<std::byte> fill) const;
  // What the draws make of a picture of this size; nullopt: no change.
  std::optional<Projection> ProjectionOf(const AugmentationDraws& draws,
                                         const ImageSize& size) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

// v2.RandomPerspective. Draws 1 to 8: x and y of the corners, as in
// PerspectiveProjection.
struct PerspectiveOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  double distortion = 0.5;
  std::optional<std::array<double, 8>> corners;  // instead of random ones
  Interpolation interpolation = Interpolation::kBilinear;
  Fill fill = {0};
  int64_t mask_fill = 0;
  double probability = 0.5;
  bool operator==(const PerspectiveOp&) const = default;

  static const Declaration<PerspectiveOp>& Declared();
  Status Check(const PathBuilder& path) const;
  PictureStep Step(std::vector<std::byte> fill) const;
  // What the draws make of a picture of this size; nullopt: no change.
  std::optional<Projection> ProjectionOf(const AugmentationDraws& draws,
                                         const ImageSize& size) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_AFFINE_H_
