// Moves the pixels of a picture by an affine or projective map, into a picture
// of the same size: Pillow's Image.transform. Pure functions.
#ifndef BROKER_TRANSFORM_WARP_H_
#define BROKER_TRANSFORM_WARP_H_

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "broker/transform/canvas.h"
#include "broker/transform/picture.h"

namespace penstock {

// Those that Warp takes.
ValueType<Interpolation> WarpInterpolationType();

// Where a pixel of the result comes from. With its centre at (x, y):
//   ((a0 x + a1 y + a2) / (a6 x + a7 y + 1),
//    (a3 x + a4 y + a5) / (a6 x + a7 y + 1))
struct Projection {
  std::array<double, 8> a = {1, 0, 0, 0, 1, 0, 0, 0};
  bool is_affine() const { return a[6] == 0 && a[7] == 0; }
};

struct AffineParts {
  double degrees = 0;  // clockwise
  double right = 0;    // of the translation, in pixels
  double down = 0;
  double scale = 1;
  double shear_x = 0;  // degrees
  double shear_y = 0;
};
// torchvision's functional.affine; around the centre, or the picture's.
Projection AffineProjection(const AffineParts& parts,
                            const std::array<double, 2>& centre);
// Pillow's Image.rotate: counterclockwise.
Projection RotationProjection(double degrees,
                              const std::array<double, 2>& centre);
// torchvision's functional.perspective: moves the corner pixels (top left, top
// right, bottom right, bottom left) to these points x, y. nullopt: no map does.
std::optional<Projection> PerspectiveProjection(
    const ImageSize& size, const std::array<double, 8>& corners);

// fill: a pixel, where the source is outside. A mask takes the nearest pixel.
// kNearest: Pillow's bytes. kBilinear: at most 1 off, since a place is rounded
// to 2^-11 of a pixel. kBicubic: Pillow's bytes.
void Warp(const Projection& projection, Interpolation interpolation,
          std::span<const std::byte> fill, Canvas* canvas);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_WARP_H_
