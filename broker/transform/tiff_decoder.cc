#include "broker/transform/tiff_decoder.h"

#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace

struct TiffDecoder::State {
  ~State() {
    if (rgba.has_value()) TIFFRGBAImageEnd(&*rgba);
  }

  template <typename T>
  T Field(uint32_t tag, T otherwise) const {
    T value = otherwise;
    return TIFFGetFieldDefaulted(tiff.get(), tag, &value) == 1 ? value
                                                               : otherwise;
  }

  static int OnError(TIFF*, void* state, const char* module, const char* format,
                     va_list arguments) {
    char text[256];
    std::vsnprintf(text, sizeof(text), format, arguments);
    std::string& failure = static_cast<State*>(state)->failure;
    if (failure.empty()) {
      failure = module == nullptr ? text : Format("{}: {}", module, text);
    }
    return 1;
  }

  // These two codecs warn of pixels that they invent.
  static int OnWarning(TIFF* tiff, void* state, const char* module,
                       const char* format, va_list arguments) {
    const std::string_view from = module == nullptr ? "" : module;
    if (from == "JPEGLib" || from.starts_with("Fax")) {
      OnError(tiff, state, module, format, arguments);
    }
    return 1;
  }

  Status Failure() const {
    return DataLossError("damaged TIFF: {}",
                         failure.empty() ? "libtiff cannot read it" : failure);
  }

  Status CheckKind();
  Status CheckData() const;
  StatusOr<SampleLayout> Layout(Palette* palette);
  Status FindBlocks();
  Status ReadBand();
  Status ReadRgbaBand();
  const std::byte* GatherRow();

  Input input;
  std::string failure;  // "": none so far
  std::unique_ptr<TIFF, CloseTiff> tiff;
  uint32_t height = 0;
  uint32_t width = 0;
  int channels = 3;
  std::optional<SampleRows> rows;
  // Set where libtiff converts the colours.
  std::optional<TIFFRGBAImage> rgba;

  // A band is a row of blocks: of one strip, or of tiles; for each plane.
  bool tiled = false;
  uint32_t sample_bits = 8;
  uint32_t planes = 1;  // that are read
  uint32_t plane_samples = 3;
  uint32_t blocks = 1;  // side by side
  uint32_t block_width = 0;
  uint32_t band_rows = 0;
  uint64_t block_row_bytes = 0;
  uint64_t block_bytes = 0;
  std::vector<std::byte> band;
  std::vector<std::byte> row;  // gathered from several blocks
  uint32_t y = 0;
};

// Refuses what libtiff may know but nobody has tried here.
Status TiffDecoder::State::CheckKind() {
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
  sample_bits = Field<uint16_t>(TIFFTAG_BITSPERSAMPLE, 1);
  constexpr uint32_t kBits[] = {1, 2, 4, 8, 16};
  const auto samples = Field<uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
  if (std::find(std::begin(kBits), std::end(kBits), sample_bits) ==
          std::end(kBits) ||
      (sample_bits < 8 && samples > 1) || samples > kSamplesMax) {
    return DataLossError(
        "a TIFF of {} samples of {} bits a pixel; known are 8 and 16 bits, and "
        "1, 2 and 4 for one sample",
        samples, sample_bits);
  }
  return OkStatus();
}

// That the file has all data of its strips or tiles.
Status TiffDecoder::State::CheckData() const {
  const uint32_t count = TIFFIsTiled(tiff.get())
                             ? TIFFNumberOfTiles(tiff.get())
                             : TIFFNumberOfStrips(tiff.get());
  const uint64_t size = input.file.size();
  for (uint32_t i = 0; i < count; ++i) {
    int error = 0;
    const uint64_t offset = TIFFGetStrileOffsetWithErr(tiff.get(), i, &error);
    const uint64_t bytes = TIFFGetStrileByteCountWithErr(tiff.get(), i, &error);
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
StatusOr<SampleLayout> TiffDecoder::State::Layout(Palette* palette) {
  using Color = SampleLayout::Color;
  const auto samples = Field<uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
  uint16_t photometric = PHOTOMETRIC_MINISWHITE;
  TIFFGetField(tiff.get(), TIFFTAG_PHOTOMETRIC, &photometric);
  SampleLayout layout = {.samples = samples,
                         .bits = static_cast<int>(sample_bits)};
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
      if (sample_bits > 8 ||
          TIFFGetField(tiff.get(), TIFFTAG_COLORMAP, &colors[0], &colors[1],
                       &colors[2]) != 1) {
        return DataLossError("damaged TIFF: no palette for {} bits",
                             sample_bits);
      }
      for (size_t i = 0; i < size_t{1} << sample_bits; ++i) {
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
      TIFFGetFieldDefaulted(tiff.get(), TIFFTAG_EXTRASAMPLES, &count, &kinds);
      layout.premultiplied =
          samples > 3 && count > 0 && kinds[0] == EXTRASAMPLE_ASSOCALPHA;
      break;
    }
    case PHOTOMETRIC_YCBCR:
      wanted = 3;
      if (Field<uint16_t>(TIFFTAG_COMPRESSION, 1) == COMPRESSION_JPEG &&
          Field<uint16_t>(TIFFTAG_PLANARCONFIG, 1) == PLANARCONFIG_CONTIG) {
        TIFFSetField(tiff.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
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
    planes = static_cast<uint32_t>(wanted + (layout.premultiplied ? 1 : 0));
    layout.samples = static_cast<int>(planes);
  }
  plane_samples = planes > 1 ? 1 : static_cast<uint32_t>(layout.samples);
  return layout;
}

// The form of a band.
Status TiffDecoder::State::FindBlocks() {
  tiled = TIFFIsTiled(tiff.get()) != 0;
  block_width = width;
  if (tiled) {
    block_width = Field<uint32_t>(TIFFTAG_TILEWIDTH, 0);
    band_rows = Field<uint32_t>(TIFFTAG_TILELENGTH, 0);
  } else {
    band_rows = std::min(Field<uint32_t>(TIFFTAG_ROWSPERSTRIP, height), height);
  }
  if (block_width == 0 || band_rows == 0 ||
      (sample_bits < 8 && tiled && block_width % 8 != 0)) {
    return DataLossError("damaged TIFF: pieces of {} x {} pixels", block_width,
                         band_rows);
  }
  uint64_t bytes;
  if (rgba.has_value()) {
    bytes = uint64_t{width} * 4 * std::min(band_rows, height);
  } else {
    blocks = (width - 1) / block_width + 1;
    block_row_bytes =
        tiled ? TIFFTileRowSize64(tiff.get()) : TIFFScanlineSize64(tiff.get());
    block_bytes = tiled ? TIFFTileSize64(tiff.get())
                        : TIFFVStripSize64(tiff.get(), band_rows);
    const uint64_t row_bits =
        uint64_t{block_width} * plane_samples * sample_bits;
    if (block_row_bytes < (row_bits + 7) / 8 ||
        block_bytes / band_rows < block_row_bytes) {
      return failure.empty()
                 ? DataLossError("damaged TIFF: rows of {} bits in {} bytes",
                                 row_bits, block_row_bytes)
                 : Failure();
    }
    // Against overflow: more than is allowed anyhow.
    if (block_bytes > HeldBytesMax(input.file)) {
      return CheckHeldBytes("a piece of a TIFF", block_bytes, input.file);
    }
    bytes = block_bytes * blocks * planes;
  }
  PENSTOCK_RETURN_IF_ERROR(
      CheckHeldBytes("a row of pieces of a TIFF", bytes, input.file));
  band.resize(bytes);
  if (blocks > 1 || planes > 1) {
    row.resize((uint64_t{width} * plane_samples * planes * sample_bits + 7) /
               8);
  }
  return OkStatus();
}

Status TiffDecoder::State::ReadRgbaBand() {
  const uint32_t count = std::min(band_rows, height - y);
  rgba->row_offset = static_cast<int>(y);
  const int done = TIFFRGBAImageGet(
      &*rgba, reinterpret_cast<uint32_t*>(band.data()), width, count);
  return done == 1 && failure.empty() ? OkStatus() : Failure();
}

Status TiffDecoder::State::ReadBand() {
  if (rgba.has_value()) return ReadRgbaBand();
  std::byte* to = band.data();
  for (uint32_t plane = 0; plane < planes; ++plane) {
    for (uint32_t i = 0; i < blocks; ++i, to += block_bytes) {
      const auto sample = static_cast<uint16_t>(plane);
      tmsize_t wanted = static_cast<tmsize_t>(block_bytes);
      tmsize_t got;
      if (tiled) {
        got = TIFFReadEncodedTile(
            tiff.get(),
            TIFFComputeTile(tiff.get(), i * block_width, y, 0, sample), to,
            wanted);
      } else {
        wanted = static_cast<tmsize_t>(
            TIFFVStripSize64(tiff.get(), std::min(band_rows, height - y)));
        got = TIFFReadEncodedStrip(
            tiff.get(), TIFFComputeStrip(tiff.get(), y, sample), to, wanted);
      }
      if (got != wanted || !failure.empty()) return Failure();
    }
  }
  return OkStatus();
}

// The samples of row y, pixel by pixel.
const std::byte* TiffDecoder::State::GatherRow() {
  const std::byte* from = band.data();
  const uint32_t in_band = y % band_rows;
  if (rgba.has_value()) return from + uint64_t{in_band} * width * 4;
  from += in_band * block_row_bytes;
  if (row.empty()) return from;
  const size_t sample_bytes = sample_bits / 8;  // 0 only of one plane
  for (uint32_t plane = 0; plane < planes; ++plane) {
    for (uint32_t i = 0; i < blocks; ++i, from += block_bytes) {
      const uint32_t left = i * block_width;
      const uint32_t pixels = std::min(block_width, width - left);
      if (planes == 1) {
        const uint64_t pixel_bits = uint64_t{plane_samples} * sample_bits;
        std::memcpy(row.data() + left * pixel_bits / 8, from,
                    (pixels * pixel_bits + 7) / 8);
        continue;
      }
      std::byte* to =
          row.data() + (size_t{left} * planes + plane) * sample_bytes;
      for (uint32_t x = 0; x < pixels; ++x, to += planes * sample_bytes) {
        std::memcpy(to, from + x * sample_bytes, sample_bytes);
      }
    }
  }
  return row.data();
}

TiffDecoder::TiffDecoder() = default;
TiffDecoder::~TiffDecoder() = default;

Status TiffDecoder::Begin(std::span<const std::byte> file) {
  SilenceProcessHandlers();
  state_ = std::make_unique<State>();
  State& state = *state_;
  state.input.file = file;
  const std::unique_ptr<TIFFOpenOptions, FreeOptions> options(
      TIFFOpenOptionsAlloc());
  if (options == nullptr) return ResourceExhaustedError("no memory for a TIFF");
  TIFFOpenOptionsSetMaxSingleMemAlloc(
      options.get(), static_cast<tmsize_t>(HeldBytesMax(file)));
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), &State::OnError, &state);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), &State::OnWarning,
                                       &state);
  state.tiff.reset(TIFFClientOpenExt(
      "directory", "r", &state.input, &Input::Read, &Input::Write, &Input::Seek,
      &Input::Close, &Input::Size, &Input::Map, &Input::Unmap, options.get()));
  if (state.tiff == nullptr) return state.Failure();
  state.failure.clear();  // what it could do without
  state.height = state.Field<uint32_t>(TIFFTAG_IMAGELENGTH, 0);
  state.width = state.Field<uint32_t>(TIFFTAG_IMAGEWIDTH, 0);
  PENSTOCK_RETURN_IF_ERROR(CheckPictureSize(state.height, state.width));
  PENSTOCK_RETURN_IF_ERROR(state.CheckKind());
  return state.CheckData();
}

ImageSize TiffDecoder::size() const {
  return {.height = state_->height, .width = state_->width};
}

Status TiffDecoder::Start(int channels) {
  State& state = *state_;
  state.channels = channels;
  Palette palette = {};
  PENSTOCK_ASSIGN_OR_RETURN(SampleLayout layout, state.Layout(&palette));
  if (channels == kValueChannels) {
    PENSTOCK_RETURN_IF_ERROR(CheckHasValues(layout));
  }
  if (layout.samples == 0) {
    layout = {.samples = 4};
    char text[1024] = "";
    TIFFRGBAImage image = {};
    if (TIFFRGBAImageOK(state.tiff.get(), text) == 0 ||
        TIFFRGBAImageBegin(&image, state.tiff.get(), 1, text) == 0) {
      return DataLossError("damaged TIFF: {}", text);
    }
    state.rgba = image;
    // As it is stored.
    state.rgba->orientation = ORIENTATION_TOPLEFT;
    state.rgba->req_orientation = ORIENTATION_TOPLEFT;
  }
  state.rows.emplace(layout, &palette);
  return state.FindBlocks();
}

Status TiffDecoder::ReadRow(std::byte* row) {
  State& state = *state_;
  if (state.y % state.band_rows == 0) {
    PENSTOCK_RETURN_IF_ERROR(state.ReadBand());
  }
  state.rows->Convert(state.GatherRow(), state.width, state.channels, row);
  ++state.y;
  return OkStatus();
}

Status TiffDecoder::Finish() { return OkStatus(); }
Status TiffDecoder::FinishPart(std::byte*) { return OkStatus(); }

}  // namespace penstock
