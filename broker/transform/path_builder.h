// Compiles the ops of one feature: each op's AddTo checks that the feature
// allows it, notes the form that it gives it and adds a stage.
#ifndef BROKER_TRANSFORM_PATH_BUILDER_H_
#define BROKER_TRANSFORM_PATH_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/canvas.h"
#include "broker/transform/feature_paths.h"
#include "broker/transform/map_file.h"
#include "broker/transform/picture.h"
#include "broker/transform/pixel_pass.h"
#include "broker/transform/resampler.h"
#include "broker/transform/rgbx_resampler.h"
#include "broker/transform/values.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct PathScratch : FeaturePaths::Scratch {
  Resampler resampler;
  RgbxResampler rgbx;
  Canvas canvas;
  std::vector<std::byte> picture_row;
  std::vector<std::byte> picture;  // resized, before its pixel pass
  std::vector<std::byte> part;     // of it, before it is padded
  // Between the stages of one feature: stage i writes between[i % 2].
  std::vector<std::byte> between[2];
  // The features of the record, and those that steps of several features take
  // and make (RowBuilder): where each is, and the memory of those that are
  // made.
  RawRecord slots;
  std::vector<std::vector<std::byte>> made;
  // The pixels that a mask takes from its box.
  std::vector<int64_t> nearest_rows;
  std::vector<int64_t> nearest_columns;
  std::vector<int64_t> nearest_scaled;
  // The first picture that each decode_image of several has decoded of this
  // row.
  struct Decoded {
    uint32_t op;
    ImageSize size;
  };
  std::vector<Decoded> decoded;

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

// InvalidArgument: a feature that no step may make, for its dimensions or for
// its memory. Sizes may be any from 0 up.
Status CheckMade(const Feature& feature);

// A feature passes through a list of stages; the last one writes to its
// destination in the batch. Immutable once compiled.
class Stage {
 public:
  virtual ~Stage() = default;
  // in: a whole tensor, or the file's bytes for the stage that decodes it.
  virtual Status Run(std::span<const std::byte> in, const AugmentationKey& key,
                     PathScratch& scratch, std::byte* out) const = 0;
  // Takes over the pass that follows, if it can apply it on its way.
  virtual bool TakePass(std::optional<PixelPass>*) { return false; }

  uint64_t out_bytes = 0;
  uint32_t part = kFirstStep;  // RowPart
  // Applied to what Run has written, in this order.
  struct Change {
    uint32_t part;
    std::function<void(const AugmentationKey& key, std::byte* out)> run;
  };
  std::vector<Change> changes;
};

class PictureStage;

// A pixel of that many channels. InvalidArgument: fill has other ones.
StatusOr<std::vector<std::byte>> PixelOf(const Fill& fill, int64_t channels);

class PathBuilder {
 public:
  // slot: where the feature is found (PathScratch::slots). opening: for ops
  // that read files.
  PathBuilder(const RawFeature& raw, size_t slot, MapOpening* opening)
      : name_(raw.feature.name),
        slot_(slot),
        opening_(opening),
        feature_(raw.feature),
        encoded_(raw.encoded),
        known_({.boxes = raw.boxes, .rate = raw.rate}) {}

  // A copy of one that was settled.
  PathBuilder(const PathBuilder& of, std::string name)
      : name_(name),
        slot_(of.slot_),
        opening_(of.opening_),
        feature_(of.feature_),
        encoded_(of.encoded_),
        channels_first_(of.channels_first_),
        is_list_(of.is_list_),
        known_(of.known_) {
    feature_.name = std::move(name);
  }

  // Its name in the record, for messages while the row is made.
  const std::string& name() const { return name_; }
  size_t slot() const { return slot_; }
  MapOpening* opening() const { return opening_; }
  // As it is after the stages so far.
  const Feature& feature() const { return feature_; }
  bool encoded() const { return encoded_; }
  bool channels_first() const {
    return channels_first_ && feature_.shape.size() == 3;
  }
  // The channels of [h, w, c]; any other shape counts as one.
  int64_t channels() const {
    return feature_.shape.size() == 3 && !channels_first_ ? feature_.shape[2]
                                                          : 1;
  }

  // The size of a picture, whose channels are last.
  ImageSize size() const {
    return {.height = feature_.shape[0], .width = feature_.shape[1]};
  }

  // That of a decoded picture, whatever its layout. InvalidArgument: it is
  // none.
  StatusOr<ImageSize> PictureSize() const;

  // Its first dimension is a bound: it is no picture.
  void BeList() { is_list_ = true; }

  // As in RawFeature.
  struct Known {
    const PathBuilder* picture = nullptr;
    std::optional<BoxFormat> boxes = {};
    int64_t rate = 0;
  };
  Known& known() { return known_; }
  const Known& known() const { return known_; }
  // nullptr: it is no boxes, or nothing tells of which picture.
  const PathBuilder* boxes_of() const {
    return known_.boxes ? known_.picture : nullptr;
  }

  // InvalidArgument: what the op wants, what was found, and the remedy.
  Status CheckDecoded() const;
  Status CheckChannelsLast() const;
  Status CheckImage() const;
  Status CheckUint8(std::string_view op) const;
  // It is decoded, and not bool.
  Status CheckNumbers() const;
  Status CheckFloats(std::string_view remedy) const;
  Status CheckIntegers(std::string_view remedy) const;
  // float32 [samples], so many a second.
  Status CheckSound(int64_t rate) const;
  // A picture of bytes, gray or of three channels.
  Status CheckPicture(std::string_view op) const;
  // A pixel of the fill of an op's mask.
  StatusOr<std::vector<std::byte>> MaskFillPixel(int64_t value) const;
  Status CheckLayout(Layout layout) const {
    return layout == Layout::kChw ? CheckImage() : OkStatus();
  }

  // The feature becomes dtype of this shape.
  void AddStage(std::unique_ptr<Stage> stage, std::vector<int64_t> shape,
                DType dtype = DType::kUint8);
  // A step of op `number` on a picture of so many channels, which keeps its
  // form; 0: a mask, whose pixels are only moved. A run of such steps is one
  // stage.
  void AddPictureStep(int64_t channels, uint32_t number, PictureStep step);
  // Changes the values that the steps so far have made, where they are.
  void AddChange(
      std::function<void(const AugmentationKey& key, std::byte* out)> change);
  // The pass to which the next flip, cast or normalization is added: ops on
  // single values need no stage of their own.
  PixelPass& PendingPass();
  // Ends it: the values have their final dtype and layout.
  void FinishValues(DType dtype, Layout layout);
  // Computes each value in double precision, rounded once to dtype. Its
  // channels are those of the last dimension, or 1. Of a picture of bytes it is
  // part of the pending pass, whose line is near (value / 255 - mean) / std.
  struct Line {
    std::vector<double> mean;
    std::vector<double> std;
  };
  void Compute(const ValueFunction& function, DType dtype,
               Layout layout = Layout::kHwc, const Line& line = {});
  // The same bytes in another shape.
  void Reshape(std::vector<int64_t> shape);
  void Rename(std::string name) { feature_.name = std::move(name); }
  // Takes the stages so far, which make what lies in this slot from now on.
  Status Settle(size_t slot, std::vector<std::unique_ptr<Stage>>* stages);
  // Called at the end. for_step: of a step of several features.
  // InvalidArgument: too much memory between stages.
  Status Finish(bool for_step, std::vector<std::unique_ptr<Stage>>* stages,
                RawFeature* out);

 private:
  void FlushPixelPass();
  // The part of the clock for the step that is being compiled.
  uint32_t Part() const { return kFirstStep + opening_->step; }

  const std::string name_;
  size_t slot_;
  MapOpening* const opening_;
  Feature feature_;
  bool encoded_;
  bool channels_first_ = false;
  bool is_list_ = false;
  Known known_;
  std::vector<std::unique_ptr<Stage>> stages_;
  PictureStage* open_ = nullptr;  // the last stage, if it takes more steps
  // Flips to be merged into the next cast or normalization.
  std::optional<PixelPass> pass_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PATH_BUILDER_H_
