// map: lookup, hash and parse_json. Numbers of words or integers; the values
// that a text holds.
#ifndef BROKER_TRANSFORM_TEXTS_H_
#define BROKER_TRANSFORM_TEXTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "broker/source/text_field.h"
#include "broker/transform/picture.h"
#include "broker/transform/vocabulary.h"

namespace penstock {

class RowBuilder;

// Those in a vocabulary.
struct LookupOp {
  FeatureNames feature = DefaultFeature();
  VocabularySpec vocabulary;
  int64_t oov_buckets = 1;
  std::optional<std::string> mask;
  std::optional<int64_t> otherwise;  // of tokens that are not in it
  bool operator==(const LookupOp&) const = default;

  static const Declaration<LookupOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// FarmHash Fingerprint64 of a token, modulo the number of bins.
struct HashOp {
  FeatureNames feature = DefaultFeature();
  int64_t bins = 0;
  std::optional<std::string> mask;
  bool operator==(const HashOp&) const = default;

  static const Declaration<HashOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// A text becomes the values of its JSON.
struct ParseJsonOp {
  std::string feature = kDefaultText;
  FeatureValues<TextField> fields;  // from: a JSON Pointer
  Longer longer = Longer::kFail;
  bool operator==(const ParseJsonOp&) const = default;

  static const Declaration<ParseJsonOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_TEXTS_H_
