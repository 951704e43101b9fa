#include "broker/transform/hash.h"

#include <farmhash.h>

#include "broker/declare/declaration.h"
#include "broker/transform/token_input.h"
#include "broker/transform/vocabulary.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

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

Status CheckMask(const YamlValue& value, HashOp* op) {
  return op->mask && op->bins < 2
             ? value.Required("bins").Error(
                   "1, and that is the mask's: wanted 2 at least")
             : OkStatus();
}

}  // namespace

int64_t HashBucket(std::string_view text, int64_t buckets) {
  return static_cast<int64_t>(util::Fingerprint64(text.data(), text.size()) %
                              static_cast<uint64_t>(buckets));
}

const Declaration<HashOp>& HashOp::Declared() {
  static const auto declared =
      Declaration<HashOp>(
          "hash",
          "The number of a bin for each word or integer: FarmHash's "
          "Fingerprint64 of its bytes, or digits, modulo bins, as Keras' "
          "Hashing and tf.strings.to_hash_bucket_fast.")
          .Gives("text or integers → int64, from 0 to one less than bins")
          .Example("{feature: city, bins: 1000}")
          .Optional("feature", &HashOp::feature, FeatureNamesType(),
                    kFeatureText)
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

}  // namespace penstock
