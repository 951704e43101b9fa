#include "common/element_spec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  uint32_t bytes;
};
constexpr std::array<DTypeInfo, 10> kDTypes = {{
    {DType::kUint8, "uint8", 1},
    {DType::kInt8, "int8", 1},
    {DType::kInt16, "int16", 2},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kFloat16, "float16", 2},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kBool, "bool", 1},
}};

constexpr size_t kFeaturesMax = 64;
constexpr size_t kDimensionsMax = 8;
constexpr size_t kNameCharsMax = 64;
constexpr uint64_t kRowBytesMax = uint64_t{1} << 40;

const DTypeInfo& Info(DType dtype) {
  return kDTypes[static_cast<uint32_t>(dtype) - 1];
}

}  // namespace

uint32_t DTypeBytes(DType dtype) { return Info(dtype).bytes; }

std::string_view DTypeName(DType dtype) { return Info(dtype).name; }

StatusOr<DType> DTypeFromName(std::string_view name) {
  std::string known;
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  return InvalidArgumentError("unknown dtype '{}'; known are {}", name, known);
}

std::optional<size_t> FirstNotBool(std::span<const std::byte> bytes) {
  constexpr uint64_t kNotBools = ~uint64_t{0x0101'0101'0101'0101};
  size_t begin = 0;
  for (; bytes.size() - begin >= sizeof(uint64_t); begin += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + begin, sizeof(word));
    if ((word & kNotBools) != 0) break;
  }
  const auto found =
      std::find_if(bytes.begin() + static_cast<ptrdiff_t>(begin), bytes.end(),
                   [](std::byte byte) { return byte > std::byte{1}; });
  if (found == bytes.end()) return std::nullopt;
  return static_cast<size_t>(found - bytes.begin());
}

uint64_t Feature::RowBytes() const {
  uint64_t bytes = DTypeBytes(dtype);
  for (const int64_t dim : shape) {
    if (dim == kAnySize) return 0;
    bytes *= static_cast<uint64_t>(dim);
  }
  return bytes;
}

uint64_t Feature::BytesUsed(uint64_t rows, const std::byte* data) const {
  if (room == 0) return rows * RowBytes();
  uint64_t bytes = 0;
  std::memcpy(&bytes, data, sizeof(bytes));
  return std::min(bytes, RowBytes());
}

std::optional<uint32_t> LengthOf(const ElementSpec& spec,
                                 const Feature& feature) {
  if (feature.shape.empty()) return std::nullopt;
  for (uint32_t i = 0; i < spec.size(); ++i) {
    const Feature& each = spec[i];
    const bool is_named = each.name == feature.name + kLengthSuffix ||
                          (MayBeText(feature) &&
                           (each.name == feature.name + kBytesSuffix ||
                            (feature.name == "text" && each.name == "bytes")));
    if (is_named && each.dtype == DType::kInt64 && each.shape.empty()) return i;
  }
  return std::nullopt;
}

bool SameButSizes(const ElementSpec& a, const ElementSpec& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Feature& x, const Feature& y) {
                      return x.name == y.name && x.dtype == y.dtype &&
                             x.shape.size() == y.shape.size();
                    });
}

ElementSpec CommonSpec(const std::vector<ElementSpec>& specs) {
  ElementSpec common = specs[0];
  for (const ElementSpec& each : specs) {
    for (size_t i = 0; i < common.size(); ++i) {
      for (size_t d = 0; d < common[i].shape.size(); ++d) {
        if (each[i].shape[d] != common[i].shape[d]) {
          common[i].shape[d] = kAnySize;
        }
      }
    }
  }
  return common;
}

std::string Feature::ToString() const {
  return Format("{} {} [{}]", name, DTypeName(dtype), JoinText(shape, ", "));
}

nlohmann::json ElementSpecToJson(const ElementSpec& spec) {
  nlohmann::json json = nlohmann::json::array();
  for (const Feature& feature : spec) {
    json.push_back({{"name", feature.name},
                    {"dtype", std::string(DTypeName(feature.dtype))},
                    {"shape", feature.shape}});
    if (feature.room > 0) json.back()["room"] = feature.room;
  }
  return json;
}

StatusOr<ElementSpec> ElementSpecFromJson(const nlohmann::json& json) {
  if (!json.is_array() || json.empty() || json.size() > kFeaturesMax) {
    return InvalidArgumentError("element spec: wanted 1 to {} features",
                                kFeaturesMax);
  }
  ElementSpec spec;
  for (const nlohmann::json& item : json) {
    if (!item.is_object() || !item.contains("name") ||
        !item["name"].is_string() || !item.contains("dtype") ||
        !item["dtype"].is_string() || !item.contains("shape") ||
        !item["shape"].is_array()) {
      return InvalidArgumentError(
          "element spec: a feature needs name, dtype and shape");
    }
    Feature feature;
    feature.name = item["name"].get<std::string>();
    if (feature.name.empty() || feature.name.size() > kNameCharsMax) {
      return InvalidArgumentError("element spec: a name has 1 to {} characters",
                                  kNameCharsMax);
    }
    PENSTOCK_ASSIGN_OR_RETURN(feature.dtype,
                              DTypeFromName(item["dtype"].get<std::string>()));
    if (item["shape"].size() > kDimensionsMax) {
      return InvalidArgumentError("element spec: at most {} dimensions",
                                  kDimensionsMax);
    }
    uint64_t bytes = DTypeBytes(feature.dtype);
    for (const nlohmann::json& dim : item["shape"]) {
      if (!dim.is_number_integer() || dim.get<int64_t>() < 0) {
        return InvalidArgumentError(
            "element spec: feature '{}': a dimension is a number, 0 or more",
            feature.name);
      }
      const int64_t value = dim.get<int64_t>();
      // Divide: the product of hostile dimensions overflows.
      if (value != 0 && bytes > kRowBytesMax / static_cast<uint64_t>(value)) {
        return InvalidArgumentError("element spec: feature '{}' is too large",
                                    feature.name);
      }
      bytes *= static_cast<uint64_t>(value);
      feature.shape.push_back(value);
    }
    if (item.contains("room")) {
      if (!item["room"].is_number_unsigned() || feature.shape.size() != 1 ||
          feature.dtype != DType::kUint8 || bytes < sizeof(uint64_t) ||
          item["room"].get<uint64_t>() > bytes) {
        return InvalidArgumentError(
            "element spec: feature '{}': room is that of a value of bytes",
            feature.name);
      }
      feature.room = item["room"].get<uint64_t>();
    }
    spec.push_back(std::move(feature));
  }
  return spec;
}

}  // namespace penstock
