#include "broker/transform/png_rows.h"

#include <libdeflate.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "broker/transform/byte_order.h"

namespace penstock {
namespace {

constexpr size_t kSignatureBytes = 8;
constexpr size_t kChunkFrameBytes = 12;  // length, type, checksum
constexpr size_t kPixelBytesMax = 4;
enum Filter : uint8_t { kNone, kSub, kUp, kAverage, kPaeth, kFilters };

// The compressed picture: the content of the IDAT chunks. Empty: not plain.
// joined: memory for it if there are several.
std::span<const std::byte> FindCompressed(std::span<const std::byte> file,
                                          bool has_palette,
                                          std::vector<std::byte>* joined) {
  constexpr std::byte kAncillary{0x20};
  std::span<const std::byte> compressed;
  bool is_first = true;
  bool ended = false;  // the chunks of the picture, by another one
  for (size_t at = kSignatureBytes; file.size() - at >= kChunkFrameBytes;) {
    const uint64_t bytes = ReadNumber(file, at, 4, std::endian::big);
    if (bytes > file.size() - at - kChunkFrameBytes) return {};
    const auto chunk = file.subspan(at + 4, 4 + bytes);  // type and content
    const auto content = chunk.subspan(4);
    at += kChunkFrameBytes + bytes;
    const std::string_view type(reinterpret_cast<const char*>(chunk.data()), 4);
    ended |= type != "IDAT" && !compressed.empty();
    if ((chunk[0] & kAncillary) != std::byte{0}) continue;
    if (libdeflate_crc32(0, chunk.data(), chunk.size()) !=
        ReadNumber(file, at - 4, 4, std::endian::big)) {
      return {};
    }
    if (type == "IEND") return bytes == 0 ? compressed : compressed.first(0);
    if (is_first ? type == "IHDR" : type == "PLTE" && has_palette) {
      is_first = false;
      continue;
    }
    if (type != "IDAT" || ended) return {};
    if (compressed.empty()) {
      compressed = content;
      continue;
    }
    if (joined->empty()) {
      joined->reserve(file.size());
      joined->assign(compressed.begin(), compressed.end());
    }
    joined->insert(joined->end(), content.begin(), content.end());
    compressed = *joined;
  }
  return {};
}

bool Inflate(std::span<const std::byte> compressed, std::span<std::byte> to) {
  // zlib checks that nothing is farther back than the window; libdeflate takes
  // the largest one.
  constexpr std::byte kLargestWindow{0x78};
  if (compressed.size() < 2 || compressed[0] != kLargestWindow) return false;
  struct Free {
    void operator()(libdeflate_decompressor* decompressor) const {
      libdeflate_free_decompressor(decompressor);
    }
  };
  thread_local const std::unique_ptr<libdeflate_decompressor, Free>
      decompressor(libdeflate_alloc_decompressor());
  size_t used = 0;
  // Without a place for the size, less than that is an error.
  return decompressor != nullptr &&
         libdeflate_zlib_decompress_ex(decompressor.get(), compressed.data(),
                                       compressed.size(), to.data(), to.size(),
                                       &used, nullptr) == LIBDEFLATE_SUCCESS &&
         used == compressed.size();
}

// ---- filters

// A pixel of up to four samples, each with room for sums and differences.
using Pixel [[gnu::vector_size(8)]] = int16_t;
using Samples [[gnu::vector_size(4)]] = uint8_t;

// Also bytes behind the pixel, which nobody uses.
Pixel Load(const std::byte* from) {
  Samples samples;
  std::memcpy(&samples, from, sizeof(samples));
  return __builtin_convertvector(samples, Pixel);
}
template <size_t kBytes>
void Store(Pixel pixel, std::byte* to) {
  const Samples samples = __builtin_convertvector(pixel, Samples);
  std::memcpy(to, &samples, kBytes);
}
Pixel Magnitude(Pixel value) { return value < 0 ? -value : value; }

// above: the row above; both have zeros in the pixel before the row.
template <size_t kBytes>
void UndoSub(std::byte* row, size_t bytes) {
  Pixel left = {};
  for (size_t i = 0; i < bytes; i += kBytes) {
    left = (left + Load(row + i)) & 255;
    Store<kBytes>(left, row + i);
  }
}

void UndoUp(std::byte* row, const std::byte* above, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    row[i] = static_cast<std::byte>(std::to_integer<uint8_t>(row[i]) +
                                    std::to_integer<uint8_t>(above[i]));
  }
}

template <size_t kBytes>
void UndoAverage(std::byte* row, const std::byte* above, size_t bytes) {
  Pixel left = {};
  for (size_t i = 0; i < bytes; i += kBytes) {
    const Pixel mean = (left + Load(above + i)) >> 1;
    left = (mean + Load(row + i)) & 255;
    Store<kBytes>(left, row + i);
  }
}

template <size_t kBytes>
void UndoPaeth(std::byte* row, const std::byte* above, size_t bytes) {
  Pixel left = {};
  Pixel corner = {};
  for (size_t i = 0; i < bytes; i += kBytes) {
    const Pixel up = Load(above + i);
    const Pixel to_up = up - corner;  // left + up - corner, less left
    const Pixel to_left = left - corner;
    const Pixel by_left = Magnitude(to_up);
    const Pixel by_up = Magnitude(to_left);
    const Pixel by_corner = Magnitude(to_up + to_left);
    const Pixel other = by_up <= by_corner ? up : corner;
    const Pixel nearest =
        ((by_left <= by_up) & (by_left <= by_corner)) ? left : other;
    left = (nearest + Load(row + i)) & 255;
    corner = up;
    Store<kBytes>(left, row + i);
  }
}

template <size_t kBytes>
void Undo(std::byte filter, std::byte* row, const std::byte* above,
          size_t bytes) {
  switch (std::to_integer<uint8_t>(filter)) {
    case kSub:
      return UndoSub<kBytes>(row, bytes);
    case kUp:
      return UndoUp(row, above, bytes);
    case kAverage:
      return UndoAverage<kBytes>(row, above, bytes);
    case kPaeth:
      return UndoPaeth<kBytes>(row, above, bytes);
    default:
      return;
  }
}

}  // namespace

std::unique_ptr<PngRows> PngRows::Open(std::span<const std::byte> file,
                                       const Layout& layout) {
  if (layout.pixel_bytes > kPixelBytesMax || file.size() < kSignatureBytes) {
    return nullptr;
  }
  std::vector<std::byte> joined;
  const std::span<const std::byte> compressed =
      FindCompressed(file, layout.has_palette, &joined);
  if (compressed.empty()) return nullptr;
  std::unique_ptr<PngRows> rows(new PngRows(layout));
  // Above the first row are zeros; a pixel is loaded with bytes behind it.
  const size_t bytes = layout.height * rows->stride();
  rows->memory_.reset(new std::byte[rows->stride() + bytes + kPixelBytesMax]);
  std::fill_n(rows->memory_.get(), rows->stride(), std::byte{0});
  std::byte* const first = rows->memory_.get() + rows->stride();
  if (!Inflate(compressed, {first, bytes})) return nullptr;
  for (uint32_t y = 0; y < layout.height; ++y) {
    if (std::to_integer<uint8_t>(first[y * rows->stride()]) >= kFilters) {
      return nullptr;
    }
  }
  rows->next_ = first;
  return rows;
}

const std::byte* PngRows::Next() {
  std::byte* const row = next_ + 1;
  const std::byte* const above = row - stride();
  next_ += stride();
  switch (layout_.pixel_bytes) {
    case 1:
      Undo<1>(row[-1], row, above, layout_.row_bytes);
      break;
    case 2:
      Undo<2>(row[-1], row, above, layout_.row_bytes);
      break;
    case 3:
      Undo<3>(row[-1], row, above, layout_.row_bytes);
      break;
    default:
      Undo<4>(row[-1], row, above, layout_.row_bytes);
  }
  return row;
}

}  // namespace penstock
