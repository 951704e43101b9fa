// Decodes JPEG files row by row, through libjpeg-turbo.
//
// One thread at a time; one decoder per worker, reused for every file.
//
// The pixels are bit for bit those of Pillow (the same library with the same
// settings: exact integer DCT, smooth chroma upsampling). The picture is given
// as it is stored: an EXIF orientation is not applied.
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

  // Reads the header and gets ready for rows of 3 (RGB) or 1 (gray) bytes a
  // pixel; forgets the file before, finished or not. file must stay until the
  // last row. Gray of a YCbCr file is its Y; CMYK is taken to be inverted, as
  // Adobe writes it, and becomes RGB as Pillow converts it.
  //
  // DataLoss, here and below: not a JPEG (says what it looks like), truncated,
  // corrupt (in libjpeg's words), too large. Damage that loses no pixel is
  // passed over: stray bytes in the header or before the end marker, an
  // unknown JFIF version or Adobe flag.
  Status Begin(std::span<const std::byte> file, int channels);

  // Of the file begun.
  ImageSize size() const;

  // The next row: width * channels bytes. At most height times.
  Status ReadRow(std::byte* row);

  // After the last row: reads up to the end marker, so that a file that stops
  // short of it is found out.
  Status Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_JPEG_DECODER_H_
