#include "broker/transform/tokenize.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
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
constexpr MapFileKind kChatConfig = {.name = "configuration of a tokenizer",
                                     .bytes_max = uint64_t{64} << 20,
                                     .stays = true};
constexpr MapFileKind kChatTemplate = {
    .name = "template of chats", .bytes_max = uint64_t{1} << 20, .stays = true};
constexpr size_t kRolesMax = 64;

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

  SeveralRows* several() override { return this; }

  Status CheckInputs() override {
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
    return OkStatus();
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
  TokenizeFunction(PythonStep step, std::string made_by,
                   std::vector<RowText> texts)
      : PythonFunction(std::move(step), std::move(made_by)),
        texts_(std::move(texts)) {}
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
  if (op->feature.size() != 1 && op->feature.size() != 2) {
    return value.Optional("feature").Error(Format(
        "wanted a text, or a pair of two, found {}", op->feature.size()));
  }
  if (!op->chat) return OkStatus();
  if (op->feature.size() == 2) {
    return value.Optional("feature").Error(
        "a pair, and a chat is one text: give that of its messages");
  }
  if (op->type_ids.empty()) return OkStatus();
  return value.Optional("type_ids")
      .Error("is of a pair, and a chat is one text: leave it out");
}

Status CheckChat(const YamlValue& value, ChatSpec* chat) {
  if (chat->config.empty() && chat->template_file.empty()) {
    return value.Error(
        "wants a template: that of `config: tokenizer_config.json`, or a file "
        "of its own, `template: chat_template.jinja`");
  }
  return OkStatus();
}

Status CheckRoles(const YamlValue& mapping, std::string_view wanted) {
  if (!mapping.IsMapping() || mapping.size() > kRolesMax) {
    return mapping.Wanted(wanted);
  }
  return OkStatus();
}

// The files of a chat, behind the tokenizer's; adds to the argument how long
// each is.
Status ReadChatFiles(const ChatSpec& chat, MapOpening* opening,
                     std::string* given, nlohmann::json* argument) {
  for (const auto& [key, path, kind] :
       {std::tuple("config", &chat.config, &kChatConfig),
        std::tuple("template", &chat.template_file, &kChatTemplate)}) {
    std::string text;
    if (!path->empty()) {
      auto read = ReadMapFile(*path, *kind, opening);
      if (!read.ok()) return read.status().Prepend(Format("chat.{}", key));
      text = *std::move(read);
    }
    (*argument)[key] = text.size();
    given->append(text);
  }
  return OkStatus();
}

nlohmann::json ToJson(const ChatSpec& chat) {
  nlohmann::json roles = nlohmann::json::object();
  for (const auto& [from, to] : chat.roles) roles[from] = to;
  return {{"train_on", chat.train_on},
          {"roles", roles},
          {"labels", !chat.labels.empty()},
          {"variables", nlohmann::json::parse(chat.variables)}};
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
                    Bool(),
                    "those of its post-processor, such as [CLS]; a chat has "
                    "those that its template writes")
          .Optional("to", &TokenizeOp::to,
                    LeftOutAt<std::string>("", penstock::Name()),
                    "NAME of the tokens; by default that of the (first) text")
          .Optional("type_ids", &TokenizeOp::type_ids,
                    LeftOutAt<std::string>("", penstock::Name()),
                    "NAME of a list of 0 for the tokens of the first text, 1 "
                    "for those of the second; by default none")
          .Optional("dtype", &TokenizeOp::dtype,
                    DTypes({DType::kInt32, DType::kInt64}), "of the tokens")
          .Optional("chat", &TokenizeOp::chat,
                    Maybe(MappingOf(ChatSpec::Declared())),
                    "the text is the JSON of a chat")
          .Check(CheckTexts);
  return declared;
}

const Declaration<ChatSpec>& ChatSpec::Declared() {
  static const auto declared =
      Declaration<ChatSpec>(
          "chat",
          "A text that is the JSON of a chat: written by the template of a "
          "model, as transformers does (pip install jinja2), then tokenized; "
          "with the tokens that a model is trained on.")
          .Gives(
              "text → NAME, and of the same length `mask` uint8: 1 for tokens "
              "that are trained on, 0 for others; `labels`: these tokens, and "
              "-100 for others")
          .Example("{config: tokenizer_config.json}")
          .Optional("config", &ChatSpec::config, MaybePath(),
                    "a tokenizer_config.json: its chat_template and its "
                    "special tokens")
          .Optional("template", &ChatSpec::template_file, MaybePath(),
                    "a chat_template.jinja, instead of that of config")
          .Optional("train_on", &ChatSpec::train_on,
                    List(Name(), 1, kRolesMax, "a list of 1 to 64 roles"),
                    "the roles whose messages a model is trained on")
          .Optional("mask", &ChatSpec::mask, Name(), "NAME of the mask")
          .Optional("labels", &ChatSpec::labels,
                    LeftOutAt<std::string>("", Name()),
                    "NAME of the labels; by default there are none")
          .Optional(
              "roles", &ChatSpec::roles,
              LeftOutAt({}, ValueOfEach(Name(), "a mapping of at most 64 roles",
                                        CheckRoles)),
              "{FROM: TO, ...}: what the template calls roles of the "
              "data; those of ShareGPT are known")
          .Optional("variables", &ChatSpec::variables,
                    LeftOutAt<std::string>("{}", AnyMapping()),
                    "further variables of the template, such as "
                    "{enable_thinking: false}")
          .Check(CheckChat);
  return declared;
}

std::string_view TokenizeOp::Program() { return kPythonTokenizerProgram; }

StatusOr<std::unique_ptr<RowFunction>> TokenizeOp::Open(
    const RawSpec& inputs, const FunctionOptions& options,
    MapOpening* opening) const {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<RowText> texts,
                            FindRowTexts(feature, RowBuilder(inputs, opening)));
  PythonStep step;
  const auto make = [&](const std::string& name, DType of) {
    if (name.empty()) return;
    step.made.push_back({name, of, {max_length}});
    step.made.push_back({name + kLengthSuffix, DType::kInt64, {}});
  };
  make(to.empty() ? texts[0].input.name : to, dtype);
  make(type_ids, dtype);
  if (chat) {
    make(chat->mask, DType::kUint8);
    make(chat->labels, dtype);
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
  nlohmann::json argument = {{"given", step.given.size()},
                             {"texts", texts.size()},
                             {"max_length", max_length},
                             {"cuts", longer == Longer::kCut},
                             {"special", add_special_tokens && !chat},
                             {"type_ids", !type_ids.empty()},
                             {"dtype", DTypeName(dtype)}};
  if (chat) {
    argument["chat"] = ToJson(*chat);
    PENSTOCK_RETURN_IF_ERROR(
        ReadChatFiles(*chat, opening, &step.given, &argument["chat"]));
  }
  step.argument =
      argument.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  PENSTOCK_ASSIGN_OR_RETURN(std::string made_by,
                            CheckStarts(step, opening->cancelled()));
  return std::unique_ptr<RowFunction>(new TokenizeFunction(
      std::move(step), std::move(made_by), std::move(texts)));
}

}  // namespace penstock
