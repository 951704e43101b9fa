// Promise: float16 and bfloat16 are rounded once, to nearest even. Method:
// exhaustive. Rounding is a step function whose steps lie between neighbouring
// values, so every value, every midpoint and the floats on both sides of it
// stand for every float.
#include "broker/transform/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace penstock::half_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Format: Float16 or BFloat16, To: the conversion of a float or double to it.
template <typename Format, typename To>
void CheckEveryStep(uint32_t infinity, double beyond_largest, To to) {
  for (uint32_t low = 0; low < infinity; ++low) {
    const auto value = [](uint32_t bits) {
      return double{ToFloat(Format{static_cast<uint16_t>(bits)})};
    };
    const double below = value(low);
    // The next value if there were more exponents.
    const double above = low + 1 == infinity ? beyond_largest : value(low + 1);
    const double middle = (below + above) / 2;
    for (const double sign : {1.0, -1.0}) {
      const uint32_t bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(to(sign * below), bit | low);
      ASSERT_EQ(to(sign * middle), bit | (low % 2 == 0 ? low : low + 1));
      const double less = std::is_same_v<float, decltype(to.argument)>
                              ? std::nextafter(float(middle), 0.0f)
                              : std::nextafter(middle, 0.0);
      const double more = std::is_same_v<float, decltype(to.argument)>
                              ? std::nextafter(float(middle), kInfinity)
                              : std::nextafter(middle, double{kInfinity});
      ASSERT_EQ(to(sign * less), bit | low);
      ASSERT_EQ(to(sign * more), bit | (low + 1));
    }
  }
}

template <typename Argument>
struct ToHalfBits {
  Argument argument;
  uint32_t operator()(double value) const {
    return ToFloat16(static_cast<Argument>(value)).bits;
  }
};
template <typename Argument>
struct ToBrainBits {
  Argument argument;
  uint32_t operator()(double value) const {
    return ToBFloat16(static_cast<Argument>(value)).bits;
  }
};

TEST(HalfTest, FloatToFloat16RoundsToNearestEven) {
  CheckEveryStep<Float16>(0x7c00, 65536.0, ToHalfBits<float>{});
}
TEST(HalfTest, DoubleToFloat16RoundsOnce) {
  CheckEveryStep<Float16>(0x7c00, 65536.0, ToHalfBits<double>{});
}
TEST(HalfTest, FloatToBFloat16RoundsToNearestEven) {
  CheckEveryStep<BFloat16>(0x7f80, 0x1p128, ToBrainBits<float>{});
}
TEST(HalfTest, DoubleToBFloat16RoundsOnce) {
  CheckEveryStep<BFloat16>(0x7f80, 0x1p128, ToBrainBits<double>{});
}

TEST(HalfTest, InfinitiesAndNansStayWhatTheyAre) {
  EXPECT_EQ(ToFloat16(kInfinity).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-kInfinity).bits, 0xfc00);
  EXPECT_EQ(ToBFloat16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(ToBFloat16(-kInfinity).bits, 0xff80);
  EXPECT_EQ(ToFloat(Float16{0x7c00}), kInfinity);
  EXPECT_EQ(ToFloat16(1e300).bits, 0x7c00);
  EXPECT_EQ(ToBFloat16(-1e300).bits, 0xff80);
  EXPECT_EQ(ToFloat16(1e-300).bits, 0);
  EXPECT_EQ(ToBFloat16(-1e-300).bits, 0x8000);
  // The smallest payload, in the half that is cut off.
  const float payload = std::bit_cast<float>(0x7f800001u);
  for (const float nan :
       {payload, std::numeric_limits<float>::quiet_NaN(), -payload}) {
    EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(nan))));
    EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(nan))));
    EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(double{nan}))));
    EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(double{nan}))));
  }
  for (uint32_t bits = 0x7c01; bits < 0x8000; ++bits) {
    EXPECT_TRUE(std::isnan(ToFloat(Float16{static_cast<uint16_t>(bits)})));
  }
}

}  // namespace penstock::half_test
