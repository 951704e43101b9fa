#include "broker/transform/rgbx_values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "broker/transform/values.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "broker/transform/rgbx_values.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace penstock {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Pixels = hn::ScalableTag<uint32_t>;
using SignedPixels = hn::RebindToSigned<Pixels>;
using Floats = hn::RebindToFloat<Pixels>;
using Halves = hn::Rebind<uint16_t, Pixels>;
using Doubles = hn::Rebind<double, hn::Half<Pixels>>;
using PixelVector = hn::VFromD<Pixels>;

// Channel c of each pixel.
template <int kChannel>
HWY_INLINE PixelVector Channel(PixelVector pixels) {
  const auto low_byte = hn::Set(Pixels(), uint32_t{0xff});
  return hn::And(hn::ShiftRight<8 * kChannel>(pixels), low_byte);
}

// Stores three channels of a vector's pixels at their destination, from pixel x
// to at most the end of the row.
template <class D, class V>
HWY_INLINE void StoreChannels(D d, V red, V green, V blue, int64_t x,
                              const RgbxPlace& place) {
  using T = hn::TFromD<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = place.size.width;
  const int64_t count = std::min(lanes, width - x);
  T* const out = reinterpret_cast<T*>(place.out);
  if (place.layout == Layout::kChw) {
    const int64_t plane = place.size.height * width;
    T* const to = out + place.row * width + x;
    if (count == lanes) {
      hn::StoreU(red, d, to);
      hn::StoreU(green, d, to + plane);
      hn::StoreU(blue, d, to + 2 * plane);
      return;
    }
    T last[3][hn::MaxLanes(D())];
    hn::StoreU(red, d, last[0]);
    hn::StoreU(green, d, last[1]);
    hn::StoreU(blue, d, last[2]);
    for (int c = 0; c < 3; ++c) {
      std::memcpy(to + c * plane, last[c], count * sizeof(T));
    }
    return;
  }
  T* const to = out + (place.row * width + x) * 3;
  if (count == lanes) return hn::StoreInterleaved3(red, green, blue, d, to);
  T last[3 * hn::MaxLanes(D())];
  hn::StoreInterleaved3(red, green, blue, d, last);
  std::memcpy(to, last, count * 3 * sizeof(T));
}

void ExpandRgb(const std::byte* rgb, int64_t width, bool mirrored,
               uint32_t* rgbx) {
  // Highway 1.0 reverses no bytes, but looks them up within 16.
  constexpr int64_t kLanes = 16;
  alignas(16) static constexpr uint8_t kReversed[kLanes] = {
      15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  const hn::CappedTag<uint8_t, kLanes> d;
  const auto reversed = hn::LoadU(d, kReversed);
  const bool has_vectors = hn::Lanes(d) == kLanes;
  const auto* const in = reinterpret_cast<const uint8_t*>(rgb);
  auto* const out = reinterpret_cast<uint8_t*>(rgbx);
  int64_t x = 0;
  for (; has_vectors && x + kLanes <= width; x += kLanes) {
    auto red = hn::Zero(d);
    auto green = red;
    auto blue = red;
    hn::LoadInterleaved3(d, in + 3 * x, red, green, blue);
    if (mirrored) {
      red = hn::TableLookupBytes(red, reversed);
      green = hn::TableLookupBytes(green, reversed);
      blue = hn::TableLookupBytes(blue, reversed);
    }
    const int64_t to = mirrored ? width - x - kLanes : x;
    hn::StoreInterleaved4(red, green, blue, hn::Zero(d), d, out + 4 * to);
  }
  for (; x < width; ++x) {
    const int64_t to = mirrored ? width - 1 - x : x;
    std::memcpy(out + 4 * to, in + 3 * x, 3);
  }
}

void WriteBytes(const std::byte* rgbx, const RgbxPlace& place) {
  const Pixels d;
  const hn::Rebind<uint8_t, Pixels> bytes;
  const auto* source = reinterpret_cast<const uint32_t*>(rgbx);
  for (int64_t x = 0; x < place.size.width; x += hn::Lanes(d)) {
    const PixelVector pixels = hn::LoadU(d, source + x);
    // U8FromU32 takes the low bytes.
    StoreChannels(bytes, hn::U8FromU32(Channel<0>(pixels)),
                  hn::U8FromU32(Channel<1>(pixels)),
                  hn::U8FromU32(Channel<2>(pixels)), x, place);
  }
}

// Values on a channel's line, rounded as in half.h.

HWY_INLINE auto LineFloats(PixelVector values, const RgbxLine& line, int c) {
  const Floats d;
  const auto floats = hn::ConvertTo(d, hn::BitCast(SignedPixels(), values));
  return hn::Add(hn::Mul(floats, hn::Set(d, static_cast<float>(line.scale[c]))),
                 hn::Set(d, static_cast<float>(line.bias[c])));
}

HWY_INLINE hn::VFromD<Halves> LineFloat16(PixelVector values,
                                          const RgbxLine& line, int c) {
  const auto floats = LineFloats(values, line, c);
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  // These targets have no instruction for it.
  float in[hn::MaxLanes(Floats())];
  uint16_t out[hn::MaxLanes(Floats())];
  hn::StoreU(floats, Floats(), in);
  for (size_t i = 0; i < hn::MaxLanes(Floats()); ++i) {
    out[i] = ToFloat16(in[i]).bits;
  }
  return hn::LoadU(Halves(), out);
#else
  return hn::BitCast(
      Halves(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Pixels>(), floats));
#endif
}

HWY_INLINE hn::VFromD<Halves> LineBFloat16(PixelVector values,
                                           const RgbxLine& line, int c) {
  const Pixels d;
  const auto bits = hn::BitCast(d, LineFloats(values, line, c));
  const auto lowest_kept = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::ShiftRight<16>(
      hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), lowest_kept));
  return hn::DemoteTo(Halves(), hn::BitCast(SignedPixels(), rounded));
}

HWY_INLINE hn::VFromD<Floats> LineFloat32(PixelVector values,
                                          const RgbxLine& line, int c) {
  const Doubles d;
  const hn::Half<Floats> half;
  const hn::Half<SignedPixels> half_signed;
  const auto scale = hn::Set(d, line.scale[c]);
  const auto bias = hn::Set(d, line.bias[c]);
  const auto ints = hn::BitCast(SignedPixels(), values);
  const auto low = hn::Add(
      hn::Mul(hn::PromoteTo(d, hn::LowerHalf(half_signed, ints)), scale), bias);
  const auto high = hn::Add(
      hn::Mul(hn::PromoteTo(d, hn::UpperHalf(half_signed, ints)), scale), bias);
  return hn::Combine(Floats(), hn::DemoteTo(half, high),
                     hn::DemoteTo(half, low));
}

template <DType kDType>
HWY_INLINE auto OnLine(PixelVector values, const RgbxLine& line, int c) {
  if constexpr (kDType == DType::kFloat16) return LineFloat16(values, line, c);
  if constexpr (kDType == DType::kBFloat16) {
    return LineBFloat16(values, line, c);
  }
  if constexpr (kDType == DType::kFloat32) return LineFloat32(values, line, c);
}

template <DType kDType, class D>
HWY_INLINE void WriteLineOf(D d, const std::byte* rgbx, const RgbxLine& line,
                            const RgbxPlace& place) {
  const auto* source = reinterpret_cast<const uint32_t*>(rgbx);
  for (int64_t x = 0; x < place.size.width; x += hn::Lanes(d)) {
    const PixelVector pixels = hn::LoadU(Pixels(), source + x);
    StoreChannels(d, OnLine<kDType>(Channel<0>(pixels), line, 0),
                  OnLine<kDType>(Channel<1>(pixels), line, 1),
                  OnLine<kDType>(Channel<2>(pixels), line, 2), x, place);
  }
}

void WriteLine(const std::byte* rgbx, const RgbxLine& line,
               const RgbxPlace& place) {
  switch (line.dtype) {
    case DType::kFloat16:
      return WriteLineOf<DType::kFloat16>(Halves(), rgbx, line, place);
    case DType::kBFloat16:
      return WriteLineOf<DType::kBFloat16>(Halves(), rgbx, line, place);
    default:
      return WriteLineOf<DType::kFloat32>(Floats(), rgbx, line, place);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
namespace {

// The range of the search, in units in the last place of the line's two
// numbers.
constexpr int kUlps = 6;

float Moved(float value, int ulps) {
  // Unsigned: -0 has no neighbour below.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) +
                              static_cast<uint32_t>(ulps));
}

bool Through(const std::byte* table, DType dtype, float scale, float bias) {
  for (int v = 0; v < 256; ++v) {
    const float value = static_cast<float>(v) * scale + bias;
    const uint16_t bits = dtype == DType::kFloat16 ? ToFloat16(value).bits
                                                   : ToBFloat16(value).bits;
    if (bits != ValueAt<uint16_t>(table + v * sizeof(bits))) return false;
  }
  return true;
}

bool Through(const std::byte* table, double scale, double bias) {
  for (int v = 0; v < 256; ++v) {
    const float value = static_cast<float>(v * scale + bias);
    const auto bits = std::bit_cast<uint32_t>(value);
    if (bits != ValueAt<uint32_t>(table + v * sizeof(bits))) return false;
  }
  return true;
}

// Adjusts *scale and *bias until their line matches a channel's table.
bool FitChannel(const std::byte* table, DType dtype, double* scale,
                double* bias) {
  if (dtype == DType::kFloat32) return Through(table, *scale, *bias);
  const float near_scale = static_cast<float>(*scale);
  const float near_bias = static_cast<float>(*bias);
  for (int i = 0; i <= 2 * kUlps; ++i) {
    for (int j = 0; j <= 2 * kUlps; ++j) {
      // 0, 1, -1, 2, -2 ...
      const float s = Moved(near_scale, i % 2 == 0 ? -i / 2 : i / 2 + 1);
      const float b = Moved(near_bias, j % 2 == 0 ? -j / 2 : j / 2 + 1);
      if (!Through(table, dtype, s, b)) continue;
      *scale = s;
      *bias = b;
      return true;
    }
  }
  return false;
}

}  // namespace

HWY_EXPORT(ExpandRgb);
HWY_EXPORT(WriteBytes);
HWY_EXPORT(WriteLine);

void ExpandRgb(const std::byte* rgb, int64_t width, bool mirrored,
               uint32_t* rgbx) {
  HWY_DYNAMIC_DISPATCH(ExpandRgb)(rgb, width, mirrored, rgbx);
}

void WriteBytes(const std::byte* rgbx, const RgbxPlace& place) {
  HWY_DYNAMIC_DISPATCH(WriteBytes)(rgbx, place);
}

void WriteLine(const std::byte* rgbx, const RgbxLine& line,
               const RgbxPlace& place) {
  HWY_DYNAMIC_DISPATCH(WriteLine)(rgbx, line, place);
}

std::optional<RgbxLine> FindLine(DType dtype, std::span<const std::byte> tables,
                                 std::span<const double> mean,
                                 std::span<const double> std) {
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16 &&
      dtype != DType::kFloat32) {
    return std::nullopt;
  }
  const size_t table_bytes = size_t{256} * DTypeBytes(dtype);
  const auto of = [](const auto& values, int c) {
    return values[values.size() == 1 ? 0 : c];
  };
  RgbxLine line = {};
  line.dtype = dtype;
  for (int c = 0; c < 3; ++c) {
    line.scale[c] = 1 / (255 * of(std, c));
    line.bias[c] = -of(mean, c) / of(std, c);
    const std::byte* const table =
        tables.data() + (tables.size() == table_bytes ? 0 : c * table_bytes);
    if (!FitChannel(table, dtype, &line.scale[c], &line.bias[c])) {
      return std::nullopt;
    }
  }
  return line;
}

}  // namespace penstock
#endif  // HWY_ONCE
