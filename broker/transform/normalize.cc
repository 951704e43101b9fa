#include "broker/transform/normalize.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"
#include "broker/transform/statistics_file.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr size_t kChannelsMax = 8192;
constexpr double kMeanMax = 1e30;
constexpr double kStdMin = 1e-30;
// What a feature of one value has, as in Keras.
constexpr double kLeastStd = 1e-7;

Status CheckStd(const YamlValue& value, NormalizeOp* op) {
  for (const char* key : {"mean", "std"}) {
    if (value.Optional(key).present() == op->from.empty()) continue;
    return op->from.empty() ? value.Required(key).Absent()
                            : value.Required(key).Error("`from` says it");
  }
  if (!op->from.empty()) return OkStatus();
  const YamlValue std = value.Required("std");
  if (op->std.size() != op->mean.size() && op->std.size() > 1 &&
      op->mean.size() > 1) {
    return std.Error(Format("{}, but mean has {}: give as many, or one",
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
                       const std::vector<double>& values, int64_t channels) {
  const int64_t count = static_cast<int64_t>(values.size());
  const bool finite = std::all_of(values.begin(), values.end(),
                                  [](double v) { return std::isfinite(v); });
  if (finite && count > 0 && (count == 1 || count == channels)) {
    return OkStatus();
  }
  constexpr size_t kShown = 8;
  const size_t shown = std::min(values.size(), kShown);
  return InvalidArgumentError(
      "{} is [{}{}]; {} wants one finite number, or one for each of its {} "
      "channels",
      name, JoinText(std::span(values).first(shown), ", "),
      values.size() > shown ? Format(", ... of {}", values.size()) : "",
      path.feature().ToString(), channels);
}

// The numbers of a list; empty: it is none.
std::vector<double> NumbersOf(const nlohmann::json& of, const char* key) {
  std::vector<double> numbers;
  const auto found = of.find(key);
  if (found == of.end() || !found->is_array()) return numbers;
  for (const auto& each : *found) {
    numbers.push_back(each.is_number() ? each.get<double>() : NAN);
  }
  return numbers;
}

// What the statistics of a feature say that normalize cannot mend.
void WarnOf(const nlohmann::json& of, const std::string& name,
            const std::vector<double>& std, const NormalizeOp& op,
            MapOpening* opening) {
  const auto zeros =
      static_cast<size_t>(std::count(std.begin(), std.end(), 0.0));
  if (zeros > 0) {
    const std::string which =
        std.size() == 1 ? Format("the std of '{}' is 0", name)
                        : Format("the std of '{}' is 0 in {} of {} channels",
                                 name, zeros, std.size());
    opening->Warn(Format(
        "{}: {}, because all values were the same: normalize divides by {}",
        op.from, which, kLeastStd));
  }
  std::string kinds;
  for (const auto& [key, kind] :
       {std::pair("nan", "NaN"), std::pair("infinite", "infinite")}) {
    const auto found = of.find(key);
    if (found == of.end() || !found->is_number_unsigned() || *found == 0) {
      continue;
    }
    kinds += Format("{}{} ({})", kinds.empty() ? "" : " or ", kind,
                    found->get<uint64_t>());
  }
  if (kinds.empty()) return;
  opening->Warn(
      Format("{}: '{}' had values that are {}, which mean and std leave out: "
             "normalize "
             "leaves them as they are",
             op.from, name, kinds));
}

// With the mean and std of the file.
StatusOr<NormalizeOp> WithStatistics(const NormalizeOp& op,
                                     const PathBuilder& path,
                                     int64_t channels) {
  const Feature& feature = path.feature();
  PENSTOCK_ASSIGN_OR_RETURN(
      const nlohmann::json of,
      StatisticsOf(op.from, feature.name, path.opening()));
  NormalizeOp known = op;
  known.from.clear();
  known.mean = NumbersOf(of, "mean");
  known.std = NumbersOf(of, "std");
  const auto wanted = static_cast<size_t>(channels);
  for (const std::vector<double>* each : {&known.mean, &known.std}) {
    if (each->size() != wanted && each->size() != 1) {
      return InvalidArgumentError(
          "{}: has {} means of '{}' and {} of its std, where {} has {} "
          "channels: its shape is another one; run `penstock analyze` again",
          op.from, known.mean.size(), feature.name, known.std.size(),
          feature.ToString(), channels);
    }
  }
  WarnOf(of, feature.name, known.std, op, path.opening());
  // It has them of the values themselves.
  const double divisor = feature.dtype == DType::kUint8 ? 255 : 1;
  for (double& each : known.mean) each /= divisor;
  for (double& each : known.std) each = std::max(each / divisor, kLeastStd);
  return known;
}

}  // namespace

const Declaration<NormalizeOp>& NormalizeOp::Declared() {
  static const auto per_channel = LeftOutAt(
      {}, OneOrList(Number(-kMeanMax, kMeanMax), "a number", kChannelsMax));
  static const auto declared =
      FeatureOp<NormalizeOp>("normalize",
                             "Computes (value − mean) / std; of uint8, "
                             "which are pictures, (value / 255 − mean) / "
                             "std.")
          .Gives("numbers → dtype")
          .Example(
              "{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], "
              "dtype: float16, layout: chw}")
          .Optional("mean", &NormalizeOp::mean, per_channel,
                    "for all, or for each value of the last dimension: the "
                    "channels of a picture")
          .Optional("std", &NormalizeOp::std, per_channel, "likewise; above 0")
          .Optional("from", &NormalizeOp::from, MaybePath(),
                    "instead of both: a file of `penstock analyze`, which has "
                    "them of this feature")
          .Optional(
              "dtype", &NormalizeOp::dtype,
              DTypes({DType::kFloat16, DType::kBFloat16, DType::kFloat32}),
              "of the result")
          .Optional("layout", &NormalizeOp::layout, LayoutType(), kLayoutText)
          .Check(CheckStd);
  return declared;
}

Status NormalizeOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckNumbers());
  PENSTOCK_RETURN_IF_ERROR(path->CheckChannelsLast());
  const Feature& feature = path->feature();
  const bool is_picture = feature.dtype == DType::kUint8;
  const int64_t channels = is_picture              ? path->channels()
                           : feature.shape.empty() ? 1
                                                   : feature.shape.back();
  if (!from.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const NormalizeOp known,
                              WithStatistics(*this, *path, channels));
    return known.AddTo(path, number);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckPerChannel(*path, "mean", mean, channels));
  PENSTOCK_RETURN_IF_ERROR(CheckPerChannel(*path, "std", std, channels));
  PENSTOCK_RETURN_IF_ERROR(path->CheckLayout(layout));
  const ValueFunction function =
      NormalizeFunction(mean, std, is_picture ? 255 : 1);
  path->Compute(
      function, dtype, layout,
      is_picture ? PathBuilder::Line{mean, std} : PathBuilder::Line{});
  return OkStatus();
}

ValueFunction NormalizeFunction(std::vector<double> mean,
                                std::vector<double> std, double divisor) {
  const size_t channels = std::max(mean.size(), std.size());
  mean.resize(channels, mean.front());
  std.resize(channels, std.front());
  return EachValue(channels, [=](double value, size_t c) {
    return (value / divisor - mean[c]) / std[c];
  });
}

}  // namespace penstock
