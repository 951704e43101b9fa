#include "broker/transform/resampler.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace penstock {
namespace {

// The weight 1. The sum over a pixel's taps of 255 * weight stays below 2^31.
constexpr int kWeightBits = 22;
constexpr int32_t kWeightOne = 1 << kWeightBits;
constexpr int32_t kRoundingHalf = 1 << (kWeightBits - 1);

// Columns that CombineRows sums together: a few vector registers.
constexpr int64_t kStripBytes = 64;

std::byte ToByte(int32_t sum) {
  // Weights may be negative, and rounded ones can sum to slightly over 1.
  return static_cast<std::byte>(std::clamp(sum >> kWeightBits, 0, 255));
}

template <int kChannels>
void ResamplePixels(const std::byte* row, const int64_t* first,
                    const int64_t* count, const int32_t* weights,
                    int64_t taps_max, int64_t pixels, std::byte* out) {
  for (int64_t x = 0; x < pixels; ++x) {
    const std::byte* in = row + first[x] * kChannels;
    int32_t sum[kChannels];
    for (int c = 0; c < kChannels; ++c) sum[c] = kRoundingHalf;
    for (int64_t t = 0; t < count[x]; ++t) {
      for (int c = 0; c < kChannels; ++c) {
        sum[c] += std::to_integer<int32_t>(in[c]) * weights[t];
      }
      in += kChannels;
    }
    for (int c = 0; c < kChannels; ++c) *out++ = ToByte(sum[c]);
    weights += taps_max;
  }
}

}  // namespace

void Resampler::Taps::Compute(int64_t box_start, int64_t box_length,
                              int64_t target, Interpolation filter,
                              int64_t first_wanted, int64_t wanted) {
  if (box_length == target) {
    // The pixels themselves, by no filter that reaches further.
    filter = Interpolation::kBilinear;
  }
  FilterTaps::Compute(static_cast<double>(box_start),
                      static_cast<double>(box_length), target, filter,
                      first_wanted, wanted);
  fixed.resize(wanted * taps_max);
  for (int64_t i = 0; i < wanted; ++i) {
    for (int64_t t = i * taps_max; t < i * taps_max + count[i]; ++t) {
      fixed[t] = static_cast<int32_t>(weights[t] * kWeightOne +
                                      (weights[t] < 0 ? -0.5 : 0.5));
    }
  }
}

Status Resampler::Begin(const CropBox& box, const ImageSize& scaled,
                        const CropBox& window, Interpolation filter,
                        int channels, std::byte* out) {
  assert(channels >= 1 && channels <= kChannelsMax);
  assert(box.width >= 1 && box.height >= 1);
  horizontal_.Compute(box.left, box.width, scaled.width, filter, window.left,
                      window.width);
  vertical_.Compute(box.top, box.height, scaled.height, filter, window.top,
                    window.height);
  channels_ = channels;
  same_width_ = box.width == scaled.width;
  same_height_ = box.height == scaled.height;
  row_bytes_ = window.width * channels;
  rows_ = window.height;
  rows_done_ = 0;
  out_ = out;
  ring_rows_ = std::min(vertical_.taps_max, box.height);
  if (ring_rows_ * row_bytes_ > kRingBytesMax) {
    return DataLossError(
        "scaling {} x {} pixels to {} x {} needs more than {} MiB of scratch",
        box.width, box.height, scaled.width, scaled.height,
        kRingBytesMax >> 20);
  }
  if (static_cast<int64_t>(ring_.size()) < ring_rows_ * row_bytes_) {
    ring_.resize(ring_rows_ * row_bytes_);
  }
  return OkStatus();
}

void Resampler::AddRow(int64_t y, const std::byte* row) {
  if (same_height_) {
    // Row y is output row y - top unchanged. The taps' windows also hold the
    // next row, with weight zero.
    if (rows_done_ < rows_ && vertical_.first[rows_done_] == y) {
      ResampleRow(row, out_ + rows_done_++ * row_bytes_);
    }
    return;
  }
  ResampleRow(row, RingRow(y));
  while (rows_done_ < rows_ &&
         vertical_.first[rows_done_] + vertical_.count[rows_done_] == y + 1) {
    CombineRows(rows_done_++);
  }
}

void Resampler::ResampleRow(const std::byte* row, std::byte* out) const {
  const Taps& taps = horizontal_;
  if (same_width_) {
    std::memcpy(out, row + taps.first.front() * channels_, row_bytes_);
    return;
  }
  const auto resample = channels_ == 1   ? &ResamplePixels<1>
                        : channels_ == 2 ? &ResamplePixels<2>
                        : channels_ == 3 ? &ResamplePixels<3>
                                         : &ResamplePixels<4>;
  resample(row, taps.first.data(), taps.count.data(), taps.fixed.data(),
           taps.taps_max, row_bytes_ / channels_, out);
}

void Resampler::CombineRows(int64_t out_row) {
  const int64_t first = vertical_.first[out_row];
  const int64_t count = vertical_.count[out_row];
  const int32_t* weights =
      vertical_.fixed.data() + out_row * vertical_.taps_max;
  std::byte* out = out_ + out_row * row_bytes_;
  for (int64_t x = 0; x < row_bytes_; x += kStripBytes) {
    const int64_t columns = std::min(kStripBytes, row_bytes_ - x);
    int32_t sum[kStripBytes];
    std::fill_n(sum, kStripBytes, kRoundingHalf);
    for (int64_t t = 0; t < count; ++t) {
      const std::byte* in = RingRow(first + t) + x;
      const int32_t weight = weights[t];
      for (int64_t i = 0; i < columns; ++i) {
        sum[i] += std::to_integer<int32_t>(in[i]) * weight;
      }
    }
    for (int64_t i = 0; i < columns; ++i) out[x + i] = ToByte(sum[i]);
  }
}

}  // namespace penstock
