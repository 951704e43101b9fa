// Compiles the ops of one feature: each op's AddTo checks that the feature
// allows it, notes the form that it gives it and adds a stage.
#ifndef BROKER_TRANSFORM_PATH_BUILDER_H_
#define BROKER_TRANSFORM_PATH_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/feature_paths.h"
#include "broker/transform/picture.h"
#include "broker/transform/pixel_pass.h"
#include "broker/transform/resampler.h"
#include "broker/transform/rgbx_resampler.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct PathScratch : FeaturePaths::Scratch {
  Resampler resampler;
  RgbxResampler rgbx;
  std::vector<std::byte> picture_row;
  std::vector<std::byte> picture;  // resized, before its pixel pass
  // Between the stages of one feature: stage i writes between[i % 2].
  std::vector<std::byte> between[2];
  // The pixels that a mask takes from its box.
  std::vector<int64_t> nearest_rows;
  std::vector<int64_t> nearest_columns;
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
};

class PathBuilder {
 public:
  explicit PathBuilder(const RawFeature& raw)
      : name_(raw.feature.name), feature_(raw.feature), encoded_(raw.encoded) {}

  const std::string& name() const { return name_; }
  // As it is after the stages so far.
  const Feature& feature() const { return feature_; }
  bool encoded() const { return encoded_; }
  // Of [h, w, c]; any other shape counts as one channel.
  int64_t channels() const {
    return feature_.shape.size() == 3 && !channels_first_ ? feature_.shape[2]
                                                          : 1;
  }

  // InvalidArgument: what the op wants, what was found, and the remedy.
  Status CheckDecoded() const;
  Status CheckChannelsLast() const;
  Status CheckImage() const;
  Status CheckUint8(std::string_view op) const;
  Status CheckLayout(Layout layout) const {
    return layout == Layout::kChw ? CheckImage() : OkStatus();
  }

  // The feature becomes dtype of this shape.
  void AddStage(std::unique_ptr<Stage> stage, std::vector<int64_t> shape,
                DType dtype = DType::kUint8);
  // The pass to which the next flip, cast or normalization is added: ops on
  // single values need no stage of their own.
  PixelPass& PendingPass();
  // Ends it: the values have their final dtype and layout.
  void FinishValues(DType dtype, Layout layout);
  // Called at the end. InvalidArgument: too much memory between stages.
  Status Finish(std::vector<std::unique_ptr<Stage>>* stages, RawFeature* out);

 private:
  void FlushPixelPass();

  const std::string name_;
  Feature feature_;
  bool encoded_;
  bool channels_first_ = false;
  std::vector<std::unique_ptr<Stage>> stages_;
  // Flips to be merged into the next cast or normalization.
  std::optional<PixelPass> pass_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PATH_BUILDER_H_
