// map: encode_bytes and vectorize_text. Texts to numbers without a library: of
// their bytes, and of their words.
#ifndef BROKER_TRANSFORM_TEXT_TOKENS_H_
#define BROKER_TRANSFORM_TEXT_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broker/source/text_field.h"
#include "broker/transform/picture.h"
#include "broker/transform/vocabulary.h"
#include "common/words.h"

namespace penstock {

class RowBuilder;

struct EncodeBytesOp {
  FeatureNames feature = DefaultText();
  int64_t offset = 0;
  std::optional<int64_t> begin;
  std::optional<int64_t> end;
  std::optional<int64_t> max_length;  // absent: all have room
  Longer longer = Longer::kFail;
  DType dtype = DType::kInt32;
  bool operator==(const EncodeBytesOp&) const = default;

  static const Declaration<EncodeBytesOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

struct VectorizeTextOp {
  enum class Output { kInt, kMultiHot, kCount, kTfIdf };

  FeatureNames feature = DefaultText();
  VocabularySpec vocabulary;
  WordRules::Standardize standardize = WordRules::Standardize::kLowerAndStrip;
  WordRules::Split split = WordRules::Split::kWhitespace;
  std::vector<uint32_t> ngrams = {1};
  Output output = Output::kInt;
  std::optional<int64_t> max_length;
  Longer longer = Longer::kFail;
  std::string idf;  // a file, "": none
  bool operator==(const VectorizeTextOp&) const = default;

  static const Declaration<VectorizeTextOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_TEXT_TOKENS_H_
