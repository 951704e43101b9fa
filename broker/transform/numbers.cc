#include "broker/transform/numbers.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "broker/source/number.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kRescaleMax = 1e30;
constexpr double kNumberMax = 1e300;
constexpr size_t kBoundariesMax = 4096;
constexpr int64_t kClassesMax = int64_t{1} << 24;

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
      T value = ValueAt<T>(&in[at]);
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

class OneHotStage final : public Stage {
 public:
  OneHotStage(const OneHotOp& op, DType from)
      : op_(op),
        widen_(CastKernel(from, DType::kInt64)),
        from_bytes_(DTypeBytes(from)),
        to_bytes_(DTypeBytes(op.dtype)) {
    const int64_t one = 1;
    CastKernel(DType::kInt64, op.dtype)(
        nullptr, reinterpret_cast<const std::byte*>(&one), 1, one_, 1, 1);
  }

  Status Run(std::span<const std::byte> in, const AugmentationKey&,
             PathScratch&, std::byte* out) const override {
    std::fill_n(out, out_bytes, std::byte{0});
    for (size_t i = 0; i * from_bytes_ < in.size(); ++i) {
      int64_t label = 0;
      widen_(nullptr, &in[i * from_bytes_], 1,
             reinterpret_cast<std::byte*>(&label), 1, 1);
      if (label < 0 || label >= op_.classes) {
        if (op_.out_of_range == OneHotOp::OutOfRange::kZeros) continue;
        return DataLossError(
            "one_hot: {} is no class, from 0 to {} (`out_of_range: zeros` lets "
            "it be none)",
            label, op_.classes - 1);
      }
      const size_t at =
          i * static_cast<size_t>(op_.classes) + static_cast<size_t>(label);
      std::copy_n(one_, to_bytes_, out + at * to_bytes_);
    }
    return OkStatus();
  }

 private:
  const OneHotOp op_;
  const ValueKernel widen_;
  const size_t from_bytes_;
  const size_t to_bytes_;
  std::byte one_[sizeof(double)];
};

}  // namespace

// ---- cast

const Declaration<CastOp>& CastOp::Declared() {
  static const auto declared =
      FeatureOp<CastOp>("cast",
                        "Converts values: rounds to nearest even and "
                        "saturates (float16 has infinity beyond 65504); to "
                        "bool, all but 0 is true, NaN too.")
          .Gives("any → dtype")
          .Example("{dtype: float16}")
          .Required("dtype", &CastOp::dtype, AnyDType(), "of the result")
          .Optional("layout", &CastOp::layout, LayoutType(), kLayoutText);
  return declared;
}

Status CastOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
  PENSTOCK_RETURN_IF_ERROR(path->CheckLayout(layout));
  path->PendingPass().Cast(dtype);
  path->FinishValues(dtype, layout);
  return OkStatus();
}

// ---- rescale

const Declaration<RescaleOp>& RescaleOp::Declared() {
  static const auto declared =
      FeatureOp<RescaleOp>("rescale",
                           "Computes value × scale + offset, as Keras' "
                           "Rescaling.")
          .Gives("numbers → dtype")
          .Example("{scale: 0.00784313725490196, offset: -1}")
          .Required("scale", &RescaleOp::scale,
                    Number(-kRescaleMax, kRescaleMax), "the factor")
          .Optional("offset", &RescaleOp::offset,
                    Number(-kRescaleMax, kRescaleMax),
                    "what is added to the product")
          .Optional("dtype", &RescaleOp::dtype, FloatDType(), "of the result")
          .Optional("layout", &RescaleOp::layout, LayoutType(), kLayoutText);
  return declared;
}

Status RescaleOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckNumbers());
  PENSTOCK_RETURN_IF_ERROR(path->CheckLayout(layout));
  PathBuilder::Line line;
  if (scale != 0) line = {{-offset / scale / 255}, {1 / scale / 255}};
  path->Compute(EachValue(1, [scale = scale, offset = offset](
                                 double value,
                                 size_t) { return value * scale + offset; }),
                dtype, layout, line);
  return OkStatus();
}

// ---- clip

const Declaration<ClipOp>& ClipOp::Declared() {
  static const auto declared =
      FeatureOp<ClipOp>("clip",
                        "Limits values to [min, max], as tf.clip_by_value; "
                        "NaN stays.")
          .Gives("numbers → the same")
          .Example("{feature: age, min: 0, max: 100}")
          .Optional("min", &ClipOp::min, Maybe(Number(-kNumberMax, kNumberMax)),
                    "the least; of the feature's dtype, like max")
          .Optional("max", &ClipOp::max, Maybe(Number(-kNumberMax, kNumberMax)),
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
      bounds[i] = ValueAt<T>(bytes);
    }
    path->AddStage(std::make_unique<ClipStage<T>>(bounds[0], bounds[1]),
                   feature.shape, feature.dtype);
    return OkStatus();
  });
}

// ---- bucketize

const Declaration<BucketizeOp>& BucketizeOp::Declared() {
  static const auto declared =
      FeatureOp<BucketizeOp>(
          "bucketize",
          "The number of the bucket that each value is in: of the boundaries "
          "that are not above it, as Keras' Discretization and tf.bucketize; "
          "NaN is in the last one.")
          .Gives("numbers → int64, from 0 to the number of boundaries")
          .Example("{feature: age, boundaries: [18, 25, 40, 65]}")
          .Required("boundaries", &BucketizeOp::boundaries,
                    List(Number(-kNumberMax, kNumberMax), 1, kBoundariesMax,
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

// ---- one_hot

const Declaration<OneHotOp>& OneHotOp::Declared() {
  static const auto declared =
      FeatureOp<OneHotOp>("one_hot",
                          "A label as zeros with a one at its place, as "
                          "tf.one_hot.")
          .Gives("integers [...] → dtype [..., classes]")
          .Example("{classes: 10}")
          .Required("classes", &OneHotOp::classes,
                    WholeNumber<int64_t>(1, kClassesMax),
                    "how many there are: labels are from 0 to one less")
          .Optional("dtype", &OneHotOp::dtype, AnyDType(), "of the result")
          .Optional("out_of_range", &OneHotOp::out_of_range,
                    Words<OneHotOp::OutOfRange>(
                        {{"fail", OneHotOp::OutOfRange::kFail},
                         {"zeros", OneHotOp::OutOfRange::kZeros}}),
                    "another label is an error of its sample (on_error "
                    "applies), or all zeros");
  return declared;
}

Status OneHotOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(
      path->CheckIntegers("put `cast: {dtype: int64}` before it"));
  std::vector<int64_t> shape = path->feature().shape;
  shape.push_back(classes);
  const Feature wanted = {path->feature().name, dtype, shape};
  PENSTOCK_RETURN_IF_ERROR(CheckMade(wanted));
  path->AddStage(std::make_unique<OneHotStage>(*this, path->feature().dtype),
                 std::move(shape), dtype);
  return OkStatus();
}

// ---- label_smoothing

const Declaration<LabelSmoothingOp>& LabelSmoothingOp::Declared() {
  static const auto declared =
      FeatureOp<LabelSmoothingOp>(
          "label_smoothing",
          "Computes value × (1 − smoothing) + smoothing / classes of one-hot "
          "labels, as the label_smoothing of Keras' CategoricalCrossentropy "
          "and PyTorch's CrossEntropyLoss.")
          .Gives("floats [..., classes] → the same")
          .Example("{smoothing: 0.1}")
          .Optional("smoothing", &LabelSmoothingOp::smoothing, Number(0, 1),
                    "the part that all classes share");
  return declared;
}

Status LabelSmoothingOp::AddTo(PathBuilder* path, uint32_t) const {
  constexpr char kRemedy[] = "put one_hot before it";
  PENSTOCK_RETURN_IF_ERROR(path->CheckFloats(kRemedy));
  const Feature feature = path->feature();
  if (feature.shape.empty()) {
    return InvalidArgumentError("wants a number for each class, found {}; {}",
                                feature.ToString(), kRemedy);
  }
  const double kept = 1 - smoothing;
  const double shared = smoothing / static_cast<double>(feature.shape.back());
  path->Compute(
      EachValue(1, [kept, shared](double value,
                                  size_t) { return value * kept + shared; }),
      feature.dtype);
  return OkStatus();
}

}  // namespace penstock
