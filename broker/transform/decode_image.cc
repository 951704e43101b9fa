#include "broker/transform/decode_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/jpeg_decoder.h"
#include "broker/transform/nearest.h"
#include "broker/transform/orientation.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

// Boxes of one op's pictures are the same part only if these have one size.
Status CheckFits(const DecodeImageOp& op, uint32_t op_number,
                 const ImageSize& size, PathScratch& scratch) {
  if (op.feature.size() + op.mask.size() == 1) return OkStatus();
  for (const PathScratch::Decoded& each : scratch.decoded) {
    if (each.op != op_number) continue;
    if (each.size == size) return OkStatus();
    return DataLossError(
        "a picture of {} x {} pixels, but another one of map[{}] has {} x {}; "
        "a step crops and flips pictures of one size together",
        size.width, size.height, op_number, each.size.width, each.size.height);
  }
  scratch.decoded.push_back({op_number, size});
  return OkStatus();
}

// The box of a picture that is to be turned: decoded as it is stored, in memory
// as a whole and upright. A pixel has `channels` bytes.
StatusOr<std::unique_ptr<std::byte[]>> ReadUpright(
    std::span<const std::byte> file, const CropBox& box,
    const Orientation& orientation, int channels, PictureDecoder& decoder,
    PathScratch& scratch) {
  const ImageSize size = decoder.size();
  const CropBox stored = orientation.TurnBack(box, size);
  const int64_t pixel_bytes = channels;
  const auto box_bytes =
      static_cast<uint64_t>(box.height * box.width * pixel_bytes);
  PENSTOCK_RETURN_IF_ERROR(
      CheckHeldBytes("a picture to be turned", box_bytes, file));
  auto upright = std::make_unique_for_overwrite<std::byte[]>(box_bytes);
  PENSTOCK_RETURN_IF_ERROR(decoder.Start(channels));
  std::byte* const row =
      scratch.PictureRow(static_cast<size_t>(size.width * pixel_bytes));
  for (int64_t y = 0; y < size.height; ++y) {
    PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
    if (y < stored.top || y >= stored.top + stored.height) continue;
    TurnRow(orientation, {.height = stored.height, .width = stored.width},
            y - stored.top, channels, row + stored.left * pixel_bytes,
            upright.get());
  }
  PENSTOCK_RETURN_IF_ERROR(decoder.Finish());
  return upright;
}

// Decodes, crops and resizes; unless exact, also applies the following
// PixelPass.
class DecodeStage final : public Stage {
 public:
  DecodeStage(DecodeImageOp op, uint32_t op_number)
      : op_(std::move(op)),
        op_number_(op_number),
        pass_(DType::kUint8, op_.size.height, op_.size.width, op_.channels) {}

  bool TakePass(std::optional<PixelPass>* pass) override {
    if (op_.exact || op_.channels != 3 || has_pass_) return false;
    pass_ = *std::move(*pass);
    return has_pass_ = true;
  }

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PictureDecoder> decoder,
                              OpenPicture(in));
    const Orientation orientation =
        op_.applies_orientation ? ReadOrientation(in) : Orientation();
    const ImageSize size = orientation.Turn(decoder->size());
    PENSTOCK_RETURN_IF_ERROR(CheckFits(op_, op_number_, size, scratch));
    const CropBox box = ChooseCrop(op_.crop, size, op_.size, {key, op_number_});
    if (!op_.exact && op_.channels == 3 && orientation.is_upright()) {
      if (JpegDecoder* const jpeg = decoder->AsJpeg(); jpeg == nullptr) {
        if (BeginPart(box, 1, key, scratch)) {
          return RunRows(*decoder, scratch, out);
        }
      } else if (jpeg->HasParts() &&
                 BeginPart(box, Denominator(box), key, scratch)) {
        return RunPart(box, *jpeg, scratch, out);
      }
    }
    const auto run_exact = [&](std::byte* picture) {
      return orientation.is_upright()
                 ? RunWhole(box, *decoder, scratch, picture)
                 : RunTurned(in, box, orientation, *decoder, scratch, picture);
    };
    if (!has_pass_) return run_exact(out);
    const size_t bytes = op_.size.height * op_.size.width * op_.channels;
    if (scratch.picture.size() < bytes) scratch.picture.resize(bytes);
    PENSTOCK_RETURN_IF_ERROR(run_exact(scratch.picture.data()));
    pass_.Run(scratch.picture.data(), key, out);
    return OkStatus();
  }

 private:
  // The largest scale at which the box is no smaller than its target.
  int Denominator(const CropBox& box) const {
    int denominator = 8;
    while (denominator > 1 && (box.width < op_.size.width * denominator ||
                               box.height < op_.size.height * denominator)) {
      denominator /= 2;
    }
    return denominator;
  }

  bool BeginPart(const CropBox& box, int denominator,
                 const AugmentationKey& key, PathScratch& scratch) const {
    const double scale = 1.0 / denominator;
    return scratch.rgbx.Begin(
        {.left = static_cast<double>(box.left) * scale,
         .top = static_cast<double>(box.top) * scale,
         .width = static_cast<double>(box.width) * scale,
         .height = static_cast<double>(box.height) * scale},
        op_.size, pass_.Mirrors(key));
  }

  // Decodes only what the box needs of a JPEG.
  Status RunPart(const CropBox& box, JpegDecoder& decoder, PathScratch& scratch,
                 std::byte* out) const {
    RgbxResampler& resampler = scratch.rgbx;
    const int denominator = Denominator(box);
    const int64_t width = decoder.PartSize(denominator).width;
    // One more column on each side, for its chroma.
    int64_t left = std::max<int64_t>(0, resampler.first_column() - 1);
    int64_t right = std::min(width, resampler.end_column() + 1);
    PENSTOCK_RETURN_IF_ERROR(decoder.StartPart(denominator, &left, &right));
    const size_t row_bytes = (right - left + RgbxResampler::kRowSlackPixels) *
                             RgbxResampler::kPixelBytes;
    std::byte* const row = scratch.PictureRow(row_bytes);
    const std::byte* const first_pixel =
        row + (resampler.first_column() - left) * RgbxResampler::kPixelBytes;
    PENSTOCK_RETURN_IF_ERROR(decoder.SkipRows(resampler.first_row()));
    int64_t out_row = 0;
    for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
      resampler.AddRow(y, first_pixel);
      while (const std::byte* rgbx = resampler.NextRow()) {
        pass_.WriteRgbx(rgbx, out_row++, out);
      }
    }
    return decoder.FinishPart(row);
  }

  // Decodes the rows down to the end of the box.
  Status RunRows(PictureDecoder& decoder, PathScratch& scratch,
                 std::byte* out) const {
    RgbxResampler& resampler = scratch.rgbx;
    PENSTOCK_RETURN_IF_ERROR(decoder.Start(RgbxResampler::kPixelBytes));
    std::byte* const row = scratch.PictureRow(
        (decoder.size().width + RgbxResampler::kRowSlackPixels) *
        RgbxResampler::kPixelBytes);
    const std::byte* const first_pixel =
        row + resampler.first_column() * RgbxResampler::kPixelBytes;
    int64_t out_row = 0;
    for (int64_t y = 0; y < resampler.end_row(); ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
      if (y < resampler.first_row()) continue;
      resampler.AddRow(y, first_pixel);
      while (const std::byte* rgbx = resampler.NextRow()) {
        pass_.WriteRgbx(rgbx, out_row++, out);
      }
    }
    return decoder.FinishPart(row);
  }

  // Decodes every row, also outside the box: the errors of a file do not depend
  // on the part that an epoch uses.
  Status RunWhole(const CropBox& box, PictureDecoder& decoder,
                  PathScratch& scratch, std::byte* out) const {
    const ImageSize size = decoder.size();
    Resampler& resampler = scratch.resampler;
    PENSTOCK_RETURN_IF_ERROR(resampler.Begin(box, op_.size, op_.channels, out));
    PENSTOCK_RETURN_IF_ERROR(decoder.Start(op_.channels));
    const size_t row_bytes = static_cast<size_t>(size.width * op_.channels);
    std::byte* const row = scratch.PictureRow(row_bytes);
    for (int64_t y = 0; y < size.height; ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
      if (y >= resampler.first_row() && y < resampler.end_row()) {
        resampler.AddRow(y, row);
      }
    }
    return decoder.Finish();
  }

  // As RunWhole, of the picture turned upright.
  Status RunTurned(std::span<const std::byte> file, const CropBox& box,
                   const Orientation& orientation, PictureDecoder& decoder,
                   PathScratch& scratch, std::byte* out) const {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::unique_ptr<std::byte[]> upright,
        ReadUpright(file, box, orientation, op_.channels, decoder, scratch));
    Resampler& resampler = scratch.resampler;
    PENSTOCK_RETURN_IF_ERROR(
        resampler.Begin({.width = box.width, .height = box.height}, op_.size,
                        op_.channels, out));
    for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
      resampler.AddRow(y, upright.get() + y * box.width * op_.channels);
    }
    return OkStatus();
  }

  const DecodeImageOp op_;
  const uint32_t op_number_;
  PixelPass pass_;
  bool has_pass_ = false;  // else values are unchanged
};

// Decodes, crops and resizes a mask. Every row is decoded, as in RunWhole.
class DecodeMaskStage final : public Stage {
 public:
  DecodeMaskStage(DecodeImageOp op, uint32_t op_number)
      : op_(std::move(op)), op_number_(op_number) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PictureDecoder> decoder,
                              OpenPicture(in));
    const Orientation orientation =
        op_.applies_orientation ? ReadOrientation(in) : Orientation();
    const ImageSize stored = decoder->size();
    const ImageSize size = orientation.Turn(stored);
    PENSTOCK_RETURN_IF_ERROR(CheckFits(op_, op_number_, size, scratch));
    const CropBox box = ChooseCrop(op_.crop, size, op_.size, {key, op_number_});
    FindNearest(box.height, op_.size.height, &scratch.nearest_rows);
    FindNearest(box.width, op_.size.width, &scratch.nearest_columns);
    if (!orientation.is_upright()) {
      PENSTOCK_ASSIGN_OR_RETURN(
          const std::unique_ptr<std::byte[]> upright,
          ReadUpright(in, box, orientation, kValueChannels, *decoder, scratch));
      for (const int64_t y : scratch.nearest_rows) {
        PENSTOCK_RETURN_IF_ERROR(
            TakeRow(upright.get() + y * box.width * kValueChannels,
                    scratch.nearest_columns, &out));
      }
      return OkStatus();
    }
    PENSTOCK_RETURN_IF_ERROR(decoder->Start(kValueChannels));
    std::byte* const row =
        scratch.PictureRow(static_cast<size_t>(size.width * kValueChannels));
    auto next = scratch.nearest_rows.begin();
    for (int64_t y = 0; y < size.height; ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder->ReadRow(row));
      for (; next != scratch.nearest_rows.end() && box.top + *next == y;
           ++next) {
        PENSTOCK_RETURN_IF_ERROR(TakeRow(row + box.left * kValueChannels,
                                         scratch.nearest_columns, &out));
      }
    }
    return decoder->Finish();
  }

 private:
  Status TakeRow(const std::byte* values, std::span<const int64_t> columns,
                 std::byte** out) const {
    for (const int64_t x : columns) {
      uint16_t value;
      std::memcpy(&value, values + x * kValueChannels, sizeof(value));
      if (op_.mask_dtype == DType::kInt32) {
        const int32_t wide = value;
        std::memcpy(*out, &wide, sizeof(wide));
        *out += sizeof(wide);
        continue;
      }
      if (value > UINT8_MAX) {
        return DataLossError(
            "a mask with the value {}, more than uint8 holds; say `mask_dtype: "
            "int32`",
            value);
      }
      *(*out)++ = static_cast<std::byte>(value);
    }
    return OkStatus();
  }

  const DecodeImageOp op_;
  const uint32_t op_number_;
};

Status CheckEncoded(const PathBuilder& path) {
  if (path.encoded()) return OkStatus();
  const size_t dimensions = path.feature().shape.size();
  return InvalidArgumentError(
      "wants a picture file, found {}{}", path.feature().ToString(),
      dimensions == 2 || dimensions == 3 ? "; use resize to change its size"
                                         : "");
}

}  // namespace

const Declaration<DecodeImageOp>& DecodeImageOp::Declared() {
  static const auto declared =
      Declaration<DecodeImageOp>("decode_image",
                                 "Decodes a picture (JPEG, PNG, WebP, TIFF), "
                                 "crops it and resizes it.")
          .Gives("encoded → uint8 [h, w, c]; of a mask, its values [h, w]")
          .Example("{size: 224, crop: random_resized}")
          .Optional("feature", &DecodeImageOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Optional("mask", &DecodeImageOp::mask, MaskNamesType(), kMaskText)
          .Optional("crop", &DecodeImageOp::crop,
                    Maybe(KindOrItsName<CropSpec>()),
                    "the part that is used; by default all of it")
          .Required("size", &DecodeImageOp::size, ImageSizeType(), kSizeText)
          .Optional("channels", &DecodeImageOp::channels,
                    Words<int>({{"rgb", 3}, {"gray", 1}}), "the colours")
          .Optional("exact", &DecodeImageOp::exact, Bool(),
                    "every pixel is decoded and has Pillow's value, at half "
                    "the speed")
          .Optional("orientation", &DecodeImageOp::applies_orientation,
                    Words<bool>({{"ignore", false}, {"apply", true}}),
                    "EXIF's: the picture as it is stored, or turned upright "
                    "before the crop is chosen")
          .Optional("mask_dtype", &DecodeImageOp::mask_dtype,
                    Maybe(DTypes({DType::kUint8, DType::kInt32})),
                    "of masks; by default uint8, which holds no value of 16 "
                    "bits");
  return declared;
}

Status DecodeImageOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(CheckEncoded(*path));
  path->AddStage(std::make_unique<DecodeStage>(*this, number),
                 {size.height, size.width, channels});
  return OkStatus();
}

Status DecodeImageOp::AddToMask(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(CheckEncoded(*path));
  path->AddStage(std::make_unique<DecodeMaskStage>(*this, number),
                 {size.height, size.width}, mask_dtype.value_or(DType::kUint8));
  return OkStatus();
}

}  // namespace penstock
