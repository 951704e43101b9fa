// Decodes BMP files (Microsoft's BITMAPINFOHEADER up to version 5, and OS/2's
// BITMAPCOREHEADER): rows of 1, 4, 8, 16, 24 or 32 bits a pixel, as they lie in
// the file; no compressed ones. No library: gdk-pixbuf and leptonica bring
// every other format, stb_image takes a file that is cut off.
#include <bit>
#include <cstdlib>
#include <optional>
#include <vector>

#include "broker/transform/byte_order.h"
#include "broker/transform/picture_decoder.h"
#include "broker/transform/sample_rows.h"

namespace penstock {
namespace {

constexpr size_t kFileHeaderBytes = 14;
constexpr uint32_t kCoreHeaderBytes = 12;
constexpr uint32_t kUncompressed = 0;
constexpr uint32_t kBitFields = 3;

// One colour of a pixel of several bytes.
struct ColorField {
  uint32_t mask = 0;
  int shift = 0;

  explicit ColorField(uint32_t bits)
      : mask(bits), shift(std::countr_zero(bits) & 31) {}
  // One run of 1 to 8 ones.
  bool valid() const {
    const uint32_t max = mask >> shift;
    return max > 0 && max < 256 && (max & (max + 1)) == 0;
  }
  std::byte Of(uint32_t pixel) const {
    return static_cast<std::byte>(((pixel & mask) >> shift) * 255 /
                                  (mask >> shift));
  }
};

class BmpDecoder final : public PictureDecoder {
 public:
  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override {
    return {.height = height_, .width = width_};
  }
  Status Start(int channels) override {
    channels_ = channels;
    return channels == kValueChannels ? CheckHasValues(layout_) : OkStatus();
  }
  Status ReadRow(std::byte* row) override {
    const int64_t at = bottom_up_ ? height_ - 1 - y_ : y_;
    ++y_;
    const std::byte* stored = pixels_ + at * stride_;
    if (!fields_.empty()) stored = Unpacked(stored);
    rows_->Convert(stored, width_, channels_, row);
    return OkStatus();
  }

 private:
  uint32_t Number(size_t at, size_t bytes) const {
    return static_cast<uint32_t>(
        ReadNumber(file_, at, bytes, std::endian::little));
  }
  Status ReadPalette(size_t at, size_t color_bytes, uint32_t colors);
  Status ReadFields(bool stated, size_t at);
  const std::byte* Unpacked(const std::byte* stored);

  std::span<const std::byte> file_;
  int64_t height_ = 0;
  int64_t width_ = 0;
  bool bottom_up_ = true;
  int64_t bits_ = 0;  // a pixel
  const std::byte* pixels_ = nullptr;
  int64_t stride_ = 0;
  SampleLayout layout_;
  std::optional<SampleRows> rows_;
  std::vector<ColorField> fields_;  // red, green, blue: of 16 bits and more
  std::vector<std::byte> row_;      // unpacked
  int channels_ = 3;
  int64_t y_ = 0;
};

Status BmpDecoder::Begin(std::span<const std::byte> file) {
  file_ = file;
  const auto cut = [&] {
    return DataLossError("damaged BMP: it ends after {} bytes", file.size());
  };
  if (file.size() < kFileHeaderBytes + kCoreHeaderBytes) return cut();
  const uint32_t offset = Number(10, 4);
  const uint32_t header = Number(kFileHeaderBytes, 4);
  size_t at = kFileHeaderBytes + size_t{header};
  if (at > file.size()) return cut();
  const bool core = header == kCoreHeaderBytes;
  if (!core && header < 40) {
    return DataLossError("damaged BMP: a header of {} bytes", header);
  }
  uint32_t compression = kUncompressed;
  uint32_t colors = 0;
  if (core) {
    width_ = Number(18, 2);
    height_ = Number(20, 2);
    bits_ = Number(24, 2);
  } else {
    width_ = Number(18, 4);
    const auto height = static_cast<int32_t>(Number(22, 4));
    bottom_up_ = height >= 0;
    height_ = std::abs(int64_t{height});
    bits_ = Number(28, 2);
    compression = Number(30, 4);
    colors = Number(46, 4);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckPictureSize(static_cast<uint64_t>(height_),
                                            static_cast<uint64_t>(width_)));
  if (compression != kUncompressed && compression != kBitFields) {
    return DataLossError(
        "a compressed BMP (compression {}); known are uncompressed ones: "
        "save it as PNG",
        compression);
  }
  if (bits_ == 1 || bits_ == 4 || bits_ == 8) {
    PENSTOCK_RETURN_IF_ERROR(ReadPalette(at, core ? 3 : 4, colors));
  } else if (bits_ == 16 || bits_ == 24 || bits_ == 32) {
    PENSTOCK_RETURN_IF_ERROR(
        ReadFields(compression == kBitFields, kFileHeaderBytes + 40));
  } else {
    return DataLossError(
        "a BMP of {} bits a pixel; known are 1, 4, 8, 16, 24 and 32", bits_);
  }
  stride_ = (width_ * bits_ + 31) / 32 * 4;
  const auto bytes =
      static_cast<uint64_t>((height_ - 1) * stride_ + (width_ * bits_ + 7) / 8);
  if (offset > file.size() || bytes > file.size() - offset) {
    return DataLossError(
        "damaged BMP: {} bytes of pixels at {}, and the file has {}", bytes,
        offset, file.size());
  }
  pixels_ = file.data() + offset;
  return OkStatus();
}

// colors: 0 means as many as the bits tell apart.
Status BmpDecoder::ReadPalette(size_t at, size_t color_bytes, uint32_t colors) {
  const size_t told_apart = size_t{1} << bits_;
  const size_t count =
      colors == 0 ? told_apart : std::min<size_t>(colors, told_apart);
  if (count * color_bytes > file_.size() - at) {
    return DataLossError("damaged BMP: no room for a palette of {} colours",
                         count);
  }
  Palette palette = {};
  for (size_t i = 0; i < count; ++i, at += color_bytes) {
    for (size_t c = 0; c < 3; ++c) {
      palette[i][c] = std::to_integer<uint8_t>(file_[at + 2 - c]);
    }
  }
  layout_ = {.color = SampleLayout::Color::kPalette,
             .samples = 1,
             .bits = static_cast<int>(bits_)};
  rows_.emplace(layout_, &palette);
  return OkStatus();
}

// stated: the masks of the colours are at `at`.
Status BmpDecoder::ReadFields(bool stated, size_t at) {
  uint32_t masks[] = {0xff0000, 0xff00, 0xff};
  if (bits_ == 16) {
    masks[0] = 0x7c00;
    masks[1] = 0x3e0;
    masks[2] = 0x1f;
  }
  if (stated && file_.size() < at + sizeof(masks)) {
    return DataLossError("damaged BMP: it ends in its masks");
  }
  for (size_t c = 0; c < 3; ++c) {
    const ColorField field(stated ? Number(at + 4 * c, 4) : masks[c]);
    if (!field.valid()) {
      return DataLossError(
          "a BMP whose colours have the masks {:x}, {:x}, {:x}", Number(at, 4),
          Number(at + 4, 4), Number(at + 8, 4));
    }
    fields_.push_back(field);
  }
  row_.resize(static_cast<size_t>(width_) * 3);
  rows_.emplace(layout_, nullptr);
  return OkStatus();
}

const std::byte* BmpDecoder::Unpacked(const std::byte* stored) {
  const auto bytes = static_cast<size_t>(bits_ / 8);
  const std::span row(stored, static_cast<size_t>(width_) * bytes);
  std::byte* to = row_.data();
  for (size_t at = 0; at < row.size(); at += bytes) {
    const auto pixel =
        static_cast<uint32_t>(ReadNumber(row, at, bytes, std::endian::little));
    for (const ColorField& field : fields_) *to++ = field.Of(pixel);
  }
  return row_.data();
}

}  // namespace

std::unique_ptr<PictureDecoder> MakeBmpDecoder() {
  return std::make_unique<BmpDecoder>();
}

}  // namespace penstock
