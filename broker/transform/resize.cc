#include "broker/transform/resize.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"
#include "broker/transform/window.h"

namespace penstock {
namespace {

constexpr char kResizeInterpolationText[] =
    "of pictures, by default bilinear; masks take the nearest pixel";
const std::initializer_list<Interpolation> kFilters = {
    Interpolation::kNearest, Interpolation::kBilinear, Interpolation::kBicubic,
    Interpolation::kLanczos};

// What a stage makes of each picture.
struct Recipe {
  std::optional<CropSpec> crop;
  ImageSize size;
  Interpolation interpolation = Interpolation::kBilinear;
  uint32_t op_number = 0;
  ImageSize from;
  PadMode mode = PadMode::kConstant;
  std::vector<std::byte> fill;  // a pixel
};

class ResizeStage final : public Stage {
 public:
  explicit ResizeStage(Recipe recipe) : recipe_(std::move(recipe)) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    const ImageSize& from = recipe_.from;
    PENSTOCK_ASSIGN_OR_RETURN(
        const CropView view,
        ChooseView(recipe_.crop, from, recipe_.size, {key, recipe_.op_number}));
    const CropBox whole = {.width = from.width, .height = from.height};
    if (view.scaled == from && view.box == whole) {
      TakeWindow(in.data(), whole, view, recipe_.size, recipe_.mode,
                 recipe_.fill, &scratch.nearest_columns, out);
      return OkStatus();
    }
    ViewResizer resizer(&scratch.resampler, &scratch.part,
                        &scratch.nearest_columns);
    PENSTOCK_RETURN_IF_ERROR(resizer.Begin(view, recipe_.size,
                                           recipe_.interpolation, recipe_.mode,
                                           recipe_.fill, out));
    const auto row_bytes =
        from.width * static_cast<int64_t>(recipe_.fill.size());
    for (int64_t y = resizer.first_row(); y < resizer.end_row(); ++y) {
      resizer.AddRow(y, in.data() + y * row_bytes);
    }
    resizer.Finish();
    return OkStatus();
  }

 private:
  const Recipe recipe_;
};

// Each pixel is the nearest one: of masks, of any dtype.
class NearestStage final : public Stage {
 public:
  explicit NearestStage(Recipe recipe) : recipe_(std::move(recipe)) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(
        const CropView view,
        ChooseView(recipe_.crop, recipe_.from, recipe_.size,
                   {key, recipe_.op_number}));
    FindNearestOfView(view, recipe_.size, recipe_.mode, &scratch.nearest_scaled,
                      &scratch.nearest_rows, &scratch.nearest_columns);
    const auto bytes = static_cast<int64_t>(recipe_.fill.size());
    for (const int64_t y : scratch.nearest_rows) {
      const std::byte* const row =
          in.data() + std::max<int64_t>(y, 0) * recipe_.from.width * bytes;
      for (const int64_t x : scratch.nearest_columns) {
        out = std::copy_n(
            y < 0 || x < 0 ? recipe_.fill.data() : row + x * bytes, bytes, out);
      }
    }
    return OkStatus();
  }

 private:
  const Recipe recipe_;
};

// What the crop takes is inside, if that can be known.
Status CheckView(const Recipe& recipe) {
  const Status status =
      ChooseView(recipe.crop, recipe.from, recipe.size, {{}, 0}).status();
  return status.ok() ? OkStatus()
                     : InvalidArgumentError("{}", status.message());
}

template <typename ThisStage>
Status AddView(PathBuilder* path, Recipe recipe) {
  const Feature feature = path->feature();
  recipe.from = path->size();
  PENSTOCK_RETURN_IF_ERROR(CheckView(recipe));
  std::vector<int64_t> shape = feature.shape;
  shape[0] = recipe.size.height;
  shape[1] = recipe.size.width;
  path->AddStage(std::make_unique<ThisStage>(std::move(recipe)),
                 std::move(shape), feature.dtype);
  return OkStatus();
}

Status AddNearest(PathBuilder* path, Recipe recipe, int64_t mask_fill) {
  PENSTOCK_ASSIGN_OR_RETURN(recipe.fill, path->MaskFillPixel(mask_fill));
  return AddView<NearestStage>(path, std::move(recipe));
}

Status AddResize(PathBuilder* path, std::string_view op, Recipe recipe,
                 const Fill& fill) {
  PENSTOCK_RETURN_IF_ERROR(path->CheckImage());
  PENSTOCK_RETURN_IF_ERROR(path->CheckUint8(op));
  const Feature& feature = path->feature();
  if (path->channels() < 1 || path->channels() > Resampler::kChannelsMax ||
      feature.shape[0] < 1 || feature.shape[1] < 1) {
    return InvalidArgumentError("wants pixels of 1 to {} channels, found {}",
                                Resampler::kChannelsMax, feature.ToString());
  }
  PENSTOCK_ASSIGN_OR_RETURN(recipe.fill, PixelOf(fill, path->channels()));
  return recipe.interpolation == Interpolation::kNearest
             ? AddView<NearestStage>(path, std::move(recipe))
             : AddView<ResizeStage>(path, std::move(recipe));
}

Status CheckOneSize(const YamlValue& value, ResizeOp* op) {
  const int given = (op->size.height > 0 ? 1 : 0) + (op->shorter > 0 ? 1 : 0) +
                    (op->within.height > 0 ? 1 : 0);
  if (given == 1) return OkStatus();
  return value.Error("give exactly one of size, shorter, within");
}

Status CheckOneAmount(const YamlValue& value, PadOp* op) {
  const bool has_size = op->size.height > 0;
  const bool has_by = op->by != std::array<int64_t, 4>{};
  if (has_size != has_by) return OkStatus();
  return value.Error("give exactly one of by (above 0), size");
}

// Pillow's Image.thumbnail: of the two sizes beside the exact one, that whose
// aspect ratio is nearer.
ImageSize Within(const ImageSize& picture, const ImageSize& bound) {
  if (bound.width >= picture.width && bound.height >= picture.height) {
    return picture;
  }
  const double aspect =
      static_cast<double>(picture.width) / static_cast<double>(picture.height);
  const auto nearer = [](double exact, auto error) {
    const double low = std::floor(exact);
    const double high = std::ceil(exact);
    const double best = error(high) < error(low) ? high : low;
    return std::max<int64_t>(static_cast<int64_t>(best), 1);
  };
  const auto width = static_cast<double>(bound.width);
  const auto height = static_cast<double>(bound.height);
  if (width / height >= aspect) {
    return {.height = bound.height,
            .width = nearer(height * aspect, [&](double n) {
              return std::abs(aspect - n / height);
            })};
  }
  return {.height = nearer(width / aspect,
                           [&](double n) {
                             return n == 0 ? 0 : std::abs(aspect - width / n);
                           }),
          .width = bound.width};
}

Recipe RecipeOf(const CropOp& op, uint32_t number) {
  return {.crop = op.crop,
          .size = op.size,
          .interpolation = op.interpolation,
          .op_number = number,
          .mode = PaddingOf(op.crop).mode};
}

Status CheckSides(const PathBuilder& path, const ImageSize& size) {
  if (size.height <= kImageSideMax && size.width <= kImageSideMax) {
    return OkStatus();
  }
  return InvalidArgumentError("{} would become {} x {}; a side has at most {}",
                              path.feature().ToString(), size.height,
                              size.width, kImageSideMax);
}

StatusOr<Recipe> RecipeOf(const ResizeOp& op, const PathBuilder& path) {
  PENSTOCK_RETURN_IF_ERROR(path.CheckImage());
  const ImageSize from = path.size();
  ImageSize size = op.size;
  if (from.height < 1 || from.width < 1) {
    return InvalidArgumentError("wants pixels, found {}",
                                path.feature().ToString());
  }
  if (op.shorter > 0) size = WithShorterSide(from, op.shorter);
  if (op.within.height > 0) size = Within(from, op.within);
  PENSTOCK_RETURN_IF_ERROR(CheckSides(path, size));
  return Recipe{.size = size, .interpolation = op.interpolation};
}

// As a crop that takes the whole picture and what is beside it.
StatusOr<Recipe> RecipeOf(const PadOp& op, const PathBuilder& path) {
  PENSTOCK_RETURN_IF_ERROR(path.CheckImage());
  const auto [height, width] = path.size();
  RandomPixels pixels;
  static_cast<Padding&>(pixels) = op;
  pixels.padding = op.by;
  ImageSize size = {.height = height + op.by[1] + op.by[3],
                    .width = width + op.by[0] + op.by[2]};
  if (op.size.height > 0) {
    size = op.size;
    if (size.height < height || size.width < width) {
      return InvalidArgumentError(
          "size {} x {} is smaller than {}; use crop with center_pixels",
          size.height, size.width, path.feature().ToString());
    }
    pixels.padding[1] = (size.height - height) / 2;
    pixels.padding[0] = (size.width - width) / 2;
    pixels.padding[3] = size.height - height - pixels.padding[1];
    pixels.padding[2] = size.width - width - pixels.padding[0];
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSides(path, size));
  return Recipe{.crop = pixels, .size = size, .mode = op.mode};
}

BoxMove MoveOf(Recipe recipe, const PathBuilder& path) {
  recipe.from = path.size();
  return [recipe = std::move(recipe)](const AugmentationKey& key,
                                      std::span<const std::byte>,
                                      std::span<Box> boxes) {
    return MoveIntoView(recipe.crop, recipe.from, recipe.size,
                        {key, recipe.op_number}, boxes);
  };
}

}  // namespace

// ---- crop

const Declaration<CropOp>& CropOp::Declared() {
  static const auto declared =
      FeatureOp<CropOp>("crop", "Cuts a part out of a picture and resizes it.")
          .Gives("uint8 picture → size")
          .Example("{center: {fraction: 0.875}, size: 224}")
          .OneOfKinds(&CropOp::crop)
          .Required("size", &CropOp::size, ImageSizeType(), kSizeText)
          .Optional(
              "interpolation", &CropOp::interpolation,
              LeftOutAt(Interpolation::kBilinear, InterpolationType(kFilters)),
              kResizeInterpolationText);
  return declared;
}

Status CropOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddResize(path, "crop", RecipeOf(*this, number), PaddingOf(crop).fill);
}

Status CropOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddNearest(path, RecipeOf(*this, number), PaddingOf(crop).mask_fill);
}

StatusOr<BoxMove> CropOp::MoveOfBoxes(const PathBuilder& path,
                                      uint32_t number) const {
  return MoveOf(RecipeOf(*this, number), path);
}

// ---- resize

const Declaration<ResizeOp>& ResizeOp::Declared() {
  static const auto declared =
      FeatureOp<ResizeOp>("resize", "Resizes a picture, antialiased.")
          .Gives("uint8 picture → its new size")
          .Example("{size: [32, 48]}")
          .Optional("size", &ResizeOp::size, LeftOutAt({}, ImageSizeType()),
                    kSizeText)
          .Optional(
              "shorter", &ResizeOp::shorter,
              LeftOutAt<int64_t>(0, WholeNumber<int64_t>(1, kImageSideMax)),
              "instead: of its shorter side, the other in proportion")
          .Optional("within", &ResizeOp::within, LeftOutAt({}, ImageSizeType()),
                    "instead: it is made smaller in proportion until it fits")
          .Optional(
              "interpolation", &ResizeOp::interpolation,
              LeftOutAt(Interpolation::kBilinear, InterpolationType(kFilters)),
              kResizeInterpolationText)
          .Check(CheckOneSize);
  return declared;
}

Status ResizeOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_ASSIGN_OR_RETURN(Recipe recipe, RecipeOf(*this, *path));
  return AddResize(path, "resize", std::move(recipe), {0});
}

Status ResizeOp::AddToMask(PathBuilder* path, uint32_t) const {
  PENSTOCK_ASSIGN_OR_RETURN(Recipe recipe, RecipeOf(*this, *path));
  return AddNearest(path, std::move(recipe), 0);
}

StatusOr<BoxMove> ResizeOp::MoveOfBoxes(const PathBuilder& path,
                                        uint32_t) const {
  PENSTOCK_ASSIGN_OR_RETURN(Recipe recipe, RecipeOf(*this, path));
  return MoveOf(std::move(recipe), path);
}

// ---- pad

const Declaration<PadOp>& PadOp::Declared() {
  static const auto declared = WithFill(
      FeatureOp<PadOp>("pad", "Adds pixels beside a picture.")
          .Gives("uint8 picture → its new size")
          .Example("{by: 4, mode: reflect}")
          .Optional("by", &PadOp::by, FourSides(), "how many on each side")
          .Optional("size", &PadOp::size, LeftOutAt({}, ImageSizeType()),
                    "instead: of the result, the picture in its middle")
          .Optional("mode", &PadOp::mode, PadModeType(), kPadModeText)
          .Check(CheckOneAmount));
  return declared;
}

Status PadOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_ASSIGN_OR_RETURN(Recipe recipe, RecipeOf(*this, *path));
  return AddResize(path, "pad", std::move(recipe), fill);
}

Status PadOp::AddToMask(PathBuilder* path, uint32_t) const {
  PENSTOCK_ASSIGN_OR_RETURN(Recipe recipe, RecipeOf(*this, *path));
  return AddNearest(path, std::move(recipe), mask_fill);
}

StatusOr<BoxMove> PadOp::MoveOfBoxes(const PathBuilder& path, uint32_t) const {
  PENSTOCK_ASSIGN_OR_RETURN(Recipe recipe, RecipeOf(*this, path));
  return MoveOf(std::move(recipe), path);
}

}  // namespace penstock
