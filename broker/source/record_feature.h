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
  enum class Kind { kValues, kEncoded, kText };

  // The name is the row's; dtype and shape of kValues, the room of kText.
  Feature feature;
  std::string key;  // its name in the record; "": the same
  Kind kind = Kind::kValues;
  // Where a JSON document has it (RFC 6901); nullopt: it is the whole part.
  std::optional<std::string> pointer;
  // Stands for each value where the record has none.
  std::optional<std::variant<int64_t, double>> otherwise;
  bool operator==(const RecordFeature&) const = default;

  const std::string& key_or_name() const {
    return key.empty() ? feature.name : key;
  }
};
using RecordFeatures = std::vector<RecordFeature>;

// {NAME: {encoded: true} or {dtype, shape, default} or {max_bytes}, ...}, each
// with key_word, the word for the name in the record; more: "default",
// "pointer", where the source takes them.
ValueType<RecordFeatures> RecordFeaturesType(
    std::string key_word, std::vector<std::string_view> more);

// What features become in a row: text is followed by NAME_bytes, int64.
RawSpec RawSpecOf(const RecordFeatures& features);

// The values of feature.otherwise.
std::vector<std::byte> DefaultBytes(const RecordFeature& feature);

// Writes number as dtype; false: dtype cannot represent it. A float takes any
// number, an integer dtype only whole ones in its range.
bool StoreNumber(int64_t number, DType dtype, std::byte* out);
bool StoreNumber(double number, DType dtype, std::byte* out);

// Copies text, which fits, and zeros after it to out; then the number of its
// bytes as int64.
void StoreText(std::span<const std::byte> text, std::span<std::byte> out);
// The bytes that StoreText takes.
uint64_t TextBytes(const RecordFeature& feature);

// Whether a spec without features is told of pictures. The bytes may be the
// first of many.
bool LooksLikePicture(std::string_view bytes);
bool LooksLikeText(std::string_view bytes);
// A name of a feature for what a record calls key.
std::string ProposedName(std::string_view key);
// "max_bytes: 128", with room for texts longer than bytes_most.
std::string ProposedText(uint64_t bytes_most);

}  // namespace penstock
#endif  // BROKER_SOURCE_RECORD_FEATURE_H_
