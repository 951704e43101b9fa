#include "broker/transform/feature_paths.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "broker/transform/augmentation.h"
#include "broker/transform/crop.h"
#include "broker/transform/jpeg_decoder.h"
#include "broker/transform/pixel_pass.h"
#include "broker/transform/resampler.h"
#include "broker/transform/rgbx_resampler.h"

namespace penstock {
namespace {

struct PathScratch : FeaturePaths::Scratch {
  Resampler resampler;
  RgbxResampler rgbx;
  std::vector<std::byte> picture_row;
  std::vector<std::byte> picture;  // resized, before its pixel pass
  // Between the stages of one feature: stage i writes between[i % 2].
  std::vector<std::byte> between[2];

  // One row of `bytes` bytes of a picture being decoded. Never aligned to a
  // vector: libjpeg-turbo would then write it past the caches (movntdq), and
  // since we read it at once, a whole picture would take 1.4 times as long.
  std::byte* PictureRow(size_t bytes) {
    constexpr size_t kVector = 64;
    constexpr size_t kBeside = 8;
    if (picture_row.size() < bytes + kVector + kBeside) {
      picture_row.resize(bytes + kVector + kBeside);
    }
    const auto address = reinterpret_cast<uintptr_t>(picture_row.data());
    return picture_row.data() + (kVector - address % kVector) + kBeside;
  }
};

// ---- stages ----------------------------------------------------------------
// A feature passes through a list of stages; the last one writes to its
// destination in the batch. in: the file's bytes for DecodeStage, else a whole
// tensor.

// Decodes, crops and resizes; unless exact, also applies the following
// PixelPass.
struct DecodeStage {
  DecodeImageOp op;
  uint32_t op_number;
  PixelPass pass;
  bool has_pass = false;  // else values are unchanged

  // Whether it can apply a pass while decoding.
  bool TakesPass() const { return !op.exact && op.channels == 3 && !has_pass; }

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const {
    JpegDecoder decoder;
    PENSTOCK_RETURN_IF_ERROR(decoder.Begin(in));
    const CropBox box =
        ChooseCrop(op.crop, decoder.size(), op.size, {key, op_number});
    if (!op.exact && op.channels == 3 && decoder.HasParts() &&
        BeginPart(box, key, scratch)) {
      return RunPart(box, decoder, scratch, out);
    }
    if (!has_pass) return RunWhole(box, decoder, scratch, out);
    const size_t bytes = op.size.height * op.size.width * op.channels;
    if (scratch.picture.size() < bytes) scratch.picture.resize(bytes);
    PENSTOCK_RETURN_IF_ERROR(
        RunWhole(box, decoder, scratch, scratch.picture.data()));
    pass.Run(scratch.picture.data(), key, out);
    return OkStatus();
  }

  // The largest scale at which the box is no smaller than its target.
  int Denominator(const CropBox& box) const {
    int denominator = 8;
    while (denominator > 1 && (box.width < op.size.width * denominator ||
                               box.height < op.size.height * denominator)) {
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
        op.size, pass.Mirrors(key));
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
        pass.WriteRgbx(rgbx, out_row++, out);
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
    PENSTOCK_RETURN_IF_ERROR(resampler.Begin(box, op.size, op.channels, out));
    PENSTOCK_RETURN_IF_ERROR(decoder.Start(op.channels));
    const size_t row_bytes = static_cast<size_t>(size.width * op.channels);
    std::byte* const row = scratch.PictureRow(row_bytes);
    for (int64_t y = 0; y < size.height; ++y) {
      PENSTOCK_RETURN_IF_ERROR(decoder.ReadRow(row));
      if (y >= resampler.first_row() && y < resampler.end_row()) {
        resampler.AddRow(y, row);
      }
    }
    return decoder.Finish();
  }
};

struct ResizeStage {
  std::optional<CropSpec> crop;
  ImageSize size;
  uint32_t op_number;
  ImageSize from;
  int channels;

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const {
    const CropBox box = ChooseCrop(crop, from, size, {key, op_number});
    Resampler& resampler = scratch.resampler;
    PENSTOCK_RETURN_IF_ERROR(resampler.Begin(box, size, channels, out));
    for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
      resampler.AddRow(y, in.data() + y * from.width * channels);
    }
    return OkStatus();
  }
};

struct PixelStage {
  PixelPass pass;

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch&, std::byte* out) const {
    pass.Run(in.data(), key, out);
    return OkStatus();
  }
};

// Bound of a worker's own picture between two stages, for which no memory is
// reserved.
constexpr uint64_t kBetweenBytesMax = uint64_t{256} << 20;

struct Stage {
  std::variant<DecodeStage, ResizeStage, PixelStage> work;
  uint64_t out_bytes;
};

Status CheckBools(std::span<const std::byte> raw) {
  const std::optional<size_t> wrong = FirstNotBool(raw);
  if (!wrong) return OkStatus();
  return DataLossError(
      "byte {} of its row is {}; a bool is 0 or 1 (declare it uint8 and let "
      "`cast: {{dtype: bool}}` make true of all but 0)",
      *wrong, std::to_integer<int>(raw[*wrong]));
}

// The path of one feature from the record into the batch.
struct FeaturePath {
  std::string name;
  bool encoded = false;
  uint64_t raw_bytes = 0;  // unless encoded
  bool bools = false;      // the input's dtype is bool
  std::vector<Stage> stages;

  Status Run(std::span<const std::byte> raw, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const {
    if (!encoded && raw.size() != raw_bytes) {
      return DataLossError("{} bytes where {} were expected", raw.size(),
                           raw_bytes);
    }
    // All input from files, producers and functions passes here.
    if (bools) PENSTOCK_RETURN_IF_ERROR(CheckBools(raw));
    if (stages.empty()) {
      if (!raw.empty() && raw.data() != out) {
        std::memcpy(out, raw.data(), raw.size());
      }
      return OkStatus();
    }
    std::span<const std::byte> in = raw;
    for (size_t i = 0; i < stages.size(); ++i) {
      const Stage& stage = stages[i];
      std::byte* to = out;
      if (i + 1 < stages.size()) {
        std::vector<std::byte>& between = scratch.between[i % 2];
        if (between.size() < stage.out_bytes) between.resize(stage.out_bytes);
        to = between.data();
      }
      PENSTOCK_RETURN_IF_ERROR(std::visit(
          [&](const auto& work) { return work.Run(in, key, scratch, to); },
          stage.work));
      in = {to, stage.out_bytes};
    }
    return OkStatus();
  }
};

// ---- compiling -------------------------------------------------------------
// The parser has checked the values of every op (common/dataset_spec.cc). Here
// it is checked whether the feature allows the op.

std::string_view OpName(const TransformSpec& op) {
  constexpr std::string_view kNames[] = {"decode_image", "crop",      "resize",
                                         "flip",         "normalize", "cast",
                                         "python",       "plugin"};
  static_assert(std::size(kNames) == std::variant_size_v<TransformSpec>);
  return kNames[op.index()];
}

// Follows one feature through the ops that name it: its current form and the
// stages so far.
class PathBuilder {
 public:
  explicit PathBuilder(const RawFeature& raw)
      : feature_(raw.feature), encoded_(raw.encoded) {
    path_.name = raw.feature.name;
    path_.encoded = raw.encoded;
    if (!raw.encoded) path_.raw_bytes = raw.feature.RowBytes();
    path_.bools = raw.feature.dtype == DType::kBool;
  }

  const std::string& name() const { return path_.name; }

  Status Add(const DecodeImageOp& op, uint32_t number) {
    if (!encoded_) {
      return InvalidArgumentError(
          "wants a picture file, found {}{}", feature_.ToString(),
          feature_.shape.size() == 3 ? "; use resize to change its size" : "");
    }
    encoded_ = false;
    feature_.dtype = DType::kUint8;
    feature_.shape = {op.size.height, op.size.width, op.channels};
    AddStage(DecodeStage{
        op, number,
        PixelPass(DType::kUint8, op.size.height, op.size.width, op.channels)});
    return OkStatus();
  }

  Status Add(const CropOp& op, uint32_t number) {
    return Resize("crop", op.crop, op.size, number);
  }
  Status Add(const ResizeOp& op, uint32_t number) {
    return Resize("resize", std::nullopt, op.size, number);
  }

  Status Resize(std::string_view name, const std::optional<CropSpec>& crop,
                const ImageSize& size, uint32_t number) {
    PENSTOCK_RETURN_IF_ERROR(CheckImage());
    PENSTOCK_RETURN_IF_ERROR(CheckUint8(name));
    if (channels() < 1 || channels() > Resampler::kChannelsMax ||
        feature_.shape[0] < 1 || feature_.shape[1] < 1) {
      return InvalidArgumentError("wants pixels of 1 to {} channels, found {}",
                                  Resampler::kChannelsMax, feature_.ToString());
    }
    FlushPixelPass();
    const ImageSize from = {.height = feature_.shape[0],
                            .width = feature_.shape[1]};
    const int of_channels = static_cast<int>(channels());
    feature_.shape[0] = size.height;
    feature_.shape[1] = size.width;
    AddStage(ResizeStage{crop, size, number, from, of_channels});
    return OkStatus();
  }

  Status Add(const FlipOp& op, uint32_t number) {
    PENSTOCK_RETURN_IF_ERROR(CheckImage());
    PendingPass().AddFlip({op.horizontal, number});
    return OkStatus();
  }

  Status Add(const NormalizeOp& op, uint32_t) {
    PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
    PENSTOCK_RETURN_IF_ERROR(CheckUint8("normalize"));
    PENSTOCK_RETURN_IF_ERROR(CheckChannelsLast());
    PENSTOCK_RETURN_IF_ERROR(CheckPerChannel("mean", op.mean));
    PENSTOCK_RETURN_IF_ERROR(CheckPerChannel("std", op.std));
    PENSTOCK_RETURN_IF_ERROR(CheckLayout(op.layout));
    PendingPass().Normalize(op.mean, op.std, op.dtype);
    FinishValues(op.dtype, op.layout);
    return OkStatus();
  }

  Status Add(const CastOp& op, uint32_t) {
    PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
    PENSTOCK_RETURN_IF_ERROR(CheckLayout(op.layout));
    PendingPass().Cast(op.dtype);
    FinishValues(op.dtype, op.layout);
    return OkStatus();
  }

  Status Finish(FeaturePath* path, RawFeature* out) {
    FlushPixelPass();
    for (size_t i = 0; i + 1 < path_.stages.size(); ++i) {
      if (path_.stages[i].out_bytes > kBetweenBytesMax) {
        return InvalidArgumentError(
            "feature '{}': a step of map makes {} bytes only for the next one, "
            "at most {} may be: make its size smaller",
            name(), path_.stages[i].out_bytes, kBetweenBytesMax);
      }
    }
    *path = std::move(path_);
    *out = {std::move(feature_), encoded_};
    return OkStatus();
  }

 private:
  // Of [h, w, c]; any other shape counts as one channel.
  int64_t channels() const {
    return feature_.shape.size() == 3 && !channels_first_ ? feature_.shape[2]
                                                          : 1;
  }

  Status CheckDecoded() const {
    if (!encoded_) return OkStatus();
    return InvalidArgumentError(
        "feature '{}' is encoded; put decode_image before it", name());
  }
  Status CheckChannelsLast() const {
    if (!channels_first_) return OkStatus();
    return InvalidArgumentError(
        "feature '{}' has its channels first by now; put it before the op that "
        "says layout: chw",
        name());
  }
  Status CheckImage() const {
    PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
    PENSTOCK_RETURN_IF_ERROR(CheckChannelsLast());
    if (feature_.shape.size() == 2 || feature_.shape.size() == 3) {
      return OkStatus();
    }
    return InvalidArgumentError("wants an image [h, w] or [h, w, c], found {}",
                                feature_.ToString());
  }
  Status CheckUint8(std::string_view op) const {
    if (feature_.dtype == DType::kUint8) return OkStatus();
    return InvalidArgumentError(
        "wants uint8 values, found {}; put {} before the op that changes them",
        feature_.ToString(), op);
  }
  Status CheckPerChannel(std::string_view name,
                         const std::vector<double>& values) const {
    const int64_t count = static_cast<int64_t>(values.size());
    const bool finite = std::all_of(values.begin(), values.end(),
                                    [](double v) { return std::isfinite(v); });
    if (finite && count > 0 && (count == 1 || count == channels())) {
      return OkStatus();
    }
    return InvalidArgumentError(
        "{} is [{}]; {} wants one finite number, or one for each of its {} "
        "channels",
        name, JoinText(values, ", "), feature_.ToString(), channels());
  }
  Status CheckLayout(Layout layout) const {
    return layout == Layout::kChw ? CheckImage() : OkStatus();
  }

  // The pass to which the next flip, cast or normalization is added.
  PixelPass& PendingPass() {
    if (!pass_) {
      const std::vector<int64_t>& shape = feature_.shape;
      if (!channels_first_ && (shape.size() == 2 || shape.size() == 3)) {
        pass_.emplace(feature_.dtype, shape[0], shape[1], channels());
      } else {
        pass_.emplace(feature_.dtype, 1, values(), 1);
      }
    }
    return *pass_;
  }

  void FinishValues(DType dtype, Layout layout) {
    if (layout == Layout::kChw && feature_.shape.size() == 3) {
      pass_->SetChannelsFirst();
      const std::vector<int64_t> hwc = feature_.shape;
      feature_.shape = {hwc[2], hwc[0], hwc[1]};
      channels_first_ = true;
    }
    feature_.dtype = dtype;
    FlushPixelPass();
  }

  void FlushPixelPass() {
    if (!pass_) return;
    DecodeStage* const decode =
        path_.stages.empty()
            ? nullptr
            : std::get_if<DecodeStage>(&path_.stages.back().work);
    if (decode != nullptr && decode->TakesPass()) {
      decode->pass = *std::move(pass_);
      decode->has_pass = true;
      path_.stages.back().out_bytes = feature_.RowBytes();
    } else {
      AddStage(PixelStage{*std::move(pass_)});
    }
    pass_.reset();
  }

  int64_t values() const {
    return static_cast<int64_t>(feature_.RowBytes() /
                                DTypeBytes(feature_.dtype));
  }

  template <typename Work>
  void AddStage(Work work) {
    path_.stages.push_back({std::move(work), feature_.RowBytes()});
  }

  Feature feature_;  // as it is after the stages so far
  bool encoded_;
  bool channels_first_ = false;
  FeaturePath path_;
  // Flips to be merged into the next cast or normalization.
  std::optional<PixelPass> pass_;
};

// The feature that an op means: the one with its name, or the only one if the
// op has the default name.
StatusOr<PathBuilder*> FindFeature(const std::string& name,
                                   std::vector<PathBuilder>& builders) {
  std::string known;
  for (PathBuilder& builder : builders) {
    if (builder.name() == name) return &builder;
    known += (known.empty() ? "" : ", ") + builder.name();
  }
  if (builders.size() == 1 && name == FlipOp().feature) return &builders[0];
  return InvalidArgumentError("no feature '{}'; known here: {}", name, known);
}

class CompiledFeaturePaths : public FeaturePaths {
 public:
  CompiledFeaturePaths(std::vector<FeaturePath> paths, RawSpec out)
      : paths_(std::move(paths)), out_(std::move(out)) {}

  const RawSpec& out() const override { return out_; }

  bool Copies(size_t feature) const override {
    return paths_[feature].stages.empty();
  }

  Status Run(const RawRecord& raw, const AugmentationKey& key, Scratch& scratch,
             std::span<std::byte* const> out) const override {
    if (raw.size() != paths_.size() || out.size() != paths_.size()) {
      return InternalError("a row of {} features, given {} and {} places",
                           paths_.size(), raw.size(), out.size());
    }
    auto& mine = static_cast<PathScratch&>(scratch);
    for (size_t i = 0; i < paths_.size(); ++i) {
      if (Status status = paths_[i].Run(raw[i], key, mine, out[i]);
          !status.ok()) {
        return status.Prepend(Format("feature '{}'", paths_[i].name));
      }
    }
    return OkStatus();
  }

 private:
  std::vector<FeaturePath> paths_;
  RawSpec out_;
};

}  // namespace

std::unique_ptr<FeaturePaths::Scratch> FeaturePaths::MakeScratch() {
  return std::make_unique<PathScratch>();
}

StatusOr<std::unique_ptr<FeaturePaths>> FeaturePaths::Compile(
    std::span<const TransformSpec> ops, size_t first, const RawSpec& raw) {
  std::vector<PathBuilder> builders(raw.begin(), raw.end());
  for (size_t i = 0; i < ops.size(); ++i) {
    const Status status = std::visit(
        [&](const auto& op) -> Status {
          if constexpr (requires { op.feature; }) {
            PENSTOCK_ASSIGN_OR_RETURN(PathBuilder * builder,
                                      FindFeature(op.feature, builders));
            return builder->Add(op, static_cast<uint32_t>(first + i));
          } else {
            return InternalError("it is of whole rows");
          }
        },
        ops[i]);
    if (!status.ok()) {
      return status.Prepend(Format("map[{}] {}", first + i, OpName(ops[i])));
    }
  }
  std::vector<FeaturePath> paths(raw.size());
  RawSpec out(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(builders[i].Finish(&paths[i], &out[i]));
  }
  return std::unique_ptr<FeaturePaths>(
      new CompiledFeaturePaths(std::move(paths), std::move(out)));
}

}  // namespace penstock
