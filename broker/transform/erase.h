// map: random_erasing. A picture of any dtype and layout -> the same, a
// rectangle of it overwritten: torchvision's v2.RandomErasing.
#ifndef BROKER_TRANSFORM_ERASE_H_
#define BROKER_TRANSFORM_ERASE_H_

#include <optional>
#include <vector>

#include "broker/transform/picture.h"

namespace penstock {

// Draw 0 below probability: it erases. Attempt t of 0..9 uses
//   draw 1 + 4t the area: uniform in scale, times the picture's area
//   draw 2 + 4t the aspect ratio, height / width: log-uniform in ratio
//   draws 3 + 4t and 4 + 4t top and left
// and is taken if both sides, rounded half to even, are below the picture's.
// Normal numbers: Philox4x32-10, its key the bits of draw 63, its counter
// {block, 0, 0, 0}; words 0 and 1 of a block give two by Box and Muller, 2 and
// 3 two more; value i, counted by channel, row, column, is number i % 4 of
// block i / 4.
struct RandomErasingOp {
  FeatureNames feature = DefaultFeature();
  Range scale = {0.02, 0.33};
  Range ratio = {0.3, 3.3};
  // One for all channels, or one each; absent: normal random numbers.
  std::optional<std::vector<double>> value = std::vector<double>{0};
  double probability = 0.5;
  bool operator==(const RandomErasingOp&) const = default;

  static const Declaration<RandomErasingOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ERASE_H_
