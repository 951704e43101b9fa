#include "broker/transform/bucketize.h"

#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/source/number.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kBoundaryMax = 1e300;
constexpr size_t kBoundariesMax = 4096;

Status CheckIncreasing(const YamlValue& value, BucketizeOp* op) {
  for (size_t i = 1; i < op->boundaries.size(); ++i) {
    if (op->boundaries[i - 1] < op->boundaries[i]) continue;
    return value.Required("boundaries")
        .Item(i)
        .Error(Format("{} does not increase, after {}: give them "
                      "in order, each once",
                      op->boundaries[i], op->boundaries[i - 1]));
  }
  return OkStatus();
}

}  // namespace

const Declaration<BucketizeOp>& BucketizeOp::Declared() {
  static const auto declared =
      Declaration<BucketizeOp>(
          "bucketize",
          "The number of the bucket that each value is in: of the boundaries "
          "that are not above it, as Keras' Discretization and tf.bucketize; "
          "NaN is in the last one.")
          .Gives("numbers → int64, from 0 to the number of boundaries")
          .Example("{feature: age, boundaries: [18, 25, 40, 65]}")
          .Optional("feature", &BucketizeOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Required("boundaries", &BucketizeOp::boundaries,
                    List(Number(-kBoundaryMax, kBoundaryMax), 1, kBoundariesMax,
                         Format("a list of 1 to {} numbers", kBoundariesMax)),
                    "increasing; of floating-point values, rounded to their "
                    "dtype")
          .Check(CheckIncreasing);
  return declared;
}

Status BucketizeOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckNumbers());
  const DType dtype = path->feature().dtype;
  std::vector<double> rounded = boundaries;
  if (IsFloat(dtype)) {
    std::byte bytes[sizeof(double)];
    for (double& each : rounded) {
      CastKernel(DType::kFloat64, dtype)(
          nullptr, reinterpret_cast<const std::byte*>(&each), 1, bytes, 1, 1);
      CastKernel(dtype, DType::kFloat64)(
          nullptr, bytes, 1, reinterpret_cast<std::byte*>(&each), 1, 1);
    }
  }
  path->Compute(
      EachValue(1,
                [rounded](double value, size_t) {
                  return static_cast<double>(
                      std::upper_bound(rounded.begin(), rounded.end(), value) -
                      rounded.begin());
                }),
      DType::kInt64);
  return OkStatus();
}

}  // namespace penstock
