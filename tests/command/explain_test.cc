// Promise: `penstock explain` names the narrowest stage, and says of no remedy
// that it gives more than the next stage allows. Method: its arithmetic on
// given numbers; then the built command on storage that answers every half
// second.
#include "client/command/explain.h"

#include <cerrno>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "tests/command/command_fixture.h"
#include "tests/support/gated_file_system.h"

namespace penstock::explain_test {

using testing::AllOf;
using testing::ContainsRegex;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;

constexpr double kMs = 1e-3;

// Two workers; decoding takes 70 % of a row.
Measurements Pictures() {
  Measurements measured;
  measured.cold = ReadRate{3000, 100'000, 4 * kMs};
  measured.cached = ReadRate{40'000, 100'000, 0.1 * kMs};
  measured.parts = {{"read", {}, "", 0.1 * kMs},
                    {"unpack", {}, "", 0.001 * kMs},
                    {"step", 0, "decode_image", 0.7 * kMs},
                    {"step", 1, "flip", 0},
                    {"step", 2, "normalize", 0.199 * kMs}};
  measured.workers = 2;
  measured.one_per_s = 1000;
  measured.made_per_s = 1900;
  measured.whole_per_s = 1800;
  measured.take_s = 0.005 * kMs;
  measured.row_bytes = 301'056;
  return measured;
}

TEST(ExplainTest, WhatIsReadOfObjectStoresIsTheNetwork) {
  Measurements measured = Pictures();
  measured.remote = true;
  measured.cold->per_s = 500;
  EXPECT_EQ(StagesOf(measured)[0].name, "the network");
  const Advice advice = AdviceOf(measured);
  EXPECT_EQ(advice.limit, "network");
  EXPECT_THAT(advice.text,
              AllOf(HasSubstr("The network is the bottleneck: 47.7 MiB/s"),
                    HasSubstr("From local copies it is 3.80 x, then making "
                              "rows limits"),
                    Not(HasSubstr("torage"))));
}

TEST(ExplainTest, TheStageWithTheLeastSamplesPerSecondIsTheNarrowest) {
  const std::vector<Stage> stages = StagesOf(Pictures());
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[NarrowestOf(stages)].kind, Stage::Kind::kMake);
}

TEST(ExplainTest, AGainEndsAtTheNextStage) {
  const std::vector<Stage> stages = StagesOf(Pictures());
  const size_t making = NarrowestOf(stages);
  EXPECT_EQ(GainOf(stages, making, 1.5).limit, nullptr);
  EXPECT_DOUBLE_EQ(GainOf(stages, making, 1.5).times, 1.5);
  const Gain most =
      GainOf(stages, making, std::numeric_limits<double>::infinity());
  EXPECT_THAT(most.times, DoubleNear(3000.0 / 1900, 1e-9));
  ASSERT_NE(most.limit, nullptr);
  EXPECT_EQ(most.limit->name, "storage");
}

TEST(ExplainTest, TheStepThatTakesMostIsNamedWithItsShare) {
  const Advice advice = AdviceOf(Pictures());
  EXPECT_EQ(advice.limit, "step decode_image");
  // Half of 70 %: 1 / 0.65. Two more processors: 900 each, so 3700 of 1900, but
  // storage gives 3000.
  EXPECT_THAT(advice.text,
              AllOf(HasSubstr("decode_image takes 70 % of it"),
                    HasSubstr("Halving that gives 1.54 x; removing it gives "
                              "1.58 x, then storage limits"),
                    HasSubstr("2 more processors give 1.58 x, then storage")));
  EXPECT_THAT(advice.gain, DoubleNear(3000.0 / 1900, 1e-9));
}

TEST(ExplainTest, AGainThatTheNextStageEndsIsToldOnce) {
  Measurements measured = Pictures();
  measured.cold->per_s = 2280;
  EXPECT_THAT(AdviceOf(measured).text,
              HasSubstr("70 % of it. Halving that, or removing it, "
                        "gives 1.20 x, then storage limits. 2 more"));
}

TEST(ExplainTest, ASmallerPictureIsToldAsMeasured) {
  Measurements measured = Pictures();
  measured.smaller = Measurements::Smaller{0, "112 x 112", 2500};
  EXPECT_THAT(AdviceOf(measured).text,
              HasSubstr("map[0] at a size of 112 x 112 gives 1.32 x "
                        "(measured)"));
  measured.smaller->made_per_s = 1910;  // brings nothing
  EXPECT_THAT(AdviceOf(measured).text, Not(HasSubstr("112")));
}

TEST(ExplainTest, MoreProcessorsAddWhatThoseHereHaveAdded) {
  Measurements measured = Pictures();
  measured.cold.reset();
  measured.one_per_s = measured.made_per_s = 1900;  // the second one: nothing
  EXPECT_THAT(AdviceOf(measured).text,
              HasSubstr("2 more processors give 1.00 x"));
}

TEST(ExplainTest, StorageIsComparedWithThePageCacheAndTheMemory) {
  Measurements measured = Pictures();
  measured.cold->per_s = 300;
  measured.data_bytes = uint64_t{1} << 30;
  measured.memory_bytes = uint64_t{8} << 30;
  Advice advice = AdviceOf(measured);
  EXPECT_EQ(advice.limit, "storage");
  EXPECT_THAT(advice.text,
              AllOf(HasSubstr("28.6 MiB/s, 4.00 ms a read"),
                    HasSubstr("twice as fast gives 2.00 x"),
                    HasSubstr("From the page cache it is 6.33 x, then making "
                              "rows limits"),
                    HasSubstr("1.0 GiB, 8.0 GiB of memory are available, so "
                              "every epoch but the first is")));
  measured.data_bytes = uint64_t{80} << 30;
  EXPECT_THAT(AdviceOf(measured).text, HasSubstr("so they do not fit"));
}

TEST(ExplainTest, RanksThatTakeLessThanTheLoaderGivesAreTheLimit) {
  Measurements measured = Pictures();
  measured.cold.reset();
  measured.cached.reset();
  measured.ranks_per_s = 500;
  const Advice advice = AdviceOf(measured);
  EXPECT_EQ(advice.limit, "ranks");
  EXPECT_EQ(advice.gain, 1);
  EXPECT_THAT(advice.text, HasSubstr("making rows gives 3.80 x of what they "
                                     "take"));
}

TEST(ExplainTest, StagesThatAreEquallyNarrowAreBothNamed) {
  Measurements measured = Pictures();
  measured.cold->per_s = 1950;
  EXPECT_THAT(AdviceOf(measured).text, HasSubstr("About as slow: storage."));
}

TEST(ExplainTest, TheTableHasEachStageAndMarksTheNarrowest) {
  const std::string table = ExplainTable(Pictures(), 100);
  EXPECT_THAT(table, AllOf(HasSubstr("making rows, 2 workers"),
                           HasSubstr("  decode_image"), HasSubstr("70 %"),
                           ContainsRegex("\n  flip +in the pass of another "
                                         "step\n"),
                           HasSubstr("the rest"), HasSubstr("▶")));
  size_t marks = 0;
  for (size_t at = table.find("< bottleneck"); at != std::string::npos;
       at = table.find("< bottleneck", at + 1)) {
    ++marks;
    const size_t line = table.rfind('\n', at) + 1;
    EXPECT_EQ(table.compare(line, 11, "making rows"), 0) << table;
  }
  EXPECT_EQ(marks, 1u);
  EXPECT_EQ(ExplainTable({}, 80).find("bottleneck"), std::string::npos);
}

TEST(ExplainTest, WhatIsBetweenTwoAnswersCounts) {
  const nlohmann::json before = {
      {"rows", 100},
      {"parts",
       {{{"part", "read"}, {"seconds", 1.0}},
        {{"part", "step"}, {"step", 0}, {"name", "clip"}, {"seconds", 3.0}}}}};
  nlohmann::json after = before;
  after["rows"] = 300;
  after["parts"][1]["seconds"] = 5.0;
  const PartTimes between = PartsBetween(before, after);
  EXPECT_EQ(between.rows, 200u);
  ASSERT_EQ(between.parts.size(), 2u);
  EXPECT_EQ(between.parts[0].sample_s, 0);
  EXPECT_DOUBLE_EQ(between.parts[1].sample_s, 0.01);
  EXPECT_EQ(between.parts[1].name, "clip");
  // What no broker says.
  EXPECT_EQ(PartsBetween(after, before).rows, 0u);
  EXPECT_EQ(PartsBetween(nullptr, 3).rows, 0u);
  EXPECT_FALSE(ReadRateOf({{"rows", 0}, {"seconds", 0}}));
}

class ExplainStorageTest : public CommandTest {};

TEST_F(ExplainStorageTest, SlowStorageIsNamed) {
  const std::filesystem::path mount = folder_ + "/mount";
  const std::filesystem::path data = folder_ + "/data";
  std::filesystem::create_directories(mount);
  std::filesystem::create_directories(data);
  GatedFileSystem storage(mount, SIZE_MAX);
  if (!storage.mounted()) GTEST_SKIP() << "no FUSE: " << strerror(errno);
  for (int i = 0; i < 300; ++i) {
    const std::string file = std::to_string(i);
    std::filesystem::create_symlink(mount / file, data / file);
  }
  std::ofstream(folder_ + "/slow.yaml")
      << "dataset: slow\nsource:\n  fixed_length_records:\n    files: "
      << data.string()
      << "/*\n    features: {x: {dtype: uint8, shape: [500]}}\n"
         "shuffle: {seed: 1}\nbatch: {size: 32}\n";
  const Result result =
      Run({"explain", "slow.yaml", "--seconds", "4", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["limit"], "storage") << json.dump(1);
  EXPECT_GT(json["cold"]["read_s"], 0.2);
  EXPECT_LT(json["cold"]["samples_per_s"], 2000);
  // It keeps nothing in the page cache: storage is slow each time.
  EXPECT_LE(json["stages"].size(), 3u) << json["stages"];
  EXPECT_TRUE(std::filesystem::is_empty(runtime_));
}

}  // namespace penstock::explain_test
