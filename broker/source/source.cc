#include <algorithm>
#include <array>

#include "broker/index/values.h"
#include "broker/source/kinds.h"

namespace penstock {

OpenedSource OpenSource(const SourceSpec& spec, OpenProgress* progress,
                        const FunctionOptions& functions) {
  OpenProgress unwatched;
  if (progress == nullptr) progress = &unwatched;
  return std::visit(
      [&](const auto& kind) {
        if constexpr (requires { kind.Open(progress, functions); }) {
          return kind.Open(progress, functions);
        } else {
          return kind.Open(progress);
        }
      },
      spec);
}

ColumnValue NumberOf(DType dtype, const std::byte* bytes) {
  switch (dtype) {
    case DType::kInt8:
      return int64_t{ValueAt<int8_t>(bytes)};
    case DType::kInt16:
      return int64_t{ValueAt<int16_t>(bytes)};
    case DType::kInt32:
      return int64_t{ValueAt<int32_t>(bytes)};
    case DType::kInt64:
      return ValueAt<int64_t>(bytes);
    case DType::kFloat32:
      return double{ValueAt<float>(bytes)};
    case DType::kFloat64:
      return ValueAt<double>(bytes);
    default:  // uint8, bool
      return int64_t{ValueAt<uint8_t>(bytes)};
  }
}

bool IsNumber(const RawFeature& raw) {
  return !raw.encoded && raw.feature.shape.empty() &&
         raw.feature.dtype != DType::kFloat16 &&
         raw.feature.dtype != DType::kBFloat16;
}

RawSpec RawSpecOf(const ElementSpec& features) {
  RawSpec raw_spec;
  for (const Feature& each : features) raw_spec.push_back({each, false});
  return raw_spec;
}

Columns Source::columns(uint64_t first) const {
  Columns columns;
  std::array<std::byte, sizeof(uint64_t)> number{};
  for (size_t i = 0; i < raw_spec().size(); ++i) {
    const Feature& feature = raw_spec()[i].feature;
    if (!IsNumber(raw_spec()[i]) || !KnownNumber(0, i, number.data())) continue;
    columns.push_back({feature.name, [this, first, i,
                                      dtype = feature.dtype](uint64_t record) {
                         std::array<std::byte, sizeof(uint64_t)> value{};
                         KnownNumber(record - first, i, value.data());
                         return NumberOf(dtype, value.data());
                       }});
  }
  if (record_count() > 0 && !FileOf(0).empty()) {
    columns.push_back({"file", [this, first](uint64_t record) {
                         return std::string(FileOf(record - first));
                       }});
  }
  return columns;
}

bool AnySource(const SourceSpec& source,
               const std::function<bool(const SourceSpec&)>& is_such) {
  const auto any = [&](const std::vector<PartSpec>& parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const PartSpec& part) {
      return AnySource(part.source, is_such);
    });
  };
  if (is_such(source)) return true;
  if (const auto* concat = std::get_if<ConcatSource>(&source)) {
    return any(concat->parts);
  }
  if (const auto* mix = std::get_if<MixSource>(&source)) {
    return any(mix->parts);
  }
  if (const auto* zip = std::get_if<ZipSource>(&source)) {
    return any(zip->parts);
  }
  return false;
}

}  // namespace penstock
