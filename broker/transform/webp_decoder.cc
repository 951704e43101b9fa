// Decodes WebP files through libwebp. The picture is decoded as a whole: the
// first ReadRow makes all rows.
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>

#include "broker/transform/picture_decoder.h"
#include "broker/transform/sample_rows.h"

namespace penstock {
namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

Status Failure(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OK:
      return OkStatus();
    case VP8_STATUS_OUT_OF_MEMORY:
      return ResourceExhaustedError("no memory to decode a WebP");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return DataLossError("a WebP with a feature that libwebp does not know");
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return DataLossError("damaged WebP: its data end too early");
    default:
      return DataLossError("damaged WebP: its data are corrupt");
  }
}

class WebpDecoder final : public PictureDecoder {
 public:
  ~WebpDecoder() override { WebPDemuxReleaseIterator(&frame_); }

  // The first picture of an animation; black where that leaves the canvas free.
  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override {
    return {.height = height_, .width = width_};
  }
  Status Start(int channels) override;
  Status ReadRow(std::byte* row) override {
    if (y_ == 0) PENSTOCK_RETURN_IF_ERROR(Decode());
    const size_t row_bytes = width_ * pixel_bytes_;
    const std::byte* const from = picture_.get() + y_++ * row_bytes;
    if (channels_ == 1) {
      gray_.Convert(from, width_, 1, row);
    } else {
      std::memcpy(row, from, row_bytes);
    }
    return OkStatus();
  }

 private:
  Status Decode();

  std::span<const std::byte> file_;
  std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer_;
  WebPIterator frame_ = {};  // the first
  WebPDecoderConfig config_ = {};
  uint32_t width_ = 0;  // of the canvas
  uint32_t height_ = 0;
  const SampleRows gray_{{}, nullptr};
  int channels_ = 3;
  size_t pixel_bytes_ = 3;  // in picture_: 3 or 4
  std::unique_ptr<std::byte[]> picture_;
  uint32_t y_ = 0;
};

Status WebpDecoder::Decode() {
  const size_t row_bytes = width_ * pixel_bytes_;
  const bool fills = config_.input.width == static_cast<int>(width_) &&
                     config_.input.height == static_cast<int>(height_);
  // The decoder writes every byte of its rectangle.
  picture_ =
      fills ? std::make_unique_for_overwrite<std::byte[]>(row_bytes * height_)
            : std::make_unique<std::byte[]>(row_bytes * height_);
  std::byte* const begin = picture_.get() +
                           static_cast<size_t>(frame_.y_offset) * row_bytes +
                           static_cast<size_t>(frame_.x_offset) * pixel_bytes_;
  WebPDecBuffer& output = config_.output;
  output.colorspace = pixel_bytes_ == 4 ? MODE_RGBA : MODE_RGB;
  output.is_external_memory = 1;
  output.u.RGBA = {.rgba = reinterpret_cast<uint8_t*>(begin),
                   .stride = static_cast<int>(row_bytes),
                   .size = static_cast<size_t>(picture_.get() +
                                               row_bytes * height_ - begin)};
  const VP8StatusCode code =
      WebPDecode(frame_.fragment.bytes, frame_.fragment.size, &config_);
  WebPFreeDecBuffer(&output);
  return Failure(code);
}

Status WebpDecoder::Begin(std::span<const std::byte> file) {
  file_ = file;
  const WebPData data = {reinterpret_cast<const uint8_t*>(file.data()),
                         file.size()};
  WebPDemuxState parsed;
  demuxer_.reset(WebPDemuxPartial(&data, &parsed));
  if (demuxer_ == nullptr || parsed == WEBP_DEMUX_PARSE_ERROR) {
    return DataLossError("damaged WebP: its chunks are corrupt");
  }
  if (parsed != WEBP_DEMUX_DONE) {
    return Failure(VP8_STATUS_NOT_ENOUGH_DATA);
  }
  width_ = WebPDemuxGetI(demuxer_.get(), WEBP_FF_CANVAS_WIDTH);
  height_ = WebPDemuxGetI(demuxer_.get(), WEBP_FF_CANVAS_HEIGHT);
  PENSTOCK_RETURN_IF_ERROR(CheckPictureSize(height_, width_));
  if (WebPInitDecoderConfig(&config_) == 0) {
    return InternalError("libwebp's version is not that of its headers");
  }
  if (WebPDemuxGetFrame(demuxer_.get(), 1, &frame_) == 0) {
    return DataLossError("a WebP without a picture");
  }
  PENSTOCK_RETURN_IF_ERROR(Failure(WebPGetFeatures(
      frame_.fragment.bytes, frame_.fragment.size, &config_.input)));
  const WebPBitstreamFeatures& input = config_.input;
  const auto fits = [](int64_t offset, int64_t size, int64_t canvas) {
    return offset >= 0 && size > 0 && offset + size <= canvas;
  };
  if (fits(frame_.x_offset, input.width, width_) &&
      fits(frame_.y_offset, input.height, height_)) {
    return OkStatus();
  }
  return DataLossError("damaged WebP: a picture outside its canvas");
}

Status WebpDecoder::Start(int channels) {
  if (channels == kValueChannels) return CheckHasValues({});
  channels_ = channels;
  pixel_bytes_ = channels == 4 ? 4 : 3;
  // libwebp's own: all pixels of a lossless picture, or a plane of alpha.
  constexpr int kLossless = 2;
  const uint64_t own = config_.input.format == kLossless ? 4
                       : config_.input.has_alpha != 0    ? 1
                                                         : 0;
  return CheckHeldBytes(
      "a WebP", uint64_t{height_} * width_ * (pixel_bytes_ + own), file_);
}

}  // namespace

std::unique_ptr<PictureDecoder> MakeWebpDecoder() {
  return std::make_unique<WebpDecoder>();
}

}  // namespace penstock
