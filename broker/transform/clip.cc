#include "broker/transform/clip.h"

#include <array>
#include <type_traits>

#include "broker/declare/declaration.h"
#include "broker/source/number.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kMax = 1e300;

Status CheckBounds(const YamlValue& value, ClipOp* op) {
  if (!op->min && !op->max) return value.Error("give min, max or both");
  if (op->min && op->max && *op->min > *op->max) {
    return value.Required("min").Error(
        Format("{} is more than max, {}", *op->min, *op->max));
  }
  return OkStatus();
}

// For comparisons: halves compare as floats.
template <typename T>
auto Comparable(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return ToFloat(value);
  }
}

// min and max: a value of T each; empty: there is none.
template <typename T>
class ClipStage final : public Stage {
 public:
  ClipStage(std::optional<T> min, std::optional<T> max)
      : min_(min), max_(max) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey&,
             PathScratch&, std::byte* out) const override {
    for (size_t at = 0; at + sizeof(T) <= in.size(); at += sizeof(T)) {
      T value = Load<T>(&in[at]);
      // NaN is neither.
      if (min_ && Comparable(value) < Comparable(*min_)) value = *min_;
      if (max_ && Comparable(value) > Comparable(*max_)) value = *max_;
      Store(value, out + at);
    }
    return OkStatus();
  }

 private:
  const std::optional<T> min_;
  const std::optional<T> max_;
};

}  // namespace

const Declaration<ClipOp>& ClipOp::Declared() {
  static const auto declared =
      Declaration<ClipOp>("clip",
                          "Limits values to [min, max], as tf.clip_by_value; "
                          "NaN stays.")
          .Gives("numbers → the same")
          .Example("{feature: age, min: 0, max: 100}")
          .Optional("feature", &ClipOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Optional("min", &ClipOp::min, Maybe(Number(-kMax, kMax)),
                    "the least; of the feature's dtype, like max")
          .Optional("max", &ClipOp::max, Maybe(Number(-kMax, kMax)),
                    "the largest")
          .Check(CheckBounds);
  return declared;
}

Status ClipOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckNumbers());
  const Feature feature = path->feature();
  return WithType(feature.dtype, [&]<typename T>(T) -> Status {
    std::array<std::optional<T>, 2> bounds;
    for (size_t i = 0; i < 2; ++i) {
      const std::optional<double>& bound = i == 0 ? min : max;
      if (!bound) continue;
      std::byte bytes[sizeof(double)];
      if (!StoreDouble(*bound, feature.dtype, bytes)) {
        return InvalidArgumentError(
            "{}: {} is no value of {}; put `cast` before it, or change it",
            i == 0 ? "min" : "max", *bound, feature.ToString());
      }
      bounds[i] = Load<T>(bytes);
    }
    path->AddStage(std::make_unique<ClipStage<T>>(bounds[0], bounds[1]),
                   feature.shape, feature.dtype);
    return OkStatus();
  });
}

}  // namespace penstock
