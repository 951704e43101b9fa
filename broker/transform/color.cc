#include "broker/transform/color.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kFactorMax = 100;
constexpr int64_t kKernelMax = 255;
constexpr double kSigmaMin = 0.001;
constexpr double kSigmaMax = 1000;

template <typename Op>
Declaration<Op> ColorDeclared(std::string name, std::string text) {
  return Declaration<Op>(std::move(name), std::move(text))
      .Gives("uint8 picture → the same")
      .Optional("feature", &Op::feature, FeatureNamesType(), kFeatureText);
}

// Adds a step that changes the pictures below the op's probability.
template <typename Op, typename Change>
Status AddColorStep(const Op& op, PathBuilder* path, uint32_t number,
                    Change change) {
  PENSTOCK_RETURN_IF_ERROR(path->CheckPicture(op.Declared().name()));
  path->AddPictureStep(
      number, [probability = op.probability, change = std::move(change)](
                  const AugmentationDraws& draws, Canvas& canvas) {
        if (draws.Uniform(0) < probability) change(draws, canvas);
      });
  return OkStatus();
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
  static const auto declared =
      ColorDeclared<ColorJitterOp>("color_jitter",
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
                    "half a circle")
          .Optional("probability", &ColorJitterOp::probability,
                    ProbabilityType(), kProbabilityText);
  return declared;
}

Status ColorJitterOp::AddTo(PathBuilder* path, uint32_t number) const {
  const std::array<Factor, 4> factors = {
      Factor{brightness, &Canvas::Brightness},
      Factor{contrast, &Canvas::Contrast},
      Factor{saturation, &Canvas::Saturation}, Factor{hue, &Canvas::Hue}};
  const std::array<Range, 4> unchanged = {Range{1, 1}, Range{1, 1}, Range{1, 1},
                                          Range{0, 0}};
  return AddColorStep(
      *this, path, number,
      [factors, unchanged](const AugmentationDraws& draws, Canvas& canvas) {
        std::array<uint32_t, 4> order = {0, 1, 2, 3};
        for (uint32_t i = 3; i > 0; --i) {
          std::swap(order[i], order[draws.Choice(4 - i, i + 1)]);
        }
        for (const uint32_t i : order) {
          const auto& [range, change] = factors[i];
          if (range == unchanged[i]) continue;
          (canvas.*change)(draws.Within(4 + i, range));
        }
      });
}

// ---- grayscale

const Declaration<GrayscaleOp>& GrayscaleOp::Declared() {
  static const auto declared =
      ColorDeclared<GrayscaleOp>(
          "grayscale", "Makes a picture gray: torchvision's RandomGrayscale.")
          .Example("{probability: 0.2}")
          .Optional("probability", &GrayscaleOp::probability, ProbabilityType(),
                    kProbabilityText);
  return declared;
}

Status GrayscaleOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(
      *this, path, number,
      [](const AugmentationDraws&, Canvas& canvas) { canvas.Grayscale(); });
}

// ---- blur

const Declaration<BlurOp>& BlurOp::Declared() {
  static const auto declared =
      ColorDeclared<BlurOp>("blur",
                            "Blurs a picture: torchvision's GaussianBlur.")
          .Example("{kernel: 23, sigma: [0.1, 2.0], probability: 0.5}")
          .Required("kernel", &BlurOp::kernel,
                    WholeNumber<int64_t>(1, kKernelMax),
                    "the pixels of a side of the filter; odd")
          .Optional("sigma", &BlurOp::sigma, Interval(kSigmaMin, kSigmaMax),
                    "the range of its standard deviation, in pixels")
          .Optional("probability", &BlurOp::probability, ProbabilityType(),
                    kProbabilityText)
          .Check(CheckKernel);
  return declared;
}

Status BlurOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckPicture("blur"));
  const std::vector<int64_t>& shape = path->feature().shape;
  if (kernel / 2 >= std::min(shape[0], shape[1])) {
    return InvalidArgumentError(
        "a kernel of {} reaches across {}: at most {} fits", kernel,
        path->feature().ToString(), 2 * std::min(shape[0], shape[1]) - 1);
  }
  return AddColorStep(
      *this, path, number,
      [kernel = kernel, sigma = sigma](const AugmentationDraws& draws,
                                       Canvas& canvas) {
        const auto weights = GaussianWeights(kernel, draws.Within(1, sigma));
        canvas.Blur({weights.data(), static_cast<size_t>(kernel)});
      });
}

// ---- sharpness

const Declaration<SharpnessOp>& SharpnessOp::Declared() {
  static const auto declared =
      ColorDeclared<SharpnessOp>(
          "sharpness",
          "Sharpens or smooths a picture: torchvision's RandomAdjustSharpness.")
          .Example("{factor: 2}")
          .Required("factor", &SharpnessOp::factor, Number(0, kFactorMax),
                    "0: smoothed, 1: unchanged, 2: sharpened")
          .Optional("probability", &SharpnessOp::probability, ProbabilityType(),
                    kProbabilityText);
  return declared;
}

Status SharpnessOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(
      *this, path, number,
      [factor = factor](const AugmentationDraws&, Canvas& canvas) {
        canvas.Sharpness(factor);
      });
}

// ---- solarize

const Declaration<SolarizeOp>& SolarizeOp::Declared() {
  static const auto declared =
      ColorDeclared<SolarizeOp>("solarize",
                                "Inverts the values from a threshold up: "
                                "torchvision's RandomSolarize.")
          .Example("{threshold: 128, probability: 0.2}")
          .Optional("threshold", &SolarizeOp::threshold, Number(0, 256),
                    "the lowest value that is inverted")
          .Optional("probability", &SolarizeOp::probability, ProbabilityType(),
                    kProbabilityText);
  return declared;
}

Status SolarizeOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(
      *this, path, number,
      [threshold = threshold](const AugmentationDraws&, Canvas& canvas) {
        canvas.Solarize(threshold);
      });
}

// ---- posterize

const Declaration<PosterizeOp>& PosterizeOp::Declared() {
  static const auto declared =
      ColorDeclared<PosterizeOp>("posterize",
                                 "Keeps the upper bits of each value: "
                                 "torchvision's RandomPosterize.")
          .Example("{bits: 4}")
          .Required("bits", &PosterizeOp::bits, WholeNumber<int64_t>(0, 8),
                    "how many are kept")
          .Optional("probability", &PosterizeOp::probability, ProbabilityType(),
                    kProbabilityText);
  return declared;
}

Status PosterizeOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(*this, path, number,
                      [bits = bits](const AugmentationDraws&, Canvas& canvas) {
                        canvas.Posterize(bits);
                      });
}

// ---- equalize

const Declaration<EqualizeOp>& EqualizeOp::Declared() {
  static const auto declared =
      ColorDeclared<EqualizeOp>("equalize",
                                "Makes the values of each channel equally "
                                "frequent: torchvision's RandomEqualize.")
          .Example("{probability: 0.5}")
          .Optional("probability", &EqualizeOp::probability, ProbabilityType(),
                    kProbabilityText);
  return declared;
}

Status EqualizeOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(
      *this, path, number,
      [](const AugmentationDraws&, Canvas& canvas) { canvas.Equalize(); });
}

// ---- autocontrast

const Declaration<AutocontrastOp>& AutocontrastOp::Declared() {
  static const auto declared =
      ColorDeclared<AutocontrastOp>("autocontrast",
                                    "Stretches the values of each channel to 0 "
                                    "to 255: torchvision's RandomAutocontrast.")
          .Example("{probability: 0.5}")
          .Optional("probability", &AutocontrastOp::probability,
                    ProbabilityType(), kProbabilityText);
  return declared;
}

Status AutocontrastOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(
      *this, path, number,
      [](const AugmentationDraws&, Canvas& canvas) { canvas.AutoContrast(); });
}

// ---- invert

const Declaration<InvertOp>& InvertOp::Declared() {
  static const auto declared =
      ColorDeclared<InvertOp>(
          "invert", "Computes 255 − value: torchvision's RandomInvert.")
          .Example("{probability: 0.5}")
          .Optional("probability", &InvertOp::probability, ProbabilityType(),
                    kProbabilityText);
  return declared;
}

Status InvertOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddColorStep(
      *this, path, number,
      [](const AugmentationDraws&, Canvas& canvas) { canvas.Invert(); });
}

}  // namespace penstock
