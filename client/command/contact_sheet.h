// Draws the pictures of a batch as a grid, and writes it as PNG.
#ifndef CLIENT_COMMAND_CONTACT_SHEET_H_
#define CLIENT_COMMAND_CONTACT_SHEET_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// Width of the gaps between and around pictures.
inline constexpr int64_t kSheetGapPixels = 2;
// A sheet of more pixels shows fewer rows.
inline constexpr int64_t kSheetPixelsMax = 64 * 1024 * 1024;

// The layout of a picture in a row of a feature.
struct PictureLayout {
  int64_t height;
  int64_t width;
  int64_t channels;     // 1 or 3
  bool channels_first;  // [channels, height, width]
};

// [h, w], [h, w, c] or [c, h, w] with c of 1 or 3 (the last dimension, if both
// could be c); nullopt: no picture.
std::optional<PictureLayout> PictureLayoutOf(const Feature& feature);

// A value as a number, whatever its dtype.
double ValueAt(DType dtype, const void* data, uint64_t index);

struct ContactSheet {
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;         // 1: gray, 3: RGB
  uint64_t rows = 0;            // rows drawn, from the first
  std::vector<uint8_t> pixels;  // [height, width, channels]
};

// Boxes of the objects in pictures: left, top, right, bottom, in pixels.
struct DrawnBoxes {
  const float* data = nullptr;       // [rows, room, 4]; null: there are none
  const int64_t* lengths = nullptr;  // how many are each row's; null: room
  int64_t room = 0;
};

// A feature to be drawn, with all rows of a batch.
struct DrawnFeature {
  Feature feature;
  PictureLayout layout;  // the feature's
  const void* data;      // [rows, shape...]
  DrawnBoxes boxes = {};
  // How much of its first dimension each row has; the rest of its place stays
  // empty. nullptr: all.
  const int64_t* lengths = nullptr;
};

// The features of a row are side by side. uint8 is shown as is; any other
// dtype, and a feature of one channel behind the first, which may be a mask, is
// stretched to 0-255, each channel from its least to its greatest finite value
// in the rows drawn: the colours of normalized pictures are plausible, not
// exact. NaN and infinity are black; a channel of one value is mid-gray. Boxes
// are coloured frames. The grid is about square. Precondition: there is a
// feature.
ContactSheet DrawContactSheet(std::span<const DrawnFeature> features,
                              uint64_t rows);

// Writes `temporary` and renames it to `path`, so that path is never a partial
// picture. A crash may leave `temporary`, which must be in the same folder.
Status WritePng(const ContactSheet& sheet, const std::string& path,
                const std::string& temporary);

}  // namespace penstock
#endif  // CLIENT_COMMAND_CONTACT_SHEET_H_
