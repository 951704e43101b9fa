#include "broker/transform/pixel_pass.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "broker/transform/half.h"
#include "broker/transform/rgbx_resampler.h"
#include "broker/transform/values.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

// Converts any value exactly to an int64_t or a double.
template <typename From>
auto Widen(From value) {
  if constexpr (std::is_integral_v<From>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::is_floating_point_v<From>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(ToFloat(value));
  }
}

// Converts an int64_t to a double that rounds to few bits as the int64_t would:
// beyond 2^53 it only keeps whether any low bits were set.
double Sticky(int64_t value) {
  constexpr int64_t kExact{kExactMax};
  constexpr int64_t kLost = (1 << 10) - 1;
  if (value > -kExact && value < kExact) return static_cast<double>(value);
  const int64_t sticky = (value & kLost) != 0 ? kLost + 1 : 0;
  return static_cast<double>((value & ~kLost) | sticky);
}

template <typename To>
To Narrow(int64_t value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<To>) {
    return static_cast<To>(std::clamp<int64_t>(
        value, std::numeric_limits<To>::min(), std::numeric_limits<To>::max()));
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<To, Float16>) {
    return ToFloat16(Sticky(value));
  } else {
    return ToBFloat16(Sticky(value));
  }
}

template <typename To>
To Narrow(double value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != 0;  // NaN too, like NumPy and PyTorch
  } else if constexpr (std::is_integral_v<To>) {
    // The limits as doubles: max + 1 is exact for every type, max is not.
    constexpr double kMin = static_cast<double>(std::numeric_limits<To>::min());
    constexpr double kEnd =
        static_cast<double>(std::numeric_limits<To>::max() / 2 + 1) * 2;
    if (std::isnan(value)) return 0;
    const double rounded = std::nearbyint(value);
    if (rounded < kMin) return std::numeric_limits<To>::min();
    if (rounded >= kEnd) return std::numeric_limits<To>::max();
    return static_cast<To>(rounded);
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<To, Float16>) {
    return ToFloat16(value);
  } else {
    return ToBFloat16(value);
  }
}

template <typename From, typename To>
void CastValues(const std::byte*, const std::byte* in, ptrdiff_t in_step,
                std::byte* out, ptrdiff_t out_step, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const From value =
        ValueAt<From>(in + i * in_step * ptrdiff_t{sizeof(From)});
    Store(Narrow<To>(Widen(value)), out + i * out_step * ptrdiff_t{sizeof(To)});
  }
}

template <typename Word>
void CopyValues(const std::byte*, const std::byte* in, ptrdiff_t in_step,
                std::byte* out, ptrdiff_t out_step, int64_t n) {
  if (in_step == 1 && out_step == 1) {
    if (n > 0) std::memcpy(out, in, n * sizeof(Word));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    Store(ValueAt<Word>(in + i * in_step * ptrdiff_t{sizeof(Word)}),
          out + i * out_step * ptrdiff_t{sizeof(Word)});
  }
}

template <typename Word>
void LookUpValues(const std::byte* table, const std::byte* in,
                  ptrdiff_t in_step, std::byte* out, ptrdiff_t out_step,
                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const size_t index = std::to_integer<size_t>(in[i * in_step]);
    Store(ValueAt<Word>(table + index * sizeof(Word)),
          out + i * out_step * ptrdiff_t{sizeof(Word)});
  }
}

// f of a value of so many bytes.
template <typename F>
ValueKernel OfWord(uint32_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

ValueKernel LookUpKernel(uint32_t value_bytes) {
  return OfWord(value_bytes,
                []<typename Word>(Word) { return &LookUpValues<Word>; });
}

// Returns the kernel's results for all values of an 8-bit input.
std::vector<std::byte> Tabulate(ValueKernel kernel, uint32_t value_bytes) {
  std::byte inputs[256];
  for (int i = 0; i < 256; ++i) inputs[i] = static_cast<std::byte>(i);
  std::vector<std::byte> table(256 * value_bytes);
  kernel(nullptr, inputs, 1, table.data(), 1, 256);
  return table;
}

}  // namespace

ValueKernel CopyKernel(uint32_t value_bytes) {
  return OfWord(value_bytes,
                []<typename Word>(Word) { return &CopyValues<Word>; });
}

ValueKernel CastKernel(DType from, DType to) {
  if (from == to) return CopyKernel(DTypeBytes(from));
  return WithType(from, [to]<typename From>(From) {
    return WithType(to, []<typename To>(To) -> ValueKernel {
      // A bool's bytes are 0 and 1, but Tabulate passes all values.
      constexpr bool kIsBool = std::is_same_v<From, bool>;
      return &CastValues<std::conditional_t<kIsBool, uint8_t, From>, To>;
    });
  });
}

PixelPass::PixelPass(DType dtype, int64_t height, int64_t width,
                     int64_t channels)
    : dtype_in_(dtype),
      dtype_out_(dtype),
      height_(height),
      width_(width),
      channels_(channels),
      kernel_(CopyKernel(DTypeBytes(dtype))) {}

void PixelPass::Compute(const ValueFunction& function, DType to) {
  assert(DTypeBytes(dtype_in_) == 1);
  const ValueKernel round = CastKernel(DType::kFloat64, to);
  const ValueKernel widen = CastKernel(dtype_in_, DType::kFloat64);
  dtype_out_ = to;
  kernel_ = LookUpKernel(DTypeBytes(to));
  const int64_t table_bytes = int64_t{256} * DTypeBytes(to);
  table_.resize(function.channels * table_bytes);
  table_stride_ = function.channels == 1 ? 0 : table_bytes;
  std::vector<std::byte> exact = Tabulate(widen, sizeof(double));
  for (size_t c = 0; c < function.channels; ++c) {
    std::vector<std::byte> of_channel = exact;
    for (size_t v = 0; v < 256; ++v) {
      std::byte* const at = &of_channel[v * sizeof(double)];
      double value = ValueAt<double>(at);
      function.compute({&value, 1}, c);
      Store(value, at);
    }
    round(nullptr, of_channel.data(), 1, table_.data() + c * table_bytes, 1,
          256);
  }
}

void PixelPass::TakeLine(const std::vector<double>& mean,
                         const std::vector<double>& std) {
  if (dtype_in_ == DType::kUint8 && channels_ == 3) {
    line_ = FindLine(dtype_out_, table_, mean, std);
  }
}

void PixelPass::Cast(DType to) {
  dtype_out_ = to;
  kernel_ = CastKernel(dtype_in_, to);
  if (dtype_in_ != to && DTypeBytes(dtype_in_) == 1) {
    table_ = Tabulate(kernel_, DTypeBytes(to));
    kernel_ = LookUpKernel(DTypeBytes(to));
  }
  TakeLine({0}, {1 / 255.0});
}

PixelPass::Mirroring PixelPass::Mirrors(const AugmentationKey& key) const {
  Mirroring mirroring;
  for (const Flip& flip : flips_) {
    const Mirroring each = flip.Mirrors(key);
    mirroring.horizontal ^= each.horizontal;
    mirroring.vertical ^= each.vertical;
  }
  return mirroring;
}

void PixelPass::WriteRgbx(const std::byte* rgbx, int64_t y,
                          std::byte* out) const {
  assert(dtype_in_ == DType::kUint8 && channels_ == 3);
  const RgbxPlace place = {
      .out = out,
      .layout = channels_first_ ? Layout::kChw : Layout::kHwc,
      .size = {.height = height_, .width = width_},
      .row = y};
  if (line_) return WriteLine(rgbx, *line_, place);
  if (dtype_out_ == DType::kUint8) return WriteBytes(rgbx, place);
  const int64_t out_bytes = DTypeBytes(dtype_out_);
  for (int64_t c = 0; c < 3; ++c) {
    const int64_t first =
        channels_first_ ? (c * height_ + y) * width_ : y * width_ * 3 + c;
    kernel_(table_.data() + c * table_stride_, rgbx + c,
            RgbxResampler::kPixelBytes, out + first * out_bytes,
            channels_first_ ? 1 : 3, width_);
  }
}

void PixelPass::Run(const std::byte* in, const AugmentationKey& key,
                    std::byte* out) const {
  const Mirroring mirroring = Mirrors(key);
  const bool moved = channels_first_ && channels_ > 1;
  if (!mirroring.horizontal && !mirroring.vertical && !moved &&
      table_stride_ == 0) {
    kernel_(table_.data(), in, 1, out, 1, height_ * width_ * channels_);
    return;
  }
  RunMirroredOrMoved(in, mirroring, out);
}

void PixelPass::RunRgb(const std::byte* in, const Mirroring& mirroring,
                       std::byte* out) const {
  thread_local std::vector<uint32_t> rgbx;  // a row
  const auto width = static_cast<size_t>(width_);
  rgbx.resize(width + kRgbxSlackPixels);
  for (int64_t y = 0; y < height_; ++y) {
    const int64_t from = mirroring.vertical ? height_ - 1 - y : y;
    ExpandRgb(in + from * width_ * 3, width_, mirroring.horizontal,
              rgbx.data());
    WriteRgbx(reinterpret_cast<const std::byte*>(rgbx.data()), y, out);
  }
}

void PixelPass::RunMirroredOrMoved(const std::byte* in,
                                   const Mirroring& mirroring,
                                   std::byte* out) const {
  const bool has_vectors = line_ || dtype_out_ == DType::kUint8;
  if (dtype_in_ == DType::kUint8 && channels_ == 3 && has_vectors) {
    return RunRgb(in, mirroring, out);
  }
  const bool mirror = mirroring.horizontal;
  const int64_t in_bytes = DTypeBytes(dtype_in_);
  const int64_t out_bytes = DTypeBytes(dtype_out_);
  // One row of one channel at a time. In units of values: the start of channel
  // c of row y, and the distance of its pixels.
  const int64_t start = mirror ? (width_ - 1) * channels_ : 0;
  const ptrdiff_t in_step = mirror ? -channels_ : channels_;
  const ptrdiff_t out_step = channels_first_ ? 1 : channels_;
  const int64_t out_channel = channels_first_ ? height_ * width_ : 1;
  const int64_t out_row = channels_first_ ? width_ : width_ * channels_;
  for (int64_t y = 0; y < height_; ++y) {
    const int64_t from = mirroring.vertical ? height_ - 1 - y : y;
    for (int64_t c = 0; c < channels_; ++c) {
      kernel_(table_.data() + c * table_stride_,
              in + (from * width_ * channels_ + start + c) * in_bytes, in_step,
              out + (y * out_row + c * out_channel) * out_bytes, out_step,
              width_);
    }
  }
}

}  // namespace penstock
