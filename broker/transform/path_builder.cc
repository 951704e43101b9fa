#include "broker/transform/path_builder.h"

#include <algorithm>
#include <utility>

#include "broker/declare/value_type.h"
#include "broker/source/number.h"

namespace penstock {
namespace {

// Bound of a worker's own picture between two stages, for which no memory is
// reserved.
constexpr uint64_t kBetweenBytesMax = uint64_t{256} << 20;

// A canvas has buffers of its own, too.
Status CheckCanvasBytes(const Feature& feature) {
  if (feature.RowBytes() <= kBetweenBytesMax) return OkStatus();
  return InvalidArgumentError(
      "{} has more than {} bytes; make it smaller before this step",
      feature.ToString(), kBetweenBytesMax);
}

class PixelStage final : public Stage {
 public:
  explicit PixelStage(PixelPass pass) : pass_(std::move(pass)) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch&, std::byte* out) const override {
    pass_.Run(in.data(), key, out);
    return OkStatus();
  }

 private:
  const PixelPass pass_;
};

// A function of values of more than a byte, in blocks that stay in the cache.
class ValueStage final : public Stage {
 public:
  ValueStage(ValueFunction function, DType from, DType to, uint64_t values)
      : function_(std::move(function)),
        widen_(CastKernel(from, DType::kFloat64)),
        round_(CastKernel(DType::kFloat64, to)),
        from_bytes_(DTypeBytes(from)),
        to_bytes_(DTypeBytes(to)),
        values_(values) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey&,
             PathScratch&, std::byte* out) const override {
    constexpr uint64_t kBlock = 256;
    double block[kBlock];
    auto* const bytes = reinterpret_cast<std::byte*>(block);
    for (uint64_t at = 0; at < values_; at += kBlock) {
      const uint64_t n = std::min(kBlock, values_ - at);
      const auto count = static_cast<int64_t>(n);
      widen_(nullptr, in.data() + at * from_bytes_, 1, bytes, 1, count);
      function_.compute({block, n}, at % function_.channels);
      round_(nullptr, bytes, 1, out + at * to_bytes_, 1, count);
    }
    return OkStatus();
  }

 private:
  const ValueFunction function_;
  const ValueKernel widen_;
  const ValueKernel round_;
  const uint64_t from_bytes_;
  const uint64_t to_bytes_;
  const uint64_t values_;
};

}  // namespace

Status CheckMade(const Feature& feature) {
  if (feature.shape.size() > kShapeDimensionsMax) {
    return InvalidArgumentError(
        "makes {} dimensions of '{}'; at most {} may be", feature.shape.size(),
        feature.name, kShapeDimensionsMax);
  }
  uint64_t room = kBetweenBytesMax / DTypeBytes(feature.dtype);
  for (const int64_t size : feature.shape) {
    // Divide: the product may be more than 64 bits hold.
    if (size != 0) room /= static_cast<uint64_t>(size);
  }
  if (room > 0) return OkStatus();
  return InvalidArgumentError("makes {}, more than {} bytes",
                              feature.ToString(), kBetweenBytesMax);
}

class PictureStage final : public Stage {
 public:
  // channels: as in Canvas.
  PictureStage(const ImageSize& size, int64_t channels, int64_t pixel_bytes)
      : size_(size), channels_(channels), pixel_bytes_(pixel_bytes) {}

  int64_t channels() const { return channels_; }
  void Add(uint32_t number, PictureStep step) {
    steps_.emplace_back(number, std::move(step));
  }

  bool TakePass(std::optional<PixelPass>* pass) override {
    if (pass_) return false;
    pass_ = std::move(*pass);
    return true;
  }

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch& scratch, std::byte* out) const override {
    Canvas& canvas = scratch.canvas;
    canvas.Begin(in.data(), size_, channels_, pixel_bytes_);
    for (const auto& [number, step] : steps_) {
      const StepClock::In in_step(scratch.clock, kFirstStep + number);
      step({key, number}, canvas);
    }
    if (pass_) {
      const StepClock::In in_pass(scratch.clock, pass_->part());
      pass_->Run(canvas.Pixels(), key, out);
    } else {
      canvas.Finish(out);
    }
    return OkStatus();
  }

 private:
  const ImageSize size_;
  const int64_t channels_;
  const int64_t pixel_bytes_;
  std::vector<std::pair<uint32_t, PictureStep>> steps_;
  std::optional<PixelPass> pass_;
};

Status PathBuilder::CheckDecoded() const {
  if (!encoded_) return OkStatus();
  return InvalidArgumentError(
      "feature '{}' is encoded; put decode_image before it, of a sound "
      "decode_audio",
      name_);
}

Status PathBuilder::CheckChannelsLast() const {
  if (!channels_first_) return OkStatus();
  return InvalidArgumentError(
      "feature '{}' has its channels first by now; put it before the op that "
      "says layout: chw",
      name_);
}

Status PathBuilder::CheckImage() const {
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
  PENSTOCK_RETURN_IF_ERROR(CheckChannelsLast());
  if (is_list_) {
    return InvalidArgumentError(
        "'{0}' is a list of {0}{1} items, no picture; `drop` that feature "
        "before "
        "if it is one",
        feature_.name, kLengthSuffix);
  }
  if (feature_.shape.size() == 2 || feature_.shape.size() == 3) {
    return OkStatus();
  }
  return InvalidArgumentError("wants an image [h, w] or [h, w, c], found {}",
                              feature_.ToString());
}

StatusOr<ImageSize> PathBuilder::PictureSize() const {
  if (channels_first()) {
    return ImageSize{.height = feature_.shape[1], .width = feature_.shape[2]};
  }
  PENSTOCK_RETURN_IF_ERROR(CheckImage());
  if (channels() <= Resampler::kChannelsMax) return size();
  return InvalidArgumentError("wants an image [h, w] or [h, w, c], found {}",
                              feature_.ToString());
}

Status PathBuilder::CheckUint8(std::string_view op) const {
  if (feature_.dtype == DType::kUint8) return OkStatus();
  return InvalidArgumentError(
      "wants uint8 values, found {}; put {} before the op that changes them",
      feature_.ToString(), op);
}

Status PathBuilder::CheckNumbers() const {
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
  if (feature_.dtype != DType::kBool) return OkStatus();
  return InvalidArgumentError(
      "wants numbers, found {}; put `cast` before it if 0 and 1 are meant",
      feature_.ToString());
}

Status PathBuilder::CheckFloats(std::string_view remedy) const {
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
  if (IsFloat(feature_.dtype)) return OkStatus();
  return InvalidArgumentError("wants floating-point values, found {}; {}",
                              feature_.ToString(), remedy);
}

Status PathBuilder::CheckIntegers(std::string_view remedy) const {
  PENSTOCK_RETURN_IF_ERROR(CheckNumbers());
  if (!IsFloat(feature_.dtype)) return OkStatus();
  return InvalidArgumentError("wants integers, found {}; {}",
                              feature_.ToString(), remedy);
}

Status PathBuilder::CheckSound(int64_t rate) const {
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded());
  if (feature_.dtype != DType::kFloat32 || feature_.shape.size() != 1) {
    return InvalidArgumentError(
        "wants float32 [samples], found {}; decode_audio with `mono: true` "
        "makes them",
        feature_.ToString());
  }
  if (known_.rate == 0 || known_.rate == rate) return OkStatus();
  return InvalidArgumentError(
      "its rate is {}, and decode_audio makes '{}' of rate {}: give both one "
      "rate",
      rate, feature_.name, known_.rate);
}

Status PathBuilder::CheckPicture(std::string_view op) const {
  PENSTOCK_RETURN_IF_ERROR(CheckImage());
  PENSTOCK_RETURN_IF_ERROR(CheckUint8(op));
  if ((channels() == 1 || channels() == 3) && feature_.RowBytes() > 0) {
    return CheckCanvasBytes(feature_);
  }
  return InvalidArgumentError(
      "wants pixels of 1 or 3 channels, found {}; `reshape` gives values "
      "another shape",
      feature_.ToString());
}

StatusOr<std::vector<std::byte>> PixelOf(const Fill& fill, int64_t channels) {
  if (fill.size() != 1 && static_cast<int64_t>(fill.size()) != channels) {
    return InvalidArgumentError(
        "fill: has {} values; give one, or one for each of {} channels",
        fill.size(), channels);
  }
  std::vector<std::byte> pixel;
  for (int64_t c = 0; c < channels; ++c) {
    pixel.push_back(static_cast<std::byte>(fill[fill.size() == 1 ? 0 : c]));
  }
  return pixel;
}

StatusOr<std::vector<std::byte>> PathBuilder::MaskFillPixel(
    int64_t value) const {
  PENSTOCK_RETURN_IF_ERROR(CheckImage());
  if (feature_.RowBytes() == 0) {
    return InvalidArgumentError("wants pixels, found {}", feature_.ToString());
  }
  PENSTOCK_RETURN_IF_ERROR(CheckCanvasBytes(feature_));
  const uint32_t bytes = DTypeBytes(feature_.dtype);
  std::vector<std::byte> one(bytes);
  CastKernel(DType::kInt64, feature_.dtype)(
      nullptr, reinterpret_cast<const std::byte*>(&value), 1, one.data(), 1, 1);
  int64_t back = 0;
  CastKernel(feature_.dtype, DType::kInt64)(
      nullptr, one.data(), 1, reinterpret_cast<std::byte*>(&back), 1, 1);
  if (back != value) {
    return InvalidArgumentError("mask_fill: {} is no value of {}; change it",
                                value, feature_.ToString());
  }
  std::vector<std::byte> pixel;
  const int64_t pixels = feature_.shape[0] * feature_.shape[1];
  while (static_cast<int64_t>(pixel.size()) * pixels <
         static_cast<int64_t>(feature_.RowBytes())) {
    pixel.insert(pixel.end(), one.begin(), one.end());
  }
  return pixel;
}

void PathBuilder::AddPictureStep(int64_t channels, uint32_t number,
                                 PictureStep step) {
  FlushPixelPass();
  if (open_ == nullptr || open_->channels() != channels) {
    const ImageSize picture = size();
    auto stage = std::make_unique<PictureStage>(
        picture, channels,
        static_cast<int64_t>(feature_.RowBytes()) / picture.height /
            picture.width);
    PictureStage* const open = stage.get();
    AddStage(std::move(stage), feature_.shape, feature_.dtype);
    open_ = open;
  }
  open_->Add(number, std::move(step));
}

void PathBuilder::AddStage(std::unique_ptr<Stage> stage,
                           std::vector<int64_t> shape, DType dtype) {
  FlushPixelPass();
  open_ = nullptr;
  encoded_ = false;
  feature_.dtype = dtype;
  feature_.shape = std::move(shape);
  stage->out_bytes = feature_.RowBytes();
  stage->part = Part();
  stages_.push_back(std::move(stage));
}

void PathBuilder::AddChange(
    std::function<void(const AugmentationKey& key, std::byte* out)> change) {
  if (stages_.empty()) PendingPass();
  FlushPixelPass();
  open_ = nullptr;
  stages_.back()->changes.push_back({Part(), std::move(change)});
}

PixelPass& PathBuilder::PendingPass() {
  if (!pass_) {
    const std::vector<int64_t>& shape = feature_.shape;
    if (!channels_first_ && (shape.size() == 2 || shape.size() == 3)) {
      pass_.emplace(feature_.dtype, shape[0], shape[1], channels());
    } else {
      const uint64_t values = feature_.RowBytes() / DTypeBytes(feature_.dtype);
      pass_.emplace(feature_.dtype, 1, static_cast<int64_t>(values), 1);
    }
  }
  pass_->SetPart(Part());
  return *pass_;
}

void PathBuilder::Compute(const ValueFunction& function, DType dtype,
                          Layout layout, const Line& line) {
  if (DTypeBytes(feature_.dtype) == 1 &&
      (function.channels == 1 ||
       static_cast<int64_t>(function.channels) == channels())) {
    PendingPass().Compute(function, dtype);
    if (!line.mean.empty()) pass_->TakeLine(line.mean, line.std);
    return FinishValues(dtype, layout);
  }
  const uint64_t values = feature_.RowBytes() / DTypeBytes(feature_.dtype);
  AddStage(
      std::make_unique<ValueStage>(function, feature_.dtype, dtype, values),
      feature_.shape, dtype);
  if (layout == Layout::kChw) {
    PendingPass();
    FinishValues(dtype, layout);
  }
}

void PathBuilder::Reshape(std::vector<int64_t> shape) {
  FlushPixelPass();
  open_ = nullptr;  // its canvas has the old size
  feature_.shape = std::move(shape);
  channels_first_ = false;
}

void PathBuilder::FinishValues(DType dtype, Layout layout) {
  if (layout == Layout::kChw && feature_.shape.size() == 3) {
    pass_->SetChannelsFirst();
    const std::vector<int64_t> hwc = feature_.shape;
    feature_.shape = {hwc[2], hwc[0], hwc[1]};
    channels_first_ = true;
  }
  feature_.dtype = dtype;
  FlushPixelPass();
}

void PathBuilder::FlushPixelPass() {
  if (!pass_) return;
  const uint32_t part = pass_->part();
  if (stages_.empty() || !stages_.back()->changes.empty() ||
      !stages_.back()->TakePass(&pass_)) {
    stages_.push_back(std::make_unique<PixelStage>(*std::move(pass_)));
    stages_.back()->part = part;
  }
  stages_.back()->out_bytes = feature_.RowBytes();
  pass_.reset();
  open_ = nullptr;
}

Status PathBuilder::Settle(size_t slot,
                           std::vector<std::unique_ptr<Stage>>* stages) {
  RawFeature form;
  PENSTOCK_RETURN_IF_ERROR(Finish(true, stages, &form));
  feature_ = std::move(form.feature);
  open_ = nullptr;
  stages_.clear();
  if (!stages->empty()) slot_ = slot;
  return OkStatus();
}

Status PathBuilder::Finish(bool for_step,
                           std::vector<std::unique_ptr<Stage>>* stages,
                           RawFeature* out) {
  FlushPixelPass();
  const size_t last = for_step ? 0 : 1;
  for (size_t i = 0; i + last < stages_.size(); ++i) {
    if (stages_[i]->out_bytes > kBetweenBytesMax) {
      return InvalidArgumentError(
          "feature '{}': a step of map makes {} bytes only for the next one, "
          "at most {} may be: make its size smaller",
          name_, stages_[i]->out_bytes, kBetweenBytesMax);
    }
  }
  *stages = std::move(stages_);
  *out = {std::move(feature_), encoded_, {}, known_.boxes, known_.rate};
  return OkStatus();
}

}  // namespace penstock
