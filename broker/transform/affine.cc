#include "broker/transform/affine.h"

#include <cmath>
#include <string>
#include <utility>

#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kDegreesMax = 3600;
constexpr double kShearMax = 89;
constexpr double kScaleMin = 0.01;
constexpr double kScaleMax = 100;
constexpr double kPlaceMax = 1e6;
constexpr char kCenterText[] =
    "[x, y] in pixels, which stays; by default the picture's";

template <typename Op>
Declaration<Op> WithSampling(Declaration<Op> declared) {
  declared.Optional("interpolation", &Op::interpolation,
                    WarpInterpolationType(),
                    "of pictures; masks take the nearest pixel");
  return WithProbability(WithFill(std::move(declared)));
}

// A range along x and one along y, each as IntervalAround reads it; with
// `single`, one range alone is that along x.
ValueType<std::array<Range, 2>> TwoRanges(double max, std::string wanted,
                                          bool single) {
  const ValueType<Range> range = IntervalAround(0, -max, max);
  ValueType<std::array<Range, 2>> type = Several<2>(range, std::move(wanted));
  type.read = [range, single, list = type.read](const YamlValue& value,
                                                std::string_view wanted,
                                                std::array<Range, 2>* out) {
    return single && value.IsScalar() ? range.Read(value, &(*out)[0])
                                      : list(value, wanted, out);
  };
  return type;
}

// The type of `center`.
ValueType<std::optional<std::array<double, 2>>> PlaceType() {
  return Maybe(Several<2>(Number(-kPlaceMax, kPlaceMax), "a list [x, y]"));
}

template <typename Op>
PictureStep WarpStep(const Op& op, std::vector<std::byte> fill) {
  return [op, fill = std::move(fill)](const AugmentationDraws& draws,
                                      Canvas& canvas) {
    const std::optional<Projection> projection =
        op.ProjectionOf(draws, canvas.size());
    if (projection) Warp(*projection, op.interpolation, fill, &canvas);
  };
}

template <typename Op>
BoxMove WarpMove(const Op& op, const PathBuilder& path, uint32_t number) {
  return [op, size = path.size(), number](const AugmentationKey& key,
                                          std::span<const std::byte>,
                                          std::span<Box> boxes) {
    const std::optional<Projection> projection =
        op.ProjectionOf({key, number}, size);
    if (projection) Project(*projection, size, boxes);
    return OkStatus();
  };
}

template <typename Op>
bool Happens(const Op& op, const AugmentationDraws& draws) {
  return draws.Uniform(0) < op.probability;
}

std::array<double, 2> CentreOf(
    const std::optional<std::array<double, 2>>& centre, const ImageSize& size) {
  return centre.value_or(
      std::array<double, 2>{static_cast<double>(size.width) * 0.5,
                            static_cast<double>(size.height) * 0.5});
}

}  // namespace

// ---- flip

const Declaration<FlipOp>& FlipOp::Declared() {
  static const auto declared =
      FeatureOp<FlipOp>("flip",
                        "Mirrors a picture left to right, or top to bottom.")
          .Gives("a picture of any dtype → the same")
          .Example("{horizontal: 0.5}")
          .Optional("horizontal", &FlipOp::horizontal, Number(0, 1),
                    "the probability of left to right")
          .Optional("vertical", &FlipOp::vertical, LeftOutAt(0.0, Number(0, 1)),
                    "that of top to bottom, by default 0");
  return declared;
}

Status FlipOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckImage());
  path->PendingPass().AddFlip({horizontal, vertical, number});
  return OkStatus();
}

Status FlipOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddTo(path, number);
}

StatusOr<BoxMove> FlipOp::MoveOfBoxes(const PathBuilder& path,
                                      uint32_t number) const {
  return BoxMove([flip = PixelPass::Flip{horizontal, vertical, number},
                  size = path.size()](const AugmentationKey& key,
                                      std::span<const std::byte>,
                                      std::span<Box> boxes) {
    const PixelPass::Mirroring mirroring = flip.Mirrors(key);
    Mirror(size, mirroring.horizontal, mirroring.vertical, boxes);
    return OkStatus();
  });
}

// ---- rotate

const Declaration<RotateOp>& RotateOp::Declared() {
  static const auto declared = WithSampling(
      PictureOp<RotateOp>("rotate",
                          "Rotates a picture: torchvision's RandomRotation.")
          .Example("{degrees: 15}")
          .Required(
              "degrees", &RotateOp::degrees,
              IntervalAround(0, -kDegreesMax, kDegreesMax),
              "the range of the angle, counterclockwise, or how far it is "
              "from 0")
          .Optional("center", &RotateOp::center, PlaceType(), kCenterText));
  return declared;
}

std::optional<Projection> RotateOp::ProjectionOf(const AugmentationDraws& draws,
                                                 const ImageSize& size) const {
  if (!Happens(*this, draws)) return std::nullopt;
  return RotationProjection(draws.Within(1, degrees), CentreOf(center, size));
}

PictureStep RotateOp::Step(std::vector<std::byte> outside) const {
  return WarpStep(*this, std::move(outside));
}

StatusOr<BoxMove> RotateOp::MoveOfBoxes(const PathBuilder& path,
                                        uint32_t number) const {
  return WarpMove(*this, path, number);
}

// ---- affine

const Declaration<AffineOp>& AffineOp::Declared() {
  static const auto declared = WithSampling(
      PictureOp<AffineOp>(
          "affine",
          "Rotates, moves, scales and shears a picture: torchvision's "
          "RandomAffine.")
          .Example("{degrees: 10, translate: [0.1, 0.1], scale: [0.9, 1.1]}")
          .Optional(
              "degrees", &AffineOp::degrees,
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
          .Optional(
              "shear", &AffineOp::shear,
              TwoRanges(kShearMax,
                        "a number, or a list of two: along x and y, each a "
                        "number or a list [low, high]",
                        true),
              "degrees; one number: along x")
          .Optional("center", &AffineOp::center, PlaceType(), kCenterText));
  return declared;
}

std::optional<Projection> AffineOp::ProjectionOf(const AugmentationDraws& draws,
                                                 const ImageSize& size) const {
  if (!Happens(*this, draws)) return std::nullopt;
  const auto whole = [&](uint32_t draw, const Range& range, int64_t side) {
    return std::nearbyint(draws.Within(draw, range) *
                          static_cast<double>(side));
  };
  return AffineProjection({.degrees = draws.Within(1, degrees),
                           .right = whole(2, translate[0], size.width),
                           .down = whole(3, translate[1], size.height),
                           .scale = draws.Within(4, scale),
                           .shear_x = draws.Within(5, shear[0]),
                           .shear_y = draws.Within(6, shear[1])},
                          CentreOf(center, size));
}

PictureStep AffineOp::Step(std::vector<std::byte> outside) const {
  return WarpStep(*this, std::move(outside));
}

StatusOr<BoxMove> AffineOp::MoveOfBoxes(const PathBuilder& path,
                                        uint32_t number) const {
  return WarpMove(*this, path, number);
}

// ---- perspective

const Declaration<PerspectiveOp>& PerspectiveOp::Declared() {
  static const auto declared = WithSampling(
      PictureOp<PerspectiveOp>(
          "perspective",
          "Looks at a picture from aside: torchvision's RandomPerspective.")
          .Example("{distortion: 0.5, probability: 0.3}")
          .Optional("distortion", &PerspectiveOp::distortion, Number(0, 1),
                    "how far corners move at most, as a part of half a side")
          .Optional("corners", &PerspectiveOp::corners,
                    Maybe(Several<8>(
                        Number(-kPlaceMax, kPlaceMax),
                        "a list [x, y, x, y, x, y, x, y] of four corners")),
                    "where they go instead: top left, top right, bottom right, "
                    "bottom left"));
  return declared;
}

Status PerspectiveOp::Check(const PathBuilder& path) const {
  if (!corners || PerspectiveProjection(path.size(), *corners)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "no view of {} has these corners: give four points of which no three "
      "are on a line",
      path.feature().ToString());
}

std::optional<Projection> PerspectiveOp::ProjectionOf(
    const AugmentationDraws& draws, const ImageSize& size) const {
  if (!Happens(*this, draws)) return std::nullopt;
  if (corners) return PerspectiveProjection(size, *corners);
  const auto reach = [&](int64_t side) {
    return static_cast<int64_t>(distortion * static_cast<double>(side / 2)) + 1;
  };
  const int64_t right = size.width - reach(size.width);
  const int64_t bottom = size.height - reach(size.height);
  const int64_t begins[8] = {0, 0, right, 0, right, bottom, 0, bottom};
  std::array<double, 8> places;
  for (uint32_t i = 0; i < 8; ++i) {
    places[i] = static_cast<double>(
        begins[i] +
        draws.Choice(i + 1, reach(i % 2 == 0 ? size.width : size.height)));
  }
  return PerspectiveProjection(size, places);
}

PictureStep PerspectiveOp::Step(std::vector<std::byte> outside) const {
  return WarpStep(*this, std::move(outside));
}

StatusOr<BoxMove> PerspectiveOp::MoveOfBoxes(const PathBuilder& path,
                                             uint32_t number) const {
  return WarpMove(*this, path, number);
}

}  // namespace penstock
