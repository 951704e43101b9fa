#include "broker/declare/value_type.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFeaturesMax = 64;
constexpr int64_t kDimensionMax = std::numeric_limits<int32_t>::max();

template <typename V>
void WriteItself(const V& value, Json* out) {
  *out = value;
}

// Read: as YamlValue reads it.
template <typename Read, typename V>
auto NumberWithin(V min, V max) {
  return [min, max](const YamlValue& value, std::string_view wanted, V* out) {
    Read number;
    if (!value.IsNumber(&number) || number < min || number > max) {
      return value.Wanted(wanted);
    }
    *out = static_cast<V>(number);
    return OkStatus();
  };
}

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kNameCharsMax && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
         });
}

std::string NameRule() {
  return Format(
      "a name of 1 to {} letters, digits, '.', '_' and '-', not beginning with "
      "'.'",
      kNameCharsMax);
}

// Adds a feature's bytes to *row_bytes.
Status AddRowBytes(const YamlValue& value, const Feature& feature,
                   uint64_t* row_bytes) {
  uint64_t bytes = DTypeBytes(feature.dtype);
  for (const int64_t dimension : feature.shape) {
    // Divide: the product of hostile dimensions overflows.
    if (bytes > kRowBytesMax / static_cast<uint64_t>(dimension)) {
      bytes = kRowBytesMax + 1;
      break;
    }
    bytes *= static_cast<uint64_t>(dimension);
  }
  *row_bytes += bytes;
  if (*row_bytes > kRowBytesMax) {
    return value.Error(Format("a record of more than {} bytes", kRowBytesMax));
  }
  return OkStatus();
}

Status ReadFeatures(const YamlValue& features, std::string_view,
                    ElementSpec* out) {
  static const ValueType<DType> dtype = AnyDType();
  static const ValueType<std::vector<int64_t>> shape = Shape();
  PENSTOCK_RETURN_IF_ERROR(CheckFeatureNames(features));
  uint64_t row_bytes = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    Feature& feature = out->emplace_back();
    feature.name = features.Key(i);
    const YamlValue as_written = features.Required(feature.name);
    PENSTOCK_RETURN_IF_ERROR(as_written.CheckMapping(
        {"dtype", "shape"}, "a mapping of dtype, shape"));
    PENSTOCK_RETURN_IF_ERROR(
        dtype.Read(as_written.Required("dtype"), &feature.dtype));
    const YamlValue dimensions = as_written.Required("shape");
    PENSTOCK_RETURN_IF_ERROR(shape.Read(dimensions, &feature.shape));
    PENSTOCK_RETURN_IF_ERROR(AddRowBytes(dimensions, feature, &row_bytes));
  }
  return OkStatus();
}

void WriteFeatures(const ElementSpec& element, Json* out) {
  *out = Json::object();
  for (const Feature& feature : element) {
    (*out)[feature.name] = {{"dtype", DTypeName(feature.dtype)},
                            {"shape", feature.shape}};
  }
}

// As YAML's core schema reads it: unquoted numbers and booleans are that.
nlohmann::ordered_json JsonOf(const YamlValue& value) {
  if (value.IsMapping()) {
    auto mapping = nlohmann::ordered_json::object();
    for (size_t i = 0; i < value.size(); ++i) {
      mapping[value.Key(i)] = JsonOf(value.Optional(value.Key(i)));
    }
    return mapping;
  }
  if (value.IsSequence()) {
    auto list = nlohmann::ordered_json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      list.push_back(JsonOf(value.Item(i)));
    }
    return list;
  }
  if (!value.IsScalar()) return nullptr;
  if (value.IsBool()) return value.IsWord("true");
  if (int64_t whole = 0; value.IsNumber(&whole)) return whole;
  if (double number = 0; value.IsNumber(&number)) return number;
  return value.Scalar();
}

}  // namespace

template <typename V>
ValueType<V> WholeNumber(V min, V max) {
  using Whole = std::conditional_t<std::is_signed_v<V>, int64_t, uint64_t>;
  return {Format("a whole number from {} to {}", min, max),
          NumberWithin<Whole, V>(min, max), WriteItself<V>};
}
template ValueType<int64_t> WholeNumber(int64_t, int64_t);
template ValueType<uint64_t> WholeNumber(uint64_t, uint64_t);
template ValueType<uint32_t> WholeNumber(uint32_t, uint32_t);

ValueType<double> Number(double min, double max) {
  return {Format("a number from {:g} to {:g}", min, max),
          NumberWithin<double, double>(min, max), WriteItself<double>};
}

ValueType<bool> Bool() {
  return {"true or false",
          [](const YamlValue& value, std::string_view wanted, bool* out) {
            if (!value.IsBool()) return value.Wanted(wanted);
            *out = value.IsWord("true");
            return OkStatus();
          },
          WriteItself<bool>};
}

ValueType<std::string> AnyMapping() {
  return {
      "a mapping",
      [](const YamlValue& value, std::string_view wanted, std::string* out) {
        if (!value.IsMapping()) return value.Wanted(wanted);
        *out = JsonOf(value).dump();
        return OkStatus();
      },
      [](const std::string& value, nlohmann::ordered_json* out) {
        *out = nlohmann::ordered_json::parse(value);
      }};
}

ValueType<std::string> Path() {
  return {"a path",
          [](const YamlValue& value, std::string_view, std::string* out) {
            return value.Path(out);
          },
          WriteItself<std::string>};
}

ValueType<std::string> PathOrAddress() {
  return {"a path or an address",
          [](const YamlValue& value, std::string_view, std::string* out) {
            return value.PathOrAddress(out);
          },
          WriteItself<std::string>};
}

ValueType<std::string> MaybePathOrAddress() {
  return LeftOutAt<std::string>("", PathOrAddress());
}

ValueType<std::string> MaybePath() {
  return LeftOutAt<std::string>("", Path());
}

ValueType<std::string> Text(std::string wanted, bool (*is)(std::string_view)) {
  return {
      std::move(wanted),
      [is](const YamlValue& value, std::string_view wanted, std::string* out) {
        PENSTOCK_RETURN_IF_ERROR(value.String(out));
        return is(*out) ? OkStatus() : value.Wanted(wanted);
      },
      WriteItself<std::string>};
}

ValueType<std::string> Name() {
  return {
      NameRule(),
      [](const YamlValue& value, std::string_view wanted, std::string* out) {
        std::string name;
        if (!value.String(&name).ok() || !IsName(name)) {
          return value.Wanted(wanted);
        }
        *out = std::move(name);
        return OkStatus();
      },
      WriteItself<std::string>};
}

ValueType<DType> DTypes(const std::vector<DType>& allowed) {
  std::vector<std::pair<std::string_view, DType>> words;
  for (const DType dtype : allowed) words.push_back({DTypeName(dtype), dtype});
  ValueType<DType> type = Words(std::move(words));
  type.read = [allowed, read = type.read](const YamlValue& value,
                                          std::string_view wanted, DType* out) {
    // Names that people know from elsewhere, and what `tensors` takes them for.
    constexpr std::pair<std::string_view, DType> kOthers[] = {
        {"int", DType::kInt64},
        {"float", DType::kFloat32},
        {"double", DType::kFloat64}};
    for (const auto& [name, dtype] : kOthers) {
      if (value.IsWord(name) &&
          std::count(allowed.begin(), allowed.end(), dtype) > 0) {
        return value.Error(Format("unknown value '{}'; did you mean '{}'?",
                                  name, DTypeName(dtype)));
      }
    }
    return read(value, wanted, out);
  };
  return type;
}

ValueType<DType> AnyDType() {
  return DTypes({DType::kUint8, DType::kInt8, DType::kInt16, DType::kInt32,
                 DType::kInt64, DType::kFloat16, DType::kBFloat16,
                 DType::kFloat32, DType::kFloat64, DType::kBool});
}

ValueType<DType> FloatDType() {
  return DTypes(
      {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64});
}

ValueType<std::vector<int64_t>> Shape() {
  return List(WholeNumber<int64_t>(1, kDimensionMax), 0, kShapeDimensionsMax,
              Format("a list of at most {} dimensions, [] for a single number",
                     kShapeDimensionsMax));
}

ValueType<ElementSpec> Features() {
  return {Format("a mapping of 1 to {} feature names", kFeaturesMax),
          ReadFeatures, WriteFeatures};
}

Status CheckFeatureNames(const YamlValue& features) {
  return CheckNames(features, Features().wanted);
}

Status CheckNames(const YamlValue& mapping, std::string_view wanted) {
  if (!mapping.IsMapping() || mapping.size() == 0 ||
      mapping.size() > kFeaturesMax) {
    return mapping.Wanted(wanted);
  }
  for (size_t i = 0; i < mapping.size(); ++i) {
    if (IsName(mapping.Key(i))) continue;
    return mapping.KeyError(
        i, Format("{} is not {}", Quoted(mapping.Key(i)), NameRule()));
  }
  return OkStatus();
}

void WriteText(std::string_view text, Json* out) { *out = text; }

void WriteList(size_t count,
               const std::function<void(size_t i, Json* out)>& item,
               Json* out) {
  *out = Json::array();
  for (size_t i = 0; i < count; ++i) item(i, &out->emplace_back(nullptr));
}

Json* WriteMember(const std::string& key, Json* out) {
  if (!out->is_object()) *out = Json::object();
  return &(*out)[key];
}

}  // namespace penstock
