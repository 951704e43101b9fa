#include "broker/transform/webp_decoder.h"

#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>

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

const SampleLayout kRgbLayout = {};

}  // namespace

struct WebpDecoder::State {
  ~State() { WebPDemuxReleaseIterator(&frame); }

  Status Decode();

  std::span<const std::byte> file;
  std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer;
  WebPIterator frame = {};  // the first
  WebPDecoderConfig config = {};
  uint32_t width = 0;  // of the canvas
  uint32_t height = 0;
  SampleRows gray = SampleRows(kRgbLayout, nullptr);
  int channels = 3;
  size_t pixel_bytes = 3;  // in `picture`: 3 or 4
  std::unique_ptr<std::byte[]> picture;
  uint32_t y = 0;
};

Status WebpDecoder::State::Decode() {
  const size_t row_bytes = width * pixel_bytes;
  const bool fills = config.input.width == static_cast<int>(width) &&
                     config.input.height == static_cast<int>(height);
  // The decoder writes every byte of its rectangle.
  picture =
      fills ? std::make_unique_for_overwrite<std::byte[]>(row_bytes * height)
            : std::make_unique<std::byte[]>(row_bytes * height);
  std::byte* const begin = picture.get() +
                           static_cast<size_t>(frame.y_offset) * row_bytes +
                           static_cast<size_t>(frame.x_offset) * pixel_bytes;
  WebPDecBuffer& output = config.output;
  output.colorspace = pixel_bytes == 4 ? MODE_RGBA : MODE_RGB;
  output.is_external_memory = 1;
  output.u.RGBA = {
      .rgba = reinterpret_cast<uint8_t*>(begin),
      .stride = static_cast<int>(row_bytes),
      .size = static_cast<size_t>(picture.get() + row_bytes * height - begin)};
  const VP8StatusCode code =
      WebPDecode(frame.fragment.bytes, frame.fragment.size, &config);
  WebPFreeDecBuffer(&output);
  return Failure(code);
}

WebpDecoder::WebpDecoder() = default;
WebpDecoder::~WebpDecoder() = default;

Status WebpDecoder::Begin(std::span<const std::byte> file) {
  state_ = std::make_unique<State>();
  State& state = *state_;
  state.file = file;
  const WebPData data = {reinterpret_cast<const uint8_t*>(file.data()),
                         file.size()};
  WebPDemuxState parsed;
  state.demuxer.reset(WebPDemuxPartial(&data, &parsed));
  if (state.demuxer == nullptr || parsed == WEBP_DEMUX_PARSE_ERROR) {
    return DataLossError("damaged WebP: its chunks are corrupt");
  }
  if (parsed != WEBP_DEMUX_DONE) {
    return Failure(VP8_STATUS_NOT_ENOUGH_DATA);
  }
  state.width = WebPDemuxGetI(state.demuxer.get(), WEBP_FF_CANVAS_WIDTH);
  state.height = WebPDemuxGetI(state.demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  PENSTOCK_RETURN_IF_ERROR(CheckPictureSize(state.height, state.width));
  if (WebPInitDecoderConfig(&state.config) == 0) {
    return InternalError("libwebp's version is not that of its headers");
  }
  if (WebPDemuxGetFrame(state.demuxer.get(), 1, &state.frame) == 0) {
    return DataLossError("a WebP without a picture");
  }
  PENSTOCK_RETURN_IF_ERROR(
      Failure(WebPGetFeatures(state.frame.fragment.bytes,
                              state.frame.fragment.size, &state.config.input)));
  const WebPBitstreamFeatures& input = state.config.input;
  const auto fits = [](int64_t offset, int64_t size, int64_t canvas) {
    return offset >= 0 && size > 0 && offset + size <= canvas;
  };
  if (fits(state.frame.x_offset, input.width, state.width) &&
      fits(state.frame.y_offset, input.height, state.height)) {
    return OkStatus();
  }
  return DataLossError("damaged WebP: a picture outside its canvas");
}

ImageSize WebpDecoder::size() const {
  return {.height = state_->height, .width = state_->width};
}

Status WebpDecoder::Start(int channels) {
  State& state = *state_;
  if (channels == kValueChannels) return CheckHasValues({});
  state.channels = channels;
  state.pixel_bytes = channels == 4 ? 4 : 3;
  // libwebp's own: all pixels of a lossless picture, or a plane of alpha.
  constexpr int kLossless = 2;
  const uint64_t own = state.config.input.format == kLossless ? 4
                       : state.config.input.has_alpha != 0    ? 1
                                                              : 0;
  return CheckHeldBytes(
      "a WebP",
      uint64_t{state.height} * state.width * (state.pixel_bytes + own),
      state.file);
}

Status WebpDecoder::ReadRow(std::byte* row) {
  State& state = *state_;
  if (state.y == 0) PENSTOCK_RETURN_IF_ERROR(state.Decode());
  const size_t row_bytes = state.width * state.pixel_bytes;
  const std::byte* const from = state.picture.get() + state.y++ * row_bytes;
  if (state.channels == 1) {
    state.gray.Convert(from, state.width, 1, row);
  } else {
    std::memcpy(row, from, row_bytes);
  }
  return OkStatus();
}

Status WebpDecoder::Finish() { return OkStatus(); }
Status WebpDecoder::FinishPart(std::byte*) { return OkStatus(); }

}  // namespace penstock
