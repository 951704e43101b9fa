#include "broker/transform/feature_paths.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

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

// The path of one feature from the record into the batch.
struct FeaturePath {
  std::string name;
  bool encoded = false;
  uint64_t raw_bytes = 0;  // unless encoded
  bool bools = false;      // the input's dtype is bool
  std::vector<std::unique_ptr<Stage>> stages;

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
      const Stage& stage = *stages[i];
      std::byte* to = out;
      if (i + 1 < stages.size()) {
        std::vector<std::byte>& between = scratch.between[i % 2];
        if (between.size() < stage.out_bytes) between.resize(stage.out_bytes);
        to = between.data();
      }
      PENSTOCK_RETURN_IF_ERROR(stage.Run(in, key, scratch, to));
      in = {to, stage.out_bytes};
    }
    return OkStatus();
  }
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
  if (builders.size() == 1 && name == kDefaultFeature) return &builders[0];
  return InvalidArgumentError("no feature '{}'; `feature: NAME` chooses: {}",
                              name, known);
}

// A picture and its masks, once decoded together, are also cropped and flipped
// together: else they would no longer fit.
class Pairs {
 public:
  void Join(const std::vector<PathBuilder*>& decoded) {
    if (decoded.size() > 1) pairs_.push_back(decoded);
  }
  Status Check(const std::vector<PathBuilder*>& moved) const {
    const auto is_moved = [&moved](const PathBuilder* each) {
      return std::find(moved.begin(), moved.end(), each) != moved.end();
    };
    for (const std::vector<PathBuilder*>& pair : pairs_) {
      const auto some = std::find_if(pair.begin(), pair.end(), is_moved);
      const auto left = std::find_if_not(pair.begin(), pair.end(), is_moved);
      if (some == pair.end() || left == pair.end()) continue;
      return InvalidArgumentError(
          "moves pixels of '{}', but not of '{}', which decode_image has made "
          "fit: name both, in `feature` or `mask`",
          (*some)->name(), (*left)->name());
    }
    return OkStatus();
  }

 private:
  std::vector<std::vector<PathBuilder*>> pairs_;
};

StatusOr<std::vector<PathBuilder*>> FindFeatures(
    const FeatureNames& names, std::vector<PathBuilder>& builders) {
  std::vector<PathBuilder*> found;
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder * builder,
                              FindFeature(name, builders));
    if (std::find(found.begin(), found.end(), builder) != found.end()) {
      return InvalidArgumentError("names feature '{}' twice", builder->name());
    }
    found.push_back(builder);
  }
  return found;
}

// The same box of pictures of one size is the same part of them.
Status CheckOneSize(const std::vector<PathBuilder*>& pictures) {
  for (const PathBuilder* each : pictures) {
    PENSTOCK_RETURN_IF_ERROR(each->CheckImage());
    const Feature& first = pictures[0]->feature();
    if (each->feature().shape[0] == first.shape[0] &&
        each->feature().shape[1] == first.shape[1]) {
      continue;
    }
    return InvalidArgumentError(
        "crops pictures of one size together, found {} and {}",
        first.ToString(), each->feature().ToString());
  }
  return OkStatus();
}

// Adds op number `number` to the paths of its features.
template <typename Op>
Status AddOp(const Op& op, uint32_t number, std::vector<PathBuilder>& builders,
             Pairs* pairs) {
  FeatureNames names = op.feature;
  if constexpr (requires { op.mask; }) {
    names.insert(names.end(), op.mask.begin(), op.mask.end());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                            FindFeatures(names, builders));
  if (found.empty()) return InvalidArgumentError("names no feature");
  if constexpr (std::is_same_v<Op, DecodeImageOp>) pairs->Join(found);
  if constexpr (std::is_same_v<Op, CropOp>) {
    PENSTOCK_RETURN_IF_ERROR(CheckOneSize(found));
  }
  if constexpr (std::is_same_v<Op, CropOp> || std::is_same_v<Op, FlipOp>) {
    PENSTOCK_RETURN_IF_ERROR(pairs->Check(found));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if constexpr (requires { op.mask; }) {
      if (i >= op.feature.size()) {
        PENSTOCK_RETURN_IF_ERROR(op.AddToMask(found[i], number));
        continue;
      }
    }
    PENSTOCK_RETURN_IF_ERROR(op.AddTo(found[i], number));
  }
  return OkStatus();
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
    mine.decoded.clear();
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
  Pairs pairs;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Status status = std::visit(
        [&](const auto& op) -> Status {
          if constexpr (requires { op.feature; }) {
            return AddOp(op, static_cast<uint32_t>(first + i), builders,
                         &pairs);
          } else {
            return InternalError("it is of whole rows");
          }
        },
        ops[i]);
    if (!status.ok()) {
      const std::string& name = std::visit(
          [](const auto& op) -> const std::string& {
            return op.Declared().name();
          },
          ops[i]);
      return status.Prepend(Format("map[{}] {}", first + i, name));
    }
  }
  std::vector<FeaturePath> paths(raw.size());
  RawSpec out(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    const Feature& feature = raw[i].feature;
    paths[i] = {.name = feature.name,
                .encoded = raw[i].encoded,
                .raw_bytes = raw[i].encoded ? 0 : feature.RowBytes(),
                .bools = feature.dtype == DType::kBool};
    PENSTOCK_RETURN_IF_ERROR(builders[i].Finish(&paths[i].stages, &out[i]));
  }
  return std::unique_ptr<FeaturePaths>(
      new CompiledFeaturePaths(std::move(paths), std::move(out)));
}

}  // namespace penstock
