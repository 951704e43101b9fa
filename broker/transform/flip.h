// map: flip. Mirrors [h, w] or [h, w, c] left to right.
#ifndef BROKER_TRANSFORM_FLIP_H_
#define BROKER_TRANSFORM_FLIP_H_

#include <string>

#include "broker/transform/picture.h"

namespace penstock {

struct FlipOp {
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  double horizontal = 0.5;  // the probability
  bool operator==(const FlipOp&) const = default;

  static const Declaration<FlipOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_FLIP_H_
