// map: lookup. The numbers of words or integers in a vocabulary.
#ifndef BROKER_TRANSFORM_LOOKUP_H_
#define BROKER_TRANSFORM_LOOKUP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "broker/transform/picture.h"
#include "broker/transform/vocabulary.h"

namespace penstock {

class RowBuilder;

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

}  // namespace penstock
#endif  // BROKER_TRANSFORM_LOOKUP_H_
