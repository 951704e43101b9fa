// Resizes and mirrors rows of RGBX pixels (8 bits each, X ignored) with vector
// instructions: the fast path of decode_image. Source rows go in from top to
// bottom; an output row is available as soon as its last source row has
// arrived.
//
// Not thread-safe; made once per worker and reused: buffers only grow.
//
// The filter is that of resampler.h, in different arithmetic: 16-bit weights;
// sums of 8 bits and 8 binary places, along the rows and then down the columns
// without rounding to 8 bits between, so closer to the exact value than
// Pillow's. Integers throughout: every processor gives the same bytes, whatever
// its vectors (Highway, one build for all of them).
#ifndef BROKER_TRANSFORM_RGBX_RESAMPLER_H_
#define BROKER_TRANSFORM_RGBX_RESAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/transform/filter_taps.h"
#include "broker/transform/picture.h"

namespace penstock {

// In source pixels; fractional if the picture was decoded at a smaller scale.
struct FractionalBox {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};

// As many output pixels as a vector has 32-bit lanes. Each of their taps is in
// `windows` vectors of source pixels, the first at column base + tap.
struct RgbxBlock {
  int64_t base = 0;  // counted from first_column()
  int64_t taps = 0;
  int64_t windows = 0;
  size_t table = 0;  // offset of its indices in the table; its weights follow
};

class RgbxResampler {
 public:
  static constexpr int64_t kPixelBytes = 4;
  // Taps of one output pixel in one direction; 16 bits do not suffice for more.
  static constexpr int64_t kTapsMax = 64;
  // Pixels after the last used column that are read and ignored.
  static constexpr int64_t kRowSlackPixels = kTapsMax + 16;

  // Prepares to resize box to target, mirrored left to right if `mirror`.
  // False: it shrinks so much that an output pixel would have more than
  // kTapsMax taps; use resampler.h.
  [[nodiscard]] bool Begin(const FractionalBox& box, const ImageSize& target,
                           bool mirror);

  // The columns and rows [first, end) of the picture that are used.
  int64_t first_column() const { return columns_.begin(); }
  int64_t end_column() const { return columns_.end(); }
  int64_t first_row() const { return rows_.begin(); }
  int64_t end_row() const { return rows_.end(); }

  // Takes row y: first_row() first, then all in order. pixels starts at
  // first_column() and has kRowSlackPixels arbitrary pixels at the end. Call
  // NextRow before.
  void AddRow(int64_t y, const std::byte* pixels);

  // The next finished row of the target, RGBX, valid until the next call;
  // nullptr: add a row.
  const std::byte* NextRow();

 private:
  void MakeBlocks(bool mirror);
  void FixWeights(const FilterTaps& taps);
  uint16_t* RingRow(int64_t y) {
    return ring_.data() + y % rows_.taps_max * row_values_;
  }

  FilterTaps columns_;
  FilterTaps rows_;
  int64_t width_ = 0;       // of the target
  int64_t rows_added_ = 0;  // one past the last source row added
  int64_t rows_done_ = 0;   // of the target
  std::vector<RgbxBlock> blocks_;
  std::vector<uint32_t> table_;
  std::vector<uint16_t> fixed_;        // weights of one direction, times 2^16
  std::vector<uint16_t> row_weights_;  // of rows_, likewise
  uint16_t rounding_ = 0;

  // Source rows after the pass along them, row y at index y modulo
  // rows_.taps_max. Each block holds the even bytes of its pixels, then the odd
  // ones, in 16 bits.
  int64_t row_values_ = 0;
  std::vector<uint16_t> ring_;
  std::vector<std::byte> finished_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RGBX_RESAMPLER_H_
