#include "broker/transform/texts.h"

#include <farmhash.h>

#include <algorithm>

#include "broker/source/json_lines.h"
#include "broker/source/text_scan.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/token_input.h"
#include "common/exact_max.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr int64_t kBucketsMax = int64_t{1} << 31;
constexpr int64_t kDefaultMax{kExactMax};

// As tf.strings.to_hash_bucket_fast: the same on every machine.
int64_t HashBucket(std::string_view text, int64_t buckets) {
  return static_cast<int64_t>(util::Fingerprint64(text.data(), text.size()) %
                              static_cast<uint64_t>(buckets));
}

class LookupStage final : public TokenStage {
 public:
  LookupStage(TokenInput input, const LookupOp& op,
              std::shared_ptr<const Vocabulary> vocabulary)
      : TokenStage(std::move(input)),
        vocabulary_(std::move(vocabulary)),
        buckets_(op.oov_buckets),
        mask_(op.mask),
        otherwise_(op.otherwise) {}

 private:
  // As Keras numbers them: the mask, the buckets, the vocabulary.
  Status NumberOf(const Token& token, int64_t* number) const override {
    const int64_t first_bucket = mask_ ? 1 : 0;
    if (mask_ && token.text == *mask_) {
      *number = 0;
    } else if (const auto found = vocabulary_->Find(token.text)) {
      *number = first_bucket + buckets_ + static_cast<int64_t>(*found);
    } else if (buckets_ > 0) {
      *number = first_bucket + BucketOf(token);
    } else if (otherwise_) {
      *number = *otherwise_;
    } else {
      constexpr size_t kShown = 64;
      return DataLossError(
          "lookup: '{}' is not in the vocabulary (`oov_buckets` or `default` "
          "gives it a number)",
          Printable(std::string(token.text.substr(0, kShown))));
    }
    return OkStatus();
  }

  int64_t BucketOf(const Token& token) const {
    if (!token.whole) return HashBucket(token.text, buckets_);
    const int64_t rest = *token.whole % buckets_;
    return rest < 0 ? rest + buckets_ : rest;
  }

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const int64_t buckets_;
  const std::optional<std::string> mask_;
  const std::optional<int64_t> otherwise_;
};

class HashStage final : public TokenStage {
 public:
  HashStage(TokenInput input, const HashOp& op)
      : TokenStage(std::move(input)), op_(op) {}

 private:
  Status NumberOf(const Token& token, int64_t* number) const override {
    if (!op_.mask) {
      *number = HashBucket(token.text, op_.bins);
    } else if (token.text != *op_.mask) {
      *number = 1 + HashBucket(token.text, op_.bins - 1);
    }
    return OkStatus();
  }

  const HashOp op_;
};

Status CheckDefault(const YamlValue& value, LookupOp* op) {
  if (!op->otherwise || op->oov_buckets == 0) return OkStatus();
  return value.Optional("default").Error(
      "what is not in the vocabulary has a bucket; it is for oov_buckets: 0");
}

Status CheckMask(const YamlValue& value, HashOp* op) {
  return op->mask && op->bins < 2
             ? value.Required("bins").Error(
                   "1, and that is the mask's: wanted 2 at least")
             : OkStatus();
}

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
             const AugmentationKey&,
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

// ---- lookup

const Declaration<LookupOp>& LookupOp::Declared() {
  static const auto declared =
      FeatureOp<LookupOp>(
          "lookup",
          "The number of each word or integer in a vocabulary, as Keras' "
          "StringLookup and IntegerLookup: first the mask, if there is one, "
          "then the oov_buckets, then the vocabulary in its order.")
          .Gives("text or integers → int64")
          .Example("{feature: city, vocabulary: [Paris, Rome], mask: ''}")
          .Required("vocabulary", &LookupOp::vocabulary, VocabularyType(),
                    "its tokens, each once. A file is in memory once for all "
                    "jobs")
          .Optional("oov_buckets", &LookupOp::oov_buckets,
                    WholeNumber<int64_t>(0, kBucketsMax),
                    "numbers for what is not in it: of several, text has that "
                    "of `hash`, an integer its remainder")
          .Optional("mask", &LookupOp::mask, Maybe(TokenType()),
                    "the token that has number 0, such as that of padding")
          .Optional("default", &LookupOp::otherwise,
                    Maybe(WholeNumber<int64_t>(-kDefaultMax, kDefaultMax)),
                    "the number of what is not in it, with oov_buckets: 0; "
                    "else that is an error of its sample (on_error applies)")
          .Check(CheckDefault);
  return declared;
}

Status LookupOp::AddToRow(RowBuilder* row) const {
  for (const std::string& name : feature) {
    PENSTOCK_ASSIGN_OR_RETURN(const TokenInput input, FindTokens(*row, name));
    PENSTOCK_ASSIGN_OR_RETURN(const auto vocabulary,
                              Vocabulary::Open(this->vocabulary, !input.is_text,
                                               input.name, row->opening()));
    if (mask && vocabulary->Find(*mask)) {
      return InvalidArgumentError(
          "mask: '{}' is in the vocabulary too: take it out of one of them",
          Printable(*mask));
    }
    PENSTOCK_RETURN_IF_ERROR(AddTokenStage(
        row, input, std::make_unique<LookupStage>(input, *this, vocabulary)));
  }
  return OkStatus();
}

// ---- hash

const Declaration<HashOp>& HashOp::Declared() {
  static const auto declared =
      FeatureOp<HashOp>(
          "hash",
          "The number of a bin for each word or integer: FarmHash's "
          "Fingerprint64 of its bytes, or digits, modulo bins, as Keras' "
          "Hashing and tf.strings.to_hash_bucket_fast.")
          .Gives("text or integers → int64, from 0 to one less than bins")
          .Example("{feature: city, bins: 1000}")
          .Required("bins", &HashOp::bins, WholeNumber<int64_t>(1, kExactMax),
                    "how many there are")
          .Optional("mask", &HashOp::mask, Maybe(TokenType()),
                    "what has bin 0 for itself, as Keras' mask_value")
          .Check(CheckMask);
  return declared;
}

Status HashOp::AddToRow(RowBuilder* row) const {
  for (const std::string& name : feature) {
    PENSTOCK_ASSIGN_OR_RETURN(const TokenInput input, FindTokens(*row, name));
    PENSTOCK_RETURN_IF_ERROR(
        AddTokenStage(row, input, std::make_unique<HashStage>(input, *this)));
  }
  return OkStatus();
}

// ---- parse_json

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
          .Optional("longer", &ParseJsonOp::longer, LongerType(), kLongerText);
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
