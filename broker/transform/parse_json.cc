#include "broker/transform/parse_json.h"

#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/source/json_lines.h"
#include "broker/source/text_scan.h"
#include "broker/transform/token_input.h"

namespace penstock {
namespace {

class ParseJsonStage final : public RowStage {
 public:
  ParseJsonStage(const ParseJsonOp& op, TokenInput input)
      : rows_(op.fields, op.longer),
        pointers_(PointersOf(op.fields)),
        input_(std::move(input)) {}

  ElementSpec Makes() const {
    ElementSpec spec;
    for (const RawFeature& each : rows_.raw_spec()) {
      spec.push_back(each.feature);
    }
    return spec;
  }

  Status Run(std::span<const std::span<const std::byte>> in,
             std::span<std::byte* const> out) const override {
    // It keeps its memory; one for each worker.
    thread_local std::vector<std::byte> scratch;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view text,
                              input_.TextOf(in, 0));
    if (const auto bad = FindNotUtf8(text)) {
      return DataLossError("parse_json: not UTF-8 at byte {}", *bad);
    }
    const Status status = ParseJsonLine(text, rows_, pointers_, &scratch);
    if (!status.ok()) return status.Prepend("parse_json");
    const std::byte* from = scratch.data();
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t bytes = rows_.raw_spec()[i].feature.RowBytes();
      std::copy_n(from, bytes, out[i]);
      from += bytes;
    }
    return OkStatus();
  }

 private:
  const FieldRows rows_;
  const std::vector<std::vector<std::string>> pointers_;
  const TokenInput input_;
};

}  // namespace

const Declaration<ParseJsonOp>& ParseJsonOp::Declared() {
  static const auto declared =
      Declaration<ParseJsonOp>("parse_json",
                               "Values of a JSON document that a text is, in "
                               "place of it.")
          .Gives("text → fields")
          .Example(
              "{feature: json, fields: {label: {dtype: int64}, caption: "
              "{max_bytes: 256, pointer: /meta/caption, default: ''}}}")
          .Optional("feature", &ParseJsonOp::feature, Name(), "the text")
          .Required("fields", &ParseJsonOp::fields, JsonFields(),
                    kJsonFieldsText)
          .Optional("longer", &ParseJsonOp::longer, LongerTextType(),
                    kLongerTextText);
  return declared;
}

Status ParseJsonOp::AddToRow(RowBuilder* row) const {
  PENSTOCK_ASSIGN_OR_RETURN(const TokenInput input, FindTexts(*row, feature));
  if (!input.shape.empty() || input.room > kParsedLineBytesMax) {
    return InvalidArgumentError("wants one text of at most {} bytes, found {}",
                                kParsedLineBytesMax,
                                input.taken[0]->feature().ToString());
  }
  auto stage = std::make_unique<ParseJsonStage>(*this, input);
  const ElementSpec made = stage->Makes();
  return row->AddStep(input.taken, made, std::move(stage));
}

}  // namespace penstock
