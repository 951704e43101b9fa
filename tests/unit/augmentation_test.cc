// Promise: augmentation is a pure function of seed, epoch, sample and step, and
// random_resized draws the areas and ratios it documents. Method: known answers
// of Philox4x32; keys that differ in one part; many crops against their bounds.
#include "broker/transform/augmentation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "broker/transform/crop.h"

namespace penstock::augmentation_test {

double Word53(uint64_t first, uint64_t second) {
  return static_cast<double>((second << 32 | first) >> 11) * 0x1p-53;
}

// The known answers of Random123's own test (kat_vectors, philox4x32 10).
TEST(AugmentationTest, DrawsAreThoseOfPhilox4x32) {
  const AugmentationDraws zeros({}, 0);
  EXPECT_EQ(zeros.Uniform(0), Word53(0x6627e8d5, 0xe169c58d));
  EXPECT_EQ(zeros.Uniform(1), Word53(0xbc57ac4c, 0x9b00dbd8));
  // Key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344.
  const AugmentationDraws pi({.seed = 0x299f31d0a4093822,
                              .epoch = 0x13198a2e,
                              .sample = 0x85a308d3243f6a88},
                             0x0370);
  EXPECT_EQ(pi.Uniform(2 * 0x7344), Word53(0xd16cfe09, 0x94fdcceb));
  EXPECT_EQ(pi.Uniform(2 * 0x7344 + 1), Word53(0x5001e420, 0x24126ea1));
}

TEST(AugmentationTest, EveryPartOfTheKeyGivesOtherNumbers) {
  std::set<double> seen;
  for (const AugmentationKey& key :
       {AugmentationKey{}, AugmentationKey{.seed = 1},
        AugmentationKey{.seed = uint64_t{1} << 32}, AugmentationKey{.epoch = 1},
        AugmentationKey{.sample = 1},
        AugmentationKey{.sample = uint64_t{1} << 32}}) {
    for (const uint32_t op : {0, 1, 255, 256}) {
      for (const uint32_t draw : {0, 1, 2, 39}) {
        const double value = AugmentationDraws(key, op).Uniform(draw);
        EXPECT_GE(value, 0);
        EXPECT_LT(value, 1);
        EXPECT_TRUE(seen.insert(value).second);
      }
    }
  }
}

class CropTest : public testing::Test {
 protected:
  static CropBox Choose(const std::optional<CropSpec>& spec,
                        const ImageSize& picture, uint64_t sample,
                        uint64_t epoch = 0) {
    return ChooseCrop(
        spec, picture, {224, 224},
        AugmentationDraws({.seed = 5, .epoch = epoch, .sample = sample}, 0));
  }

  RandomResizedCrop random_;
};

TEST_F(CropTest, RandomResizedKeepsToItsRangesAndFillsThem) {
  const ImageSize picture = {375, 500};
  double area_min = 1, area_max = 0, area_sum = 0;
  double ratio_min = 9, ratio_max = 0, log_ratio_sum = 0;
  int left_edge = 0, right_edge = 0;
  constexpr int kSamples = 20'000;
  for (uint64_t sample = 0; sample < kSamples; ++sample) {
    const CropBox box = Choose(random_, picture, sample);
    ASSERT_GE(box.left, 0);
    ASSERT_GE(box.top, 0);
    ASSERT_LE(box.left + box.width, picture.width);
    ASSERT_LE(box.top + box.height, picture.height);
    const double area =
        static_cast<double>(box.width * box.height) / (375.0 * 500.0);
    const double ratio = static_cast<double>(box.width) / box.height;
    area_min = std::min(area_min, area);
    area_max = std::max(area_max, area);
    area_sum += area;
    ratio_min = std::min(ratio_min, ratio);
    ratio_max = std::max(ratio_max, ratio);
    log_ratio_sum += std::log(ratio);
    left_edge += box.left == 0;
    right_edge += box.left + box.width == picture.width;
  }
  // Within the rounding of sides to whole pixels.
  EXPECT_GE(area_min, 0.08 - 0.002);
  EXPECT_LE(area_min, 0.085);
  EXPECT_LE(area_max, 1.0);
  EXPECT_GE(area_max, 0.97);
  EXPECT_GE(ratio_min, 0.75 - 0.01);
  EXPECT_LE(ratio_min, 0.76);
  EXPECT_LE(ratio_max, 4.0 / 3.0 + 0.01);
  EXPECT_GE(ratio_max, 1.32);
  // From a simulation of the same algorithm with Python's random numbers. Large
  // and upright boxes are rarer, because they often do not fit.
  EXPECT_NEAR(area_sum / kSamples, 0.433, 0.008);
  EXPECT_NEAR(log_ratio_sum / kSamples, 0.031, 0.006);
  EXPECT_GT(left_edge, 0);
  EXPECT_GT(right_edge, 0);
}

TEST_F(CropTest, TheSameKeyGivesTheSameBoxAndAnotherEpochAnother) {
  const ImageSize picture = {375, 500};
  int same = 0;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    const CropBox box = Choose(random_, picture, sample);
    EXPECT_EQ(Choose(random_, picture, sample), box);
    same += Choose(random_, picture, sample, 1) == box;
  }
  EXPECT_LE(same, 1);
}

TEST_F(CropTest, WhenNothingFitsTheCentreOfTheNearestRatioIsTaken) {
  EXPECT_EQ(Choose(random_, {.height = 10, .width = 1000}, 0),
            (CropBox{.left = 493, .top = 0, .width = 13, .height = 10}));
  EXPECT_EQ(Choose(random_, {.height = 1000, .width = 9}, 0),
            (CropBox{.left = 0, .top = 494, .width = 9, .height = 12}));
  random_.scale[0] = random_.scale[1] = 1.0;
  random_.ratio[0] = 0.5;
  random_.ratio[1] = 2.0;
  const CropBox one = Choose(random_, {1, 1}, 0);
  EXPECT_EQ(one, (CropBox{.width = 1, .height = 1}));
}

TEST_F(CropTest, CentreTakesTheTargetsAspectTimesTheFraction) {
  CenterCrop spec;
  const AugmentationDraws none({}, 0);
  EXPECT_EQ(ChooseCrop(spec, {375, 500}, {224, 224}, none),
            (CropBox{.left = 62, .top = 0, .width = 375, .height = 375}));
  EXPECT_EQ(ChooseCrop(spec, {375, 500}, {100, 400}, none),
            (CropBox{.left = 0, .top = 125, .width = 500, .height = 125}));
  spec.fraction = 0.875;
  EXPECT_EQ(ChooseCrop(spec, {256, 300}, {224, 224}, none),
            (CropBox{.left = 38, .top = 16, .width = 224, .height = 224}));
  spec.fraction = 0.001;
  EXPECT_EQ(ChooseCrop(spec, {3, 3}, {2, 2}, none),
            (CropBox{.left = 1, .top = 1, .width = 1, .height = 1}));
}

TEST_F(CropTest, NoCropIsTheWholePicture) {
  EXPECT_EQ(Choose({}, {375, 500}, 0), (CropBox{.width = 500, .height = 375}));
}

}  // namespace penstock::augmentation_test
