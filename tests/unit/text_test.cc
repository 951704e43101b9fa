// Promise: an error is shown short, with its first line and its end, and harms
// no terminal. Method: long and odd messages.
#include "broker/base/text.h"

#include <string>

#include "common/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::text_test {

TEST(ShortErrorTest, KeepsTheFirstLineAndTheEnd) {
  EXPECT_EQ(ShortError("a.jpg: \x1b[2J truncated"), "a.jpg: ?[2J truncated");
  EXPECT_EQ(ShortError(std::string(400, 'x')), std::string(300, 'x') + " ...");
  EXPECT_EQ(ShortError("f: Traceback\n  line\nValueError: no"),
            "f: Traceback\n  line\nValueError: no");
  std::string frames;
  for (int i = 0; i < 40; ++i) frames += Format("  frame {} \xff\n", i);
  const std::string text =
      ShortError("f: Traceback\n" + frames + "ValueError: too old\n");
  EXPECT_LE(text.size(), 310u);
  EXPECT_THAT(text, testing::StartsWith("f: Traceback\n...\n  frame 2"));
  EXPECT_THAT(text, testing::EndsWith("  frame 39 ?\nValueError: too old"));
}

}  // namespace penstock::text_test
