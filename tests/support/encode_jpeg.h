// Makes JPEG files of any kind for tests, with pixels that a test can compute.
#ifndef TESTS_SUPPORT_ENCODE_JPEG_H_
#define TESTS_SUPPORT_ENCODE_JPEG_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>
// After <cstdio>: it uses FILE and size_t without including them.
#include <jpeglib.h>

namespace penstock {

struct JpegKind {
  int64_t height = 48;
  int64_t width = 64;
  J_COLOR_SPACE space = JCS_RGB;           // of the pixels given to the encoder
  J_COLOR_SPACE file_space = JCS_UNKNOWN;  // unknown: the encoder's choice
  bool progressive = false;
  bool optimized = false;   // Huffman tables of its own, not the standard ones
  bool arithmetic = false;  // instead of Huffman codes
  int restart_rows = 0;
  int quality = 90;
  int luma_across =
      0;  // samples of luma for one of chroma; 0: encoder's choice
  int luma_down = 0;
  std::span<const jpeg_scan_info> scans = {};  // empty: the encoder's choice
};

inline int ChannelsOf(J_COLOR_SPACE space) {
  return space == JCS_GRAYSCALE ? 1 : space == JCS_CMYK ? 4 : 3;
}

// Smooth gradients that differ per channel, so that JPEG hardly changes them.
inline std::vector<std::byte> Gradients(int64_t height, int64_t width,
                                        int channels) {
  std::vector<std::byte> pixels;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int64_t values[4] = {255 * x / width, 255 * y / height,
                                 255 - 255 * x / width, 255 - 80 * y / height};
      for (int c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<std::byte>(values[c]));
      }
    }
  }
  return pixels;
}

inline std::vector<std::byte> EncodeJpeg(std::span<const std::byte> pixels,
                                         const JpegKind& kind) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);  // ends the test program on an error
  jpeg_create_compress(&info);
  unsigned char* file = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &file, &bytes);
  info.image_height = static_cast<JDIMENSION>(kind.height);
  info.image_width = static_cast<JDIMENSION>(kind.width);
  info.input_components = ChannelsOf(kind.space);
  info.in_color_space = kind.space;
  jpeg_set_defaults(&info);
  if (kind.file_space != JCS_UNKNOWN) {
    jpeg_set_colorspace(&info, kind.file_space);
  }
  jpeg_set_quality(&info, kind.quality, TRUE);
  if (kind.luma_across > 0) {
    info.comp_info[0].h_samp_factor = kind.luma_across;
    info.comp_info[0].v_samp_factor = kind.luma_down;
  }
  info.optimize_coding = kind.optimized ? TRUE : FALSE;
  info.arith_code = kind.arithmetic ? TRUE : FALSE;
  info.restart_in_rows = kind.restart_rows;
  if (kind.progressive) jpeg_simple_progression(&info);
  if (!kind.scans.empty()) {
    info.scan_info = kind.scans.data();
    info.num_scans = static_cast<int>(kind.scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  const int64_t row_bytes = kind.width * info.input_components;
  for (int64_t y = 0; y < kind.height; ++y) {
    auto* row = reinterpret_cast<JSAMPROW>(
        const_cast<std::byte*>(pixels.data() + y * row_bytes));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(file);
  std::vector<std::byte> result(begin, begin + bytes);
  std::free(file);
  return result;
}

inline std::vector<std::byte> EncodeJpeg(const JpegKind& kind) {
  return EncodeJpeg(Gradients(kind.height, kind.width, ChannelsOf(kind.space)),
                    kind);
}

}  // namespace penstock
#endif  // TESTS_SUPPORT_ENCODE_JPEG_H_
