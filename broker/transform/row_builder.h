// Compiles the ops of the features of a row: those of single features add to
// the paths of these (PathBuilder), those of several take features from the row
// and put others there.
#ifndef BROKER_TRANSFORM_ROW_BUILDER_H_
#define BROKER_TRANSFORM_ROW_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/map_file.h"
#include "broker/transform/path_builder.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// The features that one step takes, or makes.
inline constexpr size_t kStepFeaturesMax = 128;

// Makes features of others. Immutable once compiled.
class RowStage {
 public:
  virtual ~RowStage() = default;
  // in and out in the order of Take and Put; out[i] has the bytes of a row of
  // its feature. key: of the random numbers, if it draws some. DataLoss: the
  // record is bad.
  virtual Status Run(std::span<const std::span<const std::byte>> in,
                     const AugmentationKey& key,
                     std::span<std::byte* const> out) const = 0;
};

// How many items of a list are a row's, by the value of its NAME.length.
// DataLoss: it is no length.
StatusOr<int64_t> ItemsOf(std::string_view name, int64_t room,
                          std::span<const std::byte> length);

// Mixes two finished rows, given their values of the features of its step.
// pair: seed and epoch of the draws, and as the sample the first row's place in
// the epoch.
using PairMix = std::function<void(const AugmentationKey& pair,
                                   std::span<std::byte* const> first,
                                   std::span<std::byte* const> second)>;

class RowBuilder {
 public:
  // What is done to a row, in order: a path to a feature that a step takes, or
  // the step.
  struct Path {
    std::string name;
    size_t from = 0;  // slots
    size_t to = 0;
    std::vector<std::unique_ptr<Stage>> stages;
  };
  struct Step {
    std::string name;  // of its first feature, for messages
    std::vector<size_t> from;
    std::vector<size_t> to;
    std::vector<uint64_t> to_bytes;
    uint32_t part = kFirstStep;  // RowPart
    std::unique_ptr<RowStage> stage;
  };
  // Once both rows are finished.
  struct PairStep {
    std::vector<size_t> features;  // of the row
    PairMix mix;
  };
  // The step, if it has a stage.
  struct Action {
    Path path;
    Step step;
  };

  struct Plan {
    std::vector<Action> actions;
    std::vector<Path> paths;  // to the features of the row
    RawSpec out;
    std::vector<PairStep> pair_steps;
  };

  // opening: for ops that read files.
  RowBuilder(const RawSpec& raw, MapOpening* opening);

  MapOpening* opening() const { return opening_; }
  // The features that the row has by now, in its order.
  size_t size() const { return paths_.size(); }
  PathBuilder& operator[](size_t i) const { return *paths_[i]; }

  // The feature that an op means: the one with its name, or the only one if the
  // op has the default name. InvalidArgument names those that there are.
  StatusOr<PathBuilder*> Find(const std::string& name) const;
  // InvalidArgument, too: one is named twice.
  StatusOr<std::vector<PathBuilder*>> FindAll(const FeatureNames& names) const;
  // nullptr: there is none.
  PathBuilder* Named(const std::string& name) const;
  size_t PlaceOf(const PathBuilder* path) const;
  // How much of a feature's first dimension is the row's (NAME.length), how
  // many bytes of a text or of each of several (NAME_bytes, or `bytes` of
  // text_lines); else nullptr.
  PathBuilder* LengthOf(const PathBuilder& path) const;
  // It has a NAME.length.
  bool IsList(const PathBuilder& path) const;
  // It, and its NAME.length if it is a list.
  std::vector<PathBuilder*> WithLength(PathBuilder* path) const;

  // The row gets these features, in this order.
  void Keep(const std::vector<PathBuilder*>& kept);
  // A feature of the same bytes behind it, of this name. CheckNames is to
  // follow.
  StatusOr<PathBuilder*> Copy(PathBuilder* path, std::string name);
  // Replaces the features `taken` by `put`, at the place of the first.
  // decodes: they are files; else InvalidArgument, as where the row then has
  // two features of one name, or too many. beside: slots of the record, which
  // the stage is given behind `taken`.
  Status AddStep(const std::vector<PathBuilder*>& taken, const ElementSpec& put,
                 std::unique_ptr<RowStage> stage, bool decodes = false,
                 const std::vector<size_t>& beside = {});
  // InvalidArgument: two features have one name.
  Status CheckNames() const;
  // Only more of its kind may follow.
  void AddPairStep(std::vector<PathBuilder*> features, PairMix mix);
  bool mixes_pairs() const { return !plan_.pair_steps.empty(); }

  // Called at the end.
  StatusOr<Plan> Finish();

 private:
  MapOpening* const opening_;
  size_t slots_ = 0;
  std::vector<std::unique_ptr<PathBuilder>> paths_;
  // Features that the row has no more: others know them by their addresses.
  std::vector<std::unique_ptr<PathBuilder>> former_;
  Plan plan_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ROW_BUILDER_H_
