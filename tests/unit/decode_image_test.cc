// Promise: decode_image gives the pixels of every kind of JPEG, and truncated,
// or corrupt files become errors of their sample: no crash, no gray
// picture. Method: files made here, cut at every byte and damaged at random.
// resize_against_pillow.py compares the pixels with Pillow's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

#include "broker/transform/jpeg_decoder.h"
#include "tests/support/encode_jpeg.h"

namespace penstock::decode_image_test {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class DecodeImageTest : public testing::Test {
 protected:
  StatusOr<Bytes> Decode(std::span<const std::byte> file, int channels = 3) {
    JpegDecoder& decoder = decoder_.emplace();
    PENSTOCK_RETURN_IF_ERROR(decoder.Begin(file));
    PENSTOCK_RETURN_IF_ERROR(decoder.Start(channels));
    const ImageSize size = decoder.size();
    Bytes pixels(size.height * size.width * channels);
    for (int64_t y = 0; y < size.height; ++y) {
      PENSTOCK_RETURN_IF_ERROR(
          decoder.ReadRow(pixels.data() + y * size.width * channels));
    }
    PENSTOCK_RETURN_IF_ERROR(decoder.Finish());
    return pixels;
  }

  struct Part {
    int denominator = 1;
    int64_t left = 0, top = 0, right = 0, bottom = 0;
  };

  // The part's pixels as RGB.
  StatusOr<Bytes> Decode(std::span<const std::byte> file, const Part& part) {
    JpegDecoder& decoder = decoder_.emplace();
    PENSTOCK_RETURN_IF_ERROR(decoder.Begin(file));
    EXPECT_TRUE(decoder.HasParts());
    int64_t first = part.left;
    int64_t end = part.right;
    PENSTOCK_RETURN_IF_ERROR(decoder.StartPart(part.denominator, &first, &end));
    EXPECT_LE(first, part.left);
    EXPECT_GE(end, part.right);
    PENSTOCK_RETURN_IF_ERROR(decoder.SkipRows(part.top));
    Bytes pixels;
    Bytes row((end - first) * 4);
    for (int64_t y = part.top; y < part.bottom; ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row.data()));
      for (int64_t x = part.left; x < part.right; ++x) {
        const std::byte* const pixel = &row[(x - first) * 4];
        pixels.insert(pixels.end(), pixel, pixel + 3);
      }
    }
    PENSTOCK_RETURN_IF_ERROR(decoder.FinishPart(row.data()));
    return pixels;
  }

  void ExpectDataLoss(std::span<const std::byte> file,
                      const std::string& message) {
    const StatusOr<Bytes> decoded = Decode(file);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(decoded.status().message(), HasSubstr(message));
  }

  void ExpectNear(const Bytes& got, const Bytes& want, int tolerance) {
    ASSERT_EQ(got.size(), want.size());
    int worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(std::to_integer<int>(got[i]) -
                                       std::to_integer<int>(want[i])));
    }
    EXPECT_LE(worst, tolerance);
  }

  std::optional<JpegDecoder> decoder_;  // for the last file
};

TEST_F(DecodeImageTest, ColourIsGivenAsRgb) {
  const StatusOr<Bytes> decoded = Decode(EncodeJpeg({}));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoder_->size(), (ImageSize{.height = 48, .width = 64}));
  ExpectNear(*decoded, Gradients(48, 64, 3), 12);
}

TEST_F(DecodeImageTest, GrayBecomesThreeEqualChannels) {
  const StatusOr<Bytes> decoded = Decode(EncodeJpeg({.space = JCS_GRAYSCALE}));
  ASSERT_TRUE(decoded.ok());
  Bytes want;
  for (const std::byte value : Gradients(48, 64, 1)) {
    want.insert(want.end(), 3, value);
  }
  ExpectNear(*decoded, want, 4);
}

TEST_F(DecodeImageTest, ColourBecomesLuma) {
  const StatusOr<Bytes> decoded = Decode(EncodeJpeg({}), 1);
  ASSERT_TRUE(decoded.ok());
  const Bytes rgb = Gradients(48, 64, 3);
  Bytes want;
  for (size_t i = 0; i < rgb.size(); i += 3) {
    want.push_back(static_cast<std::byte>(
        std::lround(0.299 * std::to_integer<int>(rgb[i]) +
                    0.587 * std::to_integer<int>(rgb[i + 1]) +
                    0.114 * std::to_integer<int>(rgb[i + 2]))));
  }
  ExpectNear(*decoded, want, 4);
}

TEST_F(DecodeImageTest, RgbFilesAreNotTakenForYCbCr) {
  for (const int channels : {3, 1}) {
    const StatusOr<Bytes> ycc = Decode(EncodeJpeg({}), channels);
    const StatusOr<Bytes> rgb =
        Decode(EncodeJpeg({.file_space = JCS_RGB}), channels);
    ASSERT_TRUE(ycc.ok());
    ASSERT_TRUE(rgb.ok());
    ExpectNear(*rgb, *ycc, 12);
  }
}

TEST_F(DecodeImageTest, CmykAndYcckBecomeRgbByTheirProductWithBlack) {
  const Bytes cmyk = Gradients(48, 64, 4);
  Bytes want;
  for (size_t i = 0; i < cmyk.size(); i += 4) {
    for (size_t c = 0; c < 3; ++c) {  // inverted: ink free times black free
      want.push_back(static_cast<std::byte>(std::to_integer<int>(cmyk[i + c]) *
                                            std::to_integer<int>(cmyk[i + 3]) /
                                            255));
    }
  }
  for (const J_COLOR_SPACE file_space : {JCS_CMYK, JCS_YCCK}) {
    const StatusOr<Bytes> decoded =
        Decode(EncodeJpeg({.space = JCS_CMYK, .file_space = file_space}));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    ExpectNear(*decoded, want, 14);
    const StatusOr<Bytes> gray =
        Decode(EncodeJpeg({.space = JCS_CMYK, .file_space = file_space}), 1);
    ASSERT_TRUE(gray.ok());
    EXPECT_EQ(gray->size(), decoded->size() / 3);
  }
}

TEST_F(DecodeImageTest, EveryProperPrefixOfAFileIsDataLoss) {
  for (const JpegKind& kind :
       {JpegKind{}, JpegKind{.progressive = true}, JpegKind{.restart_rows = 1},
        JpegKind{.space = JCS_GRAYSCALE}}) {
    const Bytes file = EncodeJpeg(kind);
    for (size_t bytes = 0; bytes < file.size(); ++bytes) {
      const StatusOr<Bytes> decoded = Decode(std::span(file).first(bytes));
      ASSERT_FALSE(decoded.ok()) << bytes << " of " << file.size();
      ASSERT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    }
    EXPECT_TRUE(Decode(file).ok());
  }
}

TEST_F(DecodeImageTest, TruncationIsToldInLibjpegsWords) {
  const Bytes file = EncodeJpeg({});
  ExpectDataLoss(std::span(file).first(file.size() / 2),
                 "damaged JPEG: Premature end of JPEG file");
}

TEST_F(DecodeImageTest, RandomDamageIsAnErrorOrAPictureAndNeverMore) {
  std::mt19937 random(7);
  const Bytes good = EncodeJpeg({.restart_rows = 1});
  const StatusOr<Bytes> want = Decode(good);
  ASSERT_TRUE(want.ok());
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    Bytes file = EncodeJpeg({.progressive = i % 2 == 0, .restart_rows = 1});
    for (uint32_t flips = random() % 8 + 1; flips > 0; --flips) {
      // Not the frame's size: decoding 65500 x 65500 takes long.
      const size_t at = random() % file.size();
      if (at > 140 && at < 180) continue;
      file[at] = static_cast<std::byte>(random());
    }
    file.resize(file.size() - random() % 2 * (random() % file.size()));
    const StatusOr<Bytes> decoded = Decode(file);
    if (decoded.ok()) continue;
    EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    ++refused;
  }
  EXPECT_GT(refused, 300);
  const StatusOr<Bytes> again = Decode(good);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *want);
}

TEST_F(DecodeImageTest, AFileLeftInTheMiddleGivesItsMemoryBack) {
  const Bytes file = EncodeJpeg({.progressive = true});
  JpegDecoder decoder;  // a sanitizer reports leaks
  ASSERT_TRUE(decoder.Begin(file).ok());
  ASSERT_TRUE(decoder.Start(3).ok());
  Bytes row(64 * 3);
  EXPECT_TRUE(decoder.ReadRow(row.data()).ok());
}

// The file without its segments of this kind.
Bytes Without(uint8_t marker, const Bytes& file) {
  Bytes rest(file.begin(), file.begin() + 2);
  size_t at = 2;
  while (file[at + 1] != std::byte{0xda}) {
    const size_t bytes = 2 + std::to_integer<size_t>(file[at + 2]) * 256 +
                         std::to_integer<size_t>(file[at + 3]);
    if (file[at + 1] != std::byte{marker}) {
      rest.insert(rest.end(), &file[at], &file[at] + bytes);
    }
    at += bytes;
  }
  rest.insert(rest.end(), file.begin() + static_cast<ptrdiff_t>(at),
              file.end());
  return rest;
}

// As in the frames of motion JPEG, which Pillow decodes.
TEST_F(DecodeImageTest, WithoutHuffmanTablesTheStandardOnesAreMeant) {
  const Bytes file = EncodeJpeg({});
  const StatusOr<Bytes> want = Decode(file);
  const StatusOr<Bytes> got = Decode(Without(0xc4, file));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(*got, *want);
}

TEST_F(DecodeImageTest, WithoutOtherTablesAFileIsDataLoss) {
  ExpectDataLoss(Without(0xdb, EncodeJpeg({})),
                 "Quantization table 0x00 was not defined");
  ExpectDataLoss(Without(0xc4, EncodeJpeg({.progressive = true})),
                 "Huffman table 0x00 was not defined");
}

TEST_F(DecodeImageTest, StrayBytesThatCostNoPixelPass) {
  const Bytes file = EncodeJpeg({});
  const StatusOr<Bytes> want = Decode(file);
  ASSERT_TRUE(want.ok());
  Bytes before_end = file;
  before_end.insert(before_end.end() - 2, 20, std::byte{0x11});
  Bytes after_end = file;
  after_end.insert(after_end.end(), 20, std::byte{0x11});
  Bytes in_header = file;
  in_header.insert(in_header.begin() + 20, 3, std::byte{0x11});
  for (const Bytes& stray : {before_end, after_end, in_header}) {
    const StatusOr<Bytes> decoded = Decode(stray);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(*decoded, *want);
  }
}

TEST_F(DecodeImageTest, CorruptScanDataIsDataLossNotAGrayPicture) {
  Bytes file = EncodeJpeg({.height = 256, .width = 256, .restart_rows = 2});
  // A restart marker with the wrong number.
  const auto marker = std::adjacent_find(
      file.begin() + 400, file.end(), [](std::byte a, std::byte b) {
        return a == std::byte{0xff} && b == std::byte{0xd2};
      });
  ASSERT_NE(marker, file.end());
  marker[1] = std::byte{0xd5};
  ExpectDataLoss(file, "Corrupt JPEG data");
}

TEST_F(DecodeImageTest, AHugePictureIsRefusedBeforeMemoryIsTaken) {
  Bytes file = EncodeJpeg({});
  // Start of frame: ff c0, length (2), precision (1), height (2), width (2).
  const auto frame = std::adjacent_find(
      file.begin(), file.end(), [](std::byte a, std::byte b) {
        return a == std::byte{0xff} && b == std::byte{0xc0};
      });
  ASSERT_NE(frame, file.end());
  std::fill_n(frame + 5, 4, std::byte{0xfe});
  ExpectDataLoss(file, "a picture of 65278 x 65278 pixels; at most 268435456");
}

TEST_F(DecodeImageTest, AProgressiveFileOfTooManyScansIsRefused) {
  std::vector<jpeg_scan_info> scans = {{.comps_in_scan = 1}};
  for (int coefficient = 1; coefficient < 64; ++coefficient) {
    for (int bit = 8; bit >= 0; --bit) {
      scans.push_back({.comps_in_scan = 1,
                       .Ss = coefficient,
                       .Se = coefficient,
                       .Ah = bit == 8 ? 0 : bit + 1,
                       .Al = bit});
    }
  }
  ASSERT_GT(static_cast<int>(scans.size()), kPictureScansMax);
  const JpegKind gray = {.height = 16, .width = 16, .space = JCS_GRAYSCALE};
  JpegKind many = gray;
  many.scans = scans;
  ExpectDataLoss(EncodeJpeg(many), "more than 500 scans");
  EXPECT_TRUE(Decode(EncodeJpeg(gray)).ok());
}

// ---- parts ------------------------------------------------------------------

std::vector<JpegKind> KindsOfParts() {
  std::vector<JpegKind> kinds;
  const int luma[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2},
                         {4, 1}, {4, 2}, {2, 4}};
  for (const auto& [across, down] : luma) {
    for (const bool progressive : {false, true}) {
      kinds.push_back({.height = 101,
                       .width = 147,
                       .progressive = progressive,
                       .restart_rows = across - 1,
                       .luma_across = across,
                       .luma_down = down});
    }
  }
  kinds.push_back({.height = 101, .width = 147, .space = JCS_GRAYSCALE});
  kinds.push_back({.height = 101, .width = 147, .file_space = JCS_RGB});
  return kinds;
}

// One pixel inside the part: at its edges chroma has no neighbour.
TEST_F(DecodeImageTest, APartIsThatPartOfTheWholePicture) {
  std::mt19937 random(1);
  for (const JpegKind& kind : KindsOfParts()) {
    Bytes noise(kind.height * kind.width * ChannelsOf(kind.space));
    for (std::byte& value : noise) value = static_cast<std::byte>(random());
    const Bytes file = EncodeJpeg(noise, kind);
    const StatusOr<Bytes> whole = Decode(file);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    for (int i = 0; i < 40; ++i) {
      Part part;
      part.left = static_cast<int64_t>(random() % kind.width);
      part.top = static_cast<int64_t>(random() % kind.height);
      part.right = part.left + 1 +
                   static_cast<int64_t>(random() % (kind.width - part.left));
      part.bottom = part.top + 1 +
                    static_cast<int64_t>(random() % (kind.height - part.top));
      const StatusOr<Bytes> got = Decode(file, part);
      ASSERT_TRUE(got.ok()) << got.status().message();
      const int64_t width = part.right - part.left;
      for (int64_t y = part.top; y < part.bottom; ++y) {
        for (int64_t x = part.left; x < part.right; ++x) {
          if (x == part.left && x > 0) continue;
          if (x == part.right - 1 && x < kind.width - 1) continue;
          for (int64_t c = 0; c < 3; ++c) {
            ASSERT_EQ((*got)[((y - part.top) * width + x - part.left) * 3 + c],
                      (*whole)[(y * kind.width + x) * 3 + c])
                << "luma " << kind.luma_across << " x " << kind.luma_down
                << (kind.progressive ? " progressive" : "") << ", x " << x
                << " in " << part.left << ".." << part.right << ", y " << y
                << " in " << part.top << ".." << part.bottom;
          }
        }
      }
    }
  }
}

TEST_F(DecodeImageTest, ASmallerPartIsThatPartOfTheSmallerPicture) {
  std::mt19937 random(2);
  for (const JpegKind& kind : KindsOfParts()) {
    Bytes noise(kind.height * kind.width * ChannelsOf(kind.space));
    for (std::byte& value : noise) value = static_cast<std::byte>(random());
    const Bytes file = EncodeJpeg(noise, kind);
    for (const int denominator : {2, 4, 8}) {
      const int64_t width = (kind.width + denominator - 1) / denominator;
      const int64_t height = (kind.height + denominator - 1) / denominator;
      const StatusOr<Bytes> whole =
          Decode(file, Part{denominator, 0, 0, width, height});
      ASSERT_TRUE(whole.ok()) << whole.status().message();
      // The part touches no edge of the picture.
      const Part part = {denominator, 8, 1, width - 2, height};
      const StatusOr<Bytes> got = Decode(file, part);
      ASSERT_TRUE(got.ok()) << got.status().message();
      const int64_t columns = part.right - part.left;
      for (int64_t y = part.top; y < part.bottom; ++y) {
        for (int64_t x = part.left + 1; x < part.right - 1; ++x) {
          for (int64_t c = 0; c < 3; ++c) {
            ASSERT_EQ(
                (*got)[((y - part.top) * columns + x - part.left) * 3 + c],
                (*whole)[(y * width + x) * 3 + c])
                << "1/" << denominator << ", luma " << kind.luma_across << " x "
                << kind.luma_down << ", x " << x << ", y " << y;
          }
        }
      }
    }
  }
}

TEST_F(DecodeImageTest, ASmallerPartIsTheMeanOfItsPixels) {
  const Bytes file = EncodeJpeg({.height = 80, .width = 120, .quality = 100});
  const StatusOr<Bytes> whole = Decode(file);
  ASSERT_TRUE(whole.ok());
  for (const int denominator : {2, 4, 8}) {
    const ImageSize size = {.height = 80 / denominator,
                            .width = 120 / denominator};
    ASSERT_EQ(decoder_->PartSize(denominator), size);
    const Part part = {denominator, 2, 3, size.width - 2, size.height - 1};
    const StatusOr<Bytes> got = Decode(file, part);
    ASSERT_TRUE(got.ok()) << got.status().message();
    Bytes want;
    for (int64_t y = part.top; y < part.bottom; ++y) {
      for (int64_t x = part.left; x < part.right; ++x) {
        for (int64_t c = 0; c < 3; ++c) {
          int sum = 0;
          for (int64_t dy = 0; dy < denominator; ++dy) {
            for (int64_t dx = 0; dx < denominator; ++dx) {
              sum +=
                  std::to_integer<int>((*whole)[((y * denominator + dy) * 120 +
                                                 x * denominator + dx) *
                                                    3 +
                                                c]);
            }
          }
          want.push_back(
              static_cast<std::byte>(sum / (denominator * denominator)));
        }
      }
    }
    ExpectNear(*got, want, 3);
  }
}

// Even when the part lies above the missing data.
TEST_F(DecodeImageTest, EveryProperPrefixOfAPartsFileIsDataLoss) {
  for (const JpegKind& kind : {JpegKind{}, JpegKind{.progressive = true},
                               JpegKind{.restart_rows = 1}}) {
    const Bytes file = EncodeJpeg(kind);
    const Part part = {1, 3, 2, 20, 9};
    ASSERT_TRUE(Decode(file, part).ok());
    for (size_t bytes = 4; bytes < file.size(); ++bytes) {
      const auto prefix = std::span(file).first(bytes);
      if (!JpegDecoder().Begin(prefix).ok()) continue;
      const StatusOr<Bytes> decoded = Decode(prefix, part);
      ASSERT_FALSE(decoded.ok()) << bytes << " of " << file.size();
      EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    }
  }
}

TEST_F(DecodeImageTest, StrayBytesAfterAPartsFilePass) {
  Bytes file = EncodeJpeg({});
  file.resize(file.size() + 7);
  EXPECT_TRUE(Decode(file, {1, 3, 2, 20, 9}).ok());
}

}  // namespace penstock::decode_image_test
