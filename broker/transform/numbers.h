// map: cast, rescale, clip, bucketize, one_hot, label_smoothing. Numbers of any
// shape, each computed by itself.
#ifndef BROKER_TRANSFORM_NUMBERS_H_
#define BROKER_TRANSFORM_NUMBERS_H_

#include <optional>
#include <vector>

#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

// Converts each value; to an integer it rounds to nearest even and
// saturates.
struct CastOp {
  FeatureNames feature = DefaultFeature();
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kHwc;
  bool operator==(const CastOp&) const = default;

  static const Declaration<CastOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

// value * scale + offset.
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

// Values below min become min, those above max become max.
struct ClipOp {
  FeatureNames feature = DefaultFeature();
  std::optional<double> min;
  std::optional<double> max;
  bool operator==(const ClipOp&) const = default;

  static const Declaration<ClipOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

// The number of boundaries that are not above the value.
struct BucketizeOp {
  FeatureNames feature = DefaultFeature();
  std::vector<double> boundaries;  // increasing
  bool operator==(const BucketizeOp&) const = default;

  static const Declaration<BucketizeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

// An integer becomes a row of zeros with a one at its place.
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

// one_hot × (1 − smoothing) + smoothing / classes.
struct LabelSmoothingOp {
  FeatureNames feature = DefaultLabel();
  double smoothing = 0.1;
  bool operator==(const LabelSmoothingOp&) const = default;

  static const Declaration<LabelSmoothingOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_NUMBERS_H_
