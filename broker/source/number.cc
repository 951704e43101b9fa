#include "broker/source/number.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "broker/index/values.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
bool Put(T number, std::byte* to) {
  std::memcpy(to, &number, sizeof(number));
  return true;
}

template <typename T>
bool PutWhole(int64_t number, std::byte* to) {
  return number >= std::numeric_limits<T>::min() &&
         number <= std::numeric_limits<T>::max() &&
         Put(static_cast<T>(number), to);
}

// As a 16-bit IEEE 754 binary format, subnormals included. infinite: from there
// on numbers round to infinity; exponent_min: the smallest exponent of a normal
// number.
bool PutSmallFloat(double number, int mantissa_bits, int exponent_min,
                   double infinite, std::byte* to) {
  const uint16_t sign = std::signbit(number) ? 0x8000 : 0;
  if (!std::isfinite(number)) {
    const auto infinity =
        static_cast<uint16_t>(0x7fff & (0x7fff << mantissa_bits));
    const auto quiet = static_cast<uint16_t>(
        std::isnan(number) ? 1 << (mantissa_bits - 1) : 0);
    return Put<uint16_t>(sign | infinity | quiet, to);
  }
  const double magnitude = std::abs(number);
  if (magnitude >= infinite) return false;
  const int exponent = magnitude == 0
                           ? exponent_min
                           : std::max(std::ilogb(magnitude), exponent_min);
  // In units of the last place, implicit bit included: subnormals have none,
  // and a number rounded up to the next power of two carries into the exponent.
  const auto units = static_cast<uint32_t>(
      std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  const uint32_t bits =
      (static_cast<uint32_t>(exponent - exponent_min) << mantissa_bits) + units;
  return Put(static_cast<uint16_t>(sign | bits), to);
}

}  // namespace

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

bool StoreWhole(int64_t number, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kUint8:
      return PutWhole<uint8_t>(number, to);
    case DType::kInt8:
      return PutWhole<int8_t>(number, to);
    case DType::kInt16:
      return PutWhole<int16_t>(number, to);
    case DType::kInt32:
      return PutWhole<int32_t>(number, to);
    case DType::kInt64:
      return Put(number, to);
    case DType::kBool:
      return PutWhole<bool>(number, to);
    default:
      return StoreReal(static_cast<double>(number), dtype, to);
  }
}

bool StoreReal(double number, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kFloat16:
      return PutSmallFloat(number, 10, -14, 65520, to);
    case DType::kBFloat16:
      return PutSmallFloat(number, 7, -126, 0x1.ffp127, to);
    case DType::kFloat32:
      return (!std::isfinite(number) || std::abs(number) < 0x1.ffffffp127) &&
             Put(static_cast<float>(number), to);
    case DType::kFloat64:
      return Put(number, to);
    default:
      return false;
  }
}

bool StoreNumberText(std::string_view text, DType dtype, std::byte* to) {
  for (const std::string_view word : {"true", "True", "TRUE"}) {
    if (text == word) return StoreWhole(1, dtype, to);
  }
  for (const std::string_view word : {"false", "False", "FALSE"}) {
    if (text == word) return StoreWhole(0, dtype, to);
  }
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  int64_t whole = 0;
  if (!IsFloat(dtype) && ParseNumber(text, &whole)) {
    return StoreWhole(whole, dtype, to);
  }
  double number = 0;
  return ParseNumber(text, &number) && StoreDouble(number, dtype, to);
}

bool StoreDouble(double number, DType dtype, std::byte* to) {
  constexpr auto kExact = static_cast<double>(kExactMax);
  if (IsFloat(dtype)) return StoreReal(number, dtype, to);
  if (number != std::trunc(number) || std::abs(number) > kExact) return false;
  return StoreWhole(static_cast<int64_t>(number), dtype, to);
}

}  // namespace penstock
