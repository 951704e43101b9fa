// Promise: PNG, WebP, TIFF, BMP, PGM and PPM files of every kind give Pillow's
// pixels; truncated, damaged and hostile ones become errors of their sample,
// without much memory, and say why. The EXIF orientation is read from all
// formats. Method: the files and checksums that decode_against_pillow.py wrote,
// cut at every byte and changed by hand.
#include "broker/transform/picture_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "broker/transform/feature_paths.h"
#include "broker/transform/orientation.h"
#include "tests/support/encode_jpeg.h"

namespace penstock::picture_decoder_test {

using testing::AllOf;
using testing::HasSubstr;
using std::string_literals::operator""s;
using std::string_view_literals::operator""sv;
using Bytes = std::vector<std::byte>;

Bytes ToBytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string BigEndian(uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) {
    text += static_cast<char>(value >> shift & 255);
  }
  return text;
}

uint32_t Crc(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Bytes Golden(const std::string& name) {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/fuzz/corpus/decode/" + name,
                     std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return ToBytes(text);
}

struct Expected {
  std::string name;
  ImageSize size;
  uint32_t rgb = 0;
  uint32_t gray = 0;
};

std::vector<Expected> GoldenFiles() {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/unit/decode_golden.txt");
  std::vector<Expected> all;
  Expected one;
  while (file >> one.name >> std::dec >> one.size.height >> one.size.width >>
         std::hex >> one.rgb >> one.gray) {
    all.push_back(one);
  }
  EXPECT_GT(all.size(), 70u);
  return all;
}

StatusOr<Bytes> Decode(std::span<const std::byte> file, int channels = 3,
                       ImageSize* size = nullptr) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PictureDecoder> decoder,
                            OpenPicture(file));
  const auto [height, width] = decoder->size();
  if (size != nullptr) *size = decoder->size();
  PENSTOCK_RETURN_IF_ERROR(decoder->Start(channels));
  Bytes pixels;
  for (int64_t y = 0; y < height; ++y) {
    pixels.resize(static_cast<size_t>((y + 1) * width * channels));
    PENSTOCK_RETURN_IF_ERROR(
        decoder->ReadRow(pixels.data() + y * width * channels));
  }
  PENSTOCK_RETURN_IF_ERROR(decoder->Finish());
  return pixels;
}

std::string ErrorOf(std::span<const std::byte> file) {
  const StatusOr<Bytes> decoded = Decode(file);
  if (decoded.ok()) return "decoded";
  EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
  return decoded.status().message();
}

// The row of decode_image with this op.
StatusOr<Bytes> RowOf(std::span<const std::byte> file,
                      const DecodeImageOp& op) {
  const std::vector<TransformSpec> map = {op};
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<FeaturePaths> paths,
      FeaturePaths::Compile(StepsOf(map),
                            {{{"image", DType::kUint8, {}}, true}}));
  Bytes row(paths->out()[0].feature.RowBytes());
  std::byte* const out = row.data();
  const auto scratch = FeaturePaths::MakeScratch();
  PENSTOCK_RETURN_IF_ERROR(paths->Run({file}, {}, *scratch, {&out, 1}));
  return row;
}

TEST(PictureDecoderTest, EveryKindOfFileHasPillowsPixels) {
  for (const Expected& expected : GoldenFiles()) {
    const Bytes file = Golden(expected.name);
    ImageSize size;
    const StatusOr<Bytes> rgb = Decode(file, 3, &size);
    ASSERT_TRUE(rgb.ok()) << expected.name << ": " << rgb.status().message();
    EXPECT_EQ(size, expected.size) << expected.name;
    EXPECT_EQ(Crc(*rgb), expected.rgb) << expected.name;
    const StatusOr<Bytes> gray = Decode(file, 1);
    ASSERT_TRUE(gray.ok()) << expected.name;
    EXPECT_EQ(Crc(*gray), expected.gray) << expected.name;
    const StatusOr<Bytes> rgbx = Decode(file, 4);
    ASSERT_TRUE(rgbx.ok()) << expected.name;
    for (size_t i = 0; i < rgb->size(); ++i) {
      ASSERT_EQ((*rgbx)[i / 3 * 4 + i % 3], (*rgb)[i]) << expected.name;
    }
  }
}

// In its own size nothing is resampled: the fast way is exact there.
TEST(PictureDecoderTest, DecodeImageTakesEveryFormat) {
  for (const Expected& expected : GoldenFiles()) {
    for (const bool exact : {false, true}) {
      const StatusOr<Bytes> row =
          RowOf(Golden(expected.name), {.size = expected.size, .exact = exact});
      ASSERT_TRUE(row.ok()) << expected.name << row.status().message();
      EXPECT_EQ(Crc(*row), expected.rgb) << expected.name << ' ' << exact;
    }
  }
}

TEST(PictureDecoderTest, EveryProperPrefixOfAFileIsDataLoss) {
  const std::optional<CropSpec> middle = CenterCrop{.fraction = 0.25};
  for (const Expected& expected : GoldenFiles()) {
    const Bytes file = Golden(expected.name);
    // At the end of some TIFFs is the place of a next directory, and of a text
    // the line's: no pixel.
    const size_t spare = expected.name == "tiff_big"          ? 8
                         : expected.name.starts_with("tiff_") ? 4
                         : expected.name.find("_text_") != std::string::npos
                             ? 1
                             : 0;
    for (size_t bytes = 0; bytes < file.size() - spare; ++bytes) {
      const auto prefix = std::span(file).first(bytes);
      const StatusOr<Bytes> decoded = Decode(prefix);
      ASSERT_FALSE(decoded.ok())
          << expected.name << ": " << bytes << " of " << file.size();
      ASSERT_EQ(decoded.status().code(), StatusCode::kDataLoss);
      for (const auto& crop : {std::optional<CropSpec>(), middle}) {
        ASSERT_FALSE(RowOf(prefix, {.crop = crop, .size = {3, 4}}).ok())
            << expected.name << ": " << bytes << " of " << file.size();
      }
    }
  }
}

TEST(PictureDecoderTest, WhatIsNoPictureIsCalledByItsName) {
  const auto error = [](std::string_view text) {
    return ErrorOf(ToBytes(text));
  };
  EXPECT_EQ(error(""), "the file is empty");
  EXPECT_EQ(error("GIF89a"),
            "not a JPEG, PNG, WebP, TIFF, BMP, PGM or PPM: begins with GIF's "
            "signature");
  EXPECT_THAT(error("<!DOCTYPE html>"), HasSubstr("begins like a web page"));
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("is a Git LFS pointer"));
  EXPECT_THAT(error("\x01\x02\xff"sv), HasSubstr("begins with 01 02 ff"));
  EXPECT_THAT(error("RIFF\x10\0\0\0WAVEfmt "sv),
              HasSubstr("begins with 52 49 46 46"));
  EXPECT_EQ(error("\xff\xd8"sv), "a JPEG that ends after 2 bytes");
}

// ---- PNG --------------------------------------------------------------------

std::string Chunk(const std::string& type, const std::string& data) {
  const std::string content = type + data;
  return BigEndian(static_cast<uint32_t>(data.size())) + content +
         BigEndian(Crc(std::as_bytes(std::span(content))));
}

std::string Header(uint32_t width, uint32_t height, int bits, int color,
                   bool interlaced = false) {
  return "\x89PNG\r\n\x1a\n" +
         Chunk("IHDR", BigEndian(width) + BigEndian(height) +
                           static_cast<char>(bits) + static_cast<char>(color) +
                           "\0\0"s + static_cast<char>(interlaced));
}

std::string Deflated(const std::string& text) {
  std::string out(compressBound(text.size()), '\0');
  uLongf bytes = out.size();
  EXPECT_EQ(compress(reinterpret_cast<Bytef*>(out.data()), &bytes,
                     reinterpret_cast<const Bytef*>(text.data()), text.size()),
            Z_OK);
  out.resize(bytes);
  return out;
}

std::string ErrorOfPng(const std::string& png) {
  return ErrorOf(ToBytes(png + Chunk("IEND", "")));
}

TEST(PngTest, AHugePictureIsRefusedBeforeMemoryIsTaken) {
  const std::string data = Chunk("IDAT", Deflated(std::string(1000, '\0')));
  EXPECT_EQ(ErrorOfPng(Header(65535, 65535, 8, 2) + data),
            "a picture of 65535 x 65535 pixels; at most 268435456 are decoded");
  EXPECT_EQ(ErrorOfPng(Header(1 << 21, 1, 8, 2) + data),
            "a picture of 2097152 x 1 pixels; at most 1048576 a side are "
            "decoded");
  EXPECT_THAT(ErrorOfPng(Header(16384, 16384, 16, 6, true) + data),
              HasSubstr("an interlaced PNG of 2147483648 bytes in memory"));
  EXPECT_THAT(ErrorOfPng(Header(0, 5, 8, 2) + data), HasSubstr("damaged PNG"));
}

// Row by row: the error comes where the data end.
TEST(PngTest, ALargePictureIsDecodedWithoutKeepingIt) {
  EXPECT_THAT(ErrorOfPng(Header(1 << 14, 1 << 14, 1, 0) +
                         Chunk("IDAT", Deflated(std::string(9999, '\0')))),
              HasSubstr("damaged PNG: IDAT stream too short"));
}

TEST(PngTest, AncillaryChunksAreNeitherUnpackedNorChecked) {
  const Bytes golden = Golden("png_colour_2_of_8_bits");
  const StatusOr<Bytes> want = Decode(golden);
  ASSERT_TRUE(want.ok());
  const std::string text(reinterpret_cast<const char*>(golden.data()),
                         golden.size());
  // 50 MB of zeros in 50 KB, once as a profile and as a text, and nonsense.
  const std::string bomb = Deflated(std::string(50'000'000, '\0'));
  std::string extra = Chunk("iCCP", "p\0\0"s + bomb) +
                      Chunk("zTXt", "t\0\0"s + bomb) + Chunk("gAMA", "") +
                      Chunk("tRNS", "x") + Chunk("eXIf", "II") +
                      Chunk("sRGB", "\0"s) + Chunk("sRGB", "\0"s);
  for (int i = 0; i < 5000; ++i) extra += Chunk("tEXt", "a\0b"s);
  std::string damaged = Chunk("tIME", "1234567");
  damaged.back() ^= 1;
  const StatusOr<Bytes> got =
      Decode(ToBytes(text.substr(0, 33) + extra + damaged + text.substr(33)));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(*got, *want);
}

TEST(PngTest, ADamagedChecksumOfACriticalChunkIsDataLoss) {
  for (const char* name :
       {"png_colour_3_of_4_bits", "png_colour_2_of_8_bits_interlaced"}) {
    const Bytes golden = Golden(name);
    for (size_t at = 8; at < golden.size();) {
      const size_t bytes = std::to_integer<size_t>(golden[at + 2]) << 8 |
                           std::to_integer<size_t>(golden[at + 3]);
      Bytes damaged = golden;
      damaged[at + 8 + bytes] ^= std::byte{1};
      EXPECT_THAT(ErrorOf(damaged), HasSubstr("damaged PNG: ")) << name << at;
      at += 12 + bytes;
    }
  }
}

TEST(PngTest, BytesAfterTheEndPass) {
  Bytes file = Golden("png_colour_2_of_8_bits");
  file.resize(file.size() + 7);
  EXPECT_TRUE(Decode(file).ok());
  EXPECT_TRUE(RowOf(file, {.size = {2, 3}}).ok());
}

// ---- TIFF -------------------------------------------------------------------

// Tags of a little-endian file that decode_against_pillow.py wrote.
class Tiff {
 public:
  explicit Tiff(const std::string& name) : file_(Golden(name)) {}

  // The value of a tag, or the first of its values if they are in the entry.
  Tiff& Set(unsigned tag, uint32_t value) {
    WriteAt(Entry(tag) + 8, value);
    return *this;
  }
  Tiff& SetCount(unsigned tag, uint32_t count) {
    WriteAt(Entry(tag) + 4, count);
    return *this;
  }
  // The next directory is the first one again.
  Tiff& Loop() {
    WriteAt(Directory() + 2 + 12 * At(Directory(), 2), Directory());
    return *this;
  }
  const Bytes& file() const { return file_; }

 private:
  uint32_t At(size_t at, size_t bytes) const {
    uint32_t value = 0;
    for (size_t i = bytes; i-- > 0;) {
      value = value << 8 | std::to_integer<uint32_t>(file_.at(at + i));
    }
    return value;
  }
  uint32_t Directory() const { return At(4, 4); }
  size_t Entry(unsigned tag) const {
    size_t at = Directory() + 2;
    while (At(at, 2) != tag) at += 12;
    return at;
  }
  void WriteAt(size_t at, uint32_t value) {
    for (int i = 0; i < 4; ++i, value >>= 8) {
      file_.at(at++) = static_cast<std::byte>(value & 255);
    }
  }

  Bytes file_;
};

constexpr unsigned kWidth = 256, kLength = 257, kBits = 258, kCompression = 259,
                   kPhotometric = 262, kOffsets = 273, kSamples = 277,
                   kRows = 278, kByteCounts = 279, kTileWidth = 322,
                   kTileLength = 323;
// 20 x 9 pixels: strips of 7 rows; tiles.
constexpr char kStrips[] = "tiff_gray_1_of_1_bits";
constexpr char kTiles[] = "tiff_white_is_zero_1_of_1_bits";

TEST(TiffTest, AHugePictureIsRefusedBeforeMemoryIsTaken) {
  EXPECT_EQ(
      ErrorOf(Tiff(kStrips).Set(kWidth, 65535).Set(kLength, 65535).file()),
      "a picture of 65535 x 65535 pixels; at most 268435456 are decoded");
  EXPECT_THAT(ErrorOf(Tiff(kStrips).Set(kWidth, 0xffffffff).file()),
              HasSubstr("at most 1048576 a side are decoded"));
  EXPECT_THAT(
      ErrorOf(
          Tiff(kTiles).Set(kTileWidth, 65520).Set(kTileLength, 65520).file()),
      HasSubstr("a piece of a TIFF of 536608800 bytes in memory"));
}

TEST(TiffTest, HostileDirectoriesAreErrorsOrHarmless) {
  EXPECT_THAT(ErrorOf(Tiff(kStrips).Set(kByteCounts, 0xffffffff).file()),
              HasSubstr("damaged TIFF"));
  EXPECT_EQ(ErrorOf(Tiff(kStrips).SetCount(kOffsets, 0xffffffff).file()),
            "decoded");
  EXPECT_THAT(ErrorOf(Tiff(kStrips).SetCount(kBits, 0x7fffffff).file()),
              HasSubstr("damaged TIFF"));
  EXPECT_NE(ErrorOf(Tiff(kStrips).Set(kRows, 0).file()), "decoded");
  EXPECT_EQ(ErrorOf(Tiff(kStrips).Loop().file()), "decoded");
}

TEST(TiffTest, WhatIsNotDecodedIsNamed) {
  EXPECT_THAT(ErrorOf(Tiff(kStrips).Set(kCompression, 34712).file()),
              HasSubstr("a TIFF compressed by"));
  EXPECT_EQ(ErrorOf(Tiff(kStrips).Set(kPhotometric, 8).file()),
            "a TIFF of photometric interpretation 8; known are gray, palette, "
            "RGB, CMYK and YCbCr, 0 to 3, 5 and 6");
  EXPECT_THAT(ErrorOf(Tiff(kStrips).Set(kBits, 12).file()),
              HasSubstr("a TIFF of 1 samples of 12 bits a pixel"));
  EXPECT_THAT(ErrorOf(Tiff(kStrips).Set(kSamples, 60000).file()),
              HasSubstr("TIFF"));
}

// libjpeg would invent gray, and CCITT's decoder white.
TEST(TiffTest, DamageThatCostsPixelsIsDataLoss) {
  for (const char* name :
       {"tiff_by_jpeg", "tiff_by_lzw", "tiff_by_packbits", "tiff_by_group4",
        "tiff_ycbcr_by_jpeg", "tiff_ycbcr_by_lzw"}) {
    const Bytes golden = Golden(name);
    int refused = 0;
    for (size_t i = 0; i < golden.size(); ++i) {
      Bytes damaged = golden;
      damaged[i] ^= std::byte{0x55};
      refused += Decode(damaged).ok() ? 0 : 1;
    }
    EXPECT_GT(refused, 20) << name;
  }
}

TEST(TiffTest, NothingIsPrinted) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  for (const Expected& expected : GoldenFiles()) {
    Bytes file = Golden(expected.name);
    for (size_t i = 0; i < file.size(); i += 3) {
      file[i] ^= std::byte{0x10};
      (void)Decode(file);
      file[i] ^= std::byte{0x10};
    }
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

// ---- BMP, PGM, PPM ----------------------------------------------------------

Bytes Bmp(uint32_t width, uint32_t height, uint16_t bits,
          uint32_t compression = 0, uint32_t offset = 54) {
  const auto number = [](uint32_t value, int bytes = 4) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
    return text;
  };
  return ToBytes("BM" + number(0) + number(0) + number(offset) + number(40) +
                 number(width) + number(height) + number(1, 2) +
                 number(bits, 2) + number(compression) + number(0) + number(0) +
                 number(0) + number(0) + number(0));
}

TEST(BmpTest, WhatIsNotDecodedIsNamed) {
  EXPECT_THAT(ErrorOf(Bmp(1, 1, 8, 1)),
              HasSubstr("a compressed BMP (compression 1)"));
  EXPECT_THAT(ErrorOf(Bmp(1, 1, 2)), HasSubstr("a BMP of 2 bits a pixel"));
  EXPECT_THAT(ErrorOf(Bmp(1, 1, 8)), HasSubstr("a palette of 256 colours"));
  EXPECT_THAT(ErrorOf(Bmp(1, 1, 32, 3)), HasSubstr("it ends in its masks"));
  Bytes masks = Bmp(1, 1, 32, 3);
  masks.resize(masks.size() + 12, std::byte{0x55});
  EXPECT_THAT(ErrorOf(masks), HasSubstr("have the masks 55555555"));
  EXPECT_THAT(ErrorOf(Bmp(0, 1, 24)), HasSubstr("a picture of 0 x 1 pixels"));
  EXPECT_THAT(ErrorOf(Bmp(1 << 14, 1 << 14, 24)),
              HasSubstr("damaged BMP: 805306368 bytes of pixels at 54"));
  EXPECT_THAT(ErrorOf(Bmp(1u << 31, 0x80000000u, 24)),
              HasSubstr("a picture of 2147483648 x 2147483648 pixels"));
  EXPECT_THAT(ErrorOf(Bmp(1, 1, 24, 0, UINT32_MAX)),
              HasSubstr("3 bytes of pixels at 4294967295"));
}

TEST(PnmTest, DamageIsDataLoss) {
  const auto error = [](const std::string& text) {
    return ErrorOf(ToBytes(text));
  };
  EXPECT_THAT(error("P5\n99999999999 1\n255\n"),
              HasSubstr("width 99999999999; at most 4294967295 may be"));
  EXPECT_THAT(error("P5\n2 -1\n255\n"), HasSubstr("its height has no number"));
  EXPECT_THAT(error("P5\n2 2\n0\n"), HasSubstr("its maximum is 0"));
  EXPECT_THAT(error("P6\n2 2\n65536\n"), HasSubstr("maximum 65536; at most"));
  EXPECT_THAT(error("P6\n2 2\n255\n123"),
              HasSubstr("12 bytes of pixels at 11, and the file has 14"));
  EXPECT_THAT(error("P2 1 1 9 10"), HasSubstr("pixel 10; at most 9 may be"));
  EXPECT_THAT(error("P2 2 1 9 1 #2"), HasSubstr("it ends before its pixel"));
  EXPECT_THAT(error("P4\n1 1\n1"), HasSubstr("begins with PBM's signature"));
}

// ---- WebP -------------------------------------------------------------------

TEST(WebpTest, DamageIsDataLoss) {
  Bytes file = Golden("webp_rgb");
  std::fill(file.begin() + 20, file.begin() + 30, std::byte{0xff});
  EXPECT_THAT(ErrorOf(file), HasSubstr("damaged WebP"));
  file = Golden("webp_rgba");
  file.resize(file.size() / 2);
  EXPECT_EQ(ErrorOf(file), "damaged WebP: its data end too early");
}

TEST(WebpTest, AHugePictureIsRefusedBeforeMemoryIsTaken) {
  Bytes file = Golden("webp_rgb_lossless");
  // VP8L: a byte 2f, 14 bits of width - 1, 14 bits of height - 1.
  const auto signature =
      std::find(file.begin() + 12, file.end(), std::byte{0x2f});
  ASSERT_NE(signature, file.end());
  std::fill_n(signature + 1, 3, std::byte{0xff});
  signature[4] |= std::byte{0x0f};
  EXPECT_THAT(ErrorOf(file),
              AllOf(HasSubstr("a WebP of 1879048192 bytes in memory"),
                    HasSubstr("at most 67")));
}

// ---- orientation ------------------------------------------------------------

// What stands at each place of a picture of 3 x 2 pixels after the turn.
TEST(OrientationTest, TurnsAsThePicturesOfTheStandard) {
  const std::string stored = "abcdef";  // abc over def
  const std::pair<int, const char*> turns[] = {
      {1, "abcdef"}, {2, "cbafed"}, {3, "fedcba"}, {4, "defabc"},
      {5, "adbecf"}, {6, "daebfc"}, {7, "fcebda"}, {8, "cfbead"}};
  for (const auto& [value, want] : turns) {
    std::string exif = "II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"s +
                       static_cast<char>(value) + "\0\0\0\0\0\0\0"s;
    const Orientation orientation = ReadOrientation(ToBytes(exif));
    const ImageSize size = {.height = 2, .width = 3};
    EXPECT_EQ(orientation.Turn(size).width, value < 5 ? 3 : 2);
    std::string got(6, ' ');
    for (int64_t y = 0; y < 2; ++y) {
      TurnRow(orientation, size, y, 1,
              reinterpret_cast<const std::byte*>(&stored[3 * y]),
              reinterpret_cast<std::byte*>(got.data()));
    }
    EXPECT_EQ(got, want) << value;
    // Each pixel of the upright picture comes from the box that is said.
    const ImageSize upright = orientation.Turn(size);
    for (int64_t y = 0; y < upright.height; ++y) {
      for (int64_t x = 0; x < upright.width; ++x) {
        const CropBox from = orientation.TurnBack(
            {.left = x, .top = y, .width = 1, .height = 1}, size);
        EXPECT_EQ(stored.at(from.top * 3 + from.left),
                  got.at(y * upright.width + x));
      }
    }
  }
}

TEST(OrientationTest, IsReadFromEveryFormat) {
  constexpr Orientation kFive = {.transposes = true};
  constexpr Orientation kEight = {.mirrors_x = true, .transposes = true};
  EXPECT_EQ(ReadOrientation(Golden("png_orientation_5_zlib_text")), kFive);
  EXPECT_EQ(ReadOrientation(Golden("webp_orientation_8")), kEight);
  EXPECT_TRUE(ReadOrientation(Golden("tiff_big")).is_upright());
  EXPECT_TRUE(ReadOrientation(EncodeJpeg({})).is_upright());
  const std::string exif =
      "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x05\0\0\0\0\0\0"s;
  const Bytes jpeg = EncodeJpeg({});
  Bytes with = ToBytes("\xff\xd8\xff\xe1\0"s +
                       static_cast<char>(exif.size() + 2) + exif);
  with.insert(with.end(), jpeg.begin() + 2, jpeg.end());
  EXPECT_EQ(ReadOrientation(with), kFive);
  for (size_t bytes = 0; bytes < with.size(); ++bytes) {
    (void)ReadOrientation(std::span(with).first(bytes));
  }
}

// The crop is chosen on the upright picture and equals that of a file that is
// stored upright.
TEST(OrientationTest, CropsAreThoseOfTheUprightPicture) {
  const Bytes file = Golden("png_orientation_5_zlib_text");
  ImageSize size;
  const StatusOr<Bytes> stored = Decode(file, 3, &size);
  ASSERT_TRUE(stored.ok());
  std::string rows;
  for (int64_t y = 0; y < size.width; ++y) {
    rows += '\0';
    for (int64_t x = 0; x < size.height; ++x) {
      const std::byte* const pixel = &(*stored)[(x * size.width + y) * 3];
      rows.append(reinterpret_cast<const char*>(pixel), 3);
    }
  }
  const Bytes upright =
      ToBytes(Header(static_cast<uint32_t>(size.height),
                     static_cast<uint32_t>(size.width), 8, 2) +
              Chunk("IDAT", Deflated(rows)) + Chunk("IEND", ""));
  for (const CropSpec& crop :
       {CropSpec(RandomResizedCrop{}), CropSpec(CenterCrop{.fraction = 0.7})}) {
    DecodeImageOp op = {.crop = crop,
                        .size = {8, 11},
                        .exact = true,
                        .applies_orientation = true};
    const StatusOr<Bytes> turned = RowOf(file, op);
    const StatusOr<Bytes> want = RowOf(upright, op);
    ASSERT_TRUE(turned.ok()) << turned.status().message();
    ASSERT_TRUE(want.ok()) << want.status().message();
    EXPECT_EQ(*turned, *want);
    op.applies_orientation = false;
    EXPECT_NE(*RowOf(file, op), *want);
  }
}

}  // namespace penstock::picture_decoder_test
