#include "broker/transform/sample_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "broker/transform/values.h"

namespace penstock {
namespace {

// Pillow's product of two numbers in units of 1/255: round(a * b / 255).
unsigned MultiplyUnit(unsigned a, unsigned b) {
  const unsigned product = a * b + 128;
  return (product + (product >> 8)) >> 8;
}

// ITU-R 601, as Pillow rounds it.
uint8_t Luma(const Rgb& rgb) {
  return static_cast<uint8_t>(
      (rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

Rgb FromCmyk(const Rgb& cmy, unsigned black) {
  const unsigned white = 255u - black;
  Rgb rgb;
  for (size_t c = 0; c < 3; ++c) {
    rgb[c] = static_cast<uint8_t>(white - MultiplyUnit(cmy[c], white));
  }
  return rgb;
}

Rgb Unmultiplied(const Rgb& rgb, unsigned alpha) {
  if (alpha == 0) return {};
  Rgb result;
  for (size_t c = 0; c < 3; ++c) {
    result[c] = static_cast<uint8_t>(std::min(255u, rgb[c] * 255u / alpha));
  }
  return result;
}

template <int kChannels>
void Put(const Rgb& rgb, int64_t x, std::byte* pixels) {
  if constexpr (kChannels == 1) {
    pixels[x] = std::byte{Luma(rgb)};
  } else {
    std::byte* const pixel = pixels + x * kChannels;
    for (int c = 0; c < 3; ++c) pixel[c] = std::byte{rgb[c]};
    if constexpr (kChannels == 4) pixel[3] = std::byte{255};
  }
}

}  // namespace

SampleRows::SampleRows(const SampleLayout& layout, const Palette* palette)
    : layout_(layout) {
  if (layout.color == SampleLayout::Color::kPalette) {
    colors_ = *palette;
    return;
  }
  const unsigned white = (1u << std::min(layout.bits, 8)) - 1;
  // Pillow does not invert 16 bits.
  const bool inverted = layout.inverted && layout.bits <= 8;
  for (unsigned value = 0; value < colors_.size(); ++value) {
    const unsigned gray = std::min(value, white) * 255 / white;
    colors_[value].fill(static_cast<uint8_t>(inverted ? 255 - gray : gray));
  }
}

template <int kChannels>
void SampleRows::ConvertTo(const std::byte* samples, int64_t width,
                           std::byte* pixels) const {
  using Color = SampleLayout::Color;
  const int bits = layout_.bits;
  const Color color = layout_.color;
  if (bits < 8) {
    const unsigned mask = (1u << bits) - 1;
    for (int64_t x = 0; x < width; ++x) {
      const int64_t bit = x * bits;
      const auto byte = std::to_integer<unsigned>(samples[bit / 8]);
      Put<kChannels>(colors_[byte >> (8 - bits - bit % 8) & mask], x, pixels);
    }
    return;
  }
  const int64_t bytes = bits / 8;
  const int64_t step = layout_.samples * bytes;
  if (bits == 16 && color == Color::kGray && layout_.samples == 1) {
    for (int64_t x = 0; x < width; ++x) {
      const auto value = ValueAt<uint16_t>(samples + x * step);
      Put<kChannels>(colors_[std::min<uint16_t>(value, 255)], x, pixels);
    }
    return;
  }
  // The high byte of 16 bits counts.
  if (bits == 16 && std::endian::native == std::endian::little) ++samples;
  const auto sample = [&](int64_t x, int64_t i) {
    return std::to_integer<uint8_t>(samples[x * step + i * bytes]);
  };
  const auto rgb = [&](int64_t x) {
    return Rgb{sample(x, 0), sample(x, 1), sample(x, 2)};
  };
  switch (color) {
    case Color::kGray:
    case Color::kPalette:
      for (int64_t x = 0; x < width; ++x) {
        Put<kChannels>(colors_[sample(x, 0)], x, pixels);
      }
      return;
    case Color::kRgb:
      if (layout_.premultiplied) {
        for (int64_t x = 0; x < width; ++x) {
          Put<kChannels>(Unmultiplied(rgb(x), sample(x, 3)), x, pixels);
        }
      } else if (kChannels == 3 && step == 3) {
        std::memcpy(pixels, samples, static_cast<size_t>(width) * 3);
      } else {
        for (int64_t x = 0; x < width; ++x) Put<kChannels>(rgb(x), x, pixels);
      }
      return;
    case Color::kCmyk: {
      const uint8_t flip = layout_.inverted ? 255 : 0;
      for (int64_t x = 0; x < width; ++x) {
        Rgb cmy = rgb(x);
        for (uint8_t& value : cmy) value ^= flip;
        Put<kChannels>(FromCmyk(cmy, sample(x, 3) ^ flip), x, pixels);
      }
      return;
    }
  }
}

void SampleRows::ConvertToValues(const std::byte* samples, int64_t width,
                                 std::byte* pixels) const {
  const int bits = layout_.bits;
  const bool is_index = layout_.color == SampleLayout::Color::kPalette;
  for (int64_t x = 0; x < width; ++x) {
    uint16_t value = 0;
    if (bits == 16) {
      value = ValueAt<uint16_t>(samples + x * layout_.samples * 2);
    } else {
      const int64_t bit = x * layout_.samples * bits;
      const auto byte = std::to_integer<unsigned>(samples[bit / 8]);
      const unsigned stored = byte >> (8 - bits - bit % 8) & ((1u << bits) - 1);
      const unsigned gray = is_index ? stored : colors_[stored][0];
      value = static_cast<uint16_t>(!is_index && bits == 1 ? gray / 255 : gray);
    }
    Store(value, pixels + x * kValueChannels);
  }
}

Status CheckHasValues(const SampleLayout& layout) {
  if (layout.color == SampleLayout::Color::kGray ||
      layout.color == SampleLayout::Color::kPalette) {
    return OkStatus();
  }
  return DataLossError(
      "a picture of colours; a mask has one value a pixel, gray or an index "
      "into a palette");
}

void SampleRows::Convert(const std::byte* samples, int64_t width, int channels,
                         std::byte* pixels) const {
  switch (channels) {
    case 1:
      return ConvertTo<1>(samples, width, pixels);
    case kValueChannels:
      return ConvertToValues(samples, width, pixels);
    case 3:
      return ConvertTo<3>(samples, width, pixels);
    default:
      return ConvertTo<4>(samples, width, pixels);
  }
}

}  // namespace penstock
