// map: normalize. uint8 -> (value / 255 - mean[c]) / std[c].
#ifndef BROKER_TRANSFORM_NORMALIZE_H_
#define BROKER_TRANSFORM_NORMALIZE_H_

#include <string>
#include <vector>

#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

struct NormalizeOp {
  FeatureNames feature = DefaultFeature();
  // One for all channels, or one each.
  std::vector<double> mean;
  std::vector<double> std;
  DType dtype = DType::kFloat32;  // float16, bfloat16 or float32
  Layout layout = Layout::kHwc;
  bool operator==(const NormalizeOp&) const = default;

  static const Declaration<NormalizeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_NORMALIZE_H_
