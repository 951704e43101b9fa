// Writes the values of a finished row of RGBX pixels to their destination, in
// other types and layouts, with vector instructions (Highway). Pure functions.
//
// Reads and ignores up to kRgbxSlackPixels pixels after the row's last one;
// writes no byte beside the values.
#ifndef BROKER_TRANSFORM_RGBX_VALUES_H_
#define BROKER_TRANSFORM_RGBX_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "broker/transform/picture.h"
#include "common/element_spec.h"

namespace penstock {

inline constexpr int64_t kRgbxSlackPixels = 16;

// value * scale + bias per channel, rounded to dtype: in single precision for
// the 16-bit types, in double precision for float32. The product and the sum
// are never fused, so that every processor rounds alike.
struct RgbxLine {
  DType dtype;  // float16, bfloat16 or float32
  double scale[3];
  double bias[3];
};

// The line that reproduces a table of all 256 values of each channel bit for
// bit; nullopt if there is none near (value / 255 - mean) / std. tables: 256
// values of dtype, per channel or once for all; mean and std likewise.
std::optional<RgbxLine> FindLine(DType dtype, std::span<const std::byte> tables,
                                 std::span<const double> mean,
                                 std::span<const double> std);

// The position of a row in the whole tensor out, [height, width, 3] or [3,
// height, width].
struct RgbxPlace {
  std::byte* out;
  Layout layout;
  ImageSize size;
  int64_t row;
};
// Pixels of three bytes as RGBX, the last one first if mirrored.
void ExpandRgb(const std::byte* rgb, int64_t width, bool mirrored,
               uint32_t* rgbx);
void WriteBytes(const std::byte* rgbx, const RgbxPlace& place);
void WriteLine(const std::byte* rgbx, const RgbxLine& line,
               const RgbxPlace& place);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_RGBX_VALUES_H_
