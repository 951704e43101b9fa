// The layout of one row of a batch: names, dtypes and shapes.
#ifndef COMMON_ELEMENT_SPEC_H_
#define COMMON_ELEMENT_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace penstock {

// The numbers are part of the C ABI (penstock.h).
enum class DType : uint32_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,   // IEEE 754 binary16
  kBFloat16 = 7,  // the upper half of a binary32
  kFloat32 = 8,
  kFloat64 = 9,
  kBool = 10,  // one byte, 0 or 1
};

// Bytes of one value.
uint32_t DTypeBytes(DType dtype);
// "uint8", "float16", "bfloat16", ... as NumPy and the frameworks spell it.
std::string_view DTypeName(DType dtype);
// InvalidArgument names the known dtypes.
StatusOr<DType> DTypeFromName(std::string_view name);

// The index of the first byte that is neither 0 nor 1, else nullopt. Foreign
// bytes are checked before use as bools: other values are undefined behavior in
// C++, and NumPy compares `True` with 2 byte by byte.
std::optional<size_t> FirstNotBool(std::span<const std::byte> bytes);

// A dimension that differs from batch to batch.
inline constexpr int64_t kAnySize = -1;

// One tensor of a row. shape excludes the batch dimension; a scalar has {}.
struct Feature {
  std::string name;
  DType dtype = DType::kUint8;
  std::vector<int64_t> shape;
  // Not 0: one value for all rows of a batch, of any size up to shape[0] bytes,
  // which begins with its size (uint64). A slot has pages for so many of them
  // before it is used.
  uint64_t room = 0;

  // 0: a dimension is kAnySize.
  uint64_t RowBytes() const;
  // Bytes of the memory for a batch of so many rows.
  uint64_t BytesOf(uint64_t rows) const {
    return (room > 0 ? 1 : rows) * RowBytes();
  }
  // Those that a batch of so many rows, which begins at data, uses.
  uint64_t BytesUsed(uint64_t rows, const std::byte* data) const;
  // "image float16 [3, 224, 224]"
  std::string ToString() const;
  bool operator==(const Feature&) const = default;
};

using ElementSpec = std::vector<Feature>;

// A feature NAME whose first dimension is a bound: the feature of this name, an
// int64, says how much of it is the row's. The rest is zeros. Of text, uint8
// [max_bytes], it is NAME_bytes.
inline constexpr char kLengthSuffix[] = ".length";
inline constexpr char kBytesSuffix[] = "_bytes";
// Its index; nullopt: every row of `feature` has all of it. Lines (text_lines)
// have `bytes` of `text`.
std::optional<uint32_t> LengthOf(const ElementSpec& spec,
                                 const Feature& feature);
inline bool MayBeText(const Feature& feature) {
  return feature.dtype == DType::kUint8 && feature.shape.size() == 1;
}

// The same features with as many dimensions; of such: what all have in common,
// with kAnySize where they differ.
bool SameButSizes(const ElementSpec& a, const ElementSpec& b);
ElementSpec CommonSpec(const std::vector<ElementSpec>& specs);

// [{"name": "image", "dtype": "float16", "shape": [3, 224, 224]}, ...]
nlohmann::json ElementSpecToJson(const ElementSpec& spec);
// Untrusted input: names of 1-64 characters, at most 64 features of at most 8
// dimensions, rows of at most 2^40 bytes.
StatusOr<ElementSpec> ElementSpecFromJson(const nlohmann::json& json);

}  // namespace penstock
#endif  // COMMON_ELEMENT_SPEC_H_
