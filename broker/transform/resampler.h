// Resizes 8-bit images row by row: source rows go in from top to bottom, and
// each output row is written as soon as its last source row has arrived. The
// scratch memory is only the source rows of one output row, not the image.
//
// Not thread-safe; made once per worker and reused: buffers only grow.
//
// The result equals Pillow's Image.crop(box).resize(size, filter) bit for bit:
// a filter over the source pixels around each output pixel's centre, widened by
// the scale when the image shrinks (antialiasing); weights in 22-bit fixed
// point; first along the rows, rounded to 8 bits, then down the columns.
#ifndef BROKER_TRANSFORM_RESAMPLER_H_
#define BROKER_TRANSFORM_RESAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/transform/crop.h"
#include "broker/transform/filter_taps.h"
#include "common/status.h"

namespace penstock {

class Resampler {
 public:
  static constexpr int kChannelsMax = 4;
  static constexpr int64_t kRingBytesMax = int64_t{256} << 20;

  // Prepares to resize the box to `scaled` and to write the window of that,
  // which is inside: `out` receives window.height rows of window.width *
  // channels bytes. channels: 1 to kChannelsMax. DataLoss: the
  // filter would need more than kRingBytesMax of scratch, for which no memory
  // is reserved.
  [[nodiscard]] Status Begin(const CropBox& box, const ImageSize& scaled,
                             const CropBox& window, Interpolation filter,
                             int channels, std::byte* out);
  // All of it, by a triangle.
  [[nodiscard]] Status Begin(const CropBox& box, const ImageSize& target,
                             int channels, std::byte* out) {
    return Begin(box, target, {.width = target.width, .height = target.height},
                 Interpolation::kBilinear, channels, out);
  }

  // The source rows that are used: [first_row(), end_row()).
  int64_t first_row() const { return vertical_.begin(); }
  int64_t end_row() const { return vertical_.end(); }

  // Takes row y, a full row of the image: first_row() first, then all in order.
  // out is finished after row end_row() - 1.
  void AddRow(int64_t y, const std::byte* row);

 private:
  // For one direction, in 22-bit fixed point.
  struct Taps : FilterTaps {
    void Compute(int64_t box_start, int64_t box_length, int64_t target,
                 Interpolation filter, int64_t first_wanted, int64_t wanted);

    std::vector<int32_t> fixed;  // of weights
  };

  void ResampleRow(const std::byte* row, std::byte* out) const;
  void CombineRows(int64_t out_row);
  std::byte* RingRow(int64_t y) {
    return ring_.data() + y % ring_rows_ * row_bytes_;
  }

  Taps horizontal_;
  Taps vertical_;
  int channels_ = 0;
  bool same_width_ = false;   // no horizontal pass needed
  bool same_height_ = false;  // no vertical pass needed
  int64_t row_bytes_ = 0;     // of an output row
  int64_t rows_ = 0;          // of the output
  int64_t rows_done_ = 0;
  std::byte* out_ = nullptr;

  // Source rows after the horizontal pass, row y at y modulo ring_rows_.
  int64_t ring_rows_ = 0;
  std::vector<std::byte> ring_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RESAMPLER_H_
