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
                   const std::vector<std::string_view>& more,
                   RecordFeature* feature) {
  static const ValueType<DType> dtype = AnyDType();
  static const ValueType<std::vector<int64_t>> shape = Shape();
  static const ValueType<uint64_t> max_bytes =
      WholeNumber<uint64_t>(1, kRecordBytesMax);
  std::vector<std::string_view> known = {key_word, "encoded", "dtype", "shape",
                                         "max_bytes"};
  known.insert(known.end(), more.begin(), more.end());
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(
      known, "a mapping with encoded: true, or dtype and shape, or max_bytes"));
  const YamlValue key = value.Optional(key_word);
  if (key.present()) PENSTOCK_RETURN_IF_ERROR(key.String(&feature->key));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view given,
                            value.OneOf({"encoded", "dtype", "max_bytes"}));
  const YamlValue shape_value = value.Optional("shape");
  const YamlValue default_value = value.Optional("default");
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
    PENSTOCK_RETURN_IF_ERROR(
        shape.Read(value.Required("shape"), &feature->feature.shape));
    uint64_t values = 1;
    for (const int64_t side : feature->feature.shape) {
      // Divide: the product of hostile dimensions overflows.
      if (values > kRecordBytesMax / static_cast<uint64_t>(side)) {
        return shape_value.Error(
            Format("more than {} values", kRecordBytesMax));
      }
      values *= static_cast<uint64_t>(side);
    }
    return default_value.present() ? ReadDefault(default_value, feature)
                                   : OkStatus();
  }
  for (const YamlValue& other : {shape_value, default_value}) {
    if (other.present()) return other.Error("is only for a dtype");
  }
  feature->feature.dtype = DType::kUint8;
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

Json FeatureToJson(const RecordFeature& feature, const std::string& key_word) {
  Json json = Json::object();
  if (!feature.key.empty()) json[key_word] = feature.key;
  if (feature.pointer) json["pointer"] = *feature.pointer;
  switch (feature.kind) {
    case RecordFeature::Kind::kEncoded:
      json["encoded"] = true;
      break;
    case RecordFeature::Kind::kText:
      json["max_bytes"] = feature.feature.shape[0];
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
  return json;
}

}  // namespace

ValueType<RecordFeatures> RecordFeaturesType(
    std::string key_word, std::vector<std::string_view> more) {
  return {
      Features().wanted,
      [key_word, more](const YamlValue& value, std::string_view,
                       RecordFeatures* out) {
        PENSTOCK_RETURN_IF_ERROR(CheckFeatureNames(value));
        for (size_t i = 0; i < value.size(); ++i) {
          RecordFeature& feature = out->emplace_back();
          feature.feature.name = value.Key(i);
          PENSTOCK_RETURN_IF_ERROR(ReadFeature(
              value.Required(feature.feature.name), key_word, more, &feature));
        }
        for (const RecordFeature& each : *out) {
          if (each.kind == RecordFeature::Kind::kText &&
              std::any_of(out->begin(), out->end(),
                          [&each](const RecordFeature& other) {
                            return other.feature.name ==
                                   each.feature.name + "_bytes";
                          })) {
            return value.Error(
                Format("'{0}_bytes' is the length of the text '{0}': call that "
                       "feature otherwise",
                       each.feature.name));
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
    if (each.kind == RecordFeature::Kind::kText) {
      spec.push_back(
          {{each.feature.name + "_bytes", DType::kInt64, {}}, false});
    }
  }
  return spec;
}

std::vector<std::byte> DefaultBytes(const RecordFeature& feature) {
  const size_t each = DTypeBytes(feature.feature.dtype);
  std::vector<std::byte> bytes(feature.feature.RowBytes());
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

uint64_t TextBytes(const RecordFeature& feature) {
  return static_cast<uint64_t>(feature.feature.shape[0]) + sizeof(int64_t);
}

void StoreText(std::span<const std::byte> text, std::span<std::byte> out) {
  const auto bytes = static_cast<int64_t>(text.size());
  if (!text.empty()) std::memcpy(out.data(), text.data(), text.size());
  const size_t room = out.size() - sizeof(bytes);
  std::memset(out.data() + text.size(), 0, room - text.size());
  std::memcpy(out.data() + room, &bytes, sizeof(bytes));
}

bool LooksLikePicture(std::string_view bytes) {
  using namespace std::string_view_literals;
  return bytes.starts_with("\xff\xd8\xff") || bytes.starts_with("\x89PNG") ||
         bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv) ||
         (bytes.starts_with("RIFF") &&
          bytes.substr(std::min<size_t>(8, bytes.size())).starts_with("WEBP"));
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
