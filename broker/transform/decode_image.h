// map: decode_image. An encoded picture -> uint8 [height, width, channels]; an
// encoded mask -> its values, [height, width].
#ifndef BROKER_TRANSFORM_DECODE_IMAGE_H_
#define BROKER_TRANSFORM_DECODE_IMAGE_H_

#include <optional>

#include "broker/transform/boxes.h"
#include "broker/transform/crop.h"
#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

struct DecodeImageOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  FeatureNames boxes;
  std::optional<CropSpec> crop;  // absent: the whole picture
  ImageSize size;
  int channels = 3;    // 3: RGB, 1: gray
  bool exact = false;  // decode the whole picture, match Pillow's values
  bool applies_orientation = false;  // EXIF's
  std::optional<DType> mask_dtype;   // absent: uint8
  Interpolation interpolation = Interpolation::kBilinear;
  bool operator==(const DecodeImageOp&) const = default;

  static const Declaration<DecodeImageOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
  StatusOr<BoxMove> MoveOfBoxes(const PathBuilder& path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_DECODE_IMAGE_H_
