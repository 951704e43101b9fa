#include "broker/transform/tokenize.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"
#include "broker/transform/python_caller.h"
#include "broker/transform/python_tokenizer_program.h"
#include "broker/transform/row_builder.h"
#include "broker/transform/token_input.h"
#include "common/layout.h"

namespace penstock {
namespace {

constexpr MapFileKind kTokenizer = {
    .name = "tokenizer", .bytes_max = uint64_t{256} << 20, .stays = true};

// A text, and where a row has it.
struct RowText {
  TokenInput input;
  std::vector<size_t> from;  // the inputs that input.taken are
};

// Gives the process texts without what fills their room.
class TokenizeCaller final : public PythonCaller {
 public:
  TokenizeCaller(const PythonStep& step, const std::vector<RowText>& texts,
                 Cancelled cancelled)
      : PythonCaller(step, std::move(cancelled)), texts_(texts) {}

  StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                  uint64_t step) override {
    for (size_t i = 0; i < texts_.size(); ++i) {
      taken_.clear();
      for (const size_t from : texts_[i].from) taken_.push_back(Input(from));
      const TokenInput& input = texts_[i].input;
      const auto text = input.TextOf(taken_, 0);
      if (!text.ok()) return OfText(text.status(), input);
      if (const auto bad = FindNotUtf8(*text)) {
        return OfText(DataLossError("not UTF-8 at byte {}", *bad), input);
      }
      Narrow(i, text->size());
    }
    return PythonCaller::Call(key, step);
  }

 private:
  static Status OfText(const Status& status, const TokenInput& input) {
    return status.Prepend(Format("feature '{}'", input.name));
  }

  const std::vector<RowText>& texts_;
  RawRecord taken_;
};

class TokenizeFunction final : public PythonFunction {
 public:
  TokenizeFunction(PythonStep step, std::vector<RowText> texts)
      : PythonFunction(std::move(step)), texts_(std::move(texts)) {}
  std::unique_ptr<Caller> MakeCaller(Cancelled cancelled) const override {
    return std::make_unique<TokenizeCaller>(step_, texts_,
                                            std::move(cancelled));
  }

 private:
  const std::vector<RowText> texts_;
};

StatusOr<std::vector<RowText>> FindRowTexts(const FeatureNames& names,
                                            const RowBuilder& row) {
  PENSTOCK_RETURN_IF_ERROR(row.FindAll(names).status());
  std::vector<RowText> texts;
  for (const std::string& name : names) {
    RowText& text = texts.emplace_back();
    PENSTOCK_ASSIGN_OR_RETURN(text.input, FindTexts(row, name));
    if (!text.input.shape.empty()) {
      return InvalidArgumentError("wants one text, uint8 [bytes], found {}",
                                  text.input.taken[0]->feature().ToString());
    }
    for (const PathBuilder* each : text.input.taken) {
      text.from.push_back(row.PlaceOf(each));
    }
    // They are of `row`.
    text.input.taken.clear();
  }
  return texts;
}

// The row with the lists in place of the texts, at the place of the first.
Status PlaceOutputs(const RawSpec& inputs, const std::vector<RowText>& texts,
                    PythonStep* step) {
  std::vector<size_t> gone;
  for (const RowText& text : texts) {
    step->read.push_back(text.from[0]);
    gone.insert(gone.end(), text.from.begin(), text.from.end());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == texts[0].from[0]) {
      for (size_t made = 0; made < step->made.size(); ++made) {
        step->outputs.push_back({step->made[made], false});
        step->from.push_back({true, made});
      }
    }
    if (std::find(gone.begin(), gone.end(), i) != gone.end()) continue;
    step->outputs.push_back(inputs[i]);
    step->from.push_back({false, i});
  }
  OpenProgress progress;
  MapOpening opening = {&progress};
  return RowBuilder(step->outputs, &opening).CheckNames();
}

Status CheckTexts(const YamlValue& value, TokenizeOp* op) {
  if (op->feature.size() == 1 || op->feature.size() == 2) return OkStatus();
  return value.Optional("feature").Error(
      Format("wanted a text, or a pair of two, found {}", op->feature.size()));
}

}  // namespace

const Declaration<TokenizeOp>& TokenizeOp::Declared() {
  static const auto declared =
      Declaration<TokenizeOp>(
          "tokenize",
          "The tokens of a text, as Hugging Face's tokenizers (pip install "
          "tokenizers) have them, in a process of each worker.")
          .Gives(
              "text → NAME [max_length] and NAME.length int64: how many are "
              "the row's; zeros follow")
          .Example(
              "{feature: text, file: tokenizer.json, max_length: 512, longer: "
              "cut}")
          .Optional("feature", &TokenizeOp::feature, FeatureNamesType(),
                    "the text, or a pair: [question, answer]")
          .Required("file", &TokenizeOp::file, Path(),
                    "a tokenizer.json; its padding is not used, and of its "
                    "truncation the side and the strategy")
          .Required("max_length", &TokenizeOp::max_length,
                    WholeNumber<int64_t>(1, kListTokensMax),
                    "room for so many tokens, special ones too")
          .Optional("longer", &TokenizeOp::longer, LongerType(),
                    "a text of more tokens is an error of its sample (on_error "
                    "applies), or truncated; special tokens stay")
          .Optional("add_special_tokens", &TokenizeOp::add_special_tokens,
                    Bool(), "those of its post-processor, such as [CLS]")
          .Optional("to", &TokenizeOp::to,
                    LeftOutAt<std::string>("", penstock::Name()),
                    "NAME of the tokens; by default that of the (first) text")
          .Optional("type_ids", &TokenizeOp::type_ids,
                    LeftOutAt<std::string>("", penstock::Name()),
                    "NAME of a list of 0 for the tokens of the first text, 1 "
                    "for those of the second; by default none")
          .Optional("dtype", &TokenizeOp::dtype,
                    DTypes({DType::kInt32, DType::kInt64}), "of the tokens")
          .Check(CheckTexts);
  return declared;
}

std::string_view TokenizeOp::Program() { return kPythonTokenizerProgram; }

StatusOr<std::unique_ptr<RowFunction>> TokenizeOp::Open(
    const RawSpec& inputs, const FunctionOptions& options,
    MapOpening* opening) const {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<RowText> texts,
                            FindRowTexts(feature, RowBuilder(inputs, opening)));
  PythonStep step;
  for (const std::string& name :
       {to.empty() ? texts[0].input.name : to, type_ids}) {
    if (name.empty()) continue;
    step.made.push_back({name, dtype, {max_length}});
    step.made.push_back({name + kLengthSuffix, DType::kInt64, {}});
  }
  PENSTOCK_RETURN_IF_ERROR(PlaceOutputs(inputs, texts, &step));
  std::vector<uint64_t> bytes;
  for (const RawFeature& each : inputs) {
    bytes.push_back(each.encoded ? 0 : each.feature.RowBytes());
  }
  PENSTOCK_RETURN_IF_ERROR(PlanRow(bytes, step.made).status());
  // A private broker runs Python as its user; a service says that it does.
  if (options.object_dir.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckRunsPython(options));
  }
  PENSTOCK_ASSIGN_OR_RETURN(step.given, ReadMapFile(file, kTokenizer, opening));
  step.options = options;
  step.name = Name();
  step.program = kPythonTokenizerProgram;
  step.argument = nlohmann::json({{"given", step.given.size()},
                                  {"texts", texts.size()},
                                  {"max_length", max_length},
                                  {"cuts", longer == Longer::kCut},
                                  {"special", add_special_tokens},
                                  {"type_ids", !type_ids.empty()},
                                  {"dtype", DTypeName(dtype)}})
                      .dump();
  PENSTOCK_RETURN_IF_ERROR(CheckStarts(step, opening->cancelled()));
  return std::unique_ptr<RowFunction>(
      new TokenizeFunction(std::move(step), std::move(texts)));
}

}  // namespace penstock
