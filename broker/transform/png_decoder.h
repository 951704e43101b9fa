// Decodes PNG files row by row: plain ones by png_rows.h, others through
// libspng.
//
// libspng sees the critical chunks only (IHDR, PLTE, IDAT, IEND); the others
// change no pixel of the result. So none of them is unpacked, checked or kept,
// and damage to one is no error.
#ifndef BROKER_TRANSFORM_PNG_DECODER_H_
#define BROKER_TRANSFORM_PNG_DECODER_H_

#include <memory>

#include "broker/transform/picture_decoder.h"

namespace penstock {

class PngDecoder final : public PictureDecoder {
 public:
  PngDecoder();
  ~PngDecoder() override;
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  // The picture that is no part of an animation, or its first.
  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override;
  Status Start(int channels) override;
  Status ReadRow(std::byte* row) override;
  Status Finish() override;
  Status FinishPart(std::byte* row) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PNG_DECODER_H_
