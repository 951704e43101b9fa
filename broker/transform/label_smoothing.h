// map: label_smoothing. one_hot × (1 − smoothing) + smoothing / classes.
#ifndef BROKER_TRANSFORM_LABEL_SMOOTHING_H_
#define BROKER_TRANSFORM_LABEL_SMOOTHING_H_

#include "broker/transform/picture.h"

namespace penstock {

struct LabelSmoothingOp {
  FeatureNames feature = DefaultLabel();
  double smoothing = 0.1;
  bool operator==(const LabelSmoothingOp&) const = default;

  static const Declaration<LabelSmoothingOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_LABEL_SMOOTHING_H_
