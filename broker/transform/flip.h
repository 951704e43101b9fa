// map: flip. Mirrors [h, w] or [h, w, c] left to right, or top to bottom.
#ifndef BROKER_TRANSFORM_FLIP_H_
#define BROKER_TRANSFORM_FLIP_H_

#include <string>

#include "broker/transform/picture.h"

namespace penstock {

struct FlipOp {
  static constexpr bool kMovesPixels = true;
  FeatureNames feature = DefaultFeature();
  FeatureNames mask;
  // Probabilities.
  double horizontal = 0.5;
  double vertical = 0;
  bool operator==(const FlipOp&) const = default;

  static const Declaration<FlipOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
  Status AddToMask(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_FLIP_H_
