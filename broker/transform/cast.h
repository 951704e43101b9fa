// map: cast. Converts each value; to an integer it rounds to nearest even and
// saturates.
#ifndef BROKER_TRANSFORM_CAST_H_
#define BROKER_TRANSFORM_CAST_H_

#include <string>

#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

struct CastOp {
  FeatureNames feature = DefaultFeature();
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kHwc;
  bool operator==(const CastOp&) const = default;

  static const Declaration<CastOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CAST_H_
