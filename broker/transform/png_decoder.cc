#include "broker/transform/png_decoder.h"

#include <spng.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "broker/transform/byte_order.h"
#include "broker/transform/png_rows.h"
#include "broker/transform/sample_rows.h"

namespace penstock {
namespace {

using std::string_view_literals::operator""sv;

// The file without its ancillary chunks, read from front to back.
class CriticalChunks {
 public:
  explicit CriticalChunks(std::span<const std::byte> file)
      : file_(file), end_(std::min(file.size(), kPngSignatureBytes)) {}

  // False: the file ends before that.
  bool Read(std::byte* to, size_t bytes) {
    while (bytes > 0) {
      if (at_ == end_ && !NextChunk()) return false;
      const size_t now = std::min(bytes, end_ - at_);
      std::memcpy(to, file_.data() + at_, now);
      to += now;
      bytes -= now;
      at_ += now;
    }
    return true;
  }

 private:
  bool NextChunk() {
    for (;;) {
      const size_t left = file_.size() - at_;
      if (left < kPngChunkFrameBytes) return false;
      const size_t bytes = std::min<size_t>(
          left,
          kPngChunkFrameBytes + ReadNumber(file_, at_, 4, std::endian::big));
      end_ = at_ + bytes;
      constexpr std::byte kAncillary{0x20};
      if ((file_[at_ + 4] & kAncillary) == std::byte{0}) return true;
      at_ = end_;
    }
  }

  const std::span<const std::byte> file_;
  size_t at_ = 0;
  size_t end_;  // of the chunk at at_
};

struct FreeContext {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};

}  // namespace

struct PngDecoder::State {
  explicit State(std::span<const std::byte> file)
      : file(file), chunks(file), context(spng_ctx_new(0)) {}

  static int Read(spng_ctx*, void* chunks, void* to, size_t bytes) {
    return static_cast<CriticalChunks*>(chunks)->Read(
               static_cast<std::byte*>(to), bytes)
               ? 0
               : SPNG_IO_EOF;
  }

  static Status Failure(int error) {
    if (error == SPNG_EMEM) {
      return ResourceExhaustedError("no memory to decode a PNG");
    }
    return DataLossError("damaged PNG: {}", spng_strerror(error));
  }

  Status Check(int error) const {
    return error == 0 ? OkStatus() : Failure(error);
  }

  // Fills `picture`, pass by pass.
  Status ReadInterlaced() {
    picture.resize(row_bytes * header.height);
    for (;;) {
      spng_row_info row;
      int error = spng_get_row_info(context.get(), &row);
      if (error == 0) {
        error = spng_decode_row(
            context.get(), picture.data() + row.row_num * row_bytes, row_bytes);
      }
      if (error == SPNG_EOI) return OkStatus();
      PENSTOCK_RETURN_IF_ERROR(Check(error));
    }
  }

  const std::span<const std::byte> file;
  CriticalChunks chunks;
  const std::unique_ptr<spng_ctx, FreeContext> context;
  spng_ihdr header = {};
  std::optional<SampleRows> rows;
  std::unique_ptr<PngRows> plain;  // instead of the context
  size_t row_bytes = 0;            // of samples
  std::vector<std::byte> picture;  // samples: interlaced, all; else one row
  uint32_t y = 0;
  int channels = 3;
};

PngDecoder::PngDecoder() = default;
PngDecoder::~PngDecoder() = default;

Status PngDecoder::Begin(std::span<const std::byte> file) {
  state_ = std::make_unique<State>(file);
  State& state = *state_;
  spng_ctx* const context = state.context.get();
  if (context == nullptr) return State::Failure(SPNG_EMEM);
  PENSTOCK_RETURN_IF_ERROR(
      state.Check(spng_set_png_stream(context, &State::Read, &state.chunks)));
  PENSTOCK_RETURN_IF_ERROR(state.Check(spng_get_ihdr(context, &state.header)));
  return CheckPictureSize(state.header.height, state.header.width);
}

ImageSize PngDecoder::size() const {
  return {.height = state_->header.height, .width = state_->header.width};
}

Status PngDecoder::Start(int channels) {
  State& state = *state_;
  spng_ctx* const context = state.context.get();
  const spng_ihdr& header = state.header;
  state.channels = channels;
  SampleLayout layout = {.bits = header.bit_depth};
  Palette palette = {};  // colours that are not there are black
  switch (header.color_type) {
    case SPNG_COLOR_TYPE_GRAYSCALE:
    case SPNG_COLOR_TYPE_GRAYSCALE_ALPHA:
      layout.color = SampleLayout::Color::kGray;
      layout.samples =
          header.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA ? 2 : 1;
      break;
    case SPNG_COLOR_TYPE_INDEXED: {
      layout.color = SampleLayout::Color::kPalette;
      layout.samples = 1;
      spng_plte plte = {};
      PENSTOCK_RETURN_IF_ERROR(state.Check(spng_get_plte(context, &plte)));
      for (size_t i = 0; i < plte.n_entries; ++i) {
        const spng_plte_entry& entry = plte.entries[i];
        palette[i] = {entry.red, entry.green, entry.blue};
      }
      break;
    }
    default:
      layout.color = SampleLayout::Color::kRgb;
      layout.samples =
          header.color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA ? 4 : 3;
  }
  if (channels == kValueChannels) {
    PENSTOCK_RETURN_IF_ERROR(CheckHasValues(layout));
  }
  state.rows.emplace(layout, &palette);
  const uint64_t row_bits =
      uint64_t{header.width} * header.bit_depth * layout.samples;
  state.row_bytes = (row_bits + 7) / 8;
  if (header.interlace_method != 0) {
    PENSTOCK_RETURN_IF_ERROR(CheckHeldBytes(
        "an interlaced PNG", state.row_bytes * header.height, state.file));
  }
  const uint64_t held = (state.row_bytes + 1) * header.height;
  if (header.interlace_method == 0 && header.bit_depth <= 8 &&
      held <= HeldBytesMax(state.file)) {
    state.plain = PngRows::Open(
        state.file,
        {.height = header.height,
         .row_bytes = state.row_bytes,
         .pixel_bytes =
             header.bit_depth < 8 ? 1 : static_cast<size_t>(layout.samples),
         .has_palette = header.color_type == SPNG_COLOR_TYPE_INDEXED});
    if (state.plain != nullptr) return OkStatus();
  }
  PENSTOCK_RETURN_IF_ERROR(state.Check(spng_decode_image(
      context, nullptr, 0, SPNG_FMT_PNG, SPNG_DECODE_PROGRESSIVE)));
  if (header.interlace_method != 0) return state.ReadInterlaced();
  state.picture.resize(state.row_bytes);
  return OkStatus();
}

Status PngDecoder::ReadRow(std::byte* row) {
  State& state = *state_;
  const std::byte* samples = state.picture.data();
  if (state.plain != nullptr) {
    samples = state.plain->Next();
  } else if (state.header.interlace_method != 0) {
    samples += state.y * state.row_bytes;
  } else {
    const int error = spng_decode_row(state.context.get(), state.picture.data(),
                                      state.row_bytes);
    if (error != SPNG_EOI || state.y + 1 < state.header.height) {
      PENSTOCK_RETURN_IF_ERROR(state.Check(error));
    }
  }
  ++state.y;
  state.rows->Convert(samples, state.header.width, state.channels, row);
  return OkStatus();
}

Status PngDecoder::Finish() {
  if (state_->plain != nullptr) return OkStatus();  // it is whole
  return state_->Check(spng_decode_chunks(state_->context.get()));
}

Status PngDecoder::FinishPart(std::byte* row) {
  State& state = *state_;
  if (state.plain != nullptr) return OkStatus();
  const std::string_view text(reinterpret_cast<const char*>(state.file.data()),
                              state.file.size());
  if (text.ends_with("\0\0\0\0IEND\xae\x42\x60\x82"sv)) return OkStatus();
  while (state.y < state.header.height) {
    PENSTOCK_RETURN_IF_ERROR(ReadRow(row));
  }
  return Finish();
}

}  // namespace penstock
