// Decodes WebP files through libwebp. The picture is decoded as a whole: the
// first ReadRow makes all rows.
#ifndef BROKER_TRANSFORM_WEBP_DECODER_H_
#define BROKER_TRANSFORM_WEBP_DECODER_H_

#include <memory>

#include "broker/transform/picture_decoder.h"

namespace penstock {

class WebpDecoder final : public PictureDecoder {
 public:
  WebpDecoder();
  ~WebpDecoder() override;
  WebpDecoder(const WebpDecoder&) = delete;
  WebpDecoder& operator=(const WebpDecoder&) = delete;

  // The first picture of an animation; black where that leaves the canvas free.
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
#endif  // BROKER_TRANSFORM_WEBP_DECODER_H_
