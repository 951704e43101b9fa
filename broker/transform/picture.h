// What the ops on pictures share.
#ifndef BROKER_TRANSFORM_PICTURE_H_
#define BROKER_TRANSFORM_PICTURE_H_

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

class AugmentationDraws;
class Canvas;
class PathBuilder;
template <typename T>
class Declaration;
template <typename V>
struct ValueType;

inline constexpr int64_t kImageSideMax = 65535;  // JPEG's limit
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
// the same random numbers. If there is only one feature, a default means that
// one.
using FeatureNames = std::vector<std::string>;
inline constexpr char kDefaultFeature[] = "image";
inline FeatureNames DefaultFeature() { return {kDefaultFeature}; }
// The feature that an op of labels changes.
inline constexpr char kDefaultLabel[] = "label";
inline FeatureNames DefaultLabel() { return {kDefaultLabel}; }
// Those of ops of sounds, and of texts.
inline constexpr char kDefaultSound[] = "audio";
inline constexpr char kDefaultText[] = "text";
inline FeatureNames DefaultText() { return {kDefaultText}; }
// A name, or a list of them.
ValueType<FeatureNames> FeatureNamesType();
// The same, of a key that may be absent.
ValueType<FeatureNames> MaskNamesType();
// The masks of an op that moves pixels: features whose pixels are moved with
// the others', and whose values stay as they are.
template <typename Op>
concept TakesMasks = requires(const Op& op) {
  { op.mask } -> std::same_as<const FeatureNames&>;
};

// The boxes of such an op: corners in its pixels, which move with them.
template <typename Op>
concept TakesBoxes = requires(const Op& op) {
  { op.boxes } -> std::same_as<const FeatureNames&>;
};

// What an op does to a picture of bytes in place, as its draws say.
using PictureStep =
    std::function<void(const AugmentationDraws& draws, Canvas& canvas)>;

// low <= high; a number is drawn uniformly between them.
using Range = std::array<double, 2>;
// [low, high] with min <= low <= high <= max.
ValueType<Range> Interval(double min, double max);
// The same, or one number: the range of centre -/+ it, cut off at min.
ValueType<Range> IntervalAround(double centre, double min, double max);

// How pixels are made between others.
enum class Interpolation { kNearest, kBilinear, kBicubic, kLanczos };
ValueType<Interpolation> InterpolationType(
    std::initializer_list<Interpolation> allowed);

// What is beside a picture.
enum class PadMode { kConstant, kEdge, kReflect, kSymmetric };
ValueType<PadMode> PadModeType();
inline constexpr char kPadModeText[] =
    "what is beside the picture: fill, its edge, or its mirror image, without "
    "and with the edge";

// left, top, right, bottom; or one number for all four.
ValueType<std::array<int64_t, 4>> FourSides();
// [low, high], or one number.
ValueType<std::array<int64_t, 2>> WholeRange(int64_t min, int64_t max);

// The value of each byte of a pixel where there is no picture; one for all
// channels, or one each. Of masks: a value of their dtype.
using Fill = std::vector<int64_t>;
ValueType<Fill> FillType();
inline constexpr char kFillText[] =
    "0 to 255, where there is no picture; one for all channels, or each";
ValueType<int64_t> MaskFillType();

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PICTURE_H_
