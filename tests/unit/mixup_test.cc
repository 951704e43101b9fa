// Promise: mixup and cutmix mix each row of an epoch with one other, the same
// for any batch; pictures and labels have torchvision's values; weights have
// the beta distribution. Method: the pairs of all epochs of up to 40 rows;
// pairs of known rows; moments of 20,000 weights.
#include "broker/transform/mixup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "broker/spec/dataset_spec.h"
#include "broker/transform/half.h"
#include "broker/transform/row_program.h"

namespace penstock::mixup_test {

using testing::Each;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

TEST(PartnerOfTest, RowsOfAnEpochAreInPairs) {
  EXPECT_EQ(PartnerOf(0, 1, 1, 0), std::nullopt);
  for (uint64_t rows = 2; rows <= 40; ++rows) {
    for (uint64_t epoch = 0; epoch < 20; ++epoch) {
      for (uint64_t row = 0; row < rows; ++row) {
        const auto partner = PartnerOf(row, rows, 7, epoch);
        ASSERT_TRUE(partner && *partner < rows && *partner != row);
        if (row + 1 == rows && rows % 2 == 1) {
          EXPECT_EQ(*partner, row - 1);
          continue;
        }
        EXPECT_EQ(PartnerOf(*partner, rows, 7, epoch), row);
        EXPECT_EQ(*partner / kPairedRows, row / kPairedRows);
      }
    }
  }
}

TEST(PartnerOfTest, EachOfTheThreeWaysIsAsLikely) {
  std::map<uint64_t, int> with_first;
  for (uint64_t group = 0; group < 9000; ++group) {
    ++with_first[*PartnerOf(group * 4, 36000, 7, 3) - group * 4];
  }
  ASSERT_EQ(with_first.size(), 3u);
  for (const auto& [place, count] : with_first) EXPECT_NEAR(count, 3000, 200);
}

constexpr int64_t kHeight = 6;
constexpr int64_t kWidth = 8;
constexpr int64_t kClasses = 5;

class MixupTest : public testing::Test {
 protected:
  static std::string SpecOf(const std::string& map) {
    return "{dataset: d, source: {range: 1}, batch: {size: 1}, map: " + map +
           "}";
  }

  // Rows have an image [6, 8, 3] and a label [5].
  void Compile(const std::string& map, DType dtype = DType::kFloat32,
               DType of_label = DType::kFloat32) {
    const auto spec = ParseDatasetSpec(SpecOf(map), "", "/");
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    auto program = RowProgram::Compile(
        spec->map, {{{"image", dtype, {kHeight, kWidth, 3}}, false},
                    {{"label", of_label, {kClasses}}, false}});
    ASSERT_TRUE(program.ok()) << program.status().message();
    program_ = *std::move(program);
    ASSERT_TRUE(program_->mixes_pairs());
  }

  static std::string ErrorOf(const std::string& map,
                             DType of_label = DType::kFloat32) {
    const auto spec = ParseDatasetSpec(SpecOf(map), "", "/");
    if (!spec.ok()) return spec.status().message();
    const auto program = RowProgram::Compile(
        spec->map, {{{"image", DType::kUint8, {kHeight, kWidth, 3}}, false},
                    {{"label", of_label, {kClasses}}, false}});
    return program.ok() ? "" : program.status().message();
  }

  // Two rows whose labels are classes 1 and 3.
  template <typename T, typename L = float>
  struct Rows {
    std::array<std::vector<T>, 2> images;
    std::array<std::vector<L>, 2> labels;
  };
  template <typename T>
  Rows<T> Mixed(uint64_t sample, const Rows<T>& rows) const {
    Rows<T> mixed = rows;
    std::array<std::vector<std::byte*>, 2> out;
    for (int i = 0; i < 2; ++i) {
      out[i] = {reinterpret_cast<std::byte*>(mixed.images[i].data()),
                reinterpret_cast<std::byte*>(mixed.labels[i].data())};
    }
    program_->MixPair({.seed = 5, .epoch = 2, .sample = sample}, out[0],
                      out[1]);
    return mixed;
  }
  template <typename T, typename Value>
  static Rows<T> Make(Value value) {
    Rows<T> rows;
    for (int i = 0; i < 2; ++i) {
      for (int64_t k = 0; k < kHeight * kWidth * 3; ++k) {
        rows.images[i].push_back(value(i, k));
      }
      rows.labels[i].assign(kClasses, 0);
      rows.labels[i][i == 0 ? 1 : 3] = 1;
    }
    return rows;
  }

  std::unique_ptr<RowProgram> program_;
};

float FloatOf(int row, int64_t k) {
  return static_cast<float>(1 + k * 7 % 101) / (row == 0 ? 31.0f : -17.0f);
}

TEST_F(MixupTest, FloatsHaveTorchvisionsValues) {
  Compile("[{mixup: {}}]");
  const auto rows = Make<float>(FloatOf);
  std::set<float> weights;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    const auto mixed = Mixed(sample, rows);
    // The first class' label is its weight, rounded once.
    const float kept = mixed.labels[0][1];
    const float other = mixed.labels[0][3];
    weights.insert(kept);
    EXPECT_NEAR(kept + other, 1, 1e-6);
    for (int i = 0; i < 2; ++i) {
      const auto& labels = mixed.labels[i];
      EXPECT_EQ(labels[i == 0 ? 1 : 3], kept);
      EXPECT_EQ(labels[i == 0 ? 3 : 1], other);
      EXPECT_EQ(labels[0] + labels[2] + labels[4], 0);
      for (size_t k = 0; k < rows.images[i].size(); ++k) {
        const volatile float by_other = rows.images[1 - i][k] * other;
        const volatile float by_kept = rows.images[i][k] * kept;
        EXPECT_EQ(mixed.images[i][k], by_other + by_kept);
      }
    }
  }
  EXPECT_GT(weights.size(), 150u);
}

TEST_F(MixupTest, BytesAndHalvesAreRoundedOnce) {
  Compile("[{mixup: {alpha: 1}}]", DType::kUint8);
  const auto bytes = Make<uint8_t>([](int row, int64_t k) {
    return static_cast<uint8_t>(row == 0 ? k * 5 : 255 - k % 3);
  });
  for (uint64_t sample = 0; sample < 50; ++sample) {
    const auto mixed = Mixed(sample, bytes);
    const double kept = mixed.labels[0][1];
    for (size_t k = 0; k < bytes.images[0].size(); ++k) {
      const double wanted =
          kept * bytes.images[0][k] + (1 - kept) * bytes.images[1][k];
      EXPECT_NEAR(mixed.images[0][k], wanted, 0.5001);
    }
  }
  Compile("[{mixup: {alpha: 1}}]", DType::kFloat16);
  const auto halves = Make<Float16>(
      [](int row, int64_t k) { return ToFloat16(FloatOf(row, k)); });
  Rows<Float16> mixed = Mixed(3, halves);
  for (size_t k = 0; k < halves.images[0].size(); ++k) {
    const double kept = mixed.labels[0][1];
    const double wanted = kept * ToFloat(halves.images[0][k]) +
                          (1 - kept) * ToFloat(halves.images[1][k]);
    EXPECT_NEAR(ToFloat(mixed.images[0][k]), wanted,
                std::abs(wanted) * 0x1p-11 + 1e-6);
  }
}

TEST_F(MixupTest, CutmixSwapsOneBoxAndWeighsLabelsByIt) {
  Compile("[{cutmix: {}}]");
  const auto rows = Make<float>(FloatOf);
  std::set<int64_t> areas;
  for (uint64_t sample = 0; sample < 300; ++sample) {
    const auto mixed = Mixed(sample, rows);
    int64_t swapped = 0;
    int64_t left = kWidth, right = 0, top = kHeight, bottom = 0;
    for (int64_t y = 0; y < kHeight; ++y) {
      for (int64_t x = 0; x < kWidth; ++x) {
        const size_t k = static_cast<size_t>((y * kWidth + x) * 3 + 1);
        const bool own = mixed.images[0][k] == rows.images[0][k];
        ASSERT_TRUE(own || mixed.images[0][k] == rows.images[1][k]);
        ASSERT_EQ(mixed.images[1][k], rows.images[own ? 1 : 0][k]);
        if (own) continue;
        ++swapped;
        left = std::min(left, x);
        right = std::max(right, x + 1);
        top = std::min(top, y);
        bottom = std::max(bottom, y + 1);
      }
    }
    areas.insert(swapped);
    if (swapped > 0) {
      EXPECT_EQ(swapped, (right - left) * (bottom - top));
    }
    const double part = static_cast<double>(swapped) / (kHeight * kWidth);
    EXPECT_EQ(mixed.labels[0][1], static_cast<float>(1 - part));
    EXPECT_EQ(mixed.labels[1][3], static_cast<float>(1 - part));
  }
  EXPECT_GT(areas.size(), 10u);
}

// Channels first: each plane has the box.
TEST_F(MixupTest, BoxesOfPicturesWithChannelsFirst) {
  Compile("[{cast: {dtype: float32, layout: chw}}, {cutmix: {}}]",
          DType::kUint8);
  Rows<float> rows = Make<float>(FloatOf);
  bool any = false;
  for (uint64_t sample = 0; sample < 20; ++sample) {
    const auto mixed = Mixed(sample, rows);
    constexpr size_t kPlane = kHeight * kWidth;
    for (size_t k = 0; k < kPlane; ++k) {
      const bool own = mixed.images[0][k] == rows.images[0][k];
      any |= !own;
      for (const size_t plane : {1, 2}) {
        EXPECT_EQ(mixed.images[0][plane * kPlane + k],
                  rows.images[own ? 0 : 1][plane * kPlane + k]);
      }
    }
  }
  EXPECT_TRUE(any);
}

TEST_F(MixupTest, WeightsHaveTheBetaDistribution) {
  const auto rows = Make<float>(FloatOf);
  for (const double alpha : {0.01, 0.2, 0.8, 1.0, 3.0}) {
    Compile(Format("[{{mixup: {{alpha: {}}}}}]", alpha));
    constexpr int kSamples = 20000;
    double sum = 0;
    double squares = 0;
    for (uint64_t sample = 0; sample < kSamples; ++sample) {
      const double kept = Mixed(sample, rows).labels[0][1];
      ASSERT_TRUE(kept >= 0 && kept <= 1) << kept;
      sum += kept;
      squares += (kept - 0.5) * (kept - 0.5);
    }
    EXPECT_NEAR(sum / kSamples, 0.5, 0.012) << alpha;
    EXPECT_NEAR(squares / kSamples, 1 / (4 * (2 * alpha + 1)), 0.004) << alpha;
  }
}

TEST_F(MixupTest, OneOfBothByItsProbability) {
  Compile(
      "[{mixup: {alpha: 1, cutmix_alpha: 1, switch_probability: 0.25, "
      "probability: 0.8}}]");
  const auto rows = Make<float>(FloatOf);
  int unmixed = 0;
  int boxes = 0;
  for (uint64_t sample = 0; sample < 4000; ++sample) {
    const auto mixed = Mixed(sample, rows);
    if (mixed.images == rows.images) {
      ++unmixed;
      continue;
    }
    int of_one = 0;
    for (size_t k = 0; k < rows.images[0].size(); ++k) {
      of_one += mixed.images[0][k] == rows.images[0][k] ||
                        mixed.images[0][k] == rows.images[1][k]
                    ? 1
                    : 0;
    }
    boxes += of_one == static_cast<int>(rows.images[0].size()) ? 1 : 0;
  }
  // Some boxes have no pixel.
  EXPECT_NEAR(unmixed, 800 + 90, 130);
  EXPECT_NEAR(boxes, 800 - 90, 120);
}

TEST_F(MixupTest, WhatIsWrongIsAnErrorOfTheSpec) {
  EXPECT_THAT(ErrorOf("[{mixup: {}}, {invert: {}}]"),
              HasSubstr("put it before mixup and cutmix"));
  EXPECT_THAT(ErrorOf("[{mixup: {}}]", DType::kInt64),
              HasSubstr("put one_hot before it"));
  EXPECT_THAT(ErrorOf("[{mixup: {alpha: 0}}]"), HasSubstr("give one of them"));
  EXPECT_THAT(ErrorOf("[{mixup: {label: image}}]"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf("[{mixup: {feature: nothing}}]"),
              HasSubstr("no feature 'nothing'"));
  EXPECT_THAT(ErrorOf("[{cutmix: {feature: label, label: []}}]"),
              HasSubstr("wants an image"));
  EXPECT_EQ(ErrorOf("[{mixup: {label: []}}]"), "");
  EXPECT_EQ(ErrorOf("[{mixup: {}}, {cutmix: {}}]"), "");
}

}  // namespace penstock::mixup_test
