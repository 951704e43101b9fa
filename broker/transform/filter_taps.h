// The source pixels and weights of each output pixel along one direction of a
// resize: a filter around each output pixel's centre, widened by the scale when
// the image shrinks (antialiasing), as in Pillow's Image.resize. The box clips
// it, as if the image had been cropped first.
#ifndef BROKER_TRANSFORM_FILTER_TAPS_H_
#define BROKER_TRANSFORM_FILTER_TAPS_H_

#include <cstdint>
#include <vector>

#include "broker/transform/picture.h"

namespace penstock {

struct FilterTaps {
  // Resizes the source pixels touched by [box_start, box_start + box_length) to
  // target pixels, of which `wanted` are computed, the first being number
  // first_wanted. Reusable: the vectors keep their capacity.
  void Compute(double box_start, double box_length, int64_t target,
               Interpolation filter, int64_t first_wanted, int64_t wanted);
  // All of them, by a triangle.
  void Compute(double box_start, double box_length, int64_t target) {
    Compute(box_start, box_length, target, Interpolation::kBilinear, 0, target);
  }

  // The source pixels that are used: [begin(), end()).
  int64_t begin() const { return first.front(); }
  int64_t end() const { return first.back() + count.back(); }

  // Output pixel i is the sum over t < count[i] of source pixel first[i] + t
  // times weights[i * taps_max + t]; the weights sum to 1 except for rounding.
  // first and first + count never decrease.
  int64_t taps_max = 0;
  std::vector<int64_t> first;
  std::vector<int64_t> count;
  std::vector<double> weights;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_FILTER_TAPS_H_
