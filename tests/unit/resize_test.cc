// Promise: resize is an antialiased bilinear filter over the box alone. Method:
// any box and size against the triangle filter's formula in double precision.
// resize_against_pillow.py shows that it is bit-exact with Pillow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "broker/transform/resampler.h"

namespace penstock::resize_test {

using Bytes = std::vector<std::byte>;

struct Picture {
  ImageSize size;
  int channels;
  Bytes pixels;

  int At(int64_t y, int64_t x, int c) const {
    return std::to_integer<int>(pixels[(y * size.width + x) * channels + c]);
  }
};

Picture Noise(const ImageSize& size, int channels, uint32_t seed) {
  std::mt19937 random(seed);
  Picture picture{size, channels, Bytes(size.height * size.width * channels)};
  for (std::byte& value : picture.pixels) {
    value = static_cast<std::byte>(random());
  }
  return picture;
}

Picture Resize(Resampler& resampler, const Picture& in, const CropBox& box,
               const ImageSize& to) {
  // Guard bytes on both sides, which must stay unchanged.
  constexpr size_t kGuard = 64;
  const size_t bytes = to.height * to.width * in.channels;
  Bytes out(bytes + 2 * kGuard, std::byte{0xa5});
  EXPECT_TRUE(resampler.Begin(box, to, in.channels, out.data() + kGuard).ok());
  for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
    resampler.AddRow(y, in.pixels.data() + y * in.size.width * in.channels);
  }
  for (size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(out[i], std::byte{0xa5});
    EXPECT_EQ(out[kGuard + bytes + i], std::byte{0xa5});
  }
  return {to, in.channels,
          Bytes(out.begin() + kGuard, out.begin() + kGuard + bytes)};
}

// Filters one line of values with the triangle filter, in double precision.
std::vector<double> FilterLine(const std::vector<double>& line, int64_t start,
                               int64_t length, int64_t target) {
  std::vector<double> out;
  const double scale = static_cast<double>(length) / target;
  const double reach = std::max(scale, 1.0);
  for (int64_t i = 0; i < target; ++i) {
    const double centre = start + (i + 0.5) * scale;
    double sum = 0, weights = 0;
    for (int64_t x = start; x < start + length; ++x) {
      const double weight =
          std::max(0.0, 1 - std::abs(x + 0.5 - centre) / reach);
      sum += weight * line[x];
      weights += weight;
    }
    out.push_back(sum / weights);
  }
  return out;
}

// The difference between out and in filtered along both axes without rounding.
double WorstError(const Picture& in, const CropBox& box, const Picture& out) {
  double worst = 0;
  for (int c = 0; c < in.channels; ++c) {
    std::vector<std::vector<double>> rows;
    for (int64_t y = 0; y < in.size.height; ++y) {
      std::vector<double> line;
      for (int64_t x = 0; x < in.size.width; ++x)
        line.push_back(in.At(y, x, c));
      rows.push_back(FilterLine(line, box.left, box.width, out.size.width));
    }
    for (int64_t x = 0; x < out.size.width; ++x) {
      std::vector<double> column;
      for (const std::vector<double>& row : rows) column.push_back(row[x]);
      const std::vector<double> want =
          FilterLine(column, box.top, box.height, out.size.height);
      for (int64_t y = 0; y < out.size.height; ++y) {
        worst = std::max(worst, std::abs(out.At(y, x, c) - want[y]));
      }
    }
  }
  return worst;
}

TEST(ResizeTest, AnyBoxAndSizeFollowsTheTriangleFilter) {
  std::mt19937 random(3);
  const auto from_to = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % (high - low + 1));
  };
  Resampler resampler;  // reused, as a worker does
  for (int i = 0; i < 300; ++i) {
    const Picture in = Noise({from_to(1, 40), from_to(1, 40)},
                             static_cast<int>(from_to(1, 4)), i);
    CropBox box;
    box.width = from_to(1, in.size.width);
    box.height = from_to(1, in.size.height);
    box.left = from_to(0, in.size.width - box.width);
    box.top = from_to(0, in.size.height - box.height);
    const ImageSize to = {from_to(1, 50), from_to(1, 50)};
    const Picture out = Resize(resampler, in, box, to);
    // Half a step for each of the two roundings to 8 bits.
    ASSERT_LE(WorstError(in, box, out), 1.001)
        << "box " << box.left << " " << box.top << " " << box.width << " "
        << box.height << " of " << in.size.width << " x " << in.size.height
        << " to " << to.width << " x " << to.height;
  }
}

TEST(ResizeTest, ABoxOfTheTargetsSizeIsCopied) {
  const Picture in = Noise({30, 20}, 3, 1);
  Resampler resampler;
  const Picture out = Resize(
      resampler, in, {.left = 4, .top = 7, .width = 9, .height = 11}, {11, 9});
  for (int64_t y = 0; y < 11; ++y) {
    for (int64_t x = 0; x < 9; ++x) {
      for (int c = 0; c < 3; ++c) {
        EXPECT_EQ(out.At(y, x, c), in.At(y + 7, x + 4, c));
      }
    }
  }
}

TEST(ResizeTest, OneColourStaysThatColourWhateverTheScale) {
  for (const int64_t side : {1, 7, 300, 4000}) {
    for (const int value : {0, 1, 254, 255}) {
      const Picture in = {
          {side, 3}, 1, Bytes(side * 3, static_cast<std::byte>(value))};
      Resampler resampler;
      const Picture out = Resize(resampler, in, {.width = 3, .height = side},
                                 {.height = 2, .width = 5});
      for (const std::byte got : out.pixels) {
        EXPECT_EQ(std::to_integer<int>(got), value) << side;
      }
    }
  }
}

// With the neighbour outside the box it would be 0.75 * 100 + 0.25 * 200.
TEST(ResizeTest, PixelsOutsideTheBoxDoNotCount) {
  const Picture in = {
      {1, 2},
      1,
      Bytes{static_cast<std::byte>(100), static_cast<std::byte>(200)}};
  Resampler resampler;
  const Picture out = Resize(resampler, in, {.width = 1, .height = 1},
                             {.height = 1, .width = 2});
  EXPECT_EQ(out.At(0, 0, 0), 100);
  EXPECT_EQ(out.At(0, 1, 0), 100);
}

TEST(ResizeTest, RowsOutsideTheBoxAreNotAskedFor) {
  Resampler resampler;
  Bytes out(10 * 10);
  EXPECT_TRUE(resampler
                  .Begin({.top = 500, .width = 10, .height = 20}, {10, 10}, 1,
                         out.data())
                  .ok());
  EXPECT_EQ(resampler.first_row(), 500);
  EXPECT_EQ(resampler.end_row(), 520);
}

TEST(ResizeTest, ScratchThatNobodyPromisedIsRefused) {
  Resampler resampler;
  std::byte out;
  EXPECT_EQ(resampler
                .Begin({.left = 0, .top = 0, .width = 1, .height = 65000},
                       {.height = 1, .width = 65535}, 3, &out)
                .code(),
            StatusCode::kDataLoss);
}

}  // namespace penstock::resize_test
