#include "broker/transform/label_smoothing.h"

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {

const Declaration<LabelSmoothingOp>& LabelSmoothingOp::Declared() {
  static const auto declared =
      Declaration<LabelSmoothingOp>(
          "label_smoothing",
          "Computes value × (1 − smoothing) + smoothing / classes of one-hot "
          "labels, as the label_smoothing of Keras' CategoricalCrossentropy "
          "and PyTorch's CrossEntropyLoss.")
          .Gives("floats [..., classes] → the same")
          .Example("{smoothing: 0.1}")
          .Optional("feature", &LabelSmoothingOp::feature, FeatureNamesType(),
                    kFeatureText)
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
