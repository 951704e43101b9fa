// Compressed bytes, by the libraries themselves.
#ifndef TESTS_UNIT_COMPRESSED_H_
#define TESTS_UNIT_COMPRESSED_H_

#include <bzlib.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <string>

#include "broker/index/inflate.h"

namespace penstock {

inline std::string Compressed(Compression by, const std::string& plain) {
  std::string out(plain.size() + plain.size() / 2 + 1024, '\0');
  size_t bytes = 0;
  switch (by) {
    case Compression::kGzip:
    case Compression::kDeflate: {
      z_stream stream = {};
      const int window = by == Compression::kGzip ? 15 + 16 : -15;
      EXPECT_EQ(
          deflateInit2(&stream, 6, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY),
          Z_OK);
      stream.next_in =
          reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
      stream.avail_in = static_cast<uInt>(plain.size());
      stream.next_out = reinterpret_cast<Bytef*>(out.data());
      stream.avail_out = static_cast<uInt>(out.size());
      EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
      bytes = stream.total_out;
      deflateEnd(&stream);
      break;
    }
    case Compression::kZstd:
      bytes =
          ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), 3);
      EXPECT_EQ(ZSTD_isError(bytes), 0u);
      break;
    case Compression::kBzip2: {
      auto size = static_cast<unsigned>(out.size());
      EXPECT_EQ(BZ2_bzBuffToBuffCompress(
                    out.data(), &size, const_cast<char*>(plain.data()),
                    static_cast<unsigned>(plain.size()), 1, 0, 0),
                BZ_OK);
      bytes = size;
      break;
    }
    case Compression::kXz:
      EXPECT_EQ(
          lzma_easy_buffer_encode(
              0, LZMA_CHECK_CRC64, nullptr,
              reinterpret_cast<const uint8_t*>(plain.data()), plain.size(),
              reinterpret_cast<uint8_t*>(out.data()), &bytes, out.size()),
          LZMA_OK);
      break;
  }
  out.resize(bytes);
  return out;
}

}  // namespace penstock
#endif  // TESTS_UNIT_COMPRESSED_H_
