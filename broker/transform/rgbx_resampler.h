// Resizes and mirrors rows of RGBX pixels (8 bits each, X ignored) with vector
// instructions: the fast way of decode_image. Rows of the source go in, top to
// bottom, finished rows come out as soon as their last source row is there.
//
// One thread at a time; made once per worker, reused: buffers only grow.
//
// The filter is resampler.h's, in another arithmetic: weights of 16 bits,
// sums of 8 bits and 8 binary places, along the rows and then down the columns
// without rounding to 8 bits between, so nearer to the exact value than
// Pillow's. Integers throughout: every processor gives the same bytes, whatever
// vectors it has (Highway, one build for all of them).
#ifndef BROKER_TRANSFORM_RGBX_RESAMPLER_H_
#define BROKER_TRANSFORM_RGBX_RESAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/transform/triangle_taps.h"
#include "common/dataset_spec.h"

namespace penstock {

// In source pixels; not whole ones where the picture was decoded smaller.
struct FractionalBox {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};

// As many output pixels as a vector has 32-bit lanes. Each tap of theirs is
// found in `windows` vectors of source pixels, the first at column base + tap.
struct RgbxBlock {
  int64_t base = 0;  // counted from first_column()
  int64_t taps = 0;
  int64_t windows = 0;
  size_t table = 0;  // where the table has its indices, then its weights
};

class RgbxResampler {
 public:
  static constexpr int64_t kPixelBytes = 4;
  // Of one output pixel in one direction; 16 bits are too few for more.
  static constexpr int64_t kTapsMax = 64;
  // Pixels after the last column that is looked at which are read, whatever
  // is in them.
  static constexpr int64_t kRowSlackPixels = kTapsMax + 16;

  // Gets ready for a picture, whose box becomes target, mirrored left to right
  // if so wanted. False: it shrinks by so much that an output pixel would have
  // more than kTapsMax taps; resampler.h can do it.
  [[nodiscard]] bool Begin(const FractionalBox& box, const ImageSize& target,
                           bool mirror);

  // What is looked at: columns and rows [first, end) of the picture.
  int64_t first_column() const { return columns_.begin(); }
  int64_t end_column() const { return columns_.end(); }
  int64_t first_row() const { return rows_.begin(); }
  int64_t end_row() const { return rows_.end(); }

  // Takes row y, first_row() first, then each in order: pixels from
  // first_column() on, and kRowSlackPixels of anything. NextRow first.
  void AddRow(int64_t y, const std::byte* pixels);

  // The next finished row of the target, RGBX, until the next call; nullptr:
  // add a row.
  const std::byte* NextRow();

 private:
  void MakeBlocks(bool mirror);
  void FixWeights(const TriangleTaps& taps);
  uint16_t* RingRow(int64_t y) {
    return ring_.data() + y % rows_.taps_max * row_values_;
  }

  TriangleTaps columns_;
  TriangleTaps rows_;
  int64_t width_ = 0;       // of the target
  int64_t rows_added_ = 0;  // the source row after the last one added
  int64_t rows_done_ = 0;   // of the target
  std::vector<RgbxBlock> blocks_;
  std::vector<uint32_t> table_;
  std::vector<uint16_t> fixed_;        // weights of one direction, times 2^16
  std::vector<uint16_t> row_weights_;  // rows_', likewise
  uint16_t rounding_ = 0;

  // Source rows after the pass along them, row y at y modulo rows_.taps_max: of
  // each block the even bytes of its pixels, then the odd ones, in 16 bits.
  int64_t row_values_ = 0;
  std::vector<uint16_t> ring_;
  std::vector<std::byte> finished_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RGBX_RESAMPLER_H_
