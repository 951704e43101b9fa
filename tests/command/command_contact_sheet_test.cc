// Promise: peek draws each pixel where it belongs, for every dtype and layout,
// and writes a valid PNG. Method: small pictures with known pixels; the PNG is
// read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "client/command/contact_sheet.h"

namespace penstock::command_contact_sheet_test {

using testing::HasSubstr;

ContactSheet Draw(const Feature& feature, const void* data, uint64_t rows) {
  const std::optional<PictureLayout> layout = PictureLayoutOf(feature);
  EXPECT_TRUE(layout.has_value());
  const DrawnFeature drawn = {feature, *layout, data};
  return DrawContactSheet({&drawn, 1}, rows);
}

uint8_t Pixel(const ContactSheet& sheet, int64_t y, int64_t x, int64_t c) {
  return sheet.pixels[(y * sheet.width + x) * sheet.channels + c];
}

TEST(PictureLayoutTest, TellsChannelsFirstFromChannelsLast) {
  const auto layout = [](std::vector<int64_t> shape) {
    return PictureLayoutOf({"f", DType::kUint8, std::move(shape)});
  };
  EXPECT_FALSE(layout({}));
  EXPECT_FALSE(layout({5}));
  EXPECT_FALSE(layout({2, 5, 7}));
  EXPECT_FALSE(layout({0, 7}));
  EXPECT_FALSE(layout({1, 2, 3, 3}));
  EXPECT_EQ(layout({5, 7})->channels, 1);
  EXPECT_FALSE(layout({5, 7, 3})->channels_first);
  EXPECT_TRUE(layout({3, 5, 7})->channels_first);
  EXPECT_EQ(layout({3, 5, 7})->height, 5);
  EXPECT_FALSE(layout({3, 5, 3})->channels_first);
}

TEST(ContactSheetTest, Uint8IsDrawnAsItIs) {
  // Four pictures of 1 x 2 pixels, RGB.
  std::vector<uint8_t> data(4 * 6);
  for (size_t i = 0; i < data.size(); ++i) data[i] = i * 10;
  const Feature feature{"image", DType::kUint8, {1, 2, 3}};
  const ContactSheet sheet = Draw(feature, data.data(), 4);
  const int64_t gap = kSheetGapPixels;
  ASSERT_EQ(sheet.rows, 4u);
  // ceil(sqrt(4 * 3 / 4)) = 2 columns.
  EXPECT_EQ(sheet.width, 2 * (2 + gap) + gap);
  EXPECT_EQ(sheet.height, 2 * (1 + gap) + gap);
  for (int row = 0; row < 4; ++row) {
    for (int x = 0; x < 2; ++x) {
      for (int c = 0; c < 3; ++c) {
        EXPECT_EQ(Pixel(sheet, gap + row / 2 * (1 + gap),
                        gap + row % 2 * (2 + gap) + x, c),
                  data[row * 6 + x * 3 + c]);
      }
    }
  }
}

TEST(ContactSheetTest, BoxesAreFrames) {
  // Two gray pictures of 5 x 6 pixels, room for 2 boxes.
  const std::vector<uint8_t> data(2 * 30);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> boxes = {1, 1,   5,   4,   nan, 0,    3,     3,
                                    0, 0.5, 0.5, 1.5, -9,  -1e9, 1e30f, 2};
  const int64_t lengths[] = {1, 7};  // more than there is room for
  const Feature feature{"image", DType::kUint8, {5, 6}};
  DrawnFeature drawn = {feature, *PictureLayoutOf(feature), data.data()};
  drawn.boxes = {.data = boxes.data(), .lengths = lengths, .room = 2};
  const ContactSheet sheet = DrawContactSheet({&drawn, 1}, 2);
  ASSERT_EQ(sheet.channels, 3);
  std::string found;
  for (int64_t y = 0; y < 5; ++y) {
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t x = 0; x < 6; ++x) {
        const int64_t at = kSheetGapPixels + row * (6 + kSheetGapPixels) + x;
        const int64_t line = kSheetGapPixels + y;
        found += Pixel(sheet, line, at, 0) == 0   ? '.'
                 : Pixel(sheet, line, at, 0) < 99 ? '2'
                                                  : '1';
      }
    }
    found += '\n';
  }
  EXPECT_EQ(found,
            "......1.....\n"
            ".1111.222222\n"
            ".1..1.......\n"
            ".1111.......\n"
            "............\n");
}

TEST(ContactSheetTest, FloatsAreStretchedByChannel) {
  // [3, 1, 2]: red -1..1, green one value, blue with NaN.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> data = {-1, 1, 5, 5, nan, 3};
  const ContactSheet sheet =
      Draw({"image", DType::kFloat32, {3, 1, 2}}, data.data(), 1);
  const int64_t at = kSheetGapPixels;
  EXPECT_EQ(Pixel(sheet, at, at, 0), 0);
  EXPECT_EQ(Pixel(sheet, at, at + 1, 0), 255);
  EXPECT_EQ(Pixel(sheet, at, at, 1), 128);
  EXPECT_EQ(Pixel(sheet, at, at, 2), 0);
}

TEST(ContactSheetTest, TheGreatestDoublesDoNotOverflow) {
  const double most = std::numeric_limits<double>::max();
  const double data[] = {-most, 0, most};
  const ContactSheet sheet = Draw({"image", DType::kFloat64, {1, 3}}, data, 1);
  EXPECT_EQ(Pixel(sheet, kSheetGapPixels, kSheetGapPixels + 1, 0), 128);
  EXPECT_EQ(Pixel(sheet, kSheetGapPixels, kSheetGapPixels + 2, 0), 255);
}

TEST(ContactSheetTest, AMaskIsBesideItsPicture) {
  // Two rows: a picture of 1 x 2 pixels, RGB, and a mask of classes 0 to 3.
  const std::vector<uint8_t> colours = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<uint8_t> classes = {0, 1, 2, 3};
  const Feature image{"image", DType::kUint8, {1, 2, 3}};
  const Feature mask{"mask", DType::kUint8, {1, 2}};
  const DrawnFeature both[] = {{image, *PictureLayoutOf(image), colours.data()},
                               {mask, *PictureLayoutOf(mask), classes.data()}};
  const ContactSheet sheet = DrawContactSheet(both, 2);
  const int64_t gap = kSheetGapPixels;
  ASSERT_EQ(sheet.channels, 3);
  const int64_t beside = gap + 2 + gap;
  EXPECT_EQ(sheet.width, beside + 2 + gap);
  EXPECT_EQ(sheet.height, 2 * (1 + gap) + gap);
  for (int row = 0; row < 2; ++row) {
    const int64_t y = gap + row * (1 + gap);
    for (int x = 0; x < 2; ++x) {
      for (int c = 0; c < 3; ++c) {
        EXPECT_EQ(Pixel(sheet, y, gap + x, c), colours[row * 6 + x * 3 + c]);
        EXPECT_EQ(Pixel(sheet, y, beside + x, c), classes[row * 2 + x] * 85);
      }
    }
  }
}

TEST(ContactSheetTest, ASpectrogramIsDrawnToItsEnd) {
  // Two rows of up to 2 frames of 3 numbers; the first has one frame.
  const std::vector<float> data = {0, 1, 2, 99, 99, 99, 2, 1, 0, 0, 2, 0};
  const std::vector<int64_t> lengths = {1, 7};
  const Feature feature{"mel", DType::kFloat32, {2, 3}};
  const DrawnFeature drawn = {.feature = feature,
                              .layout = *PictureLayoutOf(feature),
                              .data = data.data(),
                              .lengths = lengths.data()};
  const ContactSheet sheet = DrawContactSheet({&drawn, 1}, 2);
  const int64_t at = kSheetGapPixels;
  const uint8_t empty = Pixel(sheet, 0, 0, 0);
  // Padding is neither drawn nor a value that the others are stretched by.
  EXPECT_EQ(Pixel(sheet, at, at, 0), 0);
  EXPECT_EQ(Pixel(sheet, at, at + 2, 0), 255);
  EXPECT_EQ(Pixel(sheet, at + 1, at, 0), empty);
  const int64_t next = sheet.width > 3 + 2 * at ? at : 0;  // beside or below
  const int64_t y = next > 0 ? at : 2 * at + 2;
  const int64_t x = next > 0 ? 2 * at + 3 : at;
  EXPECT_EQ(Pixel(sheet, y, x, 0), 255);
  EXPECT_EQ(Pixel(sheet, y + 1, x + 1, 0), 255);
}

TEST(ContactSheetTest, NoRowsIsAnEmptySheet) {
  EXPECT_TRUE(
      Draw({"image", DType::kUint8, {4, 4}}, nullptr, 0).pixels.empty());
}

TEST(ValueAtTest, KnowsTheTwoHalfFormats) {
  const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x7E00};
  EXPECT_EQ(ValueAt(DType::kFloat16, halves, 0), 1.0);
  EXPECT_EQ(ValueAt(DType::kFloat16, halves, 1), -2.0);
  EXPECT_EQ(ValueAt(DType::kFloat16, halves, 2), std::ldexp(1.0, -24));
  EXPECT_EQ(ValueAt(DType::kFloat16, halves, 3), 65504.0);
  EXPECT_TRUE(std::isinf(ValueAt(DType::kFloat16, halves, 4)));
  EXPECT_TRUE(std::isnan(ValueAt(DType::kFloat16, halves, 5)));
  const uint16_t brain = std::bit_cast<uint32_t>(-1.5f) >> 16;
  EXPECT_EQ(ValueAt(DType::kBFloat16, &brain, 0), -1.5);
}

class PngTest : public testing::Test {
 protected:
  PngTest() {
    std::string name = testing::TempDir() + "/penstock-png-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~PngTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(PngTest, WhatIsWrittenIsReadBack) {
  std::vector<uint8_t> data(7 * 5 * 4);
  for (size_t i = 0; i < data.size(); ++i) data[i] = i;
  const ContactSheet sheet =
      Draw({"image", DType::kUint8, {5, 4}}, data.data(), 7);
  const std::string path = folder_ + "/sheet.png";
  ASSERT_TRUE(WritePng(sheet, path, path + ".tmp").ok());
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));

  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  ASSERT_NE(png_image_begin_read_from_file(&image, path.c_str()), 0);
  EXPECT_EQ(image.width, sheet.width);
  EXPECT_EQ(image.height, sheet.height);
  image.format = PNG_FORMAT_GRAY;
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(image));
  ASSERT_NE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr),
            0);
  EXPECT_EQ(pixels, sheet.pixels);
}

TEST_F(PngTest, AFolderThatIsNotThereIsNamed) {
  const std::vector<uint8_t> data(16);
  const ContactSheet sheet =
      Draw({"image", DType::kUint8, {4, 4}}, data.data(), 1);
  const std::string path = folder_ + "/none/sheet.png";
  const Status status = WritePng(sheet, path, path + ".tmp");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(path));
}

}  // namespace penstock::command_contact_sheet_test
