#include "broker/source/text_field.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/source/tensor_values.h"
#include "common/layout.h"

namespace penstock {
namespace {

// The numbers of one item.
uint64_t NumbersOf(const TextField& field) {
  uint64_t numbers = 1;
  for (const int64_t dimension : field.shape) {
    // Divide: the product of hostile dimensions overflows.
    if (numbers > kRecordBytesMax / static_cast<uint64_t>(dimension)) {
      return kRecordBytesMax + 1;
    }
    numbers *= static_cast<uint64_t>(dimension);
  }
  return numbers;
}

bool HasLength(const TextField& field) {
  return field.max_bytes || field.max_length;
}

// Items of a field that has a length, and the bytes of each.
uint64_t RoomOf(const TextField& field) {
  return field.max_bytes ? *field.max_bytes : *field.max_length;
}
uint64_t ItemBytes(const TextField& field) {
  return field.max_bytes ? 1 : NumbersOf(field) * DTypeBytes(*field.dtype);
}

std::string LengthName(const std::string& name, const TextField& field) {
  return name + (field.max_bytes ? kBytesSuffix : kLengthSuffix);
}

Status CheckField(const YamlValue& value, TextField* field) {
  if (field->dtype.has_value() == field->max_bytes.has_value()) {
    return value.Error("give dtype for numbers, or max_bytes for text");
  }
  if (field->max_bytes && (!field->shape.empty() || field->max_length)) {
    return value.Error("text has no shape, and max_bytes is its length");
  }
  if (field->json && !field->max_bytes) {
    return value.Error("json: true is of text: give max_bytes");
  }
  if (field->fallback && field->fallback->empty() && field->dtype &&
      !field->max_length) {
    return value.Error("default: [] is for a list (max_length)");
  }
  if (field->fallback && !field->fallback->empty() && field->max_length) {
    return value.Error("the default of a list is []");
  }
  return OkStatus();
}

Status CheckFieldOrPicture(const YamlValue& value, TextField* field) {
  const int kinds = field->encoded + field->classes.has_value() +
                    field->dtype.has_value() + field->max_bytes.has_value();
  if (kinds != 1) {
    return value.Error(
        "give one of encoded for a picture, classes for names, dtype for "
        "numbers, and max_bytes for text");
  }
  const bool is_value = field->dtype || field->max_bytes;
  return field->fallback && !is_value
             ? value.Error("default is only for a dtype or max_bytes")
             : OkStatus();
}

// true, or absent.
ValueType<bool> TrueType() {
  return {"true, or another key",
          [](const YamlValue& value, std::string_view wanted, bool* out) {
            *out = true;
            return value.IsBool() && value.IsWord("true")
                       ? OkStatus()
                       : value.Wanted(wanted);
          },
          [](const bool& given, nlohmann::ordered_json* out) {
            if (given) *out = true;
          }};
}

ValueType<std::optional<std::vector<std::string>>> ClassesType() {
  constexpr size_t kClassesMax = 65536;
  const ValueType<bool> all = TrueType();
  const ValueType<std::vector<std::string>> names =
      List(Text("a name of a class",
                [](std::string_view text) { return !text.empty(); }),
           1, kClassesMax, "true, or a list of names");
  using Names = std::optional<std::vector<std::string>>;
  return {names.wanted,
          [all, names](const YamlValue& value, std::string_view wanted,
                       Names* out) {
            out->emplace();
            if (value.IsScalar()) {
              bool given = false;
              return all.read(value, wanted, &given);
            }
            PENSTOCK_RETURN_IF_ERROR(names.read(value, wanted, &**out));
            std::unordered_set<std::string_view> found;
            for (const std::string& each : **out) {
              if (found.insert(each).second) continue;
              return value.Error(Format("'{}' is in it twice", each));
            }
            return OkStatus();
          },
          [all, names](const Names& value, nlohmann::ordered_json* out) {
            if (!value) return;
            value->empty() ? all.write(true, out) : names.write(*value, out);
          }};
}

Status ReadDefault(const YamlValue& value, void* object) {
  TextField& field = *static_cast<TextField*>(object);
  std::vector<std::byte>& bytes = field.fallback.emplace();
  if (value.IsSequence() && value.size() == 0) return OkStatus();
  if (field.dtype) {
    bytes.resize(DTypeBytes(*field.dtype));
    return ReadNumber(value, *field.dtype, bytes.data());
  }
  std::string text;
  if (!value.IsWord("")) PENSTOCK_RETURN_IF_ERROR(value.String(&text));
  if (field.max_bytes && text.size() > *field.max_bytes) {
    return value.Error(Format("{} bytes, more than max_bytes", text.size()));
  }
  const auto from = std::as_bytes(std::span(text));
  bytes.assign(from.begin(), from.end());
  return OkStatus();
}

void WriteDefault(const void* object, nlohmann::ordered_json* out) {
  const TextField& field = *static_cast<const TextField*>(object);
  if (!field.fallback) return;
  if (field.dtype && field.fallback->empty()) {
    *out = nlohmann::ordered_json::array();
    return;
  }
  if (field.dtype)
    return WriteNumber(*field.dtype, field.fallback->data(), out);
  WriteText({reinterpret_cast<const char*>(field.fallback->data()),
             field.fallback->size()},
            out);
}

Declaration<TextField> DeclareField(const TextFieldOptions& options) {
  Declaration<TextField> declared("field", "A value of a record.");
  if (options.with_pictures) {
    declared
        .Optional("encoded", &TextField::encoded, TrueType(), "a picture file")
        .Optional("classes", &TextField::classes, ClassesType(), "");
  }
  declared.Optional("dtype", &TextField::dtype, Maybe(AnyDType()),
                    "of numbers");
  if (options.with_shape) {
    declared.Optional("shape", &TextField::shape, Shape(), "")
        .Optional("max_length", &TextField::max_length,
                  Maybe(WholeNumber<uint64_t>(1, kRecordBytesMax)),
                  "room for a list in each row")
        .Optional("json", &TextField::json, TrueType(),
                  "the JSON of a list or an object");
  }
  declared
      .Optional("max_bytes", &TextField::max_bytes,
                Maybe(WholeNumber<uint64_t>(1, kRecordBytesMax)),
                "room for text in each row")
      .Optional(options.from_key, &TextField::from, LeftOutAt({}, options.from),
                "")
      .Add({"default",
            "where there is no value",
            "a number, text, or []",
            false,
            false,
            {ReadDefault, WriteDefault}})
      .Check(options.with_pictures ? CheckFieldOrPicture : CheckField);
  return declared;
}

Status CheckRow(const YamlValue& value,
                const FeatureValues<TextField>& fields) {
  std::unordered_set<std::string> names;
  uint64_t bytes = 0;
  for (const auto& [name, field] : fields) {
    std::vector<std::string> features = {name};
    uint64_t items = 1;
    if (HasLength(field)) {
      features.push_back(LengthName(name, field));
      items = RoomOf(field);
      bytes += sizeof(int64_t);
    }
    if (field.max_bytes || field.dtype) {
      // Divide: the product of hostile dimensions overflows.
      const uint64_t each = std::max<uint64_t>(ItemBytes(field), 1);
      bytes +=
          items > kRecordBytesMax / each ? kRecordBytesMax + 1 : items * each;
    }
    if (features.back().size() > kNameCharsMax) {
      return value.Error(Format("'{}' has more than {} characters",
                                features.back(), kNameCharsMax));
    }
    for (const std::string& feature : features) {
      if (names.insert(feature).second) continue;
      return value.Error(
          Format("two features are named '{}'; text NAME also gives NAME{}, a "
                 "list NAME{}",
                 feature, kBytesSuffix, kLengthSuffix));
    }
  }
  if (names.size() > kFeaturesMax) {
    return value.Error(
        Format("{} features, those of text and lists count twice; at most {}",
               names.size(), kFeaturesMax));
  }
  if (bytes > kRecordBytesMax) {
    return value.Error(Format("a row of more than {} bytes", kRecordBytesMax));
  }
  return OkStatus();
}

bool IsContinuation(char byte) { return (byte & 0xc0) == 0x80; }

}  // namespace

ValueType<FeatureValues<TextField>> TextFields(
    const TextFieldOptions& options) {
  const Declaration<TextField> declared = DeclareField(options);
  ValueType<FeatureValues<TextField>> type =
      ValueOfEachFeature(ValueType<TextField>{
          declared.Wanted(),
          [declared](const YamlValue& value, std::string_view wanted,
                     TextField* out) {
            return declared.Read(value, wanted, out);
          },
          [declared](const TextField& field, nlohmann::ordered_json* out) {
            declared.Write(&field, out);
          }});
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted,
                                 FeatureValues<TextField>* out) {
    PENSTOCK_RETURN_IF_ERROR(read(value, wanted, out));
    return CheckRow(value, *out);
  };
  return type;
}

ValueType<Longer> LongerType() {
  return Words<Longer>({{"fail", Longer::kFail}, {"cut", Longer::kCut}});
}

FieldRows::FieldRows(const FeatureValues<TextField>& fields, Longer longer)
    : fields_(fields), longer_(longer) {
  for (const auto& [name, field] : fields_) {
    at_.push_back(bytes_);
    if (field.encoded) {
      raw_spec_.push_back({{name, DType::kUint8, {}}, true});
      continue;
    }
    Feature feature = {name,
                       field.classes     ? DType::kInt64
                       : field.max_bytes ? DType::kUint8
                                         : *field.dtype,
                       field.shape};
    if (HasLength(field)) {
      feature.shape.insert(feature.shape.begin(),
                           static_cast<int64_t>(RoomOf(field)));
    }
    bytes_ += feature.RowBytes();
    raw_spec_.push_back({std::move(feature), false});
    if (HasLength(field)) {
      raw_spec_.push_back(
          {{LengthName(name, field), DType::kInt64, {}}, false});
      bytes_ += sizeof(int64_t);
    }
  }
  uint64_t end = 0;
  for (const RawFeature& each : raw_spec_) {
    ends_.push_back(end += each.encoded ? 0 : each.feature.RowBytes());
  }
}

Status FieldRows::StoreText(std::string_view text, size_t field,
                            std::byte* row) const {
  const uint64_t room = *fields_[field].second.max_bytes;
  if (text.size() > room) {
    if (longer_ == Longer::kFail) {
      return DataLossError(
          "field '{}': text of {} bytes; at most {} fit (max_bytes, or "
          "`longer: cut`)",
          name(field), text.size(), room);
    }
    text = text.substr(0, CutText(text, room));
  }
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(),
              row + at_[field]);
  EndList(text.size(), field, row);
  return OkStatus();
}

StatusOr<uint64_t> FieldRows::ItemsKept(uint64_t items, size_t field) const {
  const uint64_t room = RoomOf(fields_[field].second);
  if (items > room && longer_ == Longer::kFail) {
    return DataLossError(
        "field '{}': a list of {}; at most {} fit (max_length, or `longer: "
        "cut`)",
        name(field), items, room);
  }
  return std::min(items, room);
}

void FieldRows::EndList(uint64_t items, size_t field, std::byte* row) const {
  const TextField& of = fields_[field].second;
  const uint64_t each = ItemBytes(of);
  std::byte* const end = row + at_[field] + RoomOf(of) * each;
  std::fill(row + at_[field] + items * each, end, std::byte{0});
  std::memcpy(end, &items, sizeof(items));
}

Status FieldRows::StoreDefault(std::string_view lacks, size_t field,
                               std::byte* row) const {
  const TextField& of = fields_[field].second;
  if (!of.fallback) {
    return DataLossError("field '{}' {}; give it a `default` if that is right",
                         name(field), lacks);
  }
  const std::vector<std::byte>& bytes = *of.fallback;
  if (of.max_bytes) {
    return StoreText(
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, field,
        row);
  }
  if (of.max_length) {
    EndList(0, field, row);
    return OkStatus();
  }
  std::byte* to = row + at_[field];
  for (uint64_t i = 0; i < NumbersOf(of); ++i) {
    to = std::copy(bytes.begin(), bytes.end(), to);
  }
  return OkStatus();
}

void FieldRows::Point(std::span<const std::byte> row, RawRecord* raw) const {
  raw->resize(ends_.size());
  uint64_t at = 0;
  for (size_t i = 0; i < ends_.size(); ++i) {
    (*raw)[i] = row.subspan(at, ends_[i] - at);
    at = ends_[i];
  }
}

size_t CutText(std::string_view text, size_t bytes_max) {
  size_t kept = bytes_max;
  while (kept > 0 && IsContinuation(text[kept])) --kept;
  return kept;
}

std::optional<size_t> FindNotUtf8(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::nullopt;
  // Somewhere it is not: character by character, which is seldom needed.
  size_t at = 0;
  while (at < text.size()) {
    size_t bytes = 1;
    while (bytes <= 4 && at + bytes <= text.size() &&
           !simdjson::validate_utf8(text.data() + at, bytes)) {
      ++bytes;
    }
    if (bytes > 4 || at + bytes > text.size()) return at;
    at += bytes;
  }
  return std::nullopt;
}

}  // namespace penstock
