// map: clip. Values below min become min, those above max become max.
#ifndef BROKER_TRANSFORM_CLIP_H_
#define BROKER_TRANSFORM_CLIP_H_

#include <optional>

#include "broker/transform/picture.h"

namespace penstock {

struct ClipOp {
  FeatureNames feature = DefaultFeature();
  std::optional<double> min;
  std::optional<double> max;
  bool operator==(const ClipOp&) const = default;

  static const Declaration<ClipOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CLIP_H_
