// Decodes PNG files row by row: plain ones by png_rows.h, others through
// libspng.
//
// libspng sees the critical chunks only (IHDR, PLTE, IDAT, IEND); the others
// change no pixel of the result. So none of them is unpacked, checked or kept,
// and damage to one is no error.
#include <spng.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "broker/transform/byte_order.h"
#include "broker/transform/picture_decoder.h"
#include "broker/transform/png_rows.h"
#include "broker/transform/sample_rows.h"

namespace penstock {
namespace {

using std::string_view_literals::operator""sv;

// The file without its ancillary chunks, read from front to back.
class CriticalChunks {
 public:
  CriticalChunks() = default;
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

  std::span<const std::byte> file_;
  size_t at_ = 0;
  size_t end_ = 0;  // of the chunk at at_
};

struct FreeContext {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};

class PngDecoder final : public PictureDecoder {
 public:
  // The picture that is no part of an animation, or its first.
  Status Begin(std::span<const std::byte> file) override {
    file_ = file;
    chunks_ = CriticalChunks(file);
    if (context_ == nullptr) return Failure(SPNG_EMEM);
    PENSTOCK_RETURN_IF_ERROR(
        Check(spng_set_png_stream(context_.get(), &Read, &chunks_)));
    PENSTOCK_RETURN_IF_ERROR(Check(spng_get_ihdr(context_.get(), &header_)));
    return CheckPictureSize(header_.height, header_.width);
  }

  ImageSize size() const override {
    return {.height = header_.height, .width = header_.width};
  }

  Status Start(int channels) override;

  Status ReadRow(std::byte* row) override {
    const std::byte* samples = picture_.data();
    if (plain_ != nullptr) {
      samples = plain_->Next();
    } else if (header_.interlace_method != 0) {
      samples += y_ * row_bytes_;
    } else {
      const int error =
          spng_decode_row(context_.get(), picture_.data(), row_bytes_);
      if (error != SPNG_EOI || y_ + 1 < header_.height) {
        PENSTOCK_RETURN_IF_ERROR(Check(error));
      }
    }
    ++y_;
    rows_->Convert(samples, header_.width, channels_, row);
    return OkStatus();
  }

  Status Finish() override {
    if (plain_ != nullptr) return OkStatus();  // it is whole
    return Check(spng_decode_chunks(context_.get()));
  }

  Status FinishPart(std::byte* row) override {
    if (plain_ != nullptr) return OkStatus();
    const std::string_view text(reinterpret_cast<const char*>(file_.data()),
                                file_.size());
    if (text.ends_with("\0\0\0\0IEND\xae\x42\x60\x82"sv)) return OkStatus();
    while (y_ < header_.height) PENSTOCK_RETURN_IF_ERROR(ReadRow(row));
    return Finish();
  }

 private:
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

  static Status Check(int error) {
    return error == 0 ? OkStatus() : Failure(error);
  }

  // Fills picture_, pass by pass.
  Status ReadInterlaced() {
    picture_.resize(row_bytes_ * header_.height);
    for (;;) {
      spng_row_info row;
      int error = spng_get_row_info(context_.get(), &row);
      if (error == 0) {
        error = spng_decode_row(context_.get(),
                                picture_.data() + row.row_num * row_bytes_,
                                row_bytes_);
      }
      if (error == SPNG_EOI) return OkStatus();
      PENSTOCK_RETURN_IF_ERROR(Check(error));
    }
  }

  const std::unique_ptr<spng_ctx, FreeContext> context_{spng_ctx_new(0)};
  std::span<const std::byte> file_;
  CriticalChunks chunks_;
  spng_ihdr header_ = {};
  std::optional<SampleRows> rows_;
  std::unique_ptr<PngRows> plain_;  // instead of the context
  size_t row_bytes_ = 0;            // of samples
  std::vector<std::byte> picture_;  // samples: interlaced, all; else one row
  uint32_t y_ = 0;
  int channels_ = 3;
};

Status PngDecoder::Start(int channels) {
  const spng_ihdr& header = header_;
  channels_ = channels;
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
      PENSTOCK_RETURN_IF_ERROR(Check(spng_get_plte(context_.get(), &plte)));
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
  rows_.emplace(layout, &palette);
  const uint64_t row_bits =
      uint64_t{header.width} * header.bit_depth * layout.samples;
  row_bytes_ = (row_bits + 7) / 8;
  if (header.interlace_method != 0) {
    PENSTOCK_RETURN_IF_ERROR(
        CheckHeldBytes("an interlaced PNG", row_bytes_ * header.height, file_));
  }
  const uint64_t held = (row_bytes_ + 1) * header.height;
  if (header.interlace_method == 0 && header.bit_depth <= 8 &&
      held <= HeldBytesMax(file_)) {
    plain_ = PngRows::Open(
        file_,
        {.height = header.height,
         .row_bytes = row_bytes_,
         .pixel_bytes =
             header.bit_depth < 8 ? 1 : static_cast<size_t>(layout.samples),
         .has_palette = header.color_type == SPNG_COLOR_TYPE_INDEXED});
    if (plain_ != nullptr) return OkStatus();
  }
  PENSTOCK_RETURN_IF_ERROR(Check(spng_decode_image(
      context_.get(), nullptr, 0, SPNG_FMT_PNG, SPNG_DECODE_PROGRESSIVE)));
  if (header.interlace_method != 0) return ReadInterlaced();
  picture_.resize(row_bytes_);
  return OkStatus();
}

}  // namespace

std::unique_ptr<PictureDecoder> MakePngDecoder() {
  return std::make_unique<PngDecoder>();
}

}  // namespace penstock
