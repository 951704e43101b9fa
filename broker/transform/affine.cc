#include "broker/transform/affine.h"

#include <cmath>
#include <string>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kDegreesMax = 3600;
constexpr double kShearMax = 89;
constexpr double kScaleMin = 0.01;
constexpr double kScaleMax = 100;
constexpr double kPlaceMax = 1e6;

template <typename Op>
Declaration<Op> MovingDeclared(std::string name, std::string text) {
  return Declaration<Op>(std::move(name), std::move(text))
      .Gives("uint8 picture → the same")
      .Optional("feature", &Op::feature, FeatureNamesType(), kFeatureText)
      .Optional("mask", &Op::mask, MaskNamesType(), kMaskText);
}

template <typename Op>
void DeclareSampling(Declaration<Op>* declared) {
  declared
      ->Optional("interpolation", &Op::interpolation, WarpInterpolationType(),
                 kInterpolationText)
      .Optional("fill", &Op::fill, FillType(), kFillText)
      .Optional("mask_fill", &Op::mask_fill, MaskFillType(), kMaskFillText)
      .Optional("probability", &Op::probability, ProbabilityType(),
                kProbabilityText);
}

// count numbers.
template <size_t kCount>
ValueType<std::array<double, kCount>> Numbers(double min, double max,
                                              std::string wanted) {
  const ValueType<std::vector<double>> list =
      List(Number(min, max), kCount, kCount, std::move(wanted));
  return {list.wanted,
          [list](const YamlValue& value, std::string_view wanted,
                 std::array<double, kCount>* out) {
            std::vector<double> numbers;
            PENSTOCK_RETURN_IF_ERROR(list.read(value, wanted, &numbers));
            std::copy(numbers.begin(), numbers.end(), out->begin());
            return OkStatus();
          },
          [list](const std::array<double, kCount>& numbers, auto* out) {
            list.write({numbers.begin(), numbers.end()}, out);
          }};
}

// A range along x and one along y, each as IntervalAround reads it; without
// `list`, one range is that along x.
ValueType<std::array<Range, 2>> TwoRanges(double max, std::string wanted,
                                          bool single) {
  const ValueType<Range> range = IntervalAround(0, -max, max);
  return {
      std::move(wanted),
      [range, single](const YamlValue& value, std::string_view wanted,
                      std::array<Range, 2>* out) {
        if (single && value.IsScalar()) return range.Read(value, &(*out)[0]);
        PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(2, 2, wanted));
        PENSTOCK_RETURN_IF_ERROR(range.Read(value.Item(0), &(*out)[0]));
        return range.Read(value.Item(1), &(*out)[1]);
      },
      [range](const std::array<Range, 2>& ranges, nlohmann::ordered_json* out) {
        WriteList(
            2, [&](size_t i, auto* each) { range.write(ranges[i], each); },
            out);
      }};
}

// project: what the draws make of a picture of this size; nullopt: no change.
template <typename Op, typename Project>
PictureStep WarpStep(const Op& op, std::vector<std::byte> fill,
                     Project project) {
  return [=, probability = op.probability, interpolation = op.interpolation](
             const AugmentationDraws& draws, Canvas& canvas) {
    if (draws.Uniform(0) >= probability) return;
    const std::optional<Projection> projection = project(draws, canvas.size());
    if (projection) Warp(*projection, interpolation, fill, &canvas);
  };
}

template <typename Op, typename Project>
Status AddWarp(const Op& op, PathBuilder* path, uint32_t number,
               Project project) {
  PENSTOCK_RETURN_IF_ERROR(path->CheckPicture(op.Declared().name()));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::byte> fill,
                            path->FillPixel(op.fill));
  path->AddPictureStep(number, WarpStep(op, std::move(fill), project));
  return OkStatus();
}

template <typename Op, typename Project>
Status AddMaskWarp(const Op& op, PathBuilder* path, uint32_t number,
                   Project project) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::byte> fill,
                            path->MaskFillPixel(op.mask_fill));
  path->AddMaskStep(number, WarpStep(op, std::move(fill), project));
  return OkStatus();
}

std::array<double, 2> CentreOf(
    const std::optional<std::array<double, 2>>& centre, const ImageSize& size) {
  return centre.value_or(
      std::array<double, 2>{static_cast<double>(size.width) * 0.5,
                            static_cast<double>(size.height) * 0.5});
}

auto Project(const RotateOp& op) {
  return [degrees = op.degrees, center = op.center](
             const AugmentationDraws& draws, const ImageSize& size) {
    return std::optional(
        RotationProjection(draws.Within(1, degrees), CentreOf(center, size)));
  };
}

auto Project(const AffineOp& op) {
  return [op](const AugmentationDraws& draws, const ImageSize& size) {
    const auto whole = [&](uint32_t draw, const Range& range, int64_t side) {
      return std::nearbyint(draws.Within(draw, range) *
                            static_cast<double>(side));
    };
    return std::optional(
        AffineProjection({.degrees = draws.Within(1, op.degrees),
                          .right = whole(2, op.translate[0], size.width),
                          .down = whole(3, op.translate[1], size.height),
                          .scale = draws.Within(4, op.scale),
                          .shear_x = draws.Within(5, op.shear[0]),
                          .shear_y = draws.Within(6, op.shear[1])},
                         CentreOf(op.center, size)));
  };
}

auto Project(const PerspectiveOp& op) {
  return [distortion = op.distortion, fixed = op.corners](
             const AugmentationDraws& draws,
             const ImageSize& size) -> std::optional<Projection> {
    if (fixed) return PerspectiveProjection(size, *fixed);
    const auto reach = [&](int64_t side) {
      return static_cast<int64_t>(distortion * static_cast<double>(side / 2)) +
             1;
    };
    const int64_t right = size.width - reach(size.width);
    const int64_t bottom = size.height - reach(size.height);
    const int64_t begins[8] = {0, 0, right, 0, right, bottom, 0, bottom};
    std::array<double, 8> corners;
    for (uint32_t i = 0; i < 8; ++i) {
      corners[i] = static_cast<double>(
          begins[i] +
          draws.Choice(i + 1, reach(i % 2 == 0 ? size.width : size.height)));
    }
    return PerspectiveProjection(size, corners);
  };
}

}  // namespace

// ---- rotate

const Declaration<RotateOp>& RotateOp::Declared() {
  static const auto declared = [] {
    auto rotate = MovingDeclared<RotateOp>(
        "rotate", "Rotates a picture: torchvision's RandomRotation.");
    rotate.Example("{degrees: 15}")
        .Required("degrees", &RotateOp::degrees,
                  IntervalAround(0, -kDegreesMax, kDegreesMax),
                  "the range of the angle, counterclockwise, or how far it is "
                  "from 0")
        .Optional("center", &RotateOp::center,
                  Maybe(Numbers<2>(-kPlaceMax, kPlaceMax, "a list [x, y]")),
                  kCenterText);
    DeclareSampling(&rotate);
    return rotate;
  }();
  return declared;
}

Status RotateOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddWarp(*this, path, number, Project(*this));
}

Status RotateOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddMaskWarp(*this, path, number, Project(*this));
}

// ---- affine

const Declaration<AffineOp>& AffineOp::Declared() {
  static const auto declared = [] {
    auto affine = MovingDeclared<AffineOp>(
        "affine",
        "Rotates, moves, scales and shears a picture: torchvision's "
        "RandomAffine.");
    affine.Example("{degrees: 10, translate: [0.1, 0.1], scale: [0.9, 1.1]}")
        .Optional("degrees", &AffineOp::degrees,
                  IntervalAround(0, -kDegreesMax, kDegreesMax),
                  "the range of the angle, clockwise, or how far it is from 0")
        .Optional("translate", &AffineOp::translate,
                  TwoRanges(1,
                            "a list of two: along x and y, each a number or "
                            "a list [low, high]",
                            false),
                  "how far it moves to the right and down, as parts of its "
                  "width and height")
        .Optional("scale", &AffineOp::scale, Interval(kScaleMin, kScaleMax),
                  "the range of the factor")
        .Optional("shear", &AffineOp::shear,
                  TwoRanges(kShearMax,
                            "a number, or a list of two: along x and y, each a "
                            "number or a list [low, high]",
                            true),
                  "degrees; one number: along x")
        .Optional("center", &AffineOp::center,
                  Maybe(Numbers<2>(-kPlaceMax, kPlaceMax, "a list [x, y]")),
                  kCenterText);
    DeclareSampling(&affine);
    return affine;
  }();
  return declared;
}

Status AffineOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddWarp(*this, path, number, Project(*this));
}

Status AffineOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddMaskWarp(*this, path, number, Project(*this));
}

// ---- perspective

const Declaration<PerspectiveOp>& PerspectiveOp::Declared() {
  static const auto declared = [] {
    auto perspective = MovingDeclared<PerspectiveOp>(
        "perspective",
        "Looks at a picture from aside: torchvision's RandomPerspective.");
    perspective.Example("{distortion: 0.5, probability: 0.3}")
        .Optional("distortion", &PerspectiveOp::distortion, Number(0, 1),
                  "how far corners move at most, as a part of half a side")
        .Optional("corners", &PerspectiveOp::corners,
                  Maybe(Numbers<8>(
                      -kPlaceMax, kPlaceMax,
                      "a list [x, y, x, y, x, y, x, y] of four corners")),
                  "where they go instead: top left, top right, bottom right, "
                  "bottom left");
    DeclareSampling(&perspective);
    return perspective;
  }();
  return declared;
}

Status PerspectiveOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckPicture("perspective"));
  const std::vector<int64_t>& shape = path->feature().shape;
  if (corners && !PerspectiveProjection({.height = shape[0], .width = shape[1]},
                                        *corners)) {
    return InvalidArgumentError(
        "no view of {} has these corners: give four points of which no three "
        "are on a line",
        path->feature().ToString());
  }
  return AddWarp(*this, path, number, Project(*this));
}

Status PerspectiveOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddMaskWarp(*this, path, number, Project(*this));
}

}  // namespace penstock
