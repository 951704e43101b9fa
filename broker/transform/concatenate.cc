#include "broker/transform/concatenate.h"

#include <algorithm>
#include <vector>

#include "broker/source/number.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/row_builder.h"
#include "broker/transform/token_input.h"
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
             const AugmentationKey&,
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

constexpr int64_t kLengthMax = int64_t{1} << 28;

// Items of some bytes each.
class Padder {
 public:
  Padder(const PadSequenceOp& op, uint64_t item_bytes,
         std::vector<std::byte> value)
      : room_(static_cast<uint64_t>(op.length) * item_bytes),
        item_bytes_(item_bytes),
        value_(std::move(value)),
        pads_start_(op.pad == PadSequenceOp::Side::kStart),
        cuts_start_(op.cut == PadSequenceOp::Side::kStart) {}

  // items: whole ones. Returns how many are left.
  uint64_t Write(std::span<const std::byte> items, std::byte* out) const {
    if (items.size() > room_) {
      items = cuts_start_ ? items.last(room_) : items.first(room_);
    }
    const uint64_t missing = room_ - items.size();
    std::byte* const padding = pads_start_ ? out : out + items.size();
    for (uint64_t at = 0; at < missing; at += value_.size()) {
      std::copy(value_.begin(), value_.end(), padding + at);
    }
    std::copy(items.begin(), items.end(), pads_start_ ? out + missing : out);
    return item_bytes_ == 0 ? 0 : items.size() / item_bytes_;
  }

 private:
  const uint64_t room_;  // bytes
  const uint64_t item_bytes_;
  const std::vector<std::byte> value_;
  const bool pads_start_;
  const bool cuts_start_;
};

class PadStage final : public Stage {
 public:
  explicit PadStage(Padder padder) : padder_(std::move(padder)) {}
  Status Run(std::span<const std::byte> in, const AugmentationKey&,
             PathScratch&, std::byte* out) const override {
    padder_.Write(in, out);
    return OkStatus();
  }

 private:
  const Padder padder_;
};

// Pads text or a list, whose length is another feature: what is behind its end
// is no part of it.
class PadListStage final : public RowStage {
 public:
  PadListStage(Padder padder, const Feature& list)
      : padder_(std::move(padder)), list_(list) {}
  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t length,
                              ItemsOf(list_.name, list_.shape[0], in[1]));
    const uint64_t bytes = list_.RowBytes() /
                           static_cast<uint64_t>(list_.shape[0]) *
                           static_cast<uint64_t>(length);
    const auto left =
        static_cast<int64_t>(padder_.Write(in[0].first(bytes), out[0]));
    Store(left, out[1]);
    return OkStatus();
  }

 private:
  const Padder padder_;
  const Feature list_;
};

ValueType<PadSequenceOp::Side> SideType() {
  return Words<PadSequenceOp::Side>({{"start", PadSequenceOp::Side::kStart},
                                     {"end", PadSequenceOp::Side::kEnd}});
}

}  // namespace

// ---- concatenate

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
    if (row->IsList(*path)) {
      return InvalidArgumentError(
          "'{0}' is a list of {0}{1} items: `drop` that feature before, if the "
          "zeros behind its end are to count",
          path->feature().name, kLengthSuffix);
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

// ---- reshape

const Declaration<ReshapeOp>& ReshapeOp::Declared() {
  static const auto declared =
      FeatureOp<ReshapeOp>("reshape",
                           "The same values in another shape, as tf.reshape.")
          .Gives("any → the same of this shape")
          .Example("{feature: x, shape: [28, 28, 1]}")
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

// ---- pad_sequence

const Declaration<PadSequenceOp>& PadSequenceOp::Declared() {
  constexpr double kMax = 1e300;
  static const auto declared =
      FeatureOp<PadSequenceOp>(
          "pad_sequence",
          "Pads sequences to a length, and cuts longer ones, as Keras' "
          "pad_sequences (whose defaults are start and start).")
          .Gives(
              "[n, ...] of any dtype → [length, ...]; of text and lists, the "
              "value is behind their end, and NAME_bytes or NAME.length "
              "becomes "
              "how many are left")
          .Example("{feature: tokens, length: 128}")
          .Required("length", &PadSequenceOp::length,
                    WholeNumber<int64_t>(1, kLengthMax), "of the result")
          .Optional("value", &PadSequenceOp::value, Number(-kMax, kMax),
                    "what is added; of the feature's dtype")
          .Optional("pad", &PadSequenceOp::pad, SideType(), "where it is added")
          .Optional("cut", &PadSequenceOp::cut, SideType(),
                    "what a longer one loses");
  return declared;
}

Status PadSequenceOp::AddToRow(RowBuilder* row) const {
  for (const std::string& name : feature) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row->Find(name));
    PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
    Feature made = path->feature();
    if (made.shape.empty()) {
      return InvalidArgumentError(
          "wants a sequence, found {}; `reshape: {{shape: [1]}}` makes one",
          made.ToString());
    }
    std::vector<std::byte> bytes(DTypeBytes(made.dtype));
    if (!StoreDouble(value, made.dtype, bytes.data())) {
      return InvalidArgumentError(
          "value: {} is no value of {}; put `cast` before it, or change it",
          value, made.ToString());
    }
    uint64_t item_bytes = bytes.size();
    for (size_t i = 1; i < made.shape.size(); ++i) {
      item_bytes *= static_cast<uint64_t>(made.shape[i]);
    }
    made.shape[0] = length;
    PENSTOCK_RETURN_IF_ERROR(CheckMade(made));
    Padder padder(*this, item_bytes, std::move(bytes));
    PathBuilder* const list_length = row->LengthOf(*path);
    if (list_length == nullptr || !list_length->feature().shape.empty()) {
      path->AddStage(std::make_unique<PadStage>(std::move(padder)), made.shape,
                     made.dtype);
      continue;
    }
    if (row->IsList(*path) && pad == Side::kStart) {
      return InvalidArgumentError(
          "pad: '{0}' is a list of {0}{1} items, which begins with them: pad "
          "its "
          "end, or `drop` that feature before",
          path->feature().name, kLengthSuffix);
    }
    PENSTOCK_RETURN_IF_ERROR(row->AddStep(
        {path, list_length}, {made, list_length->feature()},
        std::make_unique<PadListStage>(std::move(padder), path->feature())));
  }
  return OkStatus();
}

}  // namespace penstock
