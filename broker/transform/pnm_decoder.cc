// Decodes the files of Netpbm: PGM and PPM, their samples of one or two bytes
// (P5, P6) or as decimal text (P2, P3). No library: see bmp_decoder.cc.
//
// As in Pillow: samples of a smaller maximum are scaled to 255, those of gray
// above 255 to 65535.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "broker/transform/byte_order.h"
#include "broker/transform/picture_decoder.h"
#include "broker/transform/sample_rows.h"
#include "broker/transform/values.h"

namespace penstock {
namespace {

constexpr std::string_view kBlanks = " \t\n\v\f\r";
constexpr size_t kDigitsMax = 10;

class PnmDecoder final : public PictureDecoder {
 public:
  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override {
    return {.height = height_, .width = width_};
  }
  Status Start(int channels) override {
    channels_ = channels;
    return channels == kValueChannels ? CheckHasValues(layout_) : OkStatus();
  }
  Status ReadRow(std::byte* row) override;
  Status FinishPart(std::byte* row) override {
    // Where decimal text ends is not known before it is read.
    while (is_text_ && y_ < height_) PENSTOCK_RETURN_IF_ERROR(ReadRow(row));
    return OkStatus();
  }

 private:
  // The next number in decimal; DataLoss: none, or a larger one.
  StatusOr<uint32_t> ReadText(const char* what, uint32_t max);
  Status ReadScaledRow();

  std::string_view text_;  // the file
  size_t at_ = 0;
  bool is_text_ = false;
  uint32_t height_ = 0;
  uint32_t width_ = 0;
  uint32_t y_ = 0;
  uint32_t maximum_ = 255;        // of the stored samples
  size_t sample_bytes_ = 1;       // stored, unless as text
  std::vector<uint16_t> scaled_;  // of each stored sample
  SampleLayout layout_;
  std::optional<SampleRows> rows_;
  std::vector<std::byte> row_;  // scaled; empty: as it is stored
  int channels_ = 3;
};

StatusOr<uint32_t> PnmDecoder::ReadText(const char* what, uint32_t max) {
  uint64_t number = 0;
  size_t digits = 0;
  for (; at_ < text_.size() && digits <= kDigitsMax; ++at_) {
    const char c = text_[at_];
    if (c == '#') {
      at_ = std::min(text_.find_first_of("\r\n", at_), text_.size() - 1);
    } else if (c >= '0' && c <= '9') {
      number = 10 * number + static_cast<uint64_t>(c - '0');
      ++digits;
    } else if (kBlanks.find(c) == kBlanks.npos) {
      return DataLossError("damaged PGM or PPM: its {} has no number, at {}",
                           what, at_);
    } else if (digits > 0) {
      ++at_;
      break;
    }
  }
  if (digits == 0) {
    return DataLossError("damaged PGM or PPM: it ends before its {}", what);
  }
  if (number > max) {
    return DataLossError("damaged PGM or PPM: {} {}; at most {} may be", what,
                         number, max);
  }
  return static_cast<uint32_t>(number);
}

Status PnmDecoder::Begin(std::span<const std::byte> file) {
  text_ = {reinterpret_cast<const char*>(file.data()), file.size()};
  is_text_ = text_[1] == '2' || text_[1] == '3';
  const bool is_gray = text_[1] == '2' || text_[1] == '5';
  at_ = 2;
  PENSTOCK_ASSIGN_OR_RETURN(width_, ReadText("width", UINT32_MAX));
  PENSTOCK_ASSIGN_OR_RETURN(height_, ReadText("height", UINT32_MAX));
  PENSTOCK_RETURN_IF_ERROR(CheckPictureSize(height_, width_));
  PENSTOCK_ASSIGN_OR_RETURN(maximum_, ReadText("maximum", 65535));
  if (maximum_ == 0) {
    return DataLossError("damaged PGM or PPM: its maximum is 0");
  }
  const bool wide = is_gray && maximum_ > 255;
  layout_ = {
      .color = is_gray ? SampleLayout::Color::kGray : SampleLayout::Color::kRgb,
      .samples = is_gray ? 1 : 3,
      .bits = wide ? 16 : 8};
  rows_.emplace(layout_, nullptr);
  sample_bytes_ = maximum_ > 255 ? 2 : 1;
  const uint64_t row_samples = uint64_t{width_} * (is_gray ? 1 : 3);
  const uint64_t bytes = height_ * row_samples * sample_bytes_;
  if (!is_text_ && bytes > text_.size() - at_) {
    return DataLossError(
        "damaged PGM or PPM: {} bytes of pixels at {}, and the file has {}",
        bytes, at_, text_.size());
  }
  if (is_text_ || maximum_ != 255) {
    const double to = wide ? 65535 : 255;
    scaled_.resize(maximum_ + 1);
    for (uint32_t value = 0; value <= maximum_; ++value) {
      scaled_[value] = static_cast<uint16_t>(
          std::nearbyint(static_cast<double>(value) / maximum_ * to));
    }
    row_.resize(row_samples * (wide ? 2 : 1));
  }
  return OkStatus();
}

Status PnmDecoder::ReadRow(std::byte* row) {
  const std::span file = std::as_bytes(std::span(text_));
  const std::byte* samples = file.data() + at_;
  if (row_.empty()) {
    at_ += size_t{width_} * static_cast<size_t>(layout_.samples);
  } else {
    PENSTOCK_RETURN_IF_ERROR(ReadScaledRow());
    samples = row_.data();
  }
  ++y_;
  rows_->Convert(samples, width_, channels_, row);
  return OkStatus();
}

Status PnmDecoder::ReadScaledRow() {
  const std::span file = std::as_bytes(std::span(text_));
  const size_t count = size_t{width_} * static_cast<size_t>(layout_.samples);
  for (size_t i = 0; i < count; ++i) {
    uint32_t value;
    if (is_text_) {
      PENSTOCK_ASSIGN_OR_RETURN(value, ReadText("pixel", maximum_));
    } else {
      value = static_cast<uint32_t>(
          ReadNumber(file, at_, sample_bytes_, std::endian::big));
      value = std::min(value, maximum_);
      at_ += sample_bytes_;
    }
    if (layout_.bits == 16) {
      Store(scaled_[value], row_.data() + 2 * i);
    } else {
      row_[i] = static_cast<std::byte>(scaled_[value]);
    }
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<PictureDecoder> MakePnmDecoder() {
  return std::make_unique<PnmDecoder>();
}

}  // namespace penstock
