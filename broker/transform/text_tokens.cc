#include "broker/transform/text_tokens.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/transform/op_declaration.h"
#include "broker/transform/statistics_file.h"
#include "broker/transform/token_input.h"
#include "broker/transform/values.h"
#include "common/layout.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr int64_t kNumberMax = int64_t{1} << 30;
constexpr uint32_t kNgramMax = 16;
constexpr char kUnknown[] = "[UNK]";
constexpr MapFileKind kIdf = {
    .name = "idf", .bytes_max = uint64_t{1} << 30, .stays = true};

StatusOr<TokenInput> FindOneText(const RowBuilder& row,
                                 const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(TokenInput input, FindTexts(row, name));
  if (input.shape.empty()) return input;
  return InvalidArgumentError("wants one text, uint8 [bytes], found {}",
                              input.taken[0]->feature().ToString());
}

// The list in place of the text.
Status AddListStage(RowBuilder* row, const TokenInput& input, DType dtype,
                    int64_t max_length, std::unique_ptr<RowStage> stage) {
  return row->AddStep(input.taken,
                      {{input.name, dtype, {max_length}},
                       {input.name + kLengthSuffix, DType::kInt64, {}}},
                      std::move(stage));
}

Status TooLong(uint64_t found, std::string_view what, int64_t max_length) {
  return DataLossError(
      "a text of {}, and max_length is {}: give more, or `longer: cut`",
      Counted(found, what), max_length);
}

// ---- encode_bytes

class EncodeBytesStage final : public RowStage {
 public:
  EncodeBytesStage(const EncodeBytesOp& op, TokenInput input, int64_t room)
      : op_(op), input_(std::move(input)), room_(room) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(std::string_view text, input_.TextOf(in, 0));
    const uint64_t beside = (op_.begin ? 1u : 0u) + (op_.end ? 1u : 0u);
    const auto most = static_cast<uint64_t>(room_) - beside;
    if (text.size() > most) {
      if (op_.longer == Longer::kFail) {
        return TooLong(text.size() + beside, "token", room_);
      }
      text = text.substr(0, most);
    }
    if (op_.dtype == DType::kInt64) {
      Write<int64_t>(text, out[0]);
    } else {
      Write<int32_t>(text, out[0]);
    }
    Store(static_cast<int64_t>(text.size() + beside), out[1]);
    return OkStatus();
  }

 private:
  template <typename T>
  void Write(std::string_view text, std::byte* out) const {
    std::byte* const end = out + static_cast<uint64_t>(room_) * sizeof(T);
    const auto put = [&out](int64_t number) {
      Store(static_cast<T>(number), out);
      out += sizeof(T);
    };
    if (op_.begin) put(*op_.begin);
    for (const char c : text) {
      put(op_.offset + static_cast<unsigned char>(c));
    }
    if (op_.end) put(*op_.end);
    std::fill(out, end, std::byte{0});
  }

  const EncodeBytesOp op_;
  const TokenInput input_;
  const int64_t room_;
};

// ---- vectorize_text

// What numbers words, and what a row then has.
struct Vectorizer {
  WordRules rules;
  std::shared_ptr<const Vocabulary> vocabulary;
  int64_t unknown = 0;     // the number of what is not in it
  int64_t first = 0;       // of the vocabulary's first token
  std::vector<float> idf;  // by number

  int64_t NumberOf(std::string_view word) const {
    const auto found = vocabulary->Find(word);
    return found ? first + static_cast<int64_t>(*found) : unknown;
  }

  // Calls f with the number of each word of the text until it returns false.
  template <typename F>
  Status ForEach(const TokenInput& input,
                 std::span<const std::span<const std::byte>> in,
                 const F& f) const {
    // It keeps its memory; one for each worker.
    thread_local WordSplitter splitter;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view text, input.TextOf(in, 0));
    if (rules.split == WordRules::Split::kCharacter) {
      if (const auto bad = FindNotUtf8(text)) {
        return DataLossError("not UTF-8 at byte {}", *bad);
      }
    }
    splitter.ForEach(text, rules,
                     [&](std::string_view word) { return f(NumberOf(word)); });
    return OkStatus();
  }
};

class WordNumbersStage final : public RowStage {
 public:
  WordNumbersStage(Vectorizer vectorizer, TokenInput input, int64_t room,
                   Longer longer)
      : vectorizer_(std::move(vectorizer)),
        input_(std::move(input)),
        room_(room),
        cuts_(longer == Longer::kCut) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    int64_t words = 0;
    PENSTOCK_RETURN_IF_ERROR(
        vectorizer_.ForEach(input_, in, [&](int64_t number) {
          if (words < room_) {
            Store(number, out[0] + words * int64_t{sizeof(int64_t)});
          } else if (cuts_) {
            return false;
          }
          ++words;
          return true;
        }));
    if (words > room_) {
      return TooLong(static_cast<uint64_t>(words), "word", room_);
    }
    std::fill(out[0] + words * int64_t{sizeof(int64_t)},
              out[0] + room_ * int64_t{sizeof(int64_t)}, std::byte{0});
    Store(words, out[1]);
    return OkStatus();
  }

 private:
  const Vectorizer vectorizer_;
  const TokenInput input_;
  const int64_t room_;
  const bool cuts_;
};

class WordCountsStage final : public RowStage {
 public:
  WordCountsStage(Vectorizer vectorizer, TokenInput input, int64_t width,
                  VectorizeTextOp::Output output)
      : vectorizer_(std::move(vectorizer)),
        input_(std::move(input)),
        width_(width),
        output_(output) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    std::fill_n(out[0], width_ * int64_t{sizeof(float)}, std::byte{0});
    PENSTOCK_RETURN_IF_ERROR(
        vectorizer_.ForEach(input_, in, [&](int64_t number) {
          std::byte* const at = out[0] + number * int64_t{sizeof(float)};
          const bool counts = output_ != VectorizeTextOp::Output::kMultiHot;
          Store(counts ? ValueAt<float>(at) + 1 : 1.0f, at);
          return true;
        }));
    if (output_ != VectorizeTextOp::Output::kTfIdf) return OkStatus();
    for (int64_t i = 0; i < width_; ++i) {
      std::byte* const at = out[0] + i * int64_t{sizeof(float)};
      Store(ValueAt<float>(at) * vectorizer_.idf[static_cast<size_t>(i)], at);
    }
    return OkStatus();
  }

 private:
  const Vectorizer vectorizer_;
  const TokenInput input_;
  const int64_t width_;
  const VectorizeTextOp::Output output_;
};

// The vocabulary with Keras' numbers. It may begin with the tokens that are not
// of words, as get_vocabulary() gives it.
Status NumberAsKeras(bool is_int, Vectorizer* made) {
  const Vocabulary& vocabulary = *made->vocabulary;
  std::vector<std::string> special;
  if (is_int) special.emplace_back("");
  special.emplace_back(kUnknown);
  made->unknown = static_cast<int64_t>(special.size()) - 1;
  bool begins = vocabulary.size() > special.size();
  for (size_t i = 0; begins && i < special.size(); ++i) {
    begins = vocabulary[i] == special[i];
  }
  made->first = begins ? 0 : static_cast<int64_t>(special.size());
  if (begins) return OkStatus();
  for (const std::string& each : special) {
    if (!vocabulary.Find(each)) continue;
    return InvalidArgumentError(
        "vocabulary: has '{}', which has number {}: take it out, or let it "
        "begin with {}, as Keras' get_vocabulary() gives it",
        each, each.empty() ? 0 : made->unknown,
        is_int ? "'' and '[UNK]'" : "'[UNK]'");
  }
  return OkStatus();
}

// A weight a line, of each token of the vocabulary. That of unknown words is,
// as Keras has it, their mean, unless the vocabulary has them.
StatusOr<std::vector<float>> ReadIdf(const std::string& path,
                                     const Vectorizer& made,
                                     MapOpening* opening) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                            ReadMapFile(path, kIdf, opening));
  std::vector<float> weights;
  double sum = 0;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    double weight = 0;
    const char* const last = line.data() + line.size();
    const auto [read, error] = std::from_chars(line.data(), last, weight);
    if (error != std::errc{} || read != last || !std::isfinite(weight)) {
      return InvalidArgumentError(
          "{}:{}: '{}' is no number; wanted a weight a line", path,
          weights.size() + 1,
          Printable(std::string(line.substr(0, kNameCharsMax))));
    }
    weights.push_back(static_cast<float>(weight));
    sum += weight;
  }
  if (weights.size() != made.vocabulary->size()) {
    return InvalidArgumentError(
        "{}: has {}, and the vocabulary {}: give as many", path,
        Counted(weights.size(), "weight"),
        Counted(made.vocabulary->size(), "token"));
  }
  PENSTOCK_RETURN_IF_ERROR(
      opening->progress->reserve(weights.size() * sizeof(float)));
  if (made.first > 0) {
    weights.insert(
        weights.begin(),
        static_cast<float>(sum / static_cast<double>(weights.size())));
  }
  return weights;
}

// The same of what `penstock analyze` has counted, by Keras' formula.
StatusOr<std::vector<float>> CountedIdf(const CountedVocabulary& from,
                                        const std::string& feature,
                                        const Vectorizer& made,
                                        MapOpening* opening) {
  const std::string& name = from.feature.empty() ? feature : from.feature;
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json of,
                            StatisticsOf(from.file, name, opening));
  const Vocabulary& vocabulary = *made.vocabulary;
  const auto texts = of.find("texts");
  const auto counted = of.find("vocabulary");
  const auto documents = of.find("documents");
  const auto is_of = [&](uint64_t i) {
    const nlohmann::json& token = (*counted)[i];
    return (*documents)[i].is_number_unsigned() && token.is_array() &&
           !token.empty() && token[0] == vocabulary[i];
  };
  bool holds = texts != of.end() && texts->is_number_unsigned() &&
               documents != of.end() && documents->is_array() &&
               documents->size() == counted->size();
  std::vector<float> weights;
  double sum = 0;
  for (uint64_t i = 0; holds && i < vocabulary.size(); ++i) {
    holds = i < documents->size() && is_of(i);
    if (!holds) break;
    weights.push_back(static_cast<float>(std::log(
        1 + texts->get<double>() / (1 + (*documents)[i].get<double>()))));
    sum += weights.back();
  }
  if (!holds) {
    return InvalidArgumentError(
        "{}: does not say in how many texts the words of '{}' are: run "
        "`penstock analyze` with this step, or give `idf`",
        from.file, name);
  }
  weights.insert(weights.begin(),
                 static_cast<float>(sum / static_cast<double>(weights.size())));
  return weights;
}

ValueType<std::vector<uint32_t>> NgramsType() {
  ValueType<std::vector<uint32_t>> type =
      OneOrList(WholeNumber<uint32_t>(1, kNgramMax), "1 to so many", kNgramMax);
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted,
                                 std::vector<uint32_t>* out) {
    out->clear();
    PENSTOCK_RETURN_IF_ERROR(read(value, wanted, out));
    if (!value.IsScalar()) return OkStatus();
    for (uint32_t n = out->front(); --n > 0;) out->insert(out->begin(), n);
    return OkStatus();
  };
  type.wanted = Format("n for 1 to n, at most {}, or a list", kNgramMax);
  return LeftOutAt(std::vector<uint32_t>{1}, type);
}

Status CheckVectorize(const YamlValue& value, VectorizeTextOp* op) {
  using Output = VectorizeTextOp::Output;
  if (op->max_length.has_value() != (op->output == Output::kInt)) {
    return value.Optional("max_length")
        .Error(op->max_length ? "is for `output: int`: others are as wide as "
                                "the vocabulary: leave it out"
                              : "is missing: give the room of a row");
  }
  const bool weighs = op->output == Output::kTfIdf;
  if (op->idf.empty() ? weighs && !op->vocabulary.from : !weighs) {
    return value.Optional("idf").Error(
        op->idf.empty() ? "is missing: tf_idf needs a file of weights, or "
                          "a vocabulary of `penstock analyze`"
                        : "is for `output: tf_idf`: leave it out");
  }
  if (op->split == WordRules::Split::kNone &&
      op->ngrams != std::vector<uint32_t>{1}) {
    return value.Optional("ngrams").Error(
        "a text that is not split has no neighbours: leave it out");
  }
  return OkStatus();
}

}  // namespace

// ---- encode_bytes

const Declaration<EncodeBytesOp>& EncodeBytesOp::Declared() {
  static const auto declared =
      FeatureOp<EncodeBytesOp>(
          "encode_bytes",
          "The bytes of a text as tokens; of ByT5 with offset: 3, end: 1.")
          .Gives(
              "text → NAME [max_length] and NAME.length int64: how many are "
              "the row's; zeros follow")
          .Example("{feature: text, offset: 3, end: 1, max_length: 1024}")
          .Optional("offset", &EncodeBytesOp::offset,
                    WholeNumber<int64_t>(0, kNumberMax),
                    "what is added to each byte, 0 to 255")
          .Optional("begin", &EncodeBytesOp::begin,
                    Maybe(WholeNumber<int64_t>(0, kNumberMax)),
                    "a token before those of the text")
          .Optional("end", &EncodeBytesOp::end,
                    Maybe(WholeNumber<int64_t>(0, kNumberMax)),
                    "a token behind them")
          .Optional("max_length", &EncodeBytesOp::max_length,
                    Maybe(WholeNumber<int64_t>(1, kListTokensMax)),
                    "room for so many tokens; by default for the longest text "
                    "that the row has room for")
          .Optional("longer", &EncodeBytesOp::longer, LongerType(),
                    "a text of more tokens is an error of its sample (on_error "
                    "applies), or loses its last bytes; begin and end stay")
          .Optional("dtype", &EncodeBytesOp::dtype,
                    DTypes({DType::kInt32, DType::kInt64}), "of the tokens");
  return declared;
}

Status EncodeBytesOp::AddToRow(RowBuilder* row) const {
  const int64_t beside = (begin ? 1 : 0) + (end ? 1 : 0);
  if (max_length && *max_length <= beside) {
    return InvalidArgumentError(
        "max_length: {} has no room beside begin and end: give more",
        *max_length);
  }
  for (const std::string& name : feature) {
    PENSTOCK_ASSIGN_OR_RETURN(const TokenInput input, FindOneText(*row, name));
    const int64_t room =
        max_length.value_or(static_cast<int64_t>(input.room) + beside);
    PENSTOCK_RETURN_IF_ERROR(
        AddListStage(row, input, dtype, room,
                     std::make_unique<EncodeBytesStage>(*this, input, room)));
  }
  return OkStatus();
}

// ---- vectorize_text

const Declaration<VectorizeTextOp>& VectorizeTextOp::Declared() {
  static const auto declared =
      FeatureOp<VectorizeTextOp>(
          "vectorize_text",
          "The numbers of a text's words, as Keras' TextVectorization.")
          .Gives(
              "text → of int NAME int64 [max_length], 1 for what is not in the "
              "vocabulary, which begins with 2, and NAME.length int64: how "
              "many are the row's, zeros follow; else NAME float32 [1 + "
              "tokens], 0 being what is not in it")
          .Example(
              "{feature: text, vocabulary: [the, cat], max_length: 250, "
              "longer: "
              "cut}")
          .Required("vocabulary", &VectorizeTextOp::vocabulary,
                    VocabularyType(),
                    "its words, each once; as in lookup, or Keras' "
                    "get_vocabulary()")
          .Optional(
              "standardize", &VectorizeTextOp::standardize,
              Words<WordRules::Standardize>(
                  {std::begin(kStandardizeNames), std::end(kStandardizeNames)}),
              "of ASCII's letters and punctuation, as in Keras")
          .Optional("split", &VectorizeTextOp::split,
                    Words<WordRules::Split>(
                        {std::begin(kSplitNames), std::end(kSplitNames)}),
                    "into words")
          .Optional("ngrams", &VectorizeTextOp::ngrams, NgramsType(),
                    "how many neighbours are a word, joined by spaces; by "
                    "default 1")
          .Optional("output", &VectorizeTextOp::output,
                    Words<Output>({{"int", Output::kInt},
                                   {"multi_hot", Output::kMultiHot},
                                   {"count", Output::kCount},
                                   {"tf_idf", Output::kTfIdf}}),
                    "a list; or, by number, whether a word is there, how "
                    "often, or that times its weight")
          .Optional("max_length", &VectorizeTextOp::max_length,
                    Maybe(WholeNumber<int64_t>(1, kListTokensMax)),
                    "of int: room for so many words")
          .Optional("longer", &VectorizeTextOp::longer, LongerType(),
                    "more words are an error of the sample (on_error applies), "
                    "or lose their end, as in Keras")
          .Optional(
              "idf", &VectorizeTextOp::idf, MaybePath(),
              "of tf_idf: a file with the weight of each token a line; by "
              "default as `penstock analyze` has counted")
          .Check(CheckVectorize);
  return declared;
}

Status VectorizeTextOp::AddToRow(RowBuilder* row) const {
  const bool is_int = output == Output::kInt;
  for (const std::string& name : feature) {
    PENSTOCK_ASSIGN_OR_RETURN(const TokenInput input, FindOneText(*row, name));
    Vectorizer made = {.rules = {standardize, split, ngrams}};
    PENSTOCK_ASSIGN_OR_RETURN(made.vocabulary,
                              Vocabulary::Open(vocabulary, /*integers=*/false,
                                               input.name, row->opening()));
    PENSTOCK_RETURN_IF_ERROR(NumberAsKeras(is_int, &made));
    if (is_int) {
      PENSTOCK_RETURN_IF_ERROR(
          AddListStage(row, input, DType::kInt64, *max_length,
                       std::make_unique<WordNumbersStage>(
                           std::move(made), input, *max_length, longer)));
      continue;
    }
    if (!idf.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(made.idf, ReadIdf(idf, made, row->opening()));
    } else if (output == Output::kTfIdf) {
      PENSTOCK_ASSIGN_OR_RETURN(
          made.idf,
          CountedIdf(*vocabulary.from, input.name, made, row->opening()));
    }
    const int64_t width =
        made.first + static_cast<int64_t>(made.vocabulary->size());
    PENSTOCK_RETURN_IF_ERROR(
        row->AddStep(input.taken, {{input.name, DType::kFloat32, {width}}},
                     std::make_unique<WordCountsStage>(std::move(made), input,
                                                       width, output)));
  }
  return OkStatus();
}

}  // namespace penstock
