// map: the ops that change the values of a picture and move no pixel. uint8
// [h, w] or [h, w, 1 or 3] -> the same. Values are Pillow's; draws have the
// distributions of torchvision.transforms.v2. Draw 0 below `probability`
// changes the picture.
#ifndef BROKER_TRANSFORM_COLOR_H_
#define BROKER_TRANSFORM_COLOR_H_

#include <cstdint>

#include "broker/transform/picture.h"

namespace penstock {

// v2.ColorJitter: the four in a random order. Draws 1 to 3 give the order
// (Fisher and Yates: place i = 3, 2, 1 is exchanged with floor(draw * (i + 1)))
// of brightness, contrast, saturation, hue; draws 4 to 7 their factors.
struct ColorJitterOp {
  FeatureNames feature = DefaultFeature();
  Range brightness = {1, 1};
  Range contrast = {1, 1};
  Range saturation = {1, 1};
  Range hue = {0, 0};
  double probability = 1;
  bool operator==(const ColorJitterOp&) const = default;

  static const Declaration<ColorJitterOp>& Declared();
  PictureStep Step() const;
};

// v2.RandomGrayscale; the channels stay as many.
struct GrayscaleOp {
  FeatureNames feature = DefaultFeature();
  double probability = 0.1;
  bool operator==(const GrayscaleOp&) const = default;

  static const Declaration<GrayscaleOp>& Declared();
  PictureStep Step() const;
};

// v2.GaussianBlur. Draw 1: sigma.
struct BlurOp {
  FeatureNames feature = DefaultFeature();
  int64_t kernel = 1;
  Range sigma = {0.1, 2};
  double probability = 1;
  bool operator==(const BlurOp&) const = default;

  static const Declaration<BlurOp>& Declared();
  Status Check(const PathBuilder& path) const;
  PictureStep Step() const;
};

// v2.RandomAdjustSharpness.
struct SharpnessOp {
  FeatureNames feature = DefaultFeature();
  double factor = 1;
  double probability = 0.5;
  bool operator==(const SharpnessOp&) const = default;

  static const Declaration<SharpnessOp>& Declared();
  PictureStep Step() const;
};

// v2.RandomSolarize.
struct SolarizeOp {
  FeatureNames feature = DefaultFeature();
  double threshold = 128;
  double probability = 0.5;
  bool operator==(const SolarizeOp&) const = default;

  static const Declaration<SolarizeOp>& Declared();
  PictureStep Step() const;
};

// v2.RandomPosterize.
struct PosterizeOp {
  FeatureNames feature = DefaultFeature();
  int64_t bits = 8;
  double probability = 0.5;
  bool operator==(const PosterizeOp&) const = default;

  static const Declaration<PosterizeOp>& Declared();
  PictureStep Step() const;
};

// v2.RandomEqualize.
struct EqualizeOp {
  FeatureNames feature = DefaultFeature();
  double probability = 0.5;
  bool operator==(const EqualizeOp&) const = default;

  static const Declaration<EqualizeOp>& Declared();
  PictureStep Step() const;
};

// v2.RandomAutocontrast.
struct AutocontrastOp {
  FeatureNames feature = DefaultFeature();
  double probability = 0.5;
  bool operator==(const AutocontrastOp&) const = default;

  static const Declaration<AutocontrastOp>& Declared();
  PictureStep Step() const;
};

// v2.RandomInvert.
struct InvertOp {
  FeatureNames feature = DefaultFeature();
  double probability = 0.5;
  bool operator==(const InvertOp&) const = default;

  static const Declaration<InvertOp>& Declared();
  PictureStep Step() const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_COLOR_H_
