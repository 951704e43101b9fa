// map: crop and resize. uint8 [h, w] or [h, w, c] -> the same with size's
// height and width.
#ifndef BROKER_TRANSFORM_RESIZE_H_
#define BROKER_TRANSFORM_RESIZE_H_

#include <string>

#include "broker/transform/crop.h"
#include "broker/transform/picture.h"

namespace penstock {

struct CropOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  CropSpec crop;
  ImageSize size;
  bool operator==(const CropOp&) const = default;

  static const Declaration<CropOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
};

// Of the whole picture.
struct ResizeOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  ImageSize size;
  bool operator==(const ResizeOp&) const = default;

  static const Declaration<ResizeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RESIZE_H_
