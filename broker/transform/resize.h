// map: crop, resize and pad. uint8 [h, w] or [h, w, c] -> the same with another
// height and width; masks of any dtype.
#ifndef BROKER_TRANSFORM_RESIZE_H_
#define BROKER_TRANSFORM_RESIZE_H_

#include <array>
#include <cstdint>

#include "broker/transform/boxes.h"
#include "broker/transform/crop.h"
#include "broker/transform/picture.h"

namespace penstock {

struct CropOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  CropSpec crop;
  ImageSize size;
  Interpolation interpolation = Interpolation::kBilinear;
  bool operator==(const CropOp&) const = default;

  static const Declaration<CropOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

// Resizes the whole picture. One of size, shorter and within is given.
struct ResizeOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  ImageSize size;
  int64_t shorter = 0;  // as torchvision's Resize of one number
  ImageSize within;     // as Pillow's thumbnail, which never enlarges
  Interpolation interpolation = Interpolation::kBilinear;
  bool operator==(const ResizeOp&) const = default;

  static const Declaration<ResizeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

// One of by and size is given.
struct PadOp : Padding {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  std::array<int64_t, 4> by = {0, 0, 0, 0};  // left, top, right, bottom
  ImageSize size;                            // with the picture in the middle
  bool operator==(const PadOp&) const = default;

  static const Declaration<PadOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RESIZE_H_
