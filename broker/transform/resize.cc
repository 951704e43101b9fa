#include "broker/transform/resize.h"

#include <algorithm>
#include <optional>

#include "broker/declare/declaration.h"
#include "broker/transform/nearest.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

class ResizeStage final : public Stage {
 public:
  ResizeStage(std::optional<CropSpec> crop, const ImageSize& size,
              uint32_t op_number, const ImageSize& from, int channels)
      : crop_(std::move(crop)),
        size_(size),
        op_number_(op_number),
        from_(from),
        channels_(channels) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    const CropBox box = ChooseCrop(crop_, from_, size_, {key, op_number_});
    Resampler& resampler = scratch.resampler;
    PENSTOCK_RETURN_IF_ERROR(resampler.Begin(box, size_, channels_, out));
    for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
      resampler.AddRow(y, in.data() + y * from_.width * channels_);
    }
    return OkStatus();
  }

 private:
  const std::optional<CropSpec> crop_;
  const ImageSize size_;
  const uint32_t op_number_;
  const ImageSize from_;
  const int channels_;
};

// Of a mask: each value of a pixel is that of the nearest one.
class NearestStage final : public Stage {
 public:
  NearestStage(std::optional<CropSpec> crop, const ImageSize& size,
               uint32_t op_number, const ImageSize& from, int64_t pixel_bytes)
      : crop_(std::move(crop)),
        size_(size),
        op_number_(op_number),
        from_(from),
        pixel_bytes_(pixel_bytes) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    const CropBox box = ChooseCrop(crop_, from_, size_, {key, op_number_});
    FindNearest(box.height, size_.height, &scratch.nearest_rows);
    FindNearest(box.width, size_.width, &scratch.nearest_columns);
    for (const int64_t y : scratch.nearest_rows) {
      const std::byte* const row =
          in.data() + ((box.top + y) * from_.width + box.left) * pixel_bytes_;
      for (const int64_t x : scratch.nearest_columns) {
        out = std::copy_n(row + x * pixel_bytes_, pixel_bytes_, out);
      }
    }
    return OkStatus();
  }

 private:
  const std::optional<CropSpec> crop_;
  const ImageSize size_;
  const uint32_t op_number_;
  const ImageSize from_;
  const int64_t pixel_bytes_;
};

Status AddNearest(PathBuilder* path, const std::optional<CropSpec>& crop,
                  const ImageSize& size, uint32_t number) {
  PENSTOCK_RETURN_IF_ERROR(path->CheckImage());
  const Feature feature = path->feature();
  if (feature.RowBytes() == 0) {
    return InvalidArgumentError("wants pixels, found {}", feature.ToString());
  }
  const ImageSize from = {.height = feature.shape[0],
                          .width = feature.shape[1]};
  std::vector<int64_t> shape = feature.shape;
  shape[0] = size.height;
  shape[1] = size.width;
  path->AddStage(
      std::make_unique<NearestStage>(
          crop, size, number, from,
          static_cast<int64_t>(feature.RowBytes()) / from.height / from.width),
      std::move(shape), feature.dtype);
  return OkStatus();
}

Status AddResize(PathBuilder* path, std::string_view op,
                 const std::optional<CropSpec>& crop, const ImageSize& size,
                 uint32_t number) {
  PENSTOCK_RETURN_IF_ERROR(path->CheckImage());
  PENSTOCK_RETURN_IF_ERROR(path->CheckUint8(op));
  const Feature& feature = path->feature();
  if (path->channels() < 1 || path->channels() > Resampler::kChannelsMax ||
      feature.shape[0] < 1 || feature.shape[1] < 1) {
    return InvalidArgumentError("wants pixels of 1 to {} channels, found {}",
                                Resampler::kChannelsMax, feature.ToString());
  }
  const ImageSize from = {.height = feature.shape[0],
                          .width = feature.shape[1]};
  std::vector<int64_t> shape = feature.shape;
  shape[0] = size.height;
  shape[1] = size.width;
  path->AddStage(
      std::make_unique<ResizeStage>(crop, size, number, from,
                                    static_cast<int>(path->channels())),
      std::move(shape));
  return OkStatus();
}

}  // namespace

const Declaration<CropOp>& CropOp::Declared() {
  static const auto declared =
      Declaration<CropOp>("crop",
                          "Cuts a part out of a picture and resizes it.")
          .Gives("uint8 picture → size")
          .Example("{center: {fraction: 0.875}, size: 224}")
          .Optional("feature", &CropOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Optional("mask", &CropOp::mask, MaskNamesType(), kMaskText)
          .OneOfKinds(&CropOp::crop)
          .Required("size", &CropOp::size, ImageSizeType(), kSizeText);
  return declared;
}

Status CropOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddResize(path, "crop", crop, size, number);
}

Status CropOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddNearest(path, crop, size, number);
}

const Declaration<ResizeOp>& ResizeOp::Declared() {
  static const auto declared =
      Declaration<ResizeOp>("resize",
                            "Resizes a picture, antialiased bilinear.")
          .Gives("uint8 picture → size")
          .Example("{size: [32, 48]}")
          .Optional("feature", &ResizeOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Optional("mask", &ResizeOp::mask, MaskNamesType(), kMaskText)
          .Required("size", &ResizeOp::size, ImageSizeType(), kSizeText);
  return declared;
}

Status ResizeOp::AddTo(PathBuilder* path, uint32_t number) const {
  return AddResize(path, "resize", std::nullopt, size, number);
}

Status ResizeOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddNearest(path, std::nullopt, size, number);
}

}  // namespace penstock
