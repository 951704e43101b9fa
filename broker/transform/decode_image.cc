#include "broker/transform/decode_image.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "broker/transform/jpeg_decoder.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/orientation.h"
#include "broker/transform/path_builder.h"
#include "broker/transform/sample_rows.h"
#include "broker/transform/window.h"

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
        "a picture of {} x {} pixels, but another one of the step has {} x {}; "
        "a step crops and flips pictures of one size together",
        size.width, size.height, each.size.width, each.size.height);
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

// Numbers of the rows of the result, from its top or from its bottom.
class OutputRows {
 public:
  OutputRows(int64_t height, bool from_bottom)
      : row_(from_bottom ? height - 1 : 0), step_(from_bottom ? -1 : 1) {}
  int64_t Next() { return std::exchange(row_, row_ + step_); }

 private:
  int64_t row_;
  const int64_t step_;
};

// Decodes, crops and resizes; unless exact, also applies the following
// PixelPass.
class DecodeStage final : public Stage {
 public:
  // fill: a pixel.
  DecodeStage(DecodeImageOp op, uint32_t op_number, std::vector<std::byte> fill)
      : op_(std::move(op)),
        op_number_(op_number),
        mode_(PaddingOf(op_.crop).mode),
        fill_(std::move(fill)),
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
    PENSTOCK_ASSIGN_OR_RETURN(
        const CropView view,
        ChooseView(op_.crop, size, op_.size, {key, op_number_}));
    if (!op_.exact && op_.channels == 3 && orientation.is_upright() &&
        op_.interpolation == Interpolation::kBilinear &&
        view.IsInside(op_.size)) {
      const FractionalBox box = SourceOf(view);
      if (JpegDecoder* const jpeg = decoder->AsJpeg(); jpeg == nullptr) {
        if (BeginPart(box, 1, key, scratch)) {
          return RunRows(*decoder, key, scratch, out);
        }
      } else if (jpeg->HasParts() &&
                 BeginPart(box, Denominator(box), key, scratch)) {
        return RunPart(box, *jpeg, key, scratch, out);
      }
    }
    const auto run_exact = [&](std::byte* picture) {
      return orientation.is_upright()
                 ? RunWhole(view, *decoder, scratch, picture)
                 : RunTurned(in, view, orientation, *decoder, scratch, picture);
    };
    if (!has_pass_) return run_exact(out);
    const size_t bytes = op_.size.height * op_.size.width * op_.channels;
    if (scratch.picture.size() < bytes) scratch.picture.resize(bytes);
    PENSTOCK_RETURN_IF_ERROR(run_exact(scratch.picture.data()));
    const StepClock::In in_pass(scratch.clock, pass_.part());
    pass_.Run(scratch.picture.data(), key, out);
    return OkStatus();
  }

 private:
  // The pixels of the picture that become the result.
  FractionalBox SourceOf(const CropView& view) const {
    // Exactly the box where the window is all of it.
    const auto part = [](int64_t length, int64_t some, int64_t all) {
      return static_cast<double>(length) *
             (static_cast<double>(some) / static_cast<double>(all));
    };
    // Rounding takes no pixel after the box.
    const auto cut = [](double start, double length, int64_t end) {
      while (start + length > static_cast<double>(end)) {
        length = std::nextafter(length, 0);
      }
      return length;
    };
    const CropBox& box = view.box;
    FractionalBox source = {
        .left = static_cast<double>(box.left) +
                part(box.width, view.left, view.scaled.width),
        .top = static_cast<double>(box.top) +
               part(box.height, view.top, view.scaled.height),
        .width = part(box.width, op_.size.width, view.scaled.width),
        .height = part(box.height, op_.size.height, view.scaled.height)};
    source.width = cut(source.left, source.width, box.left + box.width);
    source.height = cut(source.top, source.height, box.top + box.height);
    return source;
  }

  // The largest scale at which the box is no smaller than its target.
  int Denominator(const FractionalBox& box) const {
    int denominator = 8;
    while (denominator > 1 &&
           (box.width < static_cast<double>(op_.size.width * denominator) ||
            box.height < static_cast<double>(op_.size.height * denominator))) {
      denominator /= 2;
    }
    return denominator;
  }

  bool BeginPart(const FractionalBox& box, int denominator,
                 const AugmentationKey& key, PathScratch& scratch) const {
    const double scale = 1.0 / denominator;
    return scratch.rgbx.Begin({.left = box.left * scale,
                               .top = box.top * scale,
                               .width = box.width * scale,
                               .height = box.height * scale},
                              op_.size, pass_.Mirrors(key).horizontal);
  }

  // Makes the result of the rows from y on. The pixels of each are read into
  // row, those that count from first_pixel on.
  template <typename Decoder>
  Status Resample(int64_t y, Decoder& decoder, std::byte* row,
                  const std::byte* first_pixel, const AugmentationKey& key,
                  PathScratch& scratch, std::byte* out) const {
    RgbxResampler& resampler = scratch.rgbx;
    OutputRows rows(op_.size.height, pass_.Mirrors(key).vertical);
    StepClock* const clock = has_pass_ ? scratch.clock : nullptr;
    for (; y < resampler.end_row(); ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
      if (y < resampler.first_row()) continue;
      resampler.AddRow(y, first_pixel);
      while (const std::byte* rgbx = resampler.NextRow()) {
        const StepClock::In in(clock, pass_.part());
        pass_.WriteRgbx(rgbx, rows.Next(), out);
      }
    }
    return decoder.FinishPart(row);
  }

  // Decodes only what the box needs of a JPEG.
  Status RunPart(const FractionalBox& box, JpegDecoder& decoder,
                 const AugmentationKey& key, PathScratch& scratch,
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
    return Resample(resampler.first_row(), decoder, row, first_pixel, key,
                    scratch, out);
  }

  // Decodes the rows down to the end of the box.
  Status RunRows(PictureDecoder& decoder, const AugmentationKey& key,
                 PathScratch& scratch, std::byte* out) const {
    RgbxResampler& resampler = scratch.rgbx;
    PENSTOCK_RETURN_IF_ERROR(decoder.Start(RgbxResampler::kPixelBytes));
    std::byte* const row = scratch.PictureRow(
        (decoder.size().width + RgbxResampler::kRowSlackPixels) *
        RgbxResampler::kPixelBytes);
    const std::byte* const first_pixel =
        row + resampler.first_column() * RgbxResampler::kPixelBytes;
    return Resample(0, decoder, row, first_pixel, key, scratch, out);
  }

  // Decodes every row, also outside the box: the errors of a file do not depend
  // on the part that an epoch uses.
  Status RunWhole(const CropView& view, PictureDecoder& decoder,
                  PathScratch& scratch, std::byte* out) const {
    const ImageSize size = decoder.size();
    ViewResizer resizer(&scratch.resampler, &scratch.part,
                        &scratch.nearest_columns);
    PENSTOCK_RETURN_IF_ERROR(
        resizer.Begin(view, op_.size, op_.interpolation, mode_, fill_, out));
    PENSTOCK_RETURN_IF_ERROR(decoder.Start(op_.channels));
    const size_t row_bytes = static_cast<size_t>(size.width * op_.channels);
    std::byte* const row = scratch.PictureRow(row_bytes);
    for (int64_t y = 0; y < size.height; ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
      if (y >= resizer.first_row() && y < resizer.end_row()) {
        resizer.AddRow(y, row);
      }
    }
    resizer.Finish();
    return decoder.Finish();
  }

  // As RunWhole, of the picture turned upright.
  Status RunTurned(std::span<const std::byte> file, const CropView& view,
                   const Orientation& orientation, PictureDecoder& decoder,
                   PathScratch& scratch, std::byte* out) const {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<std::byte[]> upright,
                              ReadUpright(file, view.box, orientation,
                                          op_.channels, decoder, scratch));
    CropView of_box = view;
    of_box.box.left = of_box.box.top = 0;
    ViewResizer resizer(&scratch.resampler, &scratch.part,
                        &scratch.nearest_columns);
    PENSTOCK_RETURN_IF_ERROR(
        resizer.Begin(of_box, op_.size, op_.interpolation, mode_, fill_, out));
    for (int64_t y = resizer.first_row(); y < resizer.end_row(); ++y) {
      resizer.AddRow(y, upright.get() + y * view.box.width * op_.channels);
    }
    resizer.Finish();
    return OkStatus();
  }

  const DecodeImageOp op_;
  const uint32_t op_number_;
  const PadMode mode_;
  const std::vector<std::byte> fill_;
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
    PENSTOCK_ASSIGN_OR_RETURN(
        CropView view, ChooseView(op_.crop, size, op_.size, {key, op_number_}));
    const Padding padding = PaddingOf(op_.crop);
    const CropBox box = view.box;
    if (!orientation.is_upright()) view.box.left = view.box.top = 0;
    FindNearestOfView(view, op_.size, padding.mode, &scratch.nearest_scaled,
                      &scratch.nearest_rows, &scratch.nearest_columns);
    const std::vector<int64_t>& rows = scratch.nearest_rows;
    // Row y of the picture, where the result has it; y < 0: of the fill.
    const auto take = [&](int64_t y, const std::byte* values) {
      const int64_t row_bytes =
          op_.size.width * (op_.mask_dtype == DType::kInt32 ? 4 : 1);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] != y) continue;
        PENSTOCK_RETURN_IF_ERROR(
            TakeRow(values, scratch.nearest_columns, padding.mask_fill,
                    out + static_cast<int64_t>(i) * row_bytes));
      }
      return OkStatus();
    };
    PENSTOCK_RETURN_IF_ERROR(take(-1, nullptr));
    if (!orientation.is_upright()) {
      PENSTOCK_ASSIGN_OR_RETURN(
          const std::unique_ptr<std::byte[]> upright,
          ReadUpright(in, box, orientation, kValueChannels, *decoder, scratch));
      for (int64_t y = 0; y < box.height; ++y) {
        PENSTOCK_RETURN_IF_ERROR(
            take(y, upright.get() + y * box.width * kValueChannels));
      }
      return OkStatus();
    }
    PENSTOCK_RETURN_IF_ERROR(decoder->Start(kValueChannels));
    std::byte* const row =
        scratch.PictureRow(static_cast<size_t>(size.width * kValueChannels));
    for (int64_t y = 0; y < size.height; ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder->ReadRow(row));
      PENSTOCK_RETURN_IF_ERROR(take(y, row));
    }
    return decoder->Finish();
  }

 private:
  Status TakeRow(const std::byte* values, std::span<const int64_t> columns,
                 int64_t fill, std::byte* out) const {
    for (const int64_t x : columns) {
      int64_t value = fill;
      if (values != nullptr && x >= 0) {
        value = ValueAt<uint16_t>(values + x * kValueChannels);
      }
      if (op_.mask_dtype == DType::kInt32) {
        Store(static_cast<int32_t>(value), out);
        out += sizeof(int32_t);
        continue;
      }
      if (value > UINT8_MAX) {
        return DataLossError(
            "a mask with the value {}, more than uint8 holds; say `mask_dtype: "
            "int32`",
            value);
      }
      *out++ = static_cast<std::byte>(value);
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

// The name alone does for all kinds but `at`, which has no defaults.
ValueType<CropSpec> CropType() {
  ValueType<CropSpec> type = KindOrItsName<CropSpec>();
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted, CropSpec* out) {
    PENSTOCK_RETURN_IF_ERROR(read(value, wanted, out));
    if (!value.IsScalar() || !std::holds_alternative<PartAt>(*out)) {
      return OkStatus();
    }
    return value.Error("at: give its {top, left, height, width}");
  };
  return type;
}

}  // namespace

const Declaration<DecodeImageOp>& DecodeImageOp::Declared() {
  static const auto declared =
      FeatureOp<DecodeImageOp>("decode_image",
                               "Decodes a picture (JPEG, PNG, WebP, TIFF, "
                               "BMP, PGM, PPM), "
                               "crops it and resizes it.")
          .Gives("encoded → uint8 [h, w, c]; of a mask, its values [h, w]")
          .Example("{size: 224, crop: random_resized}")
          .Optional("crop", &DecodeImageOp::crop, Maybe(CropType()),
                    "the part that is used; by default all of it")
          .Required("size", &DecodeImageOp::size, ImageSizeType(), kSizeText)
          .Optional("channels", &DecodeImageOp::channels,
                    Words<int>({{"rgb", 3}, {"gray", 1}}), "the colours")
          .Optional("exact", &DecodeImageOp::exact, Bool(),
                    "every pixel is decoded and has Pillow's value, at half "
                    "the speed")
          .Optional("interpolation", &DecodeImageOp::interpolation,
                    LeftOutAt(Interpolation::kBilinear,
                              InterpolationType({Interpolation::kBilinear,
                                                 Interpolation::kBicubic,
                                                 Interpolation::kLanczos})),
                    "of pictures, by default bilinear; the others are computed "
                    "as with exact")
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
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::byte> pixel,
                            PixelOf(PaddingOf(crop).fill, channels));
  path->AddStage(std::make_unique<DecodeStage>(*this, number, std::move(pixel)),
                 {size.height, size.width, channels});
  return OkStatus();
}

StatusOr<BoxMove> DecodeImageOp::MoveOfBoxes(const PathBuilder& path,
                                             uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(CheckEncoded(path));
  return BoxMove([op = *this, number](const AugmentationKey& key,
                                      std::span<const std::byte> file,
                                      std::span<Box> boxes) -> Status {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PictureDecoder> decoder,
                              OpenPicture(file));
    const Orientation orientation =
        op.applies_orientation ? ReadOrientation(file) : Orientation();
    return MoveIntoView(op.crop, orientation.Turn(decoder->size()), op.size,
                        {key, number}, boxes);
  });
}

Status DecodeImageOp::AddToMask(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(CheckEncoded(*path));
  const DType dtype = mask_dtype.value_or(DType::kUint8);
  const int64_t most = dtype == DType::kUint8 ? UINT8_MAX : INT32_MAX;
  if (const int64_t fill = PaddingOf(crop).mask_fill;
      fill > most || fill < (dtype == DType::kUint8 ? 0 : INT32_MIN)) {
    return InvalidArgumentError(
        "crop: mask_fill {} is no value of {}; `mask_dtype: int32` has more",
        fill, DTypeName(dtype));
  }
  path->AddStage(std::make_unique<DecodeMaskStage>(*this, number),
                 {size.height, size.width}, dtype);
  return OkStatus();
}

}  // namespace penstock
