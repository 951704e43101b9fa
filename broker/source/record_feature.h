// Features that a source of named parts (tf.train.Example, members of a tar
// file) takes from a record, as a spec tells them.
#ifndef BROKER_SOURCE_RECORD_FEATURE_H_
#define BROKER_SOURCE_RECORD_FEATURE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/source/source.h"
#include "common/element_spec.h"

namespace penstock {

struct RecordFeature {
  enum class Kind { kValues, kEncoded, kText, kList };

  // The name is the row's; dtype and shape; the first dimension of kText and
  // kList is the room for them.
  Feature feature;
  std::string key;  // its name in the record; "": the same
  Kind kind = Kind::kValues;
  // Where a JSON document has it (RFC 6901); nullopt: it is the whole part.
  std::optional<std::string> pointer;
  // Which of the pictures that the part has, from 0; nullopt: it is one.
  std::optional<uint64_t> item;
  // Stands for each value where the record has none; of a list: it is empty.
  std::optional<std::variant<int64_t, double>> otherwise;
  bool cuts = false;  // a longer text or list loses its end
  // The source knows the rest: of the feature only the name is set.
  bool by_source = false;
  bool operator==(const RecordFeature&) const = default;

  const std::string& key_or_name() const {
    return key.empty() ? feature.name : key;
  }
  bool has_length() const { return kind == Kind::kText || kind == Kind::kList; }
  uint64_t max_length() const {
    return static_cast<uint64_t>(feature.shape[0]);
  }
  uint64_t ItemBytes() const { return feature.RowBytes() / max_length(); }
  // In a row, the length included.
  uint64_t RowBytes() const {
    return feature.RowBytes() + (has_length() ? sizeof(int64_t) : 0);
  }
};
using RecordFeatures = std::vector<RecordFeature>;

// {NAME: {encoded: true} or {dtype, shape, default} or {dtype, max_length,
// shape, longer} or {max_bytes, longer}, ...}, each with key_word, the word for
// the name in the record; more: "default", "pointer", "item", where the source
// takes them. source_knows: {NAME: {}} too, of what the source knows.
ValueType<RecordFeatures> RecordFeaturesType(std::string key_word,
                                             std::vector<std::string_view> more,
                                             bool source_knows = false);

// What features become in a row: text is followed by NAME_bytes, a list by
// NAME.length, int64.
RawSpec RawSpecOf(const RecordFeatures& features);

// The values of feature.otherwise.
std::vector<std::byte> DefaultBytes(const RecordFeature& feature);

// Writes number as dtype; false: dtype cannot represent it. A float takes any
// number, an integer dtype only whole ones in its range.
bool StoreNumber(int64_t number, DType dtype, std::byte* out);
bool StoreNumber(double number, DType dtype, std::byte* out);

// Points *raw at the feature in out and at its length: `items` of it, which lie
// in `bytes` or at the beginning of out already; zeros behind them. DataLoss:
// there are more than fit, and they are not cut.
Status StoreList(const RecordFeature& feature, uint64_t items,
                 std::span<const std::byte> bytes, std::span<std::byte> out,
                 RawRecord* raw);

// Whether a spec without features is told of pictures. The bytes may be the
// first of many.
bool LooksLikePicture(std::string_view bytes);
bool LooksLikeSound(std::string_view bytes);
bool LooksLikeText(std::string_view bytes);
// A name of a feature for what a record calls key.
std::string ProposedName(std::string_view key);
// "max_bytes: 128", with room for texts longer than bytes_most.
std::string ProposedText(uint64_t bytes_most);

}  // namespace penstock
#endif  // BROKER_SOURCE_RECORD_FEATURE_H_
