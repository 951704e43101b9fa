// Decodes JPEG files row by row, through libjpeg-turbo.
//
// Not thread-safe. A decoder decodes one file. libjpeg's object is not reused:
// it keeps quantisation and Huffman tables, restart intervals and other data
// that a file may omit, and would decode a damaged file with the tables of the
// previous one. A new object costs 12,000 of 7.6 million (0.2 %) instructions
// of a random crop of a 500 x 375 photograph (callgrind).
//
// The result depends only on the file's bytes. A file without quantisation
// tables is an error. A file without Huffman tables is decoded with those of
// the JPEG standard, as in motion JPEG and as Pillow does; if it is
// progressive, it is an error, too.
//
// Begin, Start: the pixels equal Pillow's because library and settings are the
// same: exact integer DCT, smooth chroma upsampling.
// Begin, StartPart: decodes only the requested part, with the same settings; a
// pixel at the part's left or right edge can differ, because its chroma has no
// neighbour there.
#ifndef BROKER_TRANSFORM_JPEG_DECODER_H_
#define BROKER_TRANSFORM_JPEG_DECODER_H_

#include <cstdint>
#include <memory>

#include "broker/transform/picture_decoder.h"

namespace penstock {

// Scans of a progressive file: a scan of a few bytes can cost a pass over the
// whole picture. Encoders write about ten.
inline constexpr int kPictureScansMax = 500;

class JpegDecoder final : public PictureDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder() override;
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Damage that loses no pixel is ignored: stray bytes in the header or before
  // the end marker, an unknown JFIF version or Adobe flag.
  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override;
  // Gray of a YCbCr file is its Y. CMYK is assumed to be inverted, as Adobe
  // writes it, and is converted to RGB as Pillow does.
  Status Start(int channels) override;
  Status ReadRow(std::byte* row) override;
  Status Finish() override;
  // Does not detect damage in the middle of the rest.
  Status FinishPart(std::byte* row) override;
  JpegDecoder* AsJpeg() override { return this; }

  // Whether StartPart supports this file: it is not CMYK.
  bool HasParts() const;

  // Prepares to decode a part of the picture scaled down by 1, 2, 4 or 8, in
  // rows of 4 bytes per pixel, RGBX. *first_column and *end_column are pixels
  // of the scaled picture, PartSize(denominator); on return they are the
  // columns that rows hold, at least those requested.
  Status StartPart(int denominator, int64_t* first_column, int64_t* end_column);
  ImageSize PartSize(int denominator) const;

  // Skips rows, which is cheaper than reading them.
  Status SkipRows(int64_t rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_JPEG_DECODER_H_
