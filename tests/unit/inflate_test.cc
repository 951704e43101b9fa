// Promise: what a compression's own library made inflates to the same bytes, in
// however many members it lies and however it is read; all else is an error
// that says where, and nothing is taken for compressed that is not. Method: all
// five formats, cut after each byte, with each byte damaged.
#include "broker/index/inflate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "broker/index/values.h"
#include "common/crc32c.h"
#include "tests/unit/compressed.h"

namespace penstock::inflate_test {

using testing::HasSubstr;
using testing::TestWithParam;
using testing::Values;

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string Lines(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += "line " + std::to_string(i * i) + "\n";
  }
  return text;
}

// block: how many bytes it reads at once. most: it stops there.
StatusOr<std::string> Inflated(Compression by, const std::string& compressed,
                               size_t block = 1 << 16,
                               size_t most = size_t{1} << 30) {
  std::string plain;
  size_t at = 0;
  const Status status = Inflate(
      "it", by,
      [&]() -> StatusOr<std::span<const std::byte>> {
        const auto bytes =
            BytesOf(compressed)
                .subspan(at, std::min(block, compressed.size() - at));
        at += bytes.size();
        return bytes;
      },
      [&](std::span<const std::byte> bytes) -> Status {
        if (bytes.size() > most - plain.size()) {
          return FailedPreconditionError("enough");
        }
        plain.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return OkStatus();
      });
  if (!status.ok()) return status;
  return plain;
}

class InflateTest : public TestWithParam<Compression> {};
INSTANTIATE_TEST_SUITE_P(, InflateTest,
                         Values(Compression::kGzip, Compression::kZstd,
                                Compression::kBzip2, Compression::kXz,
                                Compression::kDeflate),
                         [](const auto& info) {
                           return std::string(NameOf(info.param));
                         });

TEST_P(InflateTest, GivesTheBytesThatWereCompressed) {
  const std::string many = Lines(120'000);  // several pieces
  for (const std::string& plain :
       {std::string(), std::string("x"), Lines(100), many}) {
    const std::string compressed = Compressed(GetParam(), plain);
    for (const size_t block : {size_t{7}, size_t{1} << 20}) {
      if (block == 7 && plain.size() > 10'000) continue;
      const auto inflated = Inflated(GetParam(), compressed, block);
      ASSERT_TRUE(inflated.ok()) << inflated.status().message();
      EXPECT_TRUE(*inflated == plain);
    }
  }
}

TEST_P(InflateTest, MembersFollowOneAnother) {
  if (GetParam() == Compression::kDeflate) return;
  const std::string two = Compressed(GetParam(), "one") +
                          Compressed(GetParam(), "") +
                          Compressed(GetParam(), Lines(50));
  for (const size_t block : {1, 1000}) {
    const auto inflated = Inflated(GetParam(), two, block);
    ASSERT_TRUE(inflated.ok()) << inflated.status().message();
    EXPECT_EQ(*inflated, "one" + Lines(50));
  }
}

TEST_P(InflateTest, AFileThatIsCutOffIsAnErrorWhereverItIsCut) {
  const std::string compressed = Compressed(GetParam(), Lines(40));
  for (size_t bytes = 1; bytes < compressed.size(); ++bytes) {
    const auto inflated = Inflated(GetParam(), compressed.substr(0, bytes));
    ASSERT_EQ(inflated.status().code(), StatusCode::kDataLoss) << bytes;
    EXPECT_EQ(inflated.status().message(),
              Format("it, offset {}: the file ends within its compressed data; "
                     "it was cut off: copy it again",
                     bytes));
  }
}

TEST_P(InflateTest, ADamagedByteIsAnErrorOrChangesNothing) {
  const std::string plain = Lines(40);
  const std::string compressed = Compressed(GetParam(), plain);
  size_t errors = 0;
  for (size_t i = 0; i < compressed.size(); ++i) {
    std::string damaged = compressed;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    const auto inflated =
        Inflated(GetParam(), damaged, 1 << 16, 100 * plain.size());
    if (inflated.ok()) {
      // A time or a name in a header; deflate and this zstd have no checksum.
      EXPECT_TRUE(*inflated == plain || GetParam() == Compression::kDeflate ||
                  GetParam() == Compression::kZstd)
          << i;
      continue;
    }
    ++errors;
    const StatusCode code = inflated.status().code();
    EXPECT_TRUE(code == StatusCode::kDataLoss ||
                code == StatusCode::kInvalidArgument ||
                code == StatusCode::kFailedPrecondition)
        << inflated.status().message();
  }
  EXPECT_GT(errors, compressed.size() / 2);
}

TEST_P(InflateTest, WhatFollowsItIsAnError) {
  const std::string compressed = Compressed(GetParam(), "text");
  const auto garbage = Inflated(GetParam(), compressed + "garbage", 3);
  EXPECT_EQ(garbage.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(garbage.status().message(), HasSubstr("it, offset "));
  if (GetParam() == Compression::kGzip || GetParam() == Compression::kBzip2) {
    EXPECT_EQ(garbage.status().message(),
              Format("it, offset {}: bytes follow the end of the compressed "
                     "data which are none; cut them off, or copy it again",
                     compressed.size()));
  }
  // Tapes are filled up with zeros, and xz pads with them.
  const auto zeros = Inflated(GetParam(), compressed + std::string(1024, '\0'));
  const bool allowed = GetParam() != Compression::kZstd;
  EXPECT_EQ(zeros.ok(), allowed) << zeros.status().message();
}

TEST_P(InflateTest, ABombStopsWhereItIsToldTo) {
  const std::string bomb = Compressed(GetParam(), std::string(16 << 20, '\0'));
  EXPECT_LT(bomb.size(), size_t{1} << 20);
  EXPECT_EQ(Inflated(GetParam(), bomb, 1 << 16, 3 << 20).status().message(),
            "enough");
}

TEST_P(InflateTest, IsKnownByItsBytesAndByItsName) {
  if (GetParam() == Compression::kDeflate) return;
  for (const std::string& plain : {std::string(), Lines(100)}) {
    const std::string head =
        Compressed(GetParam(), plain).substr(0, kCompressionHeadBytes);
    EXPECT_EQ(CompressionOf(BytesOf(head)), GetParam());
    EXPECT_EQ(CompressionOf("/a/b.tar", BytesOf(head)), std::nullopt);
    EXPECT_EQ(CompressionOf("/a/b.gz", BytesOf(head)),
              GetParam() == Compression::kGzip ? std::optional(GetParam())
                                               : std::nullopt);
    for (size_t bytes = 0; bytes < 3; ++bytes) {
      EXPECT_EQ(CompressionOf(BytesOf(head.substr(0, bytes))), std::nullopt);
    }
  }
}

TEST(CompressionTest, ANameIsNeededWhereTheMarkSaysTooLittle) {
  const std::string bzip("BZh.jpg\0\0\0\0\0\0\0\0\0\0\0", 18);  // in a tar
  EXPECT_EQ(CompressionOf(BytesOf(bzip)), std::nullopt);
  EXPECT_EQ(CompressionOf("/a.tar", BytesOf(bzip)), std::nullopt);
  EXPECT_EQ(CompressionOf("/a.bz2", BytesOf(bzip)), Compression::kBzip2);
  const std::string skippable = "\x50\x2a\x4d\x18 and so on ....";
  EXPECT_EQ(CompressionOf("/a.bin", BytesOf(skippable)), std::nullopt);
  EXPECT_EQ(CompressionOf("/a.zst", BytesOf(skippable)), Compression::kZstd);
  EXPECT_EQ(CompressionOf("/a.gz", BytesOf("plain text under a wrong name")),
            std::nullopt);
}

TEST(CompressionTest, ATfrecordOfTheLengthThatLooksLikeGzipIsNone) {
  std::string header("\x1f\x8b\x08\0\0\0\0\0", 8);
  const uint32_t crc = Crc32c(BytesOf(header));
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8;
  header.append(reinterpret_cast<const char*>(&masked), sizeof(masked));
  header += "data of it";
  EXPECT_EQ(CompressionOf(BytesOf(header)), std::nullopt);
}

TEST(CompressionTest, SizesAreThoseThatFilesSayOrEstimates) {
  const std::string plain = Lines(1000);
  const auto estimate = [](Compression by, const std::string& file) {
    return EstimateInflated(
        by, file.size(),
        BytesOf(file).first(std::min(file.size(), kCompressionHeadBytes)),
        BytesOf(file).last(std::min(file.size(), kCompressionTailBytes)));
  };
  for (const Compression by :
       {Compression::kGzip, Compression::kZstd, Compression::kXz}) {
    EXPECT_EQ(estimate(by, Compressed(by, plain)), plain.size());
  }
  const std::string bzip = Compressed(Compression::kBzip2, plain);
  EXPECT_EQ(estimate(Compression::kBzip2, bzip),
            kInflatedPerCompressed * bzip.size());
  // The last of two members says less than both have.
  for (const Compression by : {Compression::kGzip, Compression::kXz}) {
    const std::string two = Compressed(by, plain) + Compressed(by, "x");
    EXPECT_EQ(estimate(by, two), kInflatedPerCompressed * two.size());
  }
}

}  // namespace penstock::inflate_test
