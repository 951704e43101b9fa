// What the ops on pictures share.
#ifndef BROKER_TRANSFORM_PICTURE_H_
#define BROKER_TRANSFORM_PICTURE_H_

#include <cstdint>

#include "common/status.h"

namespace penstock {

class PathBuilder;
template <typename T>
class Declaration;
template <typename V>
struct ValueType;

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};
// [height, width], or one number for both.
ValueType<ImageSize> ImageSizeType();
inline constexpr char kSizeText[] = "of the result";

// kChw turns [h, w, c] into [c, h, w]; [h, w] is unchanged.
enum class Layout { kHwc, kChw };
ValueType<Layout> LayoutType();
inline constexpr char kLayoutText[] = "channels last, or first";

// The feature that an op of single features changes; if there is only one, the
// default means that one.
inline constexpr char kDefaultFeature[] = "image";
inline constexpr char kFeatureText[] = "the feature it changes";

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PICTURE_H_
