// map: normalize. (value - mean[c]) / std[c]; of uint8, which are pictures,
// (value / 255 - mean[c]) / std[c].
#ifndef BROKER_TRANSFORM_NORMALIZE_H_
#define BROKER_TRANSFORM_NORMALIZE_H_

#include <string>
#include <vector>

#include "broker/transform/picture.h"
#include "broker/transform/values.h"
#include "common/element_spec.h"

namespace penstock {

struct NormalizeOp {
  FeatureNames feature = DefaultFeature();
  // One for all, or one for each value of the last dimension.
  std::vector<double> mean;
  std::vector<double> std;
  std::string from;               // instead: a file of statistics
  DType dtype = DType::kFloat32;  // float16, bfloat16 or float32
  Layout layout = Layout::kHwc;
  bool operator==(const NormalizeOp&) const = default;

  static const Declaration<NormalizeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

// (value / divisor - mean) / std. Of one channel, or of those that mean or std
// has.
ValueFunction NormalizeFunction(std::vector<double> mean,
                                std::vector<double> std, double divisor);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_NORMALIZE_H_
