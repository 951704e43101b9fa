// Converts rows of samples, as uncompressed files store them, to rows of
// pixels. Formulas: Pillow's convert("RGB") and convert("L").
#ifndef BROKER_TRANSFORM_SAMPLE_ROWS_H_
#define BROKER_TRANSFORM_SAMPLE_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/status.h"

namespace penstock {

struct SampleLayout {
  enum class Color { kGray, kPalette, kRgb, kCmyk };
  Color color = Color::kRgb;
  // Samples of a pixel: its colours come first, the others are dropped.
  int samples = 3;
  // 1, 2, 4 (first pixel in the high bits; one sample a pixel only), 8 or 16
  // (in this machine's byte order).
  int bits = 8;
  bool inverted = false;       // 0 is white: gray of up to 8 bits, and CMYK
  bool premultiplied = false;  // the colours, by sample 3: RGB only
};

// As `channels`: a pixel is a uint16 in this machine's byte order, the value as
// Pillow has it: gray, or the index into the palette. Of 1 bit: 0 or 1.
inline constexpr int kValueChannels = 2;
// DataLoss: a pixel of this layout has several values.
Status CheckHasValues(const SampleLayout& layout);

using Rgb = std::array<uint8_t, 3>;
using Palette = std::array<Rgb, 256>;

// Immutable.
class SampleRows {
 public:
  // palette: for kPalette.
  SampleRows(const SampleLayout& layout, const Palette* palette);

  // channels: 1 (gray), 3 (RGB), 4 (RGB and 255), kValueChannels.
  void Convert(const std::byte* samples, int64_t width, int channels,
               std::byte* pixels) const;

 private:
  template <int kChannels>
  void ConvertTo(const std::byte* samples, int64_t width,
                 std::byte* pixels) const;
  void ConvertToValues(const std::byte* samples, int64_t width,
                       std::byte* pixels) const;

  const SampleLayout layout_;
  Palette colors_;  // of each value: kGray, kPalette
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_SAMPLE_ROWS_H_
