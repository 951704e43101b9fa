#include "broker/transform/png_rows.h"

#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "broker/transform/byte_order.h"

// Highway compiles the code between HWY_BEFORE_NAMESPACE and
// HWY_AFTER_NAMESPACE once per vector type of this architecture and chooses at
// run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "broker/transform/png_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace penstock {
namespace HWY_NAMESPACE {
namespace {

enum Filter : uint8_t { kNone, kSub, kUp, kAverage, kPaeth, kFilters };
constexpr size_t kPixelBytesMax = 4;
// Rows whose filters are undone together: a pixel takes the result of the one
// before it, so a row alone is a chain of latencies. Each row is a pixel behind
// the one above it, whose result it then has in a register.
constexpr size_t kRows = 4;

// A pixel of up to four samples of two rows, with room for sums and
// differences.
using Pixels [[gnu::vector_size(16)]] = int16_t;
using Samples [[gnu::vector_size(8)]] = uint8_t;

// Also bytes behind the pixel, which nobody uses.
HWY_INLINE uint32_t Load(const std::byte* from) {
  uint32_t pixel;
  std::memcpy(&pixel, from, sizeof(pixel));
  return pixel;
}
HWY_INLINE Pixels Widen(uint32_t first, uint32_t second) {
  const uint32_t both[] = {first, second};
  Samples samples;
  std::memcpy(&samples, both, sizeof(samples));
  return __builtin_convertvector(samples, Pixels);
}
HWY_INLINE void Narrow(Pixels pixels, uint32_t* both) {
  const Samples samples = __builtin_convertvector(pixels, Samples);
  std::memcpy(both, &samples, sizeof(samples));
}
HWY_INLINE Pixels Magnitude(Pixels value) { return value < 0 ? -value : value; }
HWY_INLINE Pixels Least(Pixels a, Pixels b) { return a < b ? a : b; }

// Two rows: all bits set where the Paeth predictor has that neighbour, and
// where the mean is taken instead. With one neighbour alone it is that one:
// Sub and Up.
struct Neighbours {
  Pixels left = {};
  Pixels up = {};
  Pixels corner = {};
  Pixels mean = {};
};

Neighbours NeighboursOf(uint8_t first, uint8_t second) {
  Neighbours of;
  for (size_t i = 0; i < 8; ++i) {
    const uint8_t filter = i < 4 ? first : second;
    const auto set = [&](Pixels* mask, bool is_set) {
      (*mask)[i] = is_set ? -1 : 0;
    };
    set(&of.left, filter == kSub || filter == kPaeth);
    set(&of.up, filter == kUp || filter == kPaeth);
    set(&of.corner, filter == kPaeth);
    set(&of.mean, filter == kAverage);
  }
  return of;
}

HWY_INLINE Pixels Predict(const Neighbours& of, Pixels left, Pixels up,
                          Pixels corner) {
  const Pixels mean = (left + up) >> 1;
  left &= of.left;
  up &= of.up;
  corner &= of.corner;
  const Pixels to_up = up - corner;  // left + up - corner, less left
  const Pixels to_left = left - corner;
  const Pixels by_left = Magnitude(to_up);
  const Pixels by_up = Magnitude(to_left);
  const Pixels least = Least(by_left, Least(by_up, Magnitude(to_up + to_left)));
  const Pixels other = by_up == least ? up : corner;
  const Pixels nearest = by_left == least ? left : other;
  return of.mean != 0 ? mean : nearest;
}

// Undoes the filters of kRows rows; the row above is done.
template <size_t kBytes>
void UndoRowsOf(std::byte* first, size_t stride, size_t bytes) {
  const size_t pixels = bytes / kBytes;
  const std::byte* const above = first - stride;
  std::array<std::byte*, kRows> rows;
  std::array<uint8_t, kRows> filters;
  for (size_t r = 0; r < kRows; ++r) {
    rows[r] = first + r * stride;
    filters[r] = std::to_integer<uint8_t>(rows[r][-1]);
  }
  const Neighbours of_upper = NeighboursOf(filters[0], filters[1]);
  const Neighbours of_lower = NeighboursOf(filters[2], filters[3]);
  Pixels upper = {};  // the last results, which are the left neighbours
  Pixels lower = {};
  Pixels upper_corner = {};
  Pixels lower_corner = {};
  constexpr Pixels kByte = {255, 255, 255, 255, 255, 255, 255, 255};
  // A pixel of three bytes is stored with a fourth, which is part of the next
  // one: that has been loaded.
  std::array<uint32_t, kRows> next = {pixels > 0 ? Load(rows[0]) : 0};
  // Row r is at pixel t - r; at_edge: some rows are before or behind theirs,
  // and take zeros.
  const auto step = [&](size_t t, auto at_edge) HWY_ATTR {
    constexpr bool kAtEdge = decltype(at_edge)::value;
    const std::array<uint32_t, kRows> coded = next;
    for (size_t r = 0; r < kRows; ++r) {
      const size_t x = t + 1 - r;
      next[r] = !kAtEdge || x < pixels ? Load(rows[r] + x * kBytes) : 0;
    }
    const Pixels from_above =
        Widen(!kAtEdge || t < pixels ? Load(above + t * kBytes) : 0, 0);
    const Pixels upper_up =
        __builtin_shufflevector(from_above, upper, 0, 1, 2, 3, 8, 9, 10, 11);
    const Pixels lower_up =
        __builtin_shufflevector(upper, lower, 4, 5, 6, 7, 8, 9, 10, 11);
    upper = (Predict(of_upper, upper, upper_up, upper_corner) +
             Widen(coded[0], coded[1])) &
            kByte;
    lower = (Predict(of_lower, lower, lower_up, lower_corner) +
             Widen(coded[2], coded[3])) &
            kByte;
    upper_corner = upper_up;
    lower_corner = lower_up;
    std::array<uint32_t, kRows> done;
    Narrow(upper, &done[0]);
    Narrow(lower, &done[2]);
    for (size_t r = 0; r < kRows; ++r) {
      const size_t x = t - r;
      if (kAtEdge && x >= pixels) continue;
      std::memcpy(rows[r] + x * kBytes, &done[r],
                  !kAtEdge && kBytes == 3 ? 4 : kBytes);
    }
  };
  constexpr size_t kEdge = kRows - 1;
  size_t t = 0;
  for (; t < kEdge; ++t) step(t, std::true_type());
  for (; t + 1 < pixels; ++t) step(t, std::false_type());
  for (; t < pixels + kEdge; ++t) step(t, std::true_type());
}

}  // namespace

void UndoRows(std::byte* first, size_t stride, size_t bytes,
              size_t pixel_bytes) {
  switch (pixel_bytes) {
    case 1:
      return UndoRowsOf<1>(first, stride, bytes);
    case 2:
      return UndoRowsOf<2>(first, stride, bytes);
    case 3:
      return UndoRowsOf<3>(first, stride, bytes);
    default:
      return UndoRowsOf<4>(first, stride, bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
namespace {

HWY_EXPORT(UndoRows);

using HWY_NAMESPACE::kFilters;
using HWY_NAMESPACE::kPixelBytesMax;
using HWY_NAMESPACE::kRows;

// The compressed picture: the content of the IDAT chunks. Empty: not plain.
// joined: memory for it if there are several.
std::span<const std::byte> FindCompressed(std::span<const std::byte> file,
                                          bool has_palette,
                                          std::vector<std::byte>* joined) {
  constexpr std::byte kAncillary{0x20};
  std::span<const std::byte> compressed;
  bool is_first = true;
  bool ended = false;  // the chunks of the picture, by another one
  for (size_t at = kPngSignatureBytes;
       file.size() - at >= kPngChunkFrameBytes;) {
    const uint64_t bytes = ReadNumber(file, at, 4, std::endian::big);
    if (bytes > file.size() - at - kPngChunkFrameBytes) return {};
    const auto chunk = file.subspan(at + 4, 4 + bytes);  // type and content
    const auto content = chunk.subspan(4);
    at += kPngChunkFrameBytes + bytes;
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

}  // namespace

std::unique_ptr<PngRows> PngRows::Open(std::span<const std::byte> file,
                                       const Layout& layout) {
  if (layout.pixel_bytes > kPixelBytesMax || file.size() < kPngSignatureBytes) {
    return nullptr;
  }
  std::vector<std::byte> joined;
  const std::span<const std::byte> compressed =
      FindCompressed(file, layout.has_palette, &joined);
  if (compressed.empty()) return nullptr;
  std::unique_ptr<PngRows> rows(new PngRows(layout));
  // Above the first row are zeros, and below the last one, for a whole number
  // of kRows; a pixel is loaded with bytes behind it.
  const size_t bytes = layout.height * rows->stride();
  const size_t below = (kRows - 1) * rows->stride() + kPixelBytesMax;
  rows->memory_.reset(new std::byte[rows->stride() + bytes + below]);
  std::byte* const first = rows->memory_.get() + rows->stride();
  std::fill_n(rows->memory_.get(), rows->stride(), std::byte{0});
  std::fill_n(first + bytes, below, std::byte{0});
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
  if (ready_ == 0) {
    HWY_DYNAMIC_DISPATCH(UndoRows)
    (row, stride(), layout_.row_bytes, layout_.pixel_bytes);
    ready_ = kRows;
  }
  --ready_;
  next_ += stride();
  return row;
}

}  // namespace penstock
#endif  // HWY_ONCE
