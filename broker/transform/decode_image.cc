#include "broker/transform/decode_image.h"

#include <algorithm>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/jpeg_decoder.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

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
    JpegDecoder decoder;
    PENSTOCK_RETURN_IF_ERROR(decoder.Begin(in));
    const CropBox box =
        ChooseCrop(op_.crop, decoder.size(), op_.size, {key, op_number_});
    if (!op_.exact && op_.channels == 3 && decoder.HasParts() &&
        BeginPart(box, key, scratch)) {
      return RunPart(box, decoder, scratch, out);
    }
    if (!has_pass_) return RunWhole(box, decoder, scratch, out);
    const size_t bytes = op_.size.height * op_.size.width * op_.channels;
    if (scratch.picture.size() < bytes) scratch.picture.resize(bytes);
    PENSTOCK_RETURN_IF_ERROR(
        RunWhole(box, decoder, scratch, scratch.picture.data()));
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

  bool BeginPart(const CropBox& box, const AugmentationKey& key,
                 PathScratch& scratch) const {
    const int denominator = Denominator(box);
    const double scale = 1.0 / denominator;
    return scratch.rgbx.Begin(
        {.left = static_cast<double>(box.left) * scale,
         .top = static_cast<double>(box.top) * scale,
         .width = static_cast<double>(box.width) * scale,
         .height = static_cast<double>(box.height) * scale},
        op_.size, pass_.Mirrors(key));
  }

  // Decodes only what the box needs.
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

  // Decodes every row, also outside the box: the errors of a file do not depend
  // on the part that an epoch uses.
  Status RunWhole(const CropBox& box, JpegDecoder& decoder,
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

  const DecodeImageOp op_;
  const uint32_t op_number_;
  PixelPass pass_;
  bool has_pass_ = false;  // else values are unchanged
};

}  // namespace

const Declaration<DecodeImageOp>& DecodeImageOp::Declared() {
  static const auto declared =
      Declaration<DecodeImageOp>("decode_image",
                                 "Decodes a picture, crops it and resizes it.")
          .Gives("encoded → uint8 [h, w, c]")
          .Example("{size: 224, crop: random_resized}")
          .Optional("feature", &DecodeImageOp::feature, Name(), kFeatureText)
          .Optional("crop", &DecodeImageOp::crop,
                    Maybe(KindOrItsName<CropSpec>()),
                    "the part that is used; by default all of it")
          .Required("size", &DecodeImageOp::size, ImageSizeType(), kSizeText)
          .Optional("channels", &DecodeImageOp::channels,
                    Words<int>({{"rgb", 3}, {"gray", 1}}), "the colours")
          .Optional("exact", &DecodeImageOp::exact, Bool(),
                    "every pixel is decoded and has Pillow's value, at half "
                    "the speed");
  return declared;
}

Status DecodeImageOp::AddTo(PathBuilder* path, uint32_t number) const {
  if (!path->encoded()) {
    return InvalidArgumentError(
        "wants a picture file, found {}{}", path->feature().ToString(),
        path->feature().shape.size() == 3 ? "; use resize to change its size"
                                          : "");
  }
  path->AddStage(std::make_unique<DecodeStage>(*this, number),
                 {size.height, size.width, channels});
  return OkStatus();
}

}  // namespace penstock
