// Decodes JPEG files row by row, through libjpeg-turbo.
//
// One thread at a time. A decoder decodes one file. libjpeg's object could be
// used again, but it keeps quantisation and Huffman tables, restart intervals
// and what else a file may leave out, and so decodes a damaged file with the
// tables of the one before. A new object costs 12,000 of 7.6 million (0.2 %)
// instructions of a random crop of a 500 x 375 photograph (callgrind).
//
// What comes of a file depends on its bytes alone. A file without quantisation
// tables is an error. One without Huffman tables is decoded with those of the
// JPEG standard, as motion JPEG means it and as Pillow does, unless it is
// progressive: then it is an error, too.
//
// Begin, Start: the pixels are bit for bit those of Pillow (the same library
// with the same settings: exact integer DCT, smooth chroma upsampling).
// Begin, StartPart: only what is asked for is decoded, by the same settings; a
// pixel at the part's left or right edge can differ, as its chroma has no
// neighbour there.
// The picture is given as it is stored: an EXIF orientation is not applied.
#ifndef BROKER_TRANSFORM_JPEG_DECODER_H_
#define BROKER_TRANSFORM_JPEG_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

// Larger pictures are refused before anything is allocated for them.
inline constexpr uint64_t kPicturePixelsMax = uint64_t{1} << 28;
// Scans of a progressive file: a few bytes each can cost a pass over the whole
// picture. Encoders write about ten.
inline constexpr int kPictureScansMax = 500;

class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. Called once; file must stay until the last row.
  //
  // DataLoss, here and below: not a JPEG (says what it looks like), truncated,
  // corrupt (in libjpeg's words), too large. Damage that loses no pixel is
  // passed over: stray bytes in the header or before the end marker, an
  // unknown JFIF version or Adobe flag.
  Status Begin(std::span<const std::byte> file);

  // Of the file begun.
  ImageSize size() const;

  // Gets ready for all of it, in rows of 3 (RGB) or 1 (gray) bytes a pixel.
  // Gray of a YCbCr file is its Y; CMYK is taken to be inverted, as Adobe
  // writes it, and becomes RGB as Pillow converts it.
  Status Start(int channels);

  // Whether StartPart can do this file: it is not CMYK.
  bool HasParts() const;

  // Gets ready for a part of the picture made smaller by 1, 2, 4 or 8, in rows
  // of 4 bytes a pixel, RGBX. *first_column and *end_column count in pixels of
  // that picture, PartSize(denominator); they become what rows hold, which is
  // no less.
  Status StartPart(int denominator, int64_t* first_column, int64_t* end_column);
  ImageSize PartSize(int denominator) const;

  // Passes over rows, which costs less than reading them.
  Status SkipRows(int64_t rows);

  // The next row. At most height times, skipped ones included.
  Status ReadRow(std::byte* row);

  // After the last row: reads up to the end marker, so that a file that stops
  // short of it is found out.
  Status Finish();

  // After the last row of a part; row has room for one. Reads on only if the
  // file does not end as a whole one does. What is wrong in the middle of what
  // was not asked for is not found out.
  Status FinishPart(std::byte* row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_JPEG_DECODER_H_
