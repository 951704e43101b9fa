// map: one_hot. An integer becomes a row of zeros with a one at its place.
#ifndef BROKER_TRANSFORM_ONE_HOT_H_
#define BROKER_TRANSFORM_ONE_HOT_H_

#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

struct OneHotOp {
  enum class OutOfRange { kFail, kZeros };

  FeatureNames feature = DefaultLabel();
  int64_t classes = 0;
  DType dtype = DType::kFloat32;
  OutOfRange out_of_range = OutOfRange::kFail;
  bool operator==(const OneHotOp&) const = default;

  static const Declaration<OneHotOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ONE_HOT_H_
