#include "broker/transform/rgbx_resampler.h"

#include <algorithm>
#include <cassert>

// Highway compiles the code between HWY_BEFORE_NAMESPACE and
// HWY_AFTER_NAMESPACE once per vector type of this architecture and chooses at
// run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "broker/transform/rgbx_resampler.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace penstock {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Pixels = hn::ScalableTag<uint32_t>;
using Values = hn::Repartition<uint16_t, Pixels>;

size_t PixelsPerVector() { return hn::Lanes(Pixels()); }

// The pixels at index of `windows` consecutive vectors.
template <int kWindows, class Index>
HWY_INLINE hn::VFromD<Pixels> Pick(const uint32_t* source, Index index,
                                   Index index_in_window, int64_t windows) {
  const Pixels d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
#if HWY_TARGET == HWY_AVX3
  if constexpr (kWindows == 2) {
    return hn::VFromD<Pixels>{_mm512_permutex2var_epi32(
        hn::LoadU(d, source).raw, index.raw, hn::LoadU(d, source + 16).raw)};
  }
#endif
  const auto lookup = hn::IndicesFromVec(d, index_in_window);
  auto picked = hn::TableLookupLanes(hn::LoadU(d, source), lookup);
  if constexpr (kWindows == 1) return picked;
  for (int64_t k = 1; k < windows; ++k) {
    const hn::RebindToSigned<Pixels> signed_d;
    const auto at_or_after =
        hn::Gt(hn::BitCast(signed_d, index),
               hn::Set(signed_d, static_cast<int32_t>(k * lanes - 1)));
    picked = hn::IfThenElse(
        hn::RebindMask(d, at_or_after),
        hn::TableLookupLanes(hn::LoadU(d, source + k * lanes), lookup), picked);
  }
  return picked;
}

template <int kWindows>
HWY_INLINE void ResampleBlock(const RgbxBlock& block, const uint32_t* table,
                              const uint32_t* source, uint16_t* out) {
  const Pixels d;
  const Values values;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto index = hn::LoadU(d, table);
  const auto index_in_window =
      hn::And(index, hn::Set(d, static_cast<uint32_t>(lanes - 1)));
  const auto high_byte = hn::Set(values, uint16_t{0xff00});
  auto even = hn::Zero(values);
  auto odd = hn::Zero(values);
  for (int64_t t = 0; t < block.taps; ++t) {
    const auto pixels =
        hn::BitCast(values, Pick<kWindows>(source + block.base + t, index,
                                           index_in_window, block.windows));
    const auto weights =
        hn::BitCast(values, hn::LoadU(d, table + (t + 1) * lanes));
    even = hn::Add(even, hn::MulHigh(hn::ShiftLeft<8>(pixels), weights));
    odd = hn::Add(odd, hn::MulHigh(hn::And(pixels, high_byte), weights));
  }
  hn::StoreU(even, values, out);
  hn::StoreU(odd, values, out + 2 * lanes);
}

void ResampleRow(const std::vector<RgbxBlock>& blocks, const uint32_t* tables,
                 const uint32_t* source, uint16_t* out) {
  for (const RgbxBlock& block : blocks) {
    const uint32_t* const table = tables + block.table;
    if (block.windows == 1) {
      ResampleBlock<1>(block, table, source, out);
    } else if (block.windows == 2) {
      ResampleBlock<2>(block, table, source, out);
    } else {
      ResampleBlock<0>(block, table, source, out);
    }
    out += 4 * hn::Lanes(Pixels());
  }
}

// Computes the weighted sum of `count` rows of ring, the first at index first
// modulo ring_rows, as RGBX.
void CombineRows(const uint16_t* ring, int64_t ring_rows, int64_t row_values,
                 int64_t first, int64_t count, const uint16_t* weights,
                 uint16_t rounding, std::byte* out) {
  const Values d;
  const hn::Repartition<uint8_t, Values> bytes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto high_byte = hn::Set(d, uint16_t{0xff00});
  for (int64_t x = 0; x < row_values; x += 2 * lanes) {
    auto even = hn::Set(d, rounding);
    auto odd = even;
    int64_t row = first % ring_rows;
    for (int64_t t = 0; t < count; ++t) {
      const uint16_t* const in = ring + row * row_values + x;
      const auto weight = hn::Set(d, weights[t]);
      even = hn::Add(even, hn::MulHigh(hn::LoadU(d, in), weight));
      odd = hn::Add(odd, hn::MulHigh(hn::LoadU(d, in + lanes), weight));
      if (++row == ring_rows) row = 0;
    }
    const auto pixels =
        hn::Or(hn::ShiftRight<8>(even), hn::And(odd, high_byte));
    hn::StoreU(hn::BitCast(bytes, pixels), bytes,
               reinterpret_cast<uint8_t*>(out) + x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
HWY_EXPORT(PixelsPerVector);
HWY_EXPORT(ResampleRow);
HWY_EXPORT(CombineRows);

bool RgbxResampler::Begin(const FractionalBox& box, const ImageSize& target,
                          bool mirror) {
  columns_.Compute(box.left, box.width, target.width);
  rows_.Compute(box.top, box.height, target.height);
  if (columns_.taps_max > kTapsMax || rows_.taps_max > kTapsMax) return false;
  width_ = target.width;
  rows_done_ = 0;
  rows_added_ = first_row();
  FixWeights(rows_);
  row_weights_.swap(fixed_);
  FixWeights(columns_);
  MakeBlocks(mirror);
  // A product's last 16 bits are truncated, on average half a unit of 2^-8.
  rounding_ =
      static_cast<uint16_t>(128 + (columns_.taps_max + rows_.taps_max) / 4);
  const size_t ring_values = rows_.taps_max * row_values_;
  if (ring_.size() < ring_values) ring_.resize(ring_values);
  if (static_cast<int64_t>(finished_.size()) < row_values_) {
    finished_.resize(row_values_);
  }
  return true;
}

// Each weight is the increment of the rounded running sum of weights: they sum
// to 2^16, and none is far off. A single weight of 1 is 2^16 - 1.
void RgbxResampler::FixWeights(const FilterTaps& taps) {
  const int64_t pixels = static_cast<int64_t>(taps.first.size());
  fixed_.resize(pixels * taps.taps_max);
  for (int64_t i = 0; i < pixels; ++i) {
    double sum = 0;
    int64_t before = 0;
    for (int64_t t = 0; t < taps.count[i]; ++t) {
      sum += taps.weights[i * taps.taps_max + t];
      const auto now = static_cast<int64_t>(sum * 65536 + 0.5);
      fixed_[i * taps.taps_max + t] =
          static_cast<uint16_t>(std::min<int64_t>(now - before, 65535));
      before = now;
    }
  }
}

void RgbxResampler::MakeBlocks(bool mirror) {
  const int64_t lanes =
      static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(PixelsPerVector)());
  const int64_t count = (width_ + lanes - 1) / lanes;
  row_values_ = count * lanes * kPixelBytes;
  blocks_.resize(count);
  table_.clear();
  for (int64_t b = 0; b < count; ++b) {
    // Output pixel x uses the taps of pixel of(x).
    const int64_t x = b * lanes;
    const int64_t pixels = std::min(lanes, width_ - x);
    const auto of = [&](int64_t i) { return mirror ? width_ - 1 - i : i; };
    RgbxBlock& block = blocks_[b];
    block = {.base = columns_.first[mirror ? of(x + pixels - 1) : x],
             .table = table_.size()};
    int64_t last = block.base;
    for (int64_t i = 0; i < pixels; ++i) {
      block.taps = std::max(block.taps, columns_.count[of(x + i)]);
      last = std::max(last, columns_.first[of(x + i)]);
    }
    block.windows = (last - block.base) / lanes + 1;
    table_.resize(block.table + (1 + block.taps) * lanes);
    uint32_t* const index = table_.data() + block.table;
    for (int64_t i = 0; i < pixels; ++i) {
      const int64_t pixel = of(x + i);
      index[i] = static_cast<uint32_t>(columns_.first[pixel] - block.base);
      const uint16_t* const weights = fixed_.data() + pixel * columns_.taps_max;
      for (int64_t t = 0; t < columns_.count[pixel]; ++t) {
        // For both 16-bit halves of the pixel.
        index[(t + 1) * lanes + i] = weights[t] * uint32_t{0x10001};
      }
    }
    block.base -= first_column();
  }
}

void RgbxResampler::AddRow(int64_t y, const std::byte* pixels) {
  assert(y == rows_added_);
  HWY_DYNAMIC_DISPATCH(ResampleRow)
  (blocks_, table_.data(), reinterpret_cast<const uint32_t*>(pixels),
   RingRow(y));
  rows_added_ = y + 1;
}

const std::byte* RgbxResampler::NextRow() {
  const int64_t row = rows_done_;
  if (row == static_cast<int64_t>(rows_.first.size()) ||
      rows_.first[row] + rows_.count[row] > rows_added_) {
    return nullptr;
  }
  HWY_DYNAMIC_DISPATCH(CombineRows)
  (ring_.data(), rows_.taps_max, row_values_, rows_.first[row],
   rows_.count[row], row_weights_.data() + row * rows_.taps_max, rounding_,
   finished_.data());
  ++rows_done_;
  return finished_.data();
}

}  // namespace penstock
#endif  // HWY_ONCE
