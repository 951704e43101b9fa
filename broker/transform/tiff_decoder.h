// Decodes TIFF files through libtiff: the first picture of a file, in strips or
// tiles, contiguous or in separate planes; uncompressed, or compressed by
// CCITT's methods, LZW, deflate, PackBits or JPEG; unsigned samples of 1, 2, 4,
// 8 or 16 bits. One row of strips or tiles is in memory at a time.
//
// Gray of 16 bits whose 0 is white is not inverted, as in Pillow.
#ifndef BROKER_TRANSFORM_TIFF_DECODER_H_
#define BROKER_TRANSFORM_TIFF_DECODER_H_

#include <memory>

#include "broker/transform/picture_decoder.h"

namespace penstock {

class TiffDecoder final : public PictureDecoder {
 public:
  TiffDecoder();
  ~TiffDecoder() override;
  TiffDecoder(const TiffDecoder&) = delete;
  TiffDecoder& operator=(const TiffDecoder&) = delete;

  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override;
  Status Start(int channels) override;
  Status ReadRow(std::byte* row) override;
  // Nothing: Begin has checked that the file has all of its data.
  Status Finish() override;
  Status FinishPart(std::byte* row) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_TIFF_DECODER_H_
