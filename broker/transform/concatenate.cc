#include "broker/transform/concatenate.h"

#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/transform/row_builder.h"
#include "common/layout.h"

namespace penstock {
namespace {

constexpr int64_t kDimensionMax = int64_t{1} << 40;

// Takes the bytes of each feature's last dimension in turn.
class ConcatenateStage final : public RowStage {
 public:
  ConcatenateStage(uint64_t times, std::vector<uint64_t> bytes)
      : times_(times), bytes_(std::move(bytes)) {}
  Status Run(std::span<const std::span<const std::byte>> in,
             std::span<std::byte* const> out) const override {
    std::byte* to = out[0];
    for (uint64_t i = 0; i < times_; ++i) {
      for (size_t part = 0; part < in.size(); ++part) {
        to = std::copy_n(in[part].data() + i * bytes_[part], bytes_[part], to);
      }
    }
    return OkStatus();
  }

 private:
  const uint64_t times_;
  const std::vector<uint64_t> bytes_;
};

// A single number is a list of one.
std::vector<int64_t> AsList(const std::vector<int64_t>& shape) {
  return shape.empty() ? std::vector<int64_t>{1} : shape;
}

}  // namespace

const Declaration<ConcatenateOp>& ConcatenateOp::Declared() {
  static const auto declared =
      Declaration<ConcatenateOp>(
          "concatenate",
          "Joins features along their last dimension, as Keras' Concatenate; "
          "a single number counts as a list of one.")
          .Gives(
              "features of one dtype → one feature, at the place of the "
              "first")
          .Example("{features: [age, height, weight], to: x}")
          .Required("features", &ConcatenateOp::features,
                    List(Name(), 2, kFeaturesMax,
                         Format("a list of 2 to {} names", kFeaturesMax)),
                    "their names")
          .Required("to", &ConcatenateOp::to, Name(), "the name of the result");
  return declared;
}

Status ConcatenateOp::AddToRow(RowBuilder* row) const {
  std::vector<PathBuilder*> taken;
  std::vector<uint64_t> bytes;
  Feature made;
  for (const std::string& name : features) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row->Find(name));
    PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
    if (std::find(taken.begin(), taken.end(), path) != taken.end()) {
      return InvalidArgumentError("names feature '{}' twice", name);
    }
    const Feature& feature = path->feature();
    std::vector<int64_t> shape = AsList(feature.shape);
    if (taken.empty()) {
      made = {to, feature.dtype, shape};
      made.shape.back() = 0;
    }
    const bool fits =
        feature.dtype == made.dtype && shape.size() == made.shape.size() &&
        std::equal(shape.begin(), shape.end() - 1, made.shape.begin());
    if (!fits) {
      return InvalidArgumentError(
          "wants features of one dtype, whose shapes differ in the last "
          "dimension only; found {} and {} (`cast` and `reshape` change them)",
          taken[0]->feature().ToString(), feature.ToString());
    }
    made.shape.back() += shape.back();
    bytes.push_back(static_cast<uint64_t>(shape.back()) *
                    DTypeBytes(feature.dtype));
    taken.push_back(path);
  }
  uint64_t times = 1;
  for (size_t i = 0; i + 1 < made.shape.size(); ++i) {
    times *= static_cast<uint64_t>(made.shape[i]);
  }
  return row->AddStep(
      taken, {made},
      std::make_unique<ConcatenateStage>(times, std::move(bytes)));
}

const Declaration<ReshapeOp>& ReshapeOp::Declared() {
  static const auto declared =
      Declaration<ReshapeOp>("reshape",
                             "The same values in another shape, as tf.reshape.")
          .Gives("any → the same of this shape")
          .Example("{feature: x, shape: [28, 28, 1]}")
          .Optional("feature", &ReshapeOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Required("shape", &ReshapeOp::shape,
                    List(WholeNumber<int64_t>(-1, kDimensionMax), 0,
                         kShapeDimensionsMax,
                         Format("a list of at most {} dimensions, [] for a "
                                "single number",
                                kShapeDimensionsMax)),
                    "of the result; one dimension may be -1: what is left");
  return declared;
}

Status ReshapeOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
  const Feature& feature = path->feature();
  const uint64_t values = feature.RowBytes() / DTypeBytes(feature.dtype);
  uint64_t rest = values;
  int64_t* open = nullptr;
  bool fits = true;
  std::vector<int64_t> made = shape;
  for (int64_t& side : made) {
    if (side == -1) {
      fits = fits && open == nullptr;
      open = &side;
    } else if (side == 0 || rest % static_cast<uint64_t>(side) != 0) {
      fits = false;
    } else {
      rest /= static_cast<uint64_t>(side);
    }
  }
  if (fits && open != nullptr) {
    *open = static_cast<int64_t>(rest);
  } else if (rest != 1) {
    fits = false;
  }
  if (!fits || values == 0) {
    return InvalidArgumentError(
        "shape: {} has {} values, which [{}] does not hold: give dimensions "
        "whose product it is, one of them -1 if you like",
        feature.ToString(), values, JoinText(shape, ", "));
  }
  path->Reshape(std::move(made));
  return OkStatus();
}

}  // namespace penstock
