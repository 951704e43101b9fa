// map: rescale. value * scale + offset.
#ifndef BROKER_TRANSFORM_RESCALE_H_
#define BROKER_TRANSFORM_RESCALE_H_

#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

struct RescaleOp {
  FeatureNames feature = DefaultFeature();
  double scale = 1;
  double offset = 0;
  DType dtype = DType::kFloat32;  // a floating-point one
  Layout layout = Layout::kHwc;
  bool operator==(const RescaleOp&) const = default;

  static const Declaration<RescaleOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RESCALE_H_
