#include "broker/transform/path_builder.h"

#include <utility>

namespace penstock {
namespace {

// Bound of a worker's own picture between two stages, for which no memory is
// reserved.
constexpr uint64_t kBetweenBytesMax = uint64_t{256} << 20;

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

}  // namespace

Status PathBuilder::CheckDecoded() const {
  if (!encoded_) return OkStatus();
  return InvalidArgumentError(
      "feature '{}' is encoded; put decode_image before it", name_);
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
  if (feature_.shape.size() == 2 || feature_.shape.size() == 3) {
    return OkStatus();
  }
  return InvalidArgumentError("wants an image [h, w] or [h, w, c], found {}",
                              feature_.ToString());
}

Status PathBuilder::CheckUint8(std::string_view op) const {
  if (feature_.dtype == DType::kUint8) return OkStatus();
  return InvalidArgumentError(
      "wants uint8 values, found {}; put {} before the op that changes them",
      feature_.ToString(), op);
}

void PathBuilder::AddStage(std::unique_ptr<Stage> stage,
                           std::vector<int64_t> shape, DType dtype) {
  FlushPixelPass();
  encoded_ = false;
  feature_.dtype = dtype;
  feature_.shape = std::move(shape);
  stage->out_bytes = feature_.RowBytes();
  stages_.push_back(std::move(stage));
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
  return *pass_;
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
  if (stages_.empty() || !stages_.back()->TakePass(&pass_)) {
    stages_.push_back(std::make_unique<PixelStage>(*std::move(pass_)));
  }
  stages_.back()->out_bytes = feature_.RowBytes();
  pass_.reset();
}

Status PathBuilder::Finish(std::vector<std::unique_ptr<Stage>>* stages,
                           RawFeature* out) {
  FlushPixelPass();
  for (size_t i = 0; i + 1 < stages_.size(); ++i) {
    if (stages_[i]->out_bytes > kBetweenBytesMax) {
      return InvalidArgumentError(
          "feature '{}': a step of map makes {} bytes only for the next one, "
          "at most {} may be: make its size smaller",
          name_, stages_[i]->out_bytes, kBetweenBytesMax);
    }
  }
  *stages = std::move(stages_);
  *out = {std::move(feature_), encoded_};
  return OkStatus();
}

}  // namespace penstock
