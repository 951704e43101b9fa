// A number as a value of a dtype, in little-endian.
#ifndef BROKER_SOURCE_NUMBER_H_
#define BROKER_SOURCE_NUMBER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/element_spec.h"

namespace penstock {

inline constexpr double kFloat16Max = 65504;
inline constexpr double kBFloat16Max = 0x1.fep127;

bool IsFloat(DType dtype);

// Each writes DTypeBytes(dtype) to `to`; false: dtype cannot hold the number.
// A whole number, of any dtype.
bool StoreWhole(int64_t number, DType dtype, std::byte* to);
// Stores a number of a float dtype, rounded to nearest even. It holds infinity
// and NaN, but no number that would be rounded to infinity.
bool StoreReal(double number, DType dtype, std::byte* to);
// Stores a number of any dtype; integers hold whole numbers up to 2^53.
bool StoreDouble(double number, DType dtype, std::byte* to);

// A number in text of any dtype: 5, 2.0 of an integer, 1e-3, nan, inf, true and
// false.
bool StoreNumberText(std::string_view text, DType dtype, std::byte* to);

}  // namespace penstock
#endif  // BROKER_SOURCE_NUMBER_H_
