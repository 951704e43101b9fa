// Boxes of the objects in a picture: float32 [n, 4] of corners (left, top,
// right, bottom) in its pixels, where n may be the bound of a list. The ops
// that move the pixels of a picture move its boxes alike, in the arithmetic of
// torchvision.transforms.v2: float32, each step for itself, cut off at the
// picture's sides where v2 does so (all but resize and flip).
//
// And map: convert_boxes and sanitize_boxes.
#ifndef BROKER_TRANSFORM_BOXES_H_
#define BROKER_TRANSFORM_BOXES_H_

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/crop.h"
#include "broker/transform/picture.h"
#include "broker/transform/warp.h"
#include "common/status.h"

namespace penstock {

class PathBuilder;
class RowBuilder;

struct Box {
  float left;
  float top;
  float right;
  float bottom;
};

// What an op does to the boxes of a row. file: that of the picture, if the op
// decodes it. DataLoss: it is none.
using BoxMove = std::function<Status(const AugmentationKey& key,
                                     std::span<const std::byte> file,
                                     std::span<Box> boxes)>;

// Boxes of a picture of size `from`, of which view shows a part of target's
// size, chosen by crop.
void MoveIntoView(const std::optional<CropSpec>& crop, const CropView& view,
                  const ImageSize& from, const ImageSize& target,
                  std::span<Box> boxes);
// As ChooseView, for an op of this number.
Status MoveIntoView(const std::optional<CropSpec>& crop, const ImageSize& from,
                    const ImageSize& target, const AugmentationDraws& draws,
                    std::span<Box> boxes);
void Mirror(const ImageSize& picture, bool horizontal, bool vertical,
            std::span<Box> boxes);
// Each becomes the box around its moved corners.
void Project(const Projection& projection, const ImageSize& picture,
             std::span<Box> boxes);

// InvalidArgument: the feature is no float32 [n, 4] or [4], or known to be of
// another format.
Status CheckBoxes(const PathBuilder& path, BoxFormat format = BoxFormat::kXyxy,
                  std::string_view remedy = "put convert_boxes after it");
// Adds the move of an op on a picture to its boxes, `boxes`.
Status AddBoxMove(PathBuilder* picture, bool is_file, PathBuilder* boxes,
                  BoxMove move, RowBuilder* row);

struct ConvertBoxesOp {
  FeatureNames feature = {"boxes"};
  BoxFormat from = BoxFormat::kXyxy;
  BoxFormat to = BoxFormat::kXyxy;
  bool operator==(const ConvertBoxesOp&) const = default;

  static const Declaration<ConvertBoxesOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

// v2.SanitizeBoundingBoxes, after v2.ClampBoundingBoxes.
struct SanitizeBoxesOp {
  std::string feature = "boxes";
  std::string picture = kDefaultFeature;
  // Lists of an item for each box, beside those that the source tells.
  FeatureNames labels;
  double min_size = 1;
  double min_area = 1;
  bool clamp = true;
  bool operator==(const SanitizeBoxesOp&) const = default;

  static const Declaration<SanitizeBoxesOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_BOXES_H_
