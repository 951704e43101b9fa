#include "broker/transform/feature_paths.h"

#include <cstring>
#include <optional>
#include <string>
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
            return op.AddTo(builder, static_cast<uint32_t>(first + i));
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
