#include "broker/transform/lookup.h"

#include "broker/declare/declaration.h"
#include "broker/transform/hash.h"
#include "broker/transform/token_input.h"
#include "common/exact_max.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr int64_t kBucketsMax = int64_t{1} << 31;
constexpr int64_t kDefaultMax{kExactMax};

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

Status CheckDefault(const YamlValue& value, LookupOp* op) {
  if (!op->otherwise || op->oov_buckets == 0) return OkStatus();
  return value.Optional("default").Error(
      "what is not in the vocabulary has a bucket; it is for oov_buckets: 0");
}

}  // namespace

const Declaration<LookupOp>& LookupOp::Declared() {
  static const auto declared =
      Declaration<LookupOp>(
          "lookup",
          "The number of each word or integer in a vocabulary, as Keras' "
          "StringLookup and IntegerLookup: first the mask, if there is one, "
          "then the oov_buckets, then the vocabulary in its order.")
          .Gives("text or integers → int64")
          .Example("{feature: city, vocabulary: [Paris, Rome], mask: ''}")
          .Optional("feature", &LookupOp::feature, FeatureNamesType(),
                    kFeatureText)
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

}  // namespace penstock
