#include "broker/transform/color.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "broker/transform/augmentation.h"
#include "broker/transform/canvas.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kFactorMax = 100;
constexpr int64_t kKernelMax = 255;
constexpr double kSigmaMin = 0.001;
constexpr double kSigmaMax = 1000;

// Calls a method of the canvas for a part of the pictures.
template <typename... Values>
PictureStep Sometimes(double probability, void (Canvas::*change)(Values...),
                      Values... values) {
  return [=](const AugmentationDraws& draws, Canvas& canvas) {
    if (draws.Uniform(0) < probability) (canvas.*change)(values...);
  };
}

using Factor = std::pair<Range, void (Canvas::*)(double)>;

Status CheckKernel(const YamlValue& value, BlurOp* op) {
  if (op->kernel % 2 == 1) return OkStatus();
  return value.Required("kernel").Error(
      Format("{}: wanted an odd number", op->kernel));
}

// As v2.functional.gaussian_blur makes it.
std::array<float, kKernelMax> GaussianWeights(int64_t kernel, double sigma) {
  std::array<double, kKernelMax> exact;
  double sum = 0;
  for (int64_t i = 0; i < kernel; ++i) {
    const double distance =
        (static_cast<double>(i) - static_cast<double>(kernel / 2)) / sigma;
    exact[i] = std::exp(-0.5 * distance * distance);
    sum += exact[i];
  }
  std::array<float, kKernelMax> weights;
  for (int64_t i = 0; i < kernel; ++i) {
    weights[i] = static_cast<float>(exact[i] / sum);
  }
  return weights;
}

}  // namespace

// ---- color_jitter

const Declaration<ColorJitterOp>& ColorJitterOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<ColorJitterOp>("color_jitter",
                               "Changes the colours at random, in a random "
                               "order: torchvision's ColorJitter.")
          .Example(
              "{brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}")
          .Optional("brightness", &ColorJitterOp::brightness,
                    IntervalAround(1, 0, kFactorMax),
                    "the range of the factor, or how far it is from 1")
          .Optional("contrast", &ColorJitterOp::contrast,
                    IntervalAround(1, 0, kFactorMax), "likewise")
          .Optional("saturation", &ColorJitterOp::saturation,
                    IntervalAround(1, 0, kFactorMax), "likewise")
          .Optional("hue", &ColorJitterOp::hue, IntervalAround(0, -0.5, 0.5),
                    "the range of its turn, or how far it is from 0; 0.5 is "
                    "half a circle"));
  return declared;
}

PictureStep ColorJitterOp::Step() const {
  const std::array<Factor, 4> factors = {
      Factor{brightness, &Canvas::Brightness},
      Factor{contrast, &Canvas::Contrast},
      Factor{saturation, &Canvas::Saturation}, Factor{hue, &Canvas::Hue}};
  const std::array<Range, 4> unchanged = {Range{1, 1}, Range{1, 1}, Range{1, 1},
                                          Range{0, 0}};
  return [probability = probability, factors, unchanged](
             const AugmentationDraws& draws, Canvas& canvas) {
    if (draws.Uniform(0) >= probability) return;
    std::array<uint32_t, 4> order = {0, 1, 2, 3};
    for (uint32_t i = 3; i > 0; --i) {
      std::swap(order[i], order[draws.Choice(4 - i, i + 1)]);
    }
    for (const uint32_t i : order) {
      const auto& [range, change] = factors[i];
      if (range == unchanged[i]) continue;
      (canvas.*change)(draws.Within(4 + i, range));
    }
  };
}

// ---- grayscale

const Declaration<GrayscaleOp>& GrayscaleOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<GrayscaleOp>(
          "grayscale", "Makes a picture gray: torchvision's RandomGrayscale.")
          .Example("{probability: 0.2}"));
  return declared;
}

PictureStep GrayscaleOp::Step() const {
  return Sometimes(probability, &Canvas::Grayscale);
}

// ---- blur

const Declaration<BlurOp>& BlurOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<BlurOp>("blur", "Blurs a picture: torchvision's GaussianBlur.")
          .Example("{kernel: 23, sigma: [0.1, 2.0], probability: 0.5}")
          .Required("kernel", &BlurOp::kernel,
                    WholeNumber<int64_t>(1, kKernelMax),
                    "the pixels of a side of the filter; odd")
          .Optional("sigma", &BlurOp::sigma, Interval(kSigmaMin, kSigmaMax),
                    "the range of its standard deviation, in pixels")
          .Check(CheckKernel));
  return declared;
}

Status BlurOp::Check(const PathBuilder& path) const {
  const auto [height, width] = path.size();
  if (kernel / 2 < std::min(height, width)) return OkStatus();
  return InvalidArgumentError(
      "a kernel of {} reaches across {}: at most {} fits", kernel,
      path.feature().ToString(), 2 * std::min(height, width) - 1);
}

PictureStep BlurOp::Step() const {
  return [op = *this](const AugmentationDraws& draws, Canvas& canvas) {
    if (draws.Uniform(0) >= op.probability) return;
    const auto weights = GaussianWeights(op.kernel, draws.Within(1, op.sigma));
    canvas.Blur({weights.data(), static_cast<size_t>(op.kernel)});
  };
}

// ---- sharpness

const Declaration<SharpnessOp>& SharpnessOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<SharpnessOp>(
          "sharpness",
          "Sharpens or smooths a picture: torchvision's RandomAdjustSharpness.")
          .Example("{factor: 2}")
          .Required("factor", &SharpnessOp::factor, Number(0, kFactorMax),
                    "0: smoothed, 1: unchanged, 2: sharpened"));
  return declared;
}

PictureStep SharpnessOp::Step() const {
  return Sometimes(probability, &Canvas::Sharpness, factor);
}

// ---- solarize

const Declaration<SolarizeOp>& SolarizeOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<SolarizeOp>("solarize",
                            "Inverts the values from a threshold up: "
                            "torchvision's RandomSolarize.")
          .Example("{threshold: 128, probability: 0.2}")
          .Optional("threshold", &SolarizeOp::threshold, Number(0, 256),
                    "the lowest value that is inverted"));
  return declared;
}

PictureStep SolarizeOp::Step() const {
  return Sometimes(probability, &Canvas::Solarize, threshold);
}

// ---- posterize

const Declaration<PosterizeOp>& PosterizeOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<PosterizeOp>("posterize",
                             "Keeps the upper bits of each value: "
                             "torchvision's RandomPosterize.")
          .Example("{bits: 4}")
          .Required("bits", &PosterizeOp::bits, WholeNumber<int64_t>(0, 8),
                    "how many are kept"));
  return declared;
}

PictureStep PosterizeOp::Step() const {
  return Sometimes(probability, &Canvas::Posterize, bits);
}

// ---- equalize

const Declaration<EqualizeOp>& EqualizeOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<EqualizeOp>("equalize",
                            "Makes the values of each channel equally "
                            "frequent: torchvision's RandomEqualize.")
          .Example("{probability: 0.5}"));
  return declared;
}

PictureStep EqualizeOp::Step() const {
  return Sometimes(probability, &Canvas::Equalize);
}

// ---- autocontrast

const Declaration<AutocontrastOp>& AutocontrastOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<AutocontrastOp>("autocontrast",
                                "Stretches the values of each channel to 0 "
                                "to 255: torchvision's RandomAutocontrast.")
          .Example("{probability: 0.5}"));
  return declared;
}

PictureStep AutocontrastOp::Step() const {
  return Sometimes(probability, &Canvas::AutoContrast);
}

// ---- invert

const Declaration<InvertOp>& InvertOp::Declared() {
  static const auto declared = WithProbability(
      PictureOp<InvertOp>("invert",
                          "Computes 255 − value: torchvision's RandomInvert.")
          .Example("{probability: 0.5}"));
  return declared;
}

PictureStep InvertOp::Step() const {
  return Sometimes(probability, &Canvas::Invert);
}

}  // namespace penstock
