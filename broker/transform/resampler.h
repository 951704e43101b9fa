// Resizes 8-bit pictures, row by row: rows of the source go in, top to bottom,
// finished rows come out as soon as their last source row is there. So the
// memory is the rows that one output row looks at, not the picture.
//
// One thread at a time; made once per worker, reused: buffers only grow.
//
// The filter is Pillow's Image.crop(box).resize(size, BILINEAR), and so are the
// numbers, bit for bit: a triangle over the source pixels around each output
// pixel's centre, widened by the scale when the picture shrinks (antialiasing);
// weights in 22-bit fixed point; first along the rows, rounded to 8 bits, then
// down the columns.
#ifndef BROKER_TRANSFORM_RESAMPLER_H_
#define BROKER_TRANSFORM_RESAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/transform/crop.h"
#include "broker/transform/triangle_taps.h"
#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

class Resampler {
 public:
  static constexpr int kChannelsMax = 4;
  static constexpr int64_t kRingBytesMax = int64_t{256} << 20;

  // Gets ready for a picture, whose box becomes out: target.height rows of
  // target.width * channels bytes. channels: 1 to kChannelsMax.
  // DataLoss: the filter would need more than kRingBytesMax of scratch, which
  // nobody promised memory for.
  [[nodiscard]] Status Begin(const CropBox& box, const ImageSize& target,
                             int channels, std::byte* out);

  // The source rows that are looked at are [first_row(), end_row()).
  int64_t first_row() const { return vertical_.begin(); }
  int64_t end_row() const { return vertical_.end(); }

  // Takes row y, a whole one of the picture: first_row() first, then each in
  // order. out is finished after row end_row() - 1.
  void AddRow(int64_t y, const std::byte* row);

 private:
  // Of one direction, in 22-bit fixed point.
  struct Taps : TriangleTaps {
    void Compute(int64_t box_start, int64_t box_length, int64_t target);

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
  bool same_width_ = false;   // the box needs no horizontal pass
  bool same_height_ = false;  // nor a vertical one
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
