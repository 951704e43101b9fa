// Decodes TIFF files through libtiff: the first picture of a file, in strips or
// tiles, contiguous or in separate planes; uncompressed, or compressed by
// CCITT's methods, LZW, deflate, PackBits or JPEG; unsigned samples of 1, 2, 4,
// 8 or 16 bits. One row of strips or tiles is in memory at a time.
//
// Gray of 16 bits whose 0 is white is not inverted, as in Pillow.
#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/transform/picture_decoder.h"
#include "broker/transform/sample_rows.h"

#ifdef PENSTOCK_TIFF_ARCHIVE
// Take the place of those in libtiff.a, so that the codecs that kCompressions
// lacks, and the libraries they need, stay out of the program. Without their
// decoders libtiff has those that fail.
extern "C" {
int TIFFInitJBIG(TIFF*, int) { return 1; }
int TIFFInitLERC(TIFF*, int) { return 1; }
int TIFFInitLZMA(TIFF*, int) { return 1; }
int TIFFInitWebP(TIFF*, int) { return 1; }
int TIFFInitZSTD(TIFF*, int) { return 1; }
}
#endif

namespace penstock {
namespace {

constexpr uint16_t kCompressions[] = {
    COMPRESSION_NONE,      COMPRESSION_CCITTRLE,      COMPRESSION_CCITTFAX3,
    COMPRESSION_CCITTFAX4, COMPRESSION_LZW,           COMPRESSION_JPEG,
    COMPRESSION_PACKBITS,  COMPRESSION_ADOBE_DEFLATE, COMPRESSION_DEFLATE};
// A pixel's, with those that are dropped.
constexpr uint16_t kSamplesMax = 64;

// libtiff's view of the file.
struct Input {
  std::span<const std::byte> file;
  uint64_t at = 0;

  static Input& Of(thandle_t handle) { return *static_cast<Input*>(handle); }
  static tmsize_t Read(thandle_t handle, void* to, tmsize_t bytes) {
    Input& input = Of(handle);
    if (input.at >= input.file.size() || bytes <= 0) return 0;
    const size_t now =
        std::min(static_cast<size_t>(bytes), input.file.size() - input.at);
    std::memcpy(to, input.file.data() + input.at, now);
    input.at += now;
    return static_cast<tmsize_t>(now);
  }
  static tmsize_t Write(thandle_t, void*, tmsize_t) { return 0; }
  static toff_t Seek(thandle_t handle, toff_t offset, int whence) {
    Input& input = Of(handle);
    if (whence == SEEK_CUR) offset += input.at;
    if (whence == SEEK_END) offset += input.file.size();
    return input.at = offset;
  }
  static int Close(thandle_t) { return 0; }
  static toff_t Size(thandle_t handle) { return Of(handle).file.size(); }
  // libtiff only reads what it maps.
  static int Map(thandle_t handle, void** base, toff_t* size) {
    const std::span<const std::byte> file = Of(handle).file;
    *base = const_cast<std::byte*>(file.data());
    *size = file.size();
    return 1;
  }
  static void Unmap(thandle_t, void*, toff_t) {}
};

struct CloseTiff {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
struct FreeOptions {
  void operator()(TIFFOpenOptions* options) const {
    TIFFOpenOptionsFree(options);
  }
};

// A few messages of TIFFClientOpen go to the handlers of the process.
void SilenceProcessHandlers() {
  static const bool silenced = [] {
    TIFFSetErrorHandler(nullptr);
    TIFFSetWarningHandler(nullptr);
    return true;
  }();
  (void)silenced;
}

class TiffDecoder final : public PictureDecoder {
 public:
  ~TiffDecoder() override {
    if (rgba_.has_value()) TIFFRGBAImageEnd(&*rgba_);
  }

  Status Begin(std::span<const std::byte> file) override;
  ImageSize size() const override {
    return {.height = height_, .width = width_};
  }
  Status Start(int channels) override;
  Status ReadRow(std::byte* row) override {
    if (y_ % band_rows_ == 0) PENSTOCK_RETURN_IF_ERROR(ReadBand());
    rows_->Convert(GatherRow(), width_, channels_, row);
    ++y_;
    return OkStatus();
  }

 private:
  template <typename T>
  T Field(uint32_t tag, T otherwise) const {
    T value = otherwise;
    return TIFFGetFieldDefaulted(tiff_.get(), tag, &value) == 1 ? value
                                                                : otherwise;
  }

  static int OnError(TIFF*, void* decoder, const char* module,
                     const char* format, va_list arguments) {
    char text[256];
    std::vsnprintf(text, sizeof(text), format, arguments);
    std::string& failure = static_cast<TiffDecoder*>(decoder)->failure_;
    if (failure.empty()) {
      failure = module == nullptr ? text : Format("{}: {}", module, text);
    }
    return 1;
  }

  // These two codecs warn of pixels that they invent.
  static int OnWarning(TIFF* tiff, void* decoder, const char* module,
                       const char* format, va_list arguments) {
    const std::string_view from = module == nullptr ? "" : module;
    if (from == "JPEGLib" || from.starts_with("Fax")) {
      OnError(tiff, decoder, module, format, arguments);
    }
    return 1;
  }

  Status Failure() const {
    return DataLossError("damaged TIFF: {}", failure_.empty()
                                                 ? "libtiff cannot read it"
                                                 : failure_);
  }

  Status CheckKind();
  Status CheckData() const;
  StatusOr<SampleLayout> Layout(Palette* palette);
  Status FindBlocks();
  Status ReadBand();
  Status ReadRgbaBand();
  const std::byte* GatherRow();

  Input input_;
  std::string failure_;  // "": none so far
  std::unique_ptr<TIFF, CloseTiff> tiff_;
  uint32_t height_ = 0;
  uint32_t width_ = 0;
  int channels_ = 3;
  std::optional<SampleRows> rows_;
  // Set where libtiff converts the colours.
  std::optional<TIFFRGBAImage> rgba_;

  // A band is a row of blocks: of one strip, or of tiles; for each plane.
  bool tiled_ = false;
  uint32_t sample_bits_ = 8;
  uint32_t planes_ = 1;  // that are read
  uint32_t plane_samples_ = 3;
  uint32_t blocks_ = 1;  // side by side
  uint32_t block_width_ = 0;
  uint32_t band_rows_ = 0;
  uint64_t block_row_bytes_ = 0;
  uint64_t block_bytes_ = 0;
  std::vector<std::byte> band_;
  std::vector<std::byte> row_;  // gathered from several blocks
  uint32_t y_ = 0;
};

// Refuses what libtiff may know but nobody has tried here.
Status TiffDecoder::CheckKind() {
  const auto compression = Field<uint16_t>(TIFFTAG_COMPRESSION, 1);
  if (std::find(std::begin(kCompressions), std::end(kCompressions),
                compression) == std::end(kCompressions)) {
    const TIFFCodec* const codec = TIFFFindCODEC(compression);
    return DataLossError(
        "a TIFF compressed by {} ({}); known are none, CCITT, LZW, deflate, "
        "PackBits and JPEG",
        compression, codec == nullptr ? "unknown" : codec->name);
  }
  const auto format = Field<uint16_t>(TIFFTAG_SAMPLEFORMAT, 1);
  if (format != SAMPLEFORMAT_UINT && format != SAMPLEFORMAT_VOID) {
    return DataLossError(
        "a TIFF of {} samples; known are unsigned integers",
        format == SAMPLEFORMAT_IEEEFP ? "floating-point" : "signed");
  }
  sample_bits_ = Field<uint16_t>(TIFFTAG_BITSPERSAMPLE, 1);
  constexpr uint32_t kBits[] = {1, 2, 4, 8, 16};
  const auto samples = Field<uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
  if (std::find(std::begin(kBits), std::end(kBits), sample_bits_) ==
          std::end(kBits) ||
      (sample_bits_ < 8 && samples > 1) || samples > kSamplesMax) {
    return DataLossError(
        "a TIFF of {} samples of {} bits a pixel; known are 8 and 16 bits, and "
        "1, 2 and 4 for one sample",
        samples, sample_bits_);
  }
  return OkStatus();
}

// That the file has all data of its strips or tiles.
Status TiffDecoder::CheckData() const {
  const uint32_t count = TIFFIsTiled(tiff_.get())
                             ? TIFFNumberOfTiles(tiff_.get())
                             : TIFFNumberOfStrips(tiff_.get());
  const uint64_t size = input_.file.size();
  for (uint32_t i = 0; i < count; ++i) {
    int error = 0;
    const uint64_t offset = TIFFGetStrileOffsetWithErr(tiff_.get(), i, &error);
    const uint64_t bytes =
        TIFFGetStrileByteCountWithErr(tiff_.get(), i, &error);
    if (error != 0) return Failure();
    if (bytes == 0 || offset > size || bytes > size - offset) {
      return DataLossError(
          "damaged TIFF: piece {} of {} is {} bytes at {}, and the file has {}",
          i, count, bytes, offset, size);
    }
  }
  return OkStatus();
}

// Empty `samples`: libtiff converts the colours.
StatusOr<SampleLayout> TiffDecoder::Layout(Palette* palette) {
  using Color = SampleLayout::Color;
  const auto samples = Field<uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
  uint16_t photometric = PHOTOMETRIC_MINISWHITE;
  TIFFGetField(tiff_.get(), TIFFTAG_PHOTOMETRIC, &photometric);
  SampleLayout layout = {.samples = samples,
                         .bits = static_cast<int>(sample_bits_)};
  int wanted = 1;
  switch (photometric) {
    case PHOTOMETRIC_MINISWHITE:
    case PHOTOMETRIC_MINISBLACK:
      layout.color = Color::kGray;
      layout.inverted = photometric == PHOTOMETRIC_MINISWHITE;
      break;
    case PHOTOMETRIC_PALETTE: {
      layout.color = Color::kPalette;
      uint16_t* colors[3] = {};
      if (sample_bits_ > 8 ||
          TIFFGetField(tiff_.get(), TIFFTAG_COLORMAP, &colors[0], &colors[1],
                       &colors[2]) != 1) {
        return DataLossError("damaged TIFF: no palette for {} bits",
                             sample_bits_);
      }
      for (size_t i = 0; i < size_t{1} << sample_bits_; ++i) {
        for (size_t c = 0; c < 3; ++c) {
          (*palette)[i][c] = static_cast<uint8_t>(colors[c][i] >> 8);
        }
      }
      break;
    }
    case PHOTOMETRIC_RGB: {
      wanted = 3;
      uint16_t count = 0;
      uint16_t* kinds = nullptr;
      TIFFGetFieldDefaulted(tiff_.get(), TIFFTAG_EXTRASAMPLES, &count, &kinds);
      layout.premultiplied =
          samples > 3 && count > 0 && kinds[0] == EXTRASAMPLE_ASSOCALPHA;
      break;
    }
    case PHOTOMETRIC_YCBCR:
      wanted = 3;
      if (Field<uint16_t>(TIFFTAG_COMPRESSION, 1) == COMPRESSION_JPEG &&
          Field<uint16_t>(TIFFTAG_PLANARCONFIG, 1) == PLANARCONFIG_CONTIG) {
        TIFFSetField(tiff_.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
      } else {
        layout.samples = 0;
      }
      break;
    case PHOTOMETRIC_SEPARATED:
      layout.color = Color::kCmyk;
      wanted = 4;
      break;
    default:
      return DataLossError(
          "a TIFF of photometric interpretation {}; known are gray, palette, "
          "RGB, CMYK and YCbCr, 0 to 3, 5 and 6",
          photometric);
  }
  if (samples < wanted) {
    return DataLossError("damaged TIFF: {} samples a pixel where {} belong",
                         samples, wanted);
  }
  if (layout.samples > 0 && samples > 1 &&
      Field<uint16_t>(TIFFTAG_PLANARCONFIG, 1) == PLANARCONFIG_SEPARATE) {
    planes_ = static_cast<uint32_t>(wanted + (layout.premultiplied ? 1 : 0));
    layout.samples = static_cast<int>(planes_);
  }
  plane_samples_ = planes_ > 1 ? 1 : static_cast<uint32_t>(layout.samples);
  return layout;
}

// The form of a band.
Status TiffDecoder::FindBlocks() {
  tiled_ = TIFFIsTiled(tiff_.get()) != 0;
  block_width_ = width_;
  if (tiled_) {
    block_width_ = Field<uint32_t>(TIFFTAG_TILEWIDTH, 0);
    band_rows_ = Field<uint32_t>(TIFFTAG_TILELENGTH, 0);
  } else {
    band_rows_ =
        std::min(Field<uint32_t>(TIFFTAG_ROWSPERSTRIP, height_), height_);
  }
  if (block_width_ == 0 || band_rows_ == 0 ||
      (sample_bits_ < 8 && tiled_ && block_width_ % 8 != 0)) {
    return DataLossError("damaged TIFF: pieces of {} x {} pixels", block_width_,
                         band_rows_);
  }
  uint64_t bytes;
  if (rgba_.has_value()) {
    bytes = uint64_t{width_} * 4 * std::min(band_rows_, height_);
  } else {
    blocks_ = (width_ - 1) / block_width_ + 1;
    block_row_bytes_ = tiled_ ? TIFFTileRowSize64(tiff_.get())
                              : TIFFScanlineSize64(tiff_.get());
    block_bytes_ = tiled_ ? TIFFTileSize64(tiff_.get())
                          : TIFFVStripSize64(tiff_.get(), band_rows_);
    const uint64_t row_bits =
        uint64_t{block_width_} * plane_samples_ * sample_bits_;
    if (block_row_bytes_ < (row_bits + 7) / 8 ||
        block_bytes_ / band_rows_ < block_row_bytes_) {
      return failure_.empty()
                 ? DataLossError("damaged TIFF: rows of {} bits in {} bytes",
                                 row_bits, block_row_bytes_)
                 : Failure();
    }
    // Against overflow: more than is allowed anyhow.
    if (block_bytes_ > HeldBytesMax(input_.file)) {
      return CheckHeldBytes("a piece of a TIFF", block_bytes_, input_.file);
    }
    bytes = block_bytes_ * blocks_ * planes_;
  }
  PENSTOCK_RETURN_IF_ERROR(
      CheckHeldBytes("a row of pieces of a TIFF", bytes, input_.file));
  band_.resize(bytes);
  if (blocks_ > 1 || planes_ > 1) {
    row_.resize(
        (uint64_t{width_} * plane_samples_ * planes_ * sample_bits_ + 7) / 8);
  }
  return OkStatus();
}

Status TiffDecoder::ReadRgbaBand() {
  const uint32_t count = std::min(band_rows_, height_ - y_);
  rgba_->row_offset = static_cast<int>(y_);
  const int done = TIFFRGBAImageGet(
      &*rgba_, reinterpret_cast<uint32_t*>(band_.data()), width_, count);
  return done == 1 && failure_.empty() ? OkStatus() : Failure();
}

Status TiffDecoder::ReadBand() {
  if (rgba_.has_value()) return ReadRgbaBand();
  std::byte* to = band_.data();
  for (uint32_t plane = 0; plane < planes_; ++plane) {
    for (uint32_t i = 0; i < blocks_; ++i, to += block_bytes_) {
      const auto sample = static_cast<uint16_t>(plane);
      tmsize_t wanted = static_cast<tmsize_t>(block_bytes_);
      tmsize_t got;
      if (tiled_) {
        got = TIFFReadEncodedTile(
            tiff_.get(),
            TIFFComputeTile(tiff_.get(), i * block_width_, y_, 0, sample), to,
            wanted);
      } else {
        wanted = static_cast<tmsize_t>(
            TIFFVStripSize64(tiff_.get(), std::min(band_rows_, height_ - y_)));
        got = TIFFReadEncodedStrip(
            tiff_.get(), TIFFComputeStrip(tiff_.get(), y_, sample), to, wanted);
      }
      if (got != wanted || !failure_.empty()) return Failure();
    }
  }
  return OkStatus();
}

// The samples of row y_, pixel by pixel.
const std::byte* TiffDecoder::GatherRow() {
  const std::byte* from = band_.data();
  const uint32_t in_band = y_ % band_rows_;
  if (rgba_.has_value()) return from + uint64_t{in_band} * width_ * 4;
  from += in_band * block_row_bytes_;
  if (row_.empty()) return from;
  const size_t sample_bytes = sample_bits_ / 8;  // 0 only of one plane
  for (uint32_t plane = 0; plane < planes_; ++plane) {
    for (uint32_t i = 0; i < blocks_; ++i, from += block_bytes_) {
      const uint32_t left = i * block_width_;
      const uint32_t pixels = std::min(block_width_, width_ - left);
      if (planes_ == 1) {
        const uint64_t pixel_bits = uint64_t{plane_samples_} * sample_bits_;
        std::memcpy(row_.data() + left * pixel_bits / 8, from,
                    (pixels * pixel_bits + 7) / 8);
        continue;
      }
      std::byte* to =
          row_.data() + (size_t{left} * planes_ + plane) * sample_bytes;
      for (uint32_t x = 0; x < pixels; ++x, to += planes_ * sample_bytes) {
        std::memcpy(to, from + x * sample_bytes, sample_bytes);
      }
    }
  }
  return row_.data();
}

Status TiffDecoder::Begin(std::span<const std::byte> file) {
  SilenceProcessHandlers();
  input_.file = file;
  const std::unique_ptr<TIFFOpenOptions, FreeOptions> options(
      TIFFOpenOptionsAlloc());
  if (options == nullptr) return ResourceExhaustedError("no memory for a TIFF");
  TIFFOpenOptionsSetMaxSingleMemAlloc(
      options.get(), static_cast<tmsize_t>(HeldBytesMax(file)));
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), &OnError, this);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), &OnWarning, this);
  tiff_.reset(TIFFClientOpenExt(
      "directory", "r", &input_, &Input::Read, &Input::Write, &Input::Seek,
      &Input::Close, &Input::Size, &Input::Map, &Input::Unmap, options.get()));
  if (tiff_ == nullptr) return Failure();
  failure_.clear();  // what it could do without
  height_ = Field<uint32_t>(TIFFTAG_IMAGELENGTH, 0);
  width_ = Field<uint32_t>(TIFFTAG_IMAGEWIDTH, 0);
  PENSTOCK_RETURN_IF_ERROR(CheckPictureSize(height_, width_));
  PENSTOCK_RETURN_IF_ERROR(CheckKind());
  return CheckData();
}

Status TiffDecoder::Start(int channels) {
  channels_ = channels;
  Palette palette = {};
  PENSTOCK_ASSIGN_OR_RETURN(SampleLayout layout, Layout(&palette));
  if (channels == kValueChannels) {
    PENSTOCK_RETURN_IF_ERROR(CheckHasValues(layout));
  }
  if (layout.samples == 0) {
    layout = {.samples = 4};
    char text[1024] = "";
    TIFFRGBAImage image = {};
    if (TIFFRGBAImageOK(tiff_.get(), text) == 0 ||
        TIFFRGBAImageBegin(&image, tiff_.get(), 1, text) == 0) {
      return DataLossError("damaged TIFF: {}", text);
    }
    rgba_ = image;
    // As it is stored.
    rgba_->orientation = ORIENTATION_TOPLEFT;
    rgba_->req_orientation = ORIENTATION_TOPLEFT;
  }
  rows_.emplace(layout, &palette);
  return FindBlocks();
}

}  // namespace

std::unique_ptr<PictureDecoder> MakeTiffDecoder() {
  return std::make_unique<TiffDecoder>();
}

}  // namespace penstock
