#include "broker/transform/feature_paths.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/transform/path_builder.h"
#include "broker/transform/row_builder.h"

namespace penstock {
namespace {

Status CheckBools(std::span<const std::byte> raw) {
  const std::optional<size_t> wrong = FirstNotBool(raw);
  if (!wrong) return OkStatus();
  return DataLossError(
      "byte {} of its row is {}; a bool is 0 or 1 (declare it uint8 and let "
      "`cast: {{dtype: bool}}` make true of all but 0)",
      *wrong, std::to_integer<int>(raw[*wrong]));
}

// A feature of the record.
struct Input {
  std::string name;
  bool used = false;
  bool encoded = false;
  uint64_t bytes = 0;  // unless encoded
  bool bools = false;  // its dtype is bool

  // All input from files, producers and functions passes here. False:
  // Check decides.
  bool IsRight(std::span<const std::byte> raw) const {
    return !used || ((encoded || raw.size() == bytes) && !bools);
  }
  Status Check(std::span<const std::byte> raw) const {
    if (!encoded && raw.size() != bytes) {
      return DataLossError("{} bytes where {} were expected", raw.size(),
                           bytes);
    }
    return bools ? CheckBools(raw) : OkStatus();
  }
};

// Rows of many numbers have many of one number: no calls for them.
inline void Copy(std::span<const std::byte> in, std::byte* out) {
  if (in.size() == sizeof(uint32_t)) {
    std::memcpy(out, in.data(), sizeof(uint32_t));
  } else if (in.size() == sizeof(uint64_t)) {
    std::memcpy(out, in.data(), sizeof(uint64_t));
  } else if (!in.empty()) {
    std::memcpy(out, in.data(), in.size());
  }
}

Status RunStages(const RowBuilder::Path& path, std::span<const std::byte> in,
                 const AugmentationKey& key, PathScratch& scratch,
                 std::byte* out) {
  const auto& stages = path.stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = *stages[i];
    std::byte* to = out;
    if (i + 1 < stages.size()) {
      std::vector<std::byte>& between = scratch.between[i % 2];
      if (between.size() < stage.out_bytes) between.resize(stage.out_bytes);
      to = between.data();
    }
    {
      const StepClock::In in_stage(scratch.clock, stage.part);
      PENSTOCK_RETURN_IF_ERROR(stage.Run(in, key, scratch, to));
    }
    for (const Stage::Change& change : stage.changes) {
      const StepClock::In in_change(scratch.clock, change.part);
      change.run(key, to);
    }
    in = {to, stage.out_bytes};
  }
  return OkStatus();
}

// The pixels of a picture and its masks, once decoded together, are also moved
// together: else they would no longer fit.
class Pairs {
 public:
  void Join(const std::vector<PathBuilder*>& decoded) {
    if (decoded.size() > 1) pairs_.push_back(decoded);
  }
  // takes_masks: whether the op does.
  Status Check(const std::vector<PathBuilder*>& moved, const RowBuilder& row,
               bool takes_masks) const {
    const auto is_moved = [&moved](const PathBuilder* each) {
      return std::find(moved.begin(), moved.end(), each) != moved.end();
    };
    // What the row has no more need not fit.
    const auto stays = [&](const PathBuilder* each) {
      return !is_moved(each) && row.PlaceOf(each) < row.size();
    };
    for (const std::vector<PathBuilder*>& pair : pairs_) {
      const auto some = std::find_if(pair.begin(), pair.end(), is_moved);
      const auto left = std::find_if(pair.begin(), pair.end(), stays);
      if (some == pair.end() || left == pair.end()) continue;
      return InvalidArgumentError(
          "moves pixels of '{}', but not of '{}', which decode_image has made "
          "fit: {}",
          (*some)->name(), (*left)->name(),
          takes_masks ? "name both, in `feature` or `mask`"
                      : "no mask fits its mixture; use rand_augment or "
                        "trivial_augment");
    }
    return OkStatus();
  }

 private:
  std::vector<std::vector<PathBuilder*>> pairs_;
};

// The same box of pictures of one size is the same part of them.
Status CheckOneSize(const std::vector<PathBuilder*>& pictures) {
  for (const PathBuilder* each : pictures) {
    PENSTOCK_RETURN_IF_ERROR(each->CheckImage());
    if (each->size() == pictures[0]->size()) continue;
    return InvalidArgumentError(
        "moves the pixels of pictures of one size together, found {} and {}; "
        "use resize before it",
        pictures[0]->feature().ToString(), each->feature().ToString());
  }
  return OkStatus();
}

// Adds op number `number` to one of its features.
template <typename Op>
Status AddTo(const Op& op, uint32_t number, PathBuilder* path) {
  if constexpr (requires { op.AddTo(path, number); }) {
    return op.AddTo(path, number);
  } else {
    PENSTOCK_RETURN_IF_ERROR(path->CheckPicture(op.Declared().name()));
    if constexpr (requires { op.Check(*path); }) {
      PENSTOCK_RETURN_IF_ERROR(op.Check(*path));
    }
    if constexpr (requires { op.Step(); }) {
      path->AddPictureStep(path->channels(), number, op.Step());
    } else {
      PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::byte> fill,
                                PixelOf(op.fill, path->channels()));
      path->AddPictureStep(path->channels(), number, op.Step(std::move(fill)));
    }
    return OkStatus();
  }
}

// The same of one of its masks.
template <typename Op>
Status AddToMask(const Op& op, uint32_t number, PathBuilder* path) {
  if constexpr (requires { op.AddToMask(path, number); }) {
    return op.AddToMask(path, number);
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<std::byte> fill,
                              path->MaskFillPixel(op.mask_fill));
    path->AddPictureStep(0, number, op.Step(std::move(fill)));
    return OkStatus();
  }
}

template <typename Op>
constexpr bool kMovesBoxes = TakesBoxes<Op> || requires {
  Op::kMovesPixels;
};

// Boxes are moved with their picture, as far as it is known.
template <typename Op>
Status CheckBoxesFollow(const std::vector<PathBuilder*>& moved,
                        const FeatureNames& boxes, const RowBuilder& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const std::string& name = row[i].feature().name;
    const bool is_named =
        std::find(boxes.begin(), boxes.end(), name) != boxes.end();
    const bool is_of_them =
        std::find(moved.begin(), moved.end(), row[i].boxes_of()) != moved.end();
    if (row[i].boxes_of() == nullptr || is_named == is_of_them) continue;
    if (is_named) {
      return InvalidArgumentError(
          "boxes: '{}' are those of '{}', which this step does not move", name,
          row[i].boxes_of()->name());
    }
    return InvalidArgumentError(
        "moves pixels of '{}', but not its boxes '{}': {}, or `drop` them "
        "before",
        row[i].boxes_of()->name(), name,
        TakesBoxes<Op> ? "name them in `boxes`"
                       : "it takes none; flip, crop, affine and the like do");
  }
  return OkStatus();
}

// Boxes, and how an op moves them.
using BoxMoves = std::vector<std::pair<std::string, BoxMove>>;

// Asks the op before it changes the picture.
template <typename Op>
StatusOr<BoxMoves> MovesOfBoxes(const Op& op, uint32_t number,
                                const std::vector<PathBuilder*>& moved,
                                const RowBuilder& row) {
  BoxMoves moves;
  if constexpr (kMovesBoxes<Op>) {
    FeatureNames boxes;
    if constexpr (TakesBoxes<Op>) boxes = op.boxes;
    PENSTOCK_RETURN_IF_ERROR(CheckBoxesFollow<Op>(moved, boxes, row));
  }
  if constexpr (TakesBoxes<Op>) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                              row.FindAll(op.boxes));
    for (const PathBuilder* each : found) {
      PENSTOCK_RETURN_IF_ERROR(CheckBoxes(*each));
      if constexpr (!std::is_same_v<Op, DecodeImageOp>) {
        PENSTOCK_RETURN_IF_ERROR(moved[0]->CheckImage());
      }
      PENSTOCK_ASSIGN_OR_RETURN(BoxMove move,
                                op.MoveOfBoxes(*moved[0], number));
      moves.emplace_back(each->feature().name, std::move(move));
    }
  }
  return moves;
}

template <typename Op>
Status AddToPaths(const Op& op, uint32_t number, const RowBuilder& row,
                  Pairs* pairs, BoxMoves* moves, PathBuilder** picture) {
  FeatureNames names = op.feature;
  if constexpr (TakesMasks<Op>) {
    names.insert(names.end(), op.mask.begin(), op.mask.end());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                            row.FindAll(names));
  if (found.empty()) {
    return InvalidArgumentError("names no feature; `feature: NAME` chooses");
  }
  PENSTOCK_ASSIGN_OR_RETURN(*moves, MovesOfBoxes(op, number, found, row));
  *picture = found[0];
  if constexpr (std::is_same_v<Op, DecodeImageOp>) pairs->Join(found);
  if constexpr (requires { Op::kMovesPixels; }) {
    // A flip fits pictures of any size.
    if constexpr (!std::is_same_v<Op, FlipOp>) {
      PENSTOCK_RETURN_IF_ERROR(CheckOneSize(found));
    }
    PENSTOCK_RETURN_IF_ERROR(pairs->Check(found, row, TakesMasks<Op>));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if constexpr (TakesMasks<Op>) {
      if (i >= op.feature.size()) {
        PENSTOCK_RETURN_IF_ERROR(AddToMask(op, number, found[i]));
        continue;
      }
    }
    PENSTOCK_RETURN_IF_ERROR(AddTo(op, number, found[i]));
  }
  return OkStatus();
}

// Features that are lists, and the room for their items.
std::vector<std::pair<const PathBuilder*, int64_t>> ListsOf(
    const RowBuilder& row) {
  std::vector<std::pair<const PathBuilder*, int64_t>> lists;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row.IsList(row[i])) {
      row[i].BeList();
      lists.emplace_back(&row[i], row[i].feature().shape[0]);
    }
  }
  return lists;
}

// Adds op number `number`.
template <typename Op>
Status AddOp(const Op& op, uint32_t number, RowBuilder* row, Pairs* pairs) {
  if constexpr (requires { op.AddToPairs(row, number); }) {
    for (size_t i = 0; i < row->size(); ++i) {
      if ((*row)[i].boxes_of() == nullptr) continue;
      return InvalidArgumentError(
          "'{}' are boxes of '{}', and would be of no mixture: `drop` them or "
          "leave this step out",
          (*row)[i].feature().name, (*row)[i].boxes_of()->name());
    }
    return op.AddToPairs(row, number);
  }
  if (row->mixes_pairs()) {
    return InvalidArgumentError(
        "the step before it mixes finished rows, which nothing may change "
        "afterwards: put it before mixup and cutmix");
  }
  if constexpr (requires { op.AddToPairs(row, number); }) {
  } else if constexpr (requires { op.AddToRow(row); }) {
    return op.AddToRow(row);
  } else {
    const auto lists = ListsOf(*row);
    BoxMoves moves;
    PathBuilder* picture = nullptr;
    PENSTOCK_RETURN_IF_ERROR(
        AddToPaths(op, number, *row, pairs, &moves, &picture));
    for (const auto& [path, room] : lists) {
      const Feature& feature = path->feature();
      if (!feature.shape.empty() && feature.shape[0] == room) continue;
      return InvalidArgumentError(
          "changes the first dimension of '{0}', a list of {0}{1} items: "
          "`drop` "
          "that feature before, if the zeros behind its end are to count",
          feature.name, kLengthSuffix);
    }
    for (auto& [boxes, move] : moves) {
      PENSTOCK_RETURN_IF_ERROR(
          AddBoxMove(picture, std::is_same_v<Op, DecodeImageOp>,
                     row->Named(boxes), std::move(move), row));
    }
    return OkStatus();
  }
}

class CompiledFeaturePaths : public FeaturePaths {
 public:
  CompiledFeaturePaths(std::vector<Input> inputs, RowBuilder::Plan plan)
      : inputs_(std::move(inputs)),
        plan_(std::move(plan)),
        slots_(inputs_.size()) {
    for (const RowBuilder::Action& each : plan_.actions) {
      slots_ = std::max(slots_, each.path.to + 1);
      for (const size_t to : each.step.to) slots_ = std::max(slots_, to + 1);
    }
  }

  const RawSpec& out() const override { return plan_.out; }

  uint64_t OutBytes(size_t feature, const RawRecord& raw) const override {
    // What is encoded is so in the record.
    return plan_.out[feature].encoded ? raw[plan_.paths[feature].from].size()
                                      : plan_.out[feature].feature.RowBytes();
  }

  bool Copies(size_t feature) const override {
    return feature < plan_.paths.size() &&
           plan_.paths[feature].from == feature &&
           plan_.paths[feature].stages.empty();
  }

  Status Run(const RawRecord& raw, const AugmentationKey& key, Scratch& scratch,
             std::span<std::byte* const> out) const override {
    if (raw.size() != inputs_.size() || out.size() != plan_.paths.size()) {
      return InternalError(
          "a row of {} features for {}, given {} and {} places", inputs_.size(),
          plan_.paths.size(), raw.size(), out.size());
    }
    auto& mine = static_cast<PathScratch&>(scratch);
    const StepClock::In in(mine.clock, kCopying);
    mine.decoded.clear();
    const RawRecord* slots = &raw;
    if (!plan_.actions.empty()) {
      mine.slots.assign(raw.begin(), raw.end());
      mine.slots.resize(slots_);
      if (mine.made.size() < slots_) mine.made.resize(slots_);
      slots = &mine.slots;
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].IsRight(raw[i])) continue;
      PENSTOCK_RETURN_IF_ERROR(Named(inputs_[i].Check(raw[i]), inputs_[i]));
    }
    for (const RowBuilder::Action& each : plan_.actions) {
      PENSTOCK_RETURN_IF_ERROR(each.step.stage ? RunStep(each.step, key, mine)
                                               : Make(each.path, key, mine));
    }
    for (size_t i = 0; i < plan_.paths.size(); ++i) {
      const RowBuilder::Path& path = plan_.paths[i];
      const std::span<const std::byte> in = (*slots)[path.from];
      if (!path.stages.empty()) {
        PENSTOCK_RETURN_IF_ERROR(
            Named(RunStages(path, in, key, mine, out[i]), path));
      } else if (in.data() != out[i]) {
        Copy(in, out[i]);
      }
    }
    return OkStatus();
  }

  bool mixes_pairs() const override { return !plan_.pair_steps.empty(); }

  void MixPair(const AugmentationKey& pair, std::span<std::byte* const> first,
               std::span<std::byte* const> second) const override {
    std::array<std::byte*, kStepFeaturesMax> of_first;
    std::array<std::byte*, kStepFeaturesMax> of_second;
    for (const RowBuilder::PairStep& step : plan_.pair_steps) {
      const size_t count = step.features.size();
      for (size_t i = 0; i < count; ++i) {
        of_first[i] = first[step.features[i]];
        of_second[i] = second[step.features[i]];
      }
      step.mix(pair, std::span(of_first).first(count),
               std::span(of_second).first(count));
    }
  }

 private:
  template <typename T>
  static Status Named(Status status, const T& of) {
    return status.ok() ? status
                       : status.Prepend(Format("feature '{}'", of.name));
  }

  // Makes a feature that a step takes.
  static Status Make(const RowBuilder::Path& path, const AugmentationKey& key,
                     PathScratch& scratch) {
    const uint64_t bytes = path.stages.back()->out_bytes;
    std::byte* const to = MemoryOf(path.to, bytes, scratch);
    return Named(RunStages(path, scratch.slots[path.from], key, scratch, to),
                 path);
  }

  static Status RunStep(const RowBuilder::Step& step,
                        const AugmentationKey& key, PathScratch& scratch) {
    const StepClock::In clocked(scratch.clock, step.part);
    std::array<std::span<const std::byte>, kStepFeaturesMax> in;
    std::array<std::byte*, kStepFeaturesMax> out;
    for (size_t i = 0; i < step.from.size(); ++i) {
      in[i] = scratch.slots[step.from[i]];
    }
    for (size_t i = 0; i < step.to.size(); ++i) {
      out[i] = MemoryOf(step.to[i], step.to_bytes[i], scratch);
    }
    return Named(step.stage->Run(std::span(in).first(step.from.size()), key,
                                 std::span(out).first(step.to.size())),
                 step);
  }

  static std::byte* MemoryOf(size_t slot, uint64_t bytes,
                             PathScratch& scratch) {
    std::vector<std::byte>& memory = scratch.made[slot];
    if (memory.size() < bytes) memory.resize(bytes);
    scratch.slots[slot] = std::span(memory).first(bytes);
    return memory.data();
  }

  const std::vector<Input> inputs_;
  const RowBuilder::Plan plan_;
  size_t slots_;
};

}  // namespace

std::unique_ptr<FeaturePaths::Scratch> FeaturePaths::MakeScratch() {
  return std::make_unique<PathScratch>();
}

StatusOr<std::unique_ptr<FeaturePaths>> FeaturePaths::Compile(
    std::span<const MapStep> steps, const RawSpec& raw, MapOpening* opening) {
  OpenProgress progress;
  MapOpening of_broker = {&progress};
  RowBuilder row(raw, opening != nullptr ? opening : &of_broker);
  Pairs pairs;
  for (const MapStep& step : steps) {
    row.opening()->step = step.number;
    const Status status = std::visit(
        [&](const auto& op) -> Status {
          if constexpr (IsFunction<decltype(op)>) {
            return InternalError("it is of whole rows");
          } else {
            return AddOp(op, step.number, &row, &pairs);
          }
        },
        *step.op);
    if (!status.ok()) {
      const std::string& name = std::visit(
          [](const auto& op) -> const std::string& {
            return op.Declared().name();
          },
          *step.op);
      return AtPath(step.path + "." + name, status);
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(RowBuilder::Plan plan, row.Finish());
  std::vector<Input> inputs(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    const Feature& feature = raw[i].feature;
    inputs[i] = {.name = feature.name,
                 .encoded = raw[i].encoded || feature.room > 0,
                 .bytes = raw[i].encoded ? 0 : feature.RowBytes(),
                 .bools = feature.dtype == DType::kBool};
  }
  const auto use = [&inputs](size_t slot) {
    if (slot < inputs.size()) inputs[slot].used = true;
  };
  for (const RowBuilder::Action& each : plan.actions) {
    if (each.step.stage == nullptr) use(each.path.from);
    for (const size_t from : each.step.from) use(from);
  }
  for (const RowBuilder::Path& each : plan.paths) use(each.from);
  return std::unique_ptr<FeaturePaths>(
      new CompiledFeaturePaths(std::move(inputs), std::move(plan)));
}

}  // namespace penstock
