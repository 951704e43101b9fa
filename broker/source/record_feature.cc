#include "broker/source/record_feature.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>

#include "broker/io/read.h"
#include "broker/source/json_lines.h"
#include "broker/source/number.h"
#include "broker/source/text_field.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

Status ReadDefault(const YamlValue& value, RecordFeature* feature) {
  int64_t whole = 0;
  double number = 0;
  std::byte bytes[sizeof(uint64_t)];
  if (value.IsNumber(&whole) &&
      StoreNumber(whole, feature->feature.dtype, bytes)) {
    feature->otherwise = whole;
    return OkStatus();
  }
  if (value.IsNumber(&number) &&
      StoreNumber(number, feature->feature.dtype, bytes)) {
    feature->otherwise = number;
    return OkStatus();
  }
  return value.Wanted(
      Format("a number that fits {}", DTypeName(feature->feature.dtype)));
}

Status ReadFeature(const YamlValue& value, const std::string& key_word,
                   const std::vector<std::string_view>& more, bool source_knows,
                   RecordFeature* feature) {
  static const ValueType<DType> dtype = AnyDType();
  static const ValueType<std::vector<int64_t>> shape = Shape();
  static const ValueType<uint64_t> max_bytes =
      WholeNumber<uint64_t>(1, kRecordBytesMax);
  static const ValueType<uint64_t> max_length =
      WholeNumber<uint64_t>(1, kRecordBytesMax);
  static const ValueType<uint64_t> item =
      WholeNumber<uint64_t>(0, kRecordBytesMax);
  static const ValueType<Longer> longer = LongerType();
  std::vector<std::string_view> known = {key_word, "encoded",    "dtype",
                                         "shape",  "max_length", "max_bytes",
                                         "longer"};
  known.insert(known.end(), more.begin(), more.end());
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(
      known, "a mapping with encoded: true, or dtype and shape, or max_bytes"));
  const YamlValue key = value.Optional(key_word);
  if (key.present()) PENSTOCK_RETURN_IF_ERROR(key.String(&feature->key));
  const std::vector<std::string_view> kinds = {"encoded", "dtype", "max_bytes"};
  feature->by_source =
      source_knows &&
      std::none_of(kinds.begin(), kinds.end(), [&value](std::string_view kind) {
        return value.Optional(kind).present();
      });
  std::string_view given;
  if (!feature->by_source) {
    PENSTOCK_ASSIGN_OR_RETURN(given, value.OneOf(kinds));
  }
  const YamlValue shape_value = value.Optional("shape");
  const YamlValue length_value = value.Optional("max_length");
  const YamlValue longer_value = value.Optional("longer");
  if (longer_value.present()) {
    if (feature->by_source || given == "encoded" ||
        (given == "dtype" && !length_value.present())) {
      return longer_value.Error("is for text and lists (max_length)");
    }
    Longer which = Longer::kFail;
    PENSTOCK_RETURN_IF_ERROR(longer.Read(longer_value, &which));
    feature->cuts = which == Longer::kCut;
  }
  const YamlValue default_value = value.Optional("default");
  const YamlValue item_value = value.Optional("item");
  if (item_value.present()) {
    if (!feature->by_source && given != "encoded") {
      return item_value.Error("is for a picture");
    }
    PENSTOCK_RETURN_IF_ERROR(item.Read(item_value, &feature->item.emplace()));
  }
  const YamlValue pointer = value.Optional("pointer");
  if (pointer.present()) {
    if (given == "encoded") return pointer.Error("is not for a picture");
    PENSTOCK_RETURN_IF_ERROR(pointer.String(&feature->pointer.emplace()));
    if (!PointerTokens(*feature->pointer)) {
      return pointer.Wanted("a JSON pointer, as /label or /boxes/0");
    }
  }
  if (given == "dtype") {
    feature->kind = RecordFeature::Kind::kValues;
    PENSTOCK_RETURN_IF_ERROR(
        dtype.Read(value.Required("dtype"), &feature->feature.dtype));
    if (length_value.present()) {
      feature->kind = RecordFeature::Kind::kList;
      uint64_t room = 0;
      PENSTOCK_RETURN_IF_ERROR(max_length.Read(length_value, &room));
      if (shape_value.present()) {
        PENSTOCK_RETURN_IF_ERROR(
            shape.Read(shape_value, &feature->feature.shape));
      }
      feature->feature.shape.insert(feature->feature.shape.begin(),
                                    static_cast<int64_t>(room));
    } else {
      PENSTOCK_RETURN_IF_ERROR(
          shape.Read(value.Required("shape"), &feature->feature.shape));
    }
    uint64_t values = 1;
    for (const int64_t side : feature->feature.shape) {
      // Divide: the product of hostile dimensions overflows.
      if (values > kRecordBytesMax / static_cast<uint64_t>(side)) {
        return value.Error(Format("more than {} values", kRecordBytesMax));
      }
      values *= static_cast<uint64_t>(side);
    }
    if (!default_value.present()) return OkStatus();
    if (feature->kind != RecordFeature::Kind::kList) {
      return ReadDefault(default_value, feature);
    }
    if (!default_value.IsSequence() || default_value.size() > 0) {
      return default_value.Wanted("[], the empty list");
    }
    feature->otherwise = int64_t{0};
    return OkStatus();
  }
  for (const YamlValue& other : {shape_value, default_value, length_value}) {
    if (other.present()) return other.Error("is only for a dtype");
  }
  feature->feature.dtype = DType::kUint8;
  if (feature->by_source) return OkStatus();
  if (given == "encoded") {
    feature->kind = RecordFeature::Kind::kEncoded;
    const YamlValue encoded = value.Required("encoded");
    return encoded.IsBool() && encoded.IsWord("true")
               ? OkStatus()
               : encoded.Wanted("true, or another key");
  }
  feature->kind = RecordFeature::Kind::kText;
  uint64_t room = 0;
  PENSTOCK_RETURN_IF_ERROR(max_bytes.Read(value.Required("max_bytes"), &room));
  feature->feature.shape = {static_cast<int64_t>(room)};
  return OkStatus();
}

std::string LengthName(const RecordFeature& feature) {
  return feature.feature.name + (feature.kind == RecordFeature::Kind::kText
                                     ? kBytesSuffix
                                     : kLengthSuffix);
}

Json FeatureToJson(const RecordFeature& feature, const std::string& key_word) {
  Json json = Json::object();
  if (!feature.key.empty()) json[key_word] = feature.key;
  if (feature.pointer) json["pointer"] = *feature.pointer;
  if (feature.item) json["item"] = *feature.item;
  if (feature.by_source) return json;
  switch (feature.kind) {
    case RecordFeature::Kind::kEncoded:
      json["encoded"] = true;
      break;
    case RecordFeature::Kind::kText:
      json["max_bytes"] = feature.max_length();
      break;
    case RecordFeature::Kind::kList:
      json["dtype"] = DTypeName(feature.feature.dtype);
      json["max_length"] = feature.max_length();
      json["shape"] = std::vector<int64_t>(feature.feature.shape.begin() + 1,
                                           feature.feature.shape.end());
      if (feature.otherwise) json["default"] = Json::array();
      break;
    case RecordFeature::Kind::kValues:
      json["dtype"] = DTypeName(feature.feature.dtype);
      json["shape"] = feature.feature.shape;
      if (feature.otherwise) {
        std::visit([&json](auto number) { json["default"] = number; },
                   *feature.otherwise);
      }
      break;
  }
  if (feature.cuts) json["longer"] = "cut";
  return json;
}

}  // namespace

ValueType<RecordFeatures> RecordFeaturesType(std::string key_word,
                                             std::vector<std::string_view> more,
                                             bool source_knows) {
  return {Features().wanted,
          [key_word, more, source_knows](
              const YamlValue& value, std::string_view, RecordFeatures* out) {
            PENSTOCK_RETURN_IF_ERROR(CheckFeatureNames(value));
            for (size_t i = 0; i < value.size(); ++i) {
              RecordFeature& feature = out->emplace_back();
              feature.feature.name = value.Key(i);
              PENSTOCK_RETURN_IF_ERROR(
                  ReadFeature(value.Required(feature.feature.name), key_word,
                              more, source_knows, &feature));
            }
            for (const RecordFeature& each : *out) {
              if (each.has_length() &&
                  std::any_of(out->begin(), out->end(),
                              [&each](const RecordFeature& other) {
                                return other.feature.name == LengthName(each);
                              })) {
                return value.Error(Format(
                    "'{}' is the length of '{}': call that feature otherwise",
                    LengthName(each), each.feature.name));
              }
            }
            return OkStatus();
          },
          [key_word](const RecordFeatures& features, Json* out) {
            if (features.empty()) return;
            *out = Json::object();
            for (const RecordFeature& each : features) {
              (*out)[each.feature.name] = FeatureToJson(each, key_word);
            }
          }};
}

RawSpec RawSpecOf(const RecordFeatures& features) {
  RawSpec spec;
  for (const RecordFeature& each : features) {
    spec.push_back({each.feature, each.kind == RecordFeature::Kind::kEncoded});
    if (each.has_length()) {
      spec.push_back({{LengthName(each), DType::kInt64, {}}, false});
    }
  }
  return spec;
}

std::vector<std::byte> DefaultBytes(const RecordFeature& feature) {
  const size_t each = DTypeBytes(feature.feature.dtype);
  std::vector<std::byte> bytes(feature.RowBytes());
  if (feature.has_length()) return bytes;
  for (size_t at = 0; at < bytes.size(); at += each) {
    std::visit(
        [&](auto number) {
          StoreNumber(number, feature.feature.dtype, &bytes[at]);
        },
        *feature.otherwise);
  }
  return bytes;
}

bool StoreNumber(int64_t number, DType dtype, std::byte* out) {
  return !IsFloat(dtype) && StoreWhole(number, dtype, out);
}

bool StoreNumber(double number, DType dtype, std::byte* out) {
  return StoreReal(number, dtype, out);
}

Status StoreList(const RecordFeature& feature, uint64_t items,
                 std::span<const std::byte> bytes, std::span<std::byte> out,
                 RawRecord* raw) {
  const bool is_text = feature.kind == RecordFeature::Kind::kText;
  if (items > feature.max_length()) {
    if (!feature.cuts) {
      return DataLossError("{}; at most {} fit ({}, or `longer: cut`)",
                           is_text ? Format("a text of {} bytes", items)
                                   : Format("a list of {}", items),
                           feature.max_length(),
                           is_text ? "max_bytes" : "max_length");
    }
    items = feature.max_length();
    if (is_text) {
      items = CutText(
          {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, items);
    }
  }
  const uint64_t used = items * feature.ItemBytes();
  const uint64_t room = feature.feature.RowBytes();
  if (!bytes.empty()) std::memmove(out.data(), bytes.data(), used);
  std::memset(out.data() + used, 0, room - used);
  std::memcpy(out.data() + room, &items, sizeof(items));
  raw->push_back(out.first(room));
  raw->push_back(out.subspan(room, sizeof(items)));
  return OkStatus();
}

bool LooksLikePicture(std::string_view bytes) {
  using namespace std::string_view_literals;
  return bytes.starts_with("\xff\xd8\xff") || bytes.starts_with("\x89PNG") ||
         bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv) ||
         (bytes.starts_with("RIFF") &&
          bytes.substr(std::min<size_t>(8, bytes.size())).starts_with("WEBP"));
}

bool LooksLikeSound(std::string_view bytes) {
  return bytes.starts_with("fLaC") || bytes.starts_with("OggS") ||
         bytes.starts_with("ID3") || bytes.starts_with("\xff\xfb") ||
         (bytes.starts_with("RIFF") &&
          bytes.substr(std::min<size_t>(8, bytes.size())).starts_with("WAVE"));
}

bool LooksLikeText(std::string_view bytes) {
  const std::optional<size_t> wrong = FindNotUtf8(bytes);
  // The last character may be cut.
  return (!wrong || *wrong + 4 > bytes.size()) &&
         std::none_of(bytes.begin(), bytes.end(), [](unsigned char c) {
           return c < ' ' && c != '\n' && c != '\t' && c != '\r';
         });
}

// Letters, digits, '.', '_' and '-'.
std::string ProposedName(std::string_view key) {
  std::string name(key.substr(0, 64));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' &&
        c != '-') {
      c = '_';
    }
  }
  return name;
}

std::string ProposedText(uint64_t bytes_most) {
  constexpr uint64_t kTextBytesMin = 64;
  return Format("max_bytes: {}",
                std::min(std::bit_ceil(std::max(2 * bytes_most, kTextBytesMin)),
                         kRecordBytesMax));
}

}  // namespace penstock
