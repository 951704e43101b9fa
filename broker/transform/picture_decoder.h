// Decodes a picture file row by row, whatever its format. OpenPicture finds the
// format by the file's first bytes.
//
// Not thread-safe. A decoder decodes one file, and its result depends only on
// the file's bytes: no table, buffer or message is left from another file.
//
// The pixels equal those of Pillow's Image.open(file).convert("RGB") or
// convert("L"), bit for bit. So alpha and transparent colours are dropped, not
// blended. Pillow clips gray of 16 bits (values above 255 are white) and takes
// the high byte of colours of 16 bits. No colour profile is applied, and no
// EXIF orientation.
#ifndef BROKER_TRANSFORM_PICTURE_DECODER_H_
#define BROKER_TRANSFORM_PICTURE_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "broker/transform/picture.h"
#include "common/status.h"

namespace penstock {

class JpegDecoder;

// Larger pictures are refused before any allocation for them.
inline constexpr uint64_t kPicturePixelsMax = uint64_t{1} << 28;
inline constexpr uint64_t kPictureSideMax = uint64_t{1} << 20;

class PictureDecoder {
 public:
  virtual ~PictureDecoder() = default;

  // Reads the header. Call once; file must stay valid until the last row.
  //
  // DataLoss, here and below: truncated, corrupt (in the words of the format's
  // library), of a kind that is not decoded, too large.
  virtual Status Begin(std::span<const std::byte> file) = 0;

  // Size of the file's picture.
  virtual ImageSize size() const = 0;

  // Prepares to decode the whole picture, in rows of 1 (gray) or 3 (RGB) bytes
  // a pixel; not of a JPEG: also 4 (RGB and a byte without meaning).
  // kValueChannels: its values; DataLoss: it has colours.
  virtual Status Start(int channels) = 0;

  // Reads the next row. At most height rows.
  virtual Status ReadRow(std::byte* row) = 0;

  // Call after the last row: reads up to the file's end, to detect one that is
  // cut off before it. Default: Begin has seen that it is complete.
  virtual Status Finish() { return OkStatus(); }

  // Call after the last row that is needed; row is scratch for one row. Reads
  // on only if the file's end does not show that it is complete.
  virtual Status FinishPart(std::byte* /*row*/) { return OkStatus(); }

  // What only a JPEG can do.
  virtual JpegDecoder* AsJpeg() { return nullptr; }
};

// The decoders of formats that have nothing of their own, as JPEG has
// (jpeg_decoder.h).
std::unique_ptr<PictureDecoder> MakeBmpDecoder();
std::unique_ptr<PictureDecoder> MakePngDecoder();
std::unique_ptr<PictureDecoder> MakePnmDecoder();
std::unique_ptr<PictureDecoder> MakeTiffDecoder();
std::unique_ptr<PictureDecoder> MakeWebpDecoder();

// The decoder of the file's format, which has begun. DataLoss also: of none of
// the formats; says what it looks like.
StatusOr<std::unique_ptr<PictureDecoder>> OpenPicture(
    std::span<const std::byte> file);

// DataLoss: too large a picture.
Status CheckPictureSize(uint64_t height, uint64_t width);

// What may be in memory of a picture that cannot be decoded row by row: more,
// the larger its file is. A file of 1 KB that claims to be huge gets 64 MiB.
inline uint64_t HeldBytesMax(std::span<const std::byte> file) {
  return (uint64_t{64} << 20) + 256 * uint64_t{file.size()};
}
// DataLoss: more. `what` is held.
Status CheckHeldBytes(const char* what, uint64_t bytes,
                      std::span<const std::byte> file);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PICTURE_DECODER_H_
