// The EXIF orientation of a picture file: how the stored picture is turned to
// be upright. Pure functions.
#ifndef BROKER_TRANSFORM_ORIENTATION_H_
#define BROKER_TRANSFORM_ORIENTATION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "broker/transform/crop.h"
#include "broker/transform/picture.h"

namespace penstock {

// Mirrored first, then transposed.
struct Orientation {
  bool mirrors_x = false;  // left to right
  bool mirrors_y = false;  // top to bottom
  bool transposes = false;
  bool operator==(const Orientation&) const = default;

  bool is_upright() const { return *this == Orientation(); }
  // The size of the upright picture.
  ImageSize Turn(const ImageSize& stored) const;
  // Where this box of the upright picture is in the stored one.
  CropBox TurnBack(const CropBox& upright, const ImageSize& stored) const;
};

// Tag 274 of a JPEG's APP1 segment, a PNG's eXIf chunk, a WebP's EXIF chunk or
// a TIFF's first directory, as Pillow's ImageOps.exif_transpose takes it.
// Upright if the file has none or is damaged there.
Orientation ReadOrientation(std::span<const std::byte> file);

// Writes row y of a stored box into the upright box, of channels bytes a pixel.
void TurnRow(const Orientation& orientation, const ImageSize& stored_box,
             int64_t y, int channels, const std::byte* row, std::byte* upright);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ORIENTATION_H_
