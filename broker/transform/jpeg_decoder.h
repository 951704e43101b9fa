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
// Begin, Start: the pixels equal Pillow's bit for bit (same library, same
// settings: exact integer DCT, smooth chroma upsampling).
// Begin, StartPart: decodes only the requested part, with the same settings; a
// pixel at the part's left or right edge can differ, because its chroma has no
// neighbour there.
// The EXIF orientation is not applied.
#ifndef BROKER_TRANSFORM_JPEG_DECODER_H_
#define BROKER_TRANSFORM_JPEG_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "broker/transform/picture.h"
#include "common/status.h"

namespace penstock {

// Larger pictures are refused before any allocation for them.
inline constexpr uint64_t kPicturePixelsMax = uint64_t{1} << 28;
// Scans of a progressive file: a scan of a few bytes can cost a pass over the
// whole picture. Encoders write about ten.
inline constexpr int kPictureScansMax = 500;

class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. Call once; file must stay valid until the last row.
  //
  // DataLoss, here and below: not a JPEG (says what it looks like), truncated,
  // corrupt (in libjpeg's words), too large. Damage that loses no pixel is
  // ignored: stray bytes in the header or before the end marker, an unknown
  // JFIF version or Adobe flag.
  Status Begin(std::span<const std::byte> file);

  // Size of the file's picture.
  ImageSize size() const;

  // Prepares to decode the whole picture, in rows of 3 (RGB) or 1 (gray) bytes
  // per pixel. Gray of a YCbCr file is its Y. CMYK is assumed to be inverted,
  // as Adobe writes it, and is converted to RGB as Pillow does.
  Status Start(int channels);

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

  // Reads the next row. At most height rows, including skipped ones.
  Status ReadRow(std::byte* row);

  // Call after the last row: reads up to the end marker, to detect a file that
  // is cut off before it.
  Status Finish();

  // Call after the last row of a part; row is scratch for one row. Reads on
  // only if the file lacks a proper end. Does not detect damage in the middle
  // of the rest.
  Status FinishPart(std::byte* row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_JPEG_DECODER_H_
