// What the ops on pictures share.
#ifndef BROKER_TRANSFORM_PICTURE_H_
#define BROKER_TRANSFORM_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

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

// The features that an op of single features changes, each for itself but with
// the same random numbers. If there is only one feature, the default means that
// one.
using FeatureNames = std::vector<std::string>;
inline constexpr char kDefaultFeature[] = "image";
inline FeatureNames DefaultFeature() { return {kDefaultFeature}; }
// A name, or a list of them.
ValueType<FeatureNames> FeatureNamesType();
// The same, of a key that may be absent.
ValueType<FeatureNames> MaskNamesType();
inline constexpr char kFeatureText[] = "the feature it changes, or a list";
// Of an op that moves pixels: features whose pixels are moved with the others',
// and whose values stay as they are.
inline constexpr char kMaskText[] = "masks of it: moved alike, values kept";

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PICTURE_H_
