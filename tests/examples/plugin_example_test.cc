// Promise: the plugin example does what its README says: factors from 0.8 to
// 1.2 that depend on seed, epoch and sample alone. Method: runs the built
// library as a step of a row program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "broker/transform/row_program.h"

namespace penstock {
namespace {

class PluginExampleTest : public testing::Test {
 protected:
  PluginExampleTest() {
    FunctionOptions options;
    options.plugin_dir = PENSTOCK_BUILD_DIR "/client/examples/plugins";
    options.writable_by = 0002;  // a private broker's, whatever the umask
    auto program = RowProgram::Compile(
        {PluginOp{"brightness.so", "brightness", std::nullopt}},
        {{{"image", DType::kUint8, {1}}, false},
         {{"label", DType::kInt64, {}}, false}},
        options);
    if (!program.ok()) throw std::runtime_error(program.status().message());
    program_ = *std::move(program);
    scratch_ = program_->MakeScratch({});
  }

  // Returns the result for a pixel of 200.
  int Brightened(const AugmentationKey& key) {
    const std::byte pixel{200};
    const int64_t label = 1234567;
    const RawRecord row = {{&pixel, 1}, std::as_bytes(std::span(&label, 1))};
    std::byte image{0};
    int64_t label_out = 0;
    std::byte* const out[] = {&image, reinterpret_cast<std::byte*>(&label_out)};
    const Status status = program_->Run(row, key, *scratch_, out);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(label_out, label);
    return static_cast<int>(image);
  }

  std::unique_ptr<RowProgram> program_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
};

TEST_F(PluginExampleTest, FactorsFillTheirRangeAndRepeat) {
  double sum = 0;
  int least = 255;
  int most = 0;
  for (uint64_t sample = 0; sample < 1000; ++sample) {
    const int value = Brightened({1, 0, sample});
    EXPECT_EQ(value, Brightened({1, 0, sample}));
    least = std::min(least, value);
    most = std::max(most, value);
    sum += value;
  }
  EXPECT_GE(least, 160);
  EXPECT_LE(least, 162);
  EXPECT_GE(most, 238);
  EXPECT_LE(most, 240);
  EXPECT_NEAR(sum / 1000, 200, 3);
}

TEST_F(PluginExampleTest, EpochsAndSeedsDiffer) {
  int same = 0;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    same += Brightened({1, 0, sample}) == Brightened({1, 1, sample});
    same += Brightened({1, 0, sample}) == Brightened({2, 0, sample});
  }
  EXPECT_LT(same, 20);
}

}  // namespace
}  // namespace penstock
