#include "broker/transform/pad_sequence.h"

#include <algorithm>
#include <vector>

#include "broker/declare/declaration.h"
#include "broker/source/number.h"
#include "broker/transform/token_input.h"

namespace penstock {
namespace {

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

// Pads text: what is behind its end is no part of it.
class PadTextStage final : public RowStage {
 public:
  PadTextStage(Padder padder, TokenInput input)
      : padder_(std::move(padder)), input_(std::move(input)) {}
  Status Run(std::span<const std::span<const std::byte>> in,
             std::span<std::byte* const> out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view text,
                              input_.TextOf(in, 0));
    const auto left = static_cast<int64_t>(
        padder_.Write(std::as_bytes(std::span(text)), out[0]));
    Store(left, out[1]);
    return OkStatus();
  }

 private:
  const Padder padder_;
  const TokenInput input_;
};

ValueType<PadSequenceOp::Side> SideType() {
  return Words<PadSequenceOp::Side>({{"start", PadSequenceOp::Side::kStart},
                                     {"end", PadSequenceOp::Side::kEnd}});
}

}  // namespace

const Declaration<PadSequenceOp>& PadSequenceOp::Declared() {
  constexpr double kMax = 1e300;
  static const auto declared =
      Declaration<PadSequenceOp>(
          "pad_sequence",
          "Pads sequences to a length, and cuts longer ones, as Keras' "
          "pad_sequences (whose defaults are start and start).")
          .Gives(
              "[n, ...] of any dtype → [length, ...]; of text, its "
              "NAME_bytes becomes how many are left")
          .Example("{feature: tokens, length: 128}")
          .Optional("feature", &PadSequenceOp::feature, FeatureNamesType(),
                    kFeatureText)
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
    if (row->LengthOf(*path) == nullptr || made.shape.size() > 1) {
      path->AddStage(std::make_unique<PadStage>(std::move(padder)), made.shape,
                     made.dtype);
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const TokenInput input, FindTexts(*row, name));
    PENSTOCK_RETURN_IF_ERROR(
        row->AddStep(input.taken, {made, input.taken[1]->feature()},
                     std::make_unique<PadTextStage>(std::move(padder), input)));
  }
  return OkStatus();
}

}  // namespace penstock
