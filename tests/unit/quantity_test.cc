// Promise: sizes and times that people write are read, and nothing else is.
// Method: right ones and wrong ones.
#include "common/quantity.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace penstock::quantity_test {

TEST(ParseBytesTest, SizesAreRead) {
  EXPECT_EQ(*ParseBytes("1024"), 1024u);
  EXPECT_EQ(*ParseBytes("2K"), 2048u);
  EXPECT_EQ(*ParseBytes("3GiB"), uint64_t{3} << 30);
  for (const char* wrong : {"", "G", "-1", "1X", "99999999999T", "1.5G", "0"}) {
    EXPECT_FALSE(ParseBytes(wrong).ok()) << wrong;
  }
}

TEST(ParseDurationTest, TimesAreRead) {
  EXPECT_EQ(*ParseDuration("60s"), 60'000'000'000u);
  EXPECT_EQ(*ParseDuration("100ms"), 100'000'000u);
  EXPECT_EQ(*ParseDuration("24h"), uint64_t{86'400} * 1'000'000'000);
  for (const char* wrong : {"", "s", "60", "-1s", "1x", "1.5s", "0", "99ms",
                            "25h", "99999999999999h"}) {
    EXPECT_FALSE(ParseDuration(wrong).ok()) << wrong;
  }
}

}  // namespace penstock::quantity_test
