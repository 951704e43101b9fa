// map: hash. FarmHash Fingerprint64 of a token, modulo the number of bins.
#ifndef BROKER_TRANSFORM_HASH_H_
#define BROKER_TRANSFORM_HASH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

struct HashOp {
  FeatureNames feature = DefaultFeature();
  int64_t bins = 0;
  std::optional<std::string> mask;
  bool operator==(const HashOp&) const = default;

  static const Declaration<HashOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// As tf.strings.to_hash_bucket_fast: the same on every machine.
int64_t HashBucket(std::string_view text, int64_t buckets);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_HASH_H_
