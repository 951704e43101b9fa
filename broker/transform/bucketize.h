// map: bucketize. The number of boundaries that are not above the value.
#ifndef BROKER_TRANSFORM_BUCKETIZE_H_
#define BROKER_TRANSFORM_BUCKETIZE_H_

#include <vector>

#include "broker/transform/picture.h"

namespace penstock {

struct BucketizeOp {
  FeatureNames feature = DefaultFeature();
  std::vector<double> boundaries;  // increasing
  bool operator==(const BucketizeOp&) const = default;

  static const Declaration<BucketizeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_BUCKETIZE_H_
