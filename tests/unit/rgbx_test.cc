// Promise: the fast path of pictures (resize, flip and normalize with vectors)
// is within one level of the exact one, and the same bytes on every processor.
// Method: every test on each kind of vector this processor has.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "broker/transform/half.h"
#include "broker/transform/normalize.h"
#include "broker/transform/pixel_pass.h"
#include "broker/transform/resampler.h"
#include "broker/transform/rgbx_resampler.h"
#include "broker/transform/rgbx_values.h"

namespace penstock::rgbx_test {

using Bytes = std::vector<std::byte>;

void Normalize(const std::vector<double>& mean, const std::vector<double>& std,
               DType dtype, PixelPass* pass) {
  pass->Compute(NormalizeFunction(mean, std, 255), dtype);
  pass->TakeLine(mean, std);
}

class RgbxTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  Bytes Random(size_t bytes) {
    Bytes values(bytes);
    for (std::byte& value : values) value = static_cast<std::byte>(random_());
    return values;
  }

  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  std::mt19937_64 random_{1};
};

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    targets.push_back(rest & -rest);
  }
  return targets;
}
INSTANTIATE_TEST_SUITE_P(Vectors, RgbxTest, testing::ValuesIn(Targets()),
                         [](const auto& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

// picture is RGBX, rows of size.width pixels; the result is RGB, or empty when
// the resampler refuses. Bytes after the rows may be read.
Bytes Resize(const Bytes& picture, const ImageSize& size, const CropBox& box,
             const ImageSize& target, bool mirror, RgbxResampler& resampler) {
  constexpr int64_t kBytes = RgbxResampler::kPixelBytes;
  const FractionalBox whole = {
      static_cast<double>(box.left), static_cast<double>(box.top),
      static_cast<double>(box.width), static_cast<double>(box.height)};
  if (!resampler.Begin(whole, target, mirror)) return {};
  const int64_t columns = resampler.end_column() - resampler.first_column();
  Bytes out;
  for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
    const auto first =
        picture.begin() + (y * size.width + resampler.first_column()) * kBytes;
    Bytes row(first, first + columns * kBytes);
    row.resize((columns + RgbxResampler::kRowSlackPixels) * kBytes,
               std::byte{0xff});
    resampler.AddRow(y, row.data());
    while (const std::byte* pixels = resampler.NextRow()) {
      for (int64_t x = 0; x < target.width; ++x) {
        out.insert(out.end(), pixels + x * kBytes, pixels + x * kBytes + 3);
      }
    }
  }
  return out;
}

Bytes ResizeExactly(const Bytes& picture, const ImageSize& size,
                    const CropBox& box, const ImageSize& target) {
  Resampler resampler;
  Bytes out(target.height * target.width * 3);
  EXPECT_TRUE(resampler.Begin(box, target, 3, out.data()).ok());
  for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
    Bytes row;
    for (int64_t x = 0; x < size.width; ++x) {
      const std::byte* pixel = picture.data() + (y * size.width + x) * 4;
      row.insert(row.end(), pixel, pixel + 3);
    }
    resampler.AddRow(y, row.data());
  }
  return out;
}

// Noise is the hardest picture; Pillow rounds once more, between the passes.
TEST_P(RgbxTest, ResizesWithinOneLevelOfTheExactWay) {
  RgbxResampler resampler;
  for (int i = 0; i < 150; ++i) {
    const ImageSize size = {.height = Between(1, 120),
                            .width = Between(1, 400)};
    CropBox box = {.width = Between(1, size.width),
                   .height = Between(1, size.height)};
    box.left = Between(0, size.width - box.width);
    box.top = Between(0, size.height - box.height);
    const ImageSize target = {.height = Between(1, 60),
                              .width = Between(1, 120)};
    const Bytes picture = Random(size.height * size.width * 4);
    const Bytes got = Resize(picture, size, box, target, false, resampler);
    if (got.empty()) continue;
    const Bytes want = ResizeExactly(picture, size, box, target);
    ASSERT_EQ(got.size(), want.size());
    for (size_t k = 0; k < got.size(); ++k) {
      ASSERT_NEAR(std::to_integer<int>(got[k]), std::to_integer<int>(want[k]),
                  1)
          << "value " << k << ", box " << box.width << " x " << box.height
          << " to " << target.width << " x " << target.height;
    }
  }
}

TEST_P(RgbxTest, EveryProcessorGivesTheSameBytes) {
  const ImageSize size = {.height = 77, .width = 333};
  const CropBox box = {.left = 5, .top = 3, .width = 301, .height = 70};
  const Bytes picture = Random(size.height * size.width * 4);
  for (const ImageSize target : {ImageSize{.height = 50, .width = 224},
                                 ImageSize{.height = 90, .width = 37},
                                 ImageSize{.height = 9, .width = 500}}) {
    RgbxResampler here, there;
    const Bytes got = Resize(picture, size, box, target, true, here);
    hwy::SetSupportedTargetsForTest(Targets().back());
    EXPECT_EQ(got, Resize(picture, size, box, target, true, there));
    hwy::SetSupportedTargetsForTest(GetParam());
  }
}

TEST_P(RgbxTest, MirroringIsLeftToRight) {
  const ImageSize size = {.height = 20, .width = 90};
  const CropBox box = {.left = 7, .top = 1, .width = 61, .height = 19};
  const ImageSize target = {.height = 11, .width = 43};
  const Bytes picture = Random(size.height * size.width * 4);
  RgbxResampler resampler;
  const Bytes plain = Resize(picture, size, box, target, false, resampler);
  const Bytes mirrored = Resize(picture, size, box, target, true, resampler);
  for (int64_t y = 0; y < target.height; ++y) {
    for (int64_t x = 0; x < target.width; ++x) {
      const int64_t from = (y * target.width + target.width - 1 - x) * 3;
      EXPECT_EQ(
          std::memcmp(&mirrored[(y * target.width + x) * 3], &plain[from], 3),
          0);
    }
  }
}

TEST_P(RgbxTest, WhatIsFlatStaysAsItIs) {
  RgbxResampler resampler;
  const ImageSize size = {.height = 200, .width = 300};
  for (int level = 0; level < 256; level += 15) {
    const Bytes picture(size.height * size.width * 4,
                        static_cast<std::byte>(level));
    for (const int64_t side : {12, 150, 411}) {
      const Bytes got =
          Resize(picture, size, {0, 0, 300, 200},
                 {.height = side, .width = side}, false, resampler);
      ASSERT_EQ(got, Bytes(side * side * 3, static_cast<std::byte>(level)));
    }
  }
}

TEST_P(RgbxTest, AskedToShrinkByTooMuchItSaysSo) {
  RgbxResampler resampler;
  EXPECT_TRUE(
      resampler.Begin({0, 0, 31, 310}, {.height = 10, .width = 31}, false));
  EXPECT_FALSE(
      resampler.Begin({0, 0, 31, 320}, {.height = 10, .width = 31}, false));
}

// ---- values

// Writes the value that byte v of channel c becomes.
using Formula = std::function<void(std::byte v, int c, std::byte* to)>;

// A pass over the whole RGB picture, mirrored or not, and one row by row from
// RGBX give each value as the formula does.
void ExpectValues(DType dtype, bool channels_first, const Bytes& rgbx,
                  const ImageSize& size,
                  const std::function<void(PixelPass*)>& set_up,
                  const Formula& formula) {
  const size_t each = DTypeBytes(dtype);
  const size_t out_bytes = size.height * size.width * 3 * each;
  Bytes rgb;
  for (size_t i = 0; i < rgbx.size(); i += 4) {
    rgb.insert(rgb.end(), &rgbx[i], &rgbx[i] + 3);
  }
  for (const bool horizontal : {false, true}) {
    for (const bool vertical : {false, true}) {
      PixelPass pass(DType::kUint8, size.height, size.width, 3);
      pass.AddFlip({.horizontal = horizontal ? 1.0 : 0.0,
                    .vertical = vertical ? 1.0 : 0.0});
      set_up(&pass);
      if (channels_first) pass.SetChannelsFirst();
      Bytes want(out_bytes), got(out_bytes + 1, std::byte{0x5a});
      for (int64_t y = 0; y < size.height; ++y) {
        for (int64_t x = 0; x < size.width; ++x) {
          const int64_t from_y = vertical ? size.height - 1 - y : y;
          const int64_t from_x = horizontal ? size.width - 1 - x : x;
          for (int64_t c = 0; c < 3; ++c) {
            const int64_t at = channels_first
                                   ? (c * size.height + y) * size.width + x
                                   : (y * size.width + x) * 3 + c;
            formula(rgb[(from_y * size.width + from_x) * 3 + c],
                    static_cast<int>(c), &want[at * each]);
          }
        }
      }
      pass.Run(rgb.data(), {}, got.data());
      EXPECT_EQ(got.back(), std::byte{0x5a}) << "written past its end";
      got.pop_back();
      EXPECT_EQ(got, want);
      if (horizontal || vertical) continue;  // rows come mirrored
      got.assign(out_bytes + 1, std::byte{0x5a});
      for (int64_t y = 0; y < size.height; ++y) {
        Bytes row(rgbx.begin() + y * size.width * 4,
                  rgbx.begin() + (y + 1) * size.width * 4);
        row.resize((size.width + kRgbxSlackPixels) * 4, std::byte{0xff});
        pass.WriteRgbx(row.data(), y, got.data());
      }
      EXPECT_EQ(got.back(), std::byte{0x5a}) << "written past its end";
      got.pop_back();
      EXPECT_EQ(got, want);
    }
  }
}

void ExpectNormalized(DType dtype, bool channels_first, const Bytes& rgbx,
                      const ImageSize& size, const std::vector<double>& mean,
                      const std::vector<double>& std) {
  const ValueKernel round = CastKernel(DType::kFloat64, dtype);
  ExpectValues(
      dtype, channels_first, rgbx, size,
      [&](PixelPass* pass) { Normalize(mean, std, dtype, pass); },
      [&](std::byte v, int c, std::byte* to) {
        const double exact =
            (std::to_integer<int>(v) / 255.0 - mean[c]) / std[c];
        round(nullptr, reinterpret_cast<const std::byte*>(&exact), 1, to, 1, 1);
      });
}

TEST_P(RgbxTest, ValuesAreThoseOfTheFormula) {
  const DType dtypes[] = {DType::kUint8,   DType::kInt8,    DType::kInt16,
                          DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                          DType::kFloat32, DType::kFloat64, DType::kBool};
  for (const int64_t width : {1, 3, 15, 16, 17, 31, 64, 100}) {
    const ImageSize size = {.height = 3, .width = width};
    const Bytes rgbx = Random(size.height * width * 4);
    for (const bool channels_first : {false, true}) {
      for (const DType dtype : dtypes) {
        const ValueKernel cast = CastKernel(DType::kUint8, dtype);
        ExpectValues(
            dtype, channels_first, rgbx, size,
            [dtype](PixelPass* pass) { pass->Cast(dtype); },
            [cast](std::byte v, int, std::byte* to) {
              cast(nullptr, &v, 1, to, 1, 1);
            });
      }
      for (const DType dtype :
           {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
        ExpectNormalized(dtype, channels_first, rgbx, size,
                         {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
      }
    }
  }
}

// All 256 values of each channel, by every method of computing them.
TEST_P(RgbxTest, NormalizedValuesAreTheFormulasRoundedOnce) {
  const ImageSize size = {.height = 256, .width = 19};
  Bytes rgbx;
  for (int64_t y = 0; y < size.height; ++y) {
    rgbx.insert(rgbx.end(), size.width * 4, static_cast<std::byte>(y));
  }
  std::uniform_real_distribution<double> mean(-0.5, 1.5), std(0.001, 3);
  for (int i = 0; i < 20; ++i) {
    for (const DType dtype :
         {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
      ExpectNormalized(dtype, false, rgbx, size,
                       {mean(random_), mean(random_), mean(random_)},
                       {std(random_), std(random_), std(random_)});
    }
  }
}

constexpr double kHalf = 0.5;

TEST(FindLineTest, TheUsualConstantsHaveALine) {
  const double mean[] = {0.485, 0.456, 0.406};
  const double std[] = {0.229, 0.224, 0.225};
  const std::span<const double> half(&kHalf, 1);
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    for (const bool imagenet : {true, false}) {
      const std::span<const double> m =
          imagenet ? std::span<const double>(mean) : half;
      const std::span<const double> s =
          imagenet ? std::span<const double>(std) : half;
      Bytes tables(m.size() * 256 * DTypeBytes(dtype));
      const ValueKernel round = CastKernel(DType::kFloat64, dtype);
      for (size_t c = 0; c < m.size(); ++c) {
        for (int v = 0; v < 256; ++v) {
          const double exact = (v / 255.0 - m[c]) / s[c];
          round(nullptr, reinterpret_cast<const std::byte*>(&exact), 1,
                &tables[(c * 256 + v) * DTypeBytes(dtype)], 1, 1);
        }
      }
      EXPECT_TRUE(FindLine(dtype, tables, m, s)) << DTypeName(dtype);
      tables[0] ^= std::byte{0xff};
      EXPECT_FALSE(FindLine(dtype, tables, m, s)) << DTypeName(dtype);
    }
  }
}

}  // namespace penstock::rgbx_test
