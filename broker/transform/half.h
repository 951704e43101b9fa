// The two 16-bit floating-point formats, as bits: clang 14 has no _Float16 on
// x86-64 without AVX512-FP16. Every conversion to them rounds once, to nearest,
// ties to even.
#ifndef BROKER_TRANSFORM_HALF_H_
#define BROKER_TRANSFORM_HALF_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace penstock {

static_assert(std::numeric_limits<float>::is_iec559 &&
              std::numeric_limits<double>::is_iec559);

struct Float16 {
  uint16_t bits;  // IEEE 754 binary16
};
struct BFloat16 {
  uint16_t bits;  // the upper half of a binary32
};

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

inline float ToFloat(Float16 value) {
  const uint32_t sign = uint32_t{value.bits} << 16 & 0x80000000u;
  const uint32_t exponent = value.bits >> 10 & 0x1f;
  const uint32_t fraction = value.bits & 0x3ff;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    // Make it quiet: a payload only in the lower half would become infinity.
    return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  }
  // Half a unit less one, plus the lowest kept bit: ties go to even. A carry
  // runs into the exponent and correctly gives infinity at the top.
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline Float16 ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return {static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff))};
  }
  if (magnitude >= 0x47800000) {  // 2^16 and up
    return {static_cast<uint16_t>(sign | 0x7c00)};
  }
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal, in units of 2^-24
    // The FPU rounds: in [0.5, 1) the unit of a float is 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000))};
  }
  // As in ToBFloat16, but drops 13 bits and changes the exponent's bias.
  const uint32_t rebiased = magnitude - ((127u - 15u) << 23);
  return {static_cast<uint16_t>(
      sign | (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13)};
}

// value as a float rounded to odd: toward zero, then the last bit is set if
// anything was lost. Rounding the result again to at most 22 bits equals
// rounding value once.
inline float ToFloatRoundedToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (nearest == value || std::isnan(value)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

inline Float16 ToFloat16(double value) {
  return ToFloat16(ToFloatRoundedToOdd(value));
}
inline BFloat16 ToBFloat16(double value) {
  return ToBFloat16(ToFloatRoundedToOdd(value));
}

}  // namespace penstock
#endif  // BROKER_TRANSFORM_HALF_H_
