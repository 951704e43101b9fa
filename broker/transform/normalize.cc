#include "broker/transform/normalize.h"

#include <algorithm>
#include <cmath>

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr size_t kChannelsMax = 16;
constexpr double kMeanMax = 1e6;
constexpr double kStdMin = 1e-6;  // normalization multiplies by its reciprocal

Status CheckStd(const YamlValue& value, NormalizeOp* op) {
  const YamlValue std = value.Required("std");
  if (op->std.size() != op->mean.size() && op->std.size() > 1 &&
      op->mean.size() > 1) {
    return std.Error(Format("{}, but mean has {}",
                            Counted(op->std.size(), "value"), op->mean.size()));
  }
  for (size_t i = 0; i < op->std.size(); ++i) {
    if (op->std[i] >= kStdMin) continue;
    return (std.IsScalar() ? std : std.Item(i))
        .Error(Format("{}: wanted a number from {} up, to divide by",
                      op->std[i], kStdMin));
  }
  return OkStatus();
}

Status CheckPerChannel(const PathBuilder& path, std::string_view name,
                       const std::vector<double>& values) {
  const int64_t count = static_cast<int64_t>(values.size());
  const bool finite = std::all_of(values.begin(), values.end(),
                                  [](double v) { return std::isfinite(v); });
  if (finite && count > 0 && (count == 1 || count == path.channels())) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "{} is [{}]; {} wants one finite number, or one for each of its {} "
      "channels",
      name, JoinText(values, ", "), path.feature().ToString(), path.channels());
}

}  // namespace

const Declaration<NormalizeOp>& NormalizeOp::Declared() {
  static const auto per_channel =
      OneOrList(Number(-kMeanMax, kMeanMax), "a number", kChannelsMax);
  static const auto declared =
      Declaration<NormalizeOp>("normalize",
                               "Computes (value / 255 − mean) / std.")
          .Gives("uint8 → dtype")
          .Example(
              "{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], "
              "dtype: float16, layout: chw}")
          .Optional("feature", &NormalizeOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Required("mean", &NormalizeOp::mean, per_channel,
                    "for all channels, or for each")
          .Required("std", &NormalizeOp::std, per_channel,
                    "for all channels, or for each; above 0")
          .Optional(
              "dtype", &NormalizeOp::dtype,
              DTypes({DType::kFloat16, DType::kBFloat16, DType::kFloat32}),
              "of the result")
          .Optional("layout", &NormalizeOp::layout, LayoutType(), kLayoutText)
          .Check(CheckStd);
  return declared;
}

Status NormalizeOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
  PENSTOCK_RETURN_IF_ERROR(path->CheckUint8("normalize"));
  PENSTOCK_RETURN_IF_ERROR(path->CheckChannelsLast());
  PENSTOCK_RETURN_IF_ERROR(CheckPerChannel(*path, "mean", mean));
  PENSTOCK_RETURN_IF_ERROR(CheckPerChannel(*path, "std", std));
  PENSTOCK_RETURN_IF_ERROR(path->CheckLayout(layout));
  path->PendingPass().Normalize(mean, std, dtype);
  path->FinishValues(dtype, layout);
  return OkStatus();
}

}  // namespace penstock
