// The values of a record of text (JSON, CSV): what a spec says of each, and the
// row that they become.
#ifndef BROKER_SOURCE_TEXT_FIELD_H_
#define BROKER_SOURCE_TEXT_FIELD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/source/source.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// Numbers of dtype and shape, a list of up to max_length of them, or text of up
// to max_bytes; where the source has them, a picture or the number of a class.
struct TextField {
  std::string from;  // where a record has it; "": by the field's name
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  std::optional<uint64_t> max_length;
  std::optional<uint64_t> max_bytes;
  bool json = false;     // the text is the JSON of a list or an object
  bool encoded = false;  // the path of a picture file
  // The name of a class, int64: its place in the list; if that is empty, among
  // all names in byte order.
  std::optional<std::vector<std::string>> classes;
  // What a record without a value has: a number, which fills the shape, the
  // text, or nothing, the empty list.
  std::optional<std::vector<std::byte>> fallback;
  bool operator==(const TextField&) const = default;
};

// What a source allows of its fields.
struct TextFieldOptions {
  std::string from_key;  // the key of `from`
  ValueType<std::string> from;
  bool with_shape = false;     // and max_length, json
  bool with_pictures = false;  // and classes
};
// The names and sizes of all features are checked.
ValueType<FeatureValues<TextField>> TextFields(const TextFieldOptions& options);
inline constexpr char kFieldsGive[] =
    "as given; of text, NAME uint8 [max_bytes], filled with zeros, and "
    "NAME_bytes int64: how many of them are the text's";
inline constexpr char kFieldsAndListsGive[] =
    "as given; of text, NAME uint8 [max_bytes] and NAME_bytes int64, of a "
    "list, "
    "NAME [max_length, *shape] and NAME.length int64: how many are the row's; "
    "zeros follow";

// Text of more than max_bytes, a list of more than max_length.
enum class Longer { kFail, kCut };
ValueType<Longer> LongerType();
inline constexpr char kLongerTextText[] =
    "longer text is an error of its sample (on_error applies), or loses its "
    "end, at a whole character";
inline constexpr char kLongerText[] =
    "longer text, or a longer list, is an error of its sample (on_error "
    "applies), or loses its end; text at a whole character";

// Rows of fields: their features one after the other. Immutable.
class FieldRows {
 public:
  FieldRows(const FeatureValues<TextField>& fields, Longer longer);

  const RawSpec& raw_spec() const { return raw_spec_; }
  uint64_t bytes() const { return bytes_; }  // of a row
  size_t count() const { return fields_.size(); }
  const std::string& name(size_t field) const { return fields_[field].first; }
  const TextField& operator[](size_t field) const {
    return fields_[field].second;
  }

  // Where the numbers of a field are.
  std::byte* NumbersIn(std::byte* row, size_t field) const {
    return row + at_[field];
  }
  // How many items of a list there is room for; DataLoss, as below: too few,
  // and longer ones are not cut.
  StatusOr<uint64_t> ItemsKept(uint64_t items, size_t field) const;
  // The field has so many items, which are stored: zeros behind them, and their
  // number.
  void EndList(uint64_t items, size_t field, std::byte* row) const;
  // DataLoss, as below: it has no room.
  Status StoreText(std::string_view text, size_t field, std::byte* row) const;
  // Stores the default; DataLoss, which says what it lacks: there is none.
  Status StoreDefault(std::string_view lacks, size_t field,
                      std::byte* row) const;
  // Leaves the features of pictures empty.
  void Point(std::span<const std::byte> row, RawRecord* raw) const;

 private:
  const FeatureValues<TextField> fields_;
  const Longer longer_;
  RawSpec raw_spec_;
  std::vector<uint64_t> at_;    // of each field in a row
  std::vector<uint64_t> ends_;  // of each feature in a row
  uint64_t bytes_ = 0;
};

// How many bytes of a longer text are kept of so many: whole characters.
size_t CutText(std::string_view text, size_t bytes_max);

// The offset of the first byte that is not of a UTF-8 character; nullopt: all
// are.
std::optional<size_t> FindNotUtf8(std::string_view text);

}  // namespace penstock
#endif  // BROKER_SOURCE_TEXT_FIELD_H_
