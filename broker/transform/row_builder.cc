#include "broker/transform/row_builder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "broker/index/values.h"
#include "common/layout.h"

namespace penstock {

StatusOr<int64_t> ItemsOf(std::string_view name, int64_t room,
                          std::span<const std::byte> length) {
  const auto items = ValueAt<int64_t>(length.data());
  if (items >= 0 && items <= room) return items;
  return DataLossError("'{}' has the length {}, and room for {}", name, items,
                       room);
}

RowBuilder::RowBuilder(const RawSpec& raw, MapOpening* opening)
    : opening_(opening) {
  for (const RawFeature& each : raw) {
    paths_.push_back(std::make_unique<PathBuilder>(each, slots_++, opening));
  }
  for (size_t i = 0; i < raw.size(); ++i) {
    paths_[i]->known().picture = Named(raw[i].picture);
  }
}

PathBuilder* RowBuilder::Named(const std::string& name) const {
  const auto found = std::find_if(
      paths_.begin(), paths_.end(),
      [&](const auto& path) { return path->feature().name == name; });
  return found == paths_.end() ? nullptr : found->get();
}

StatusOr<PathBuilder*> RowBuilder::Find(const std::string& name) const {
  if (PathBuilder* const found = Named(name)) return found;
  if (paths_.size() == 1 && (name == kDefaultFeature || name == kDefaultLabel ||
                             name == kDefaultSound || name == kDefaultText)) {
    return paths_[0].get();
  }
  return InvalidArgumentError("no feature '{}': give one of {}", name,
                              JoinText(paths_, ", ", [](const auto& path) {
                                return path->feature().name;
                              }));
}

StatusOr<std::vector<PathBuilder*>> RowBuilder::FindAll(
    const FeatureNames& names) const {
  std::vector<PathBuilder*> found;
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const builder, Find(name));
    if (std::find(found.begin(), found.end(), builder) != found.end()) {
      return InvalidArgumentError("names feature '{}' twice", builder->name());
    }
    found.push_back(builder);
  }
  return found;
}

size_t RowBuilder::PlaceOf(const PathBuilder* path) const {
  return static_cast<size_t>(
      std::find_if(paths_.begin(), paths_.end(),
                   [path](const auto& each) { return each.get() == path; }) -
      paths_.begin());
}

PathBuilder* RowBuilder::LengthOf(const PathBuilder& path) const {
  const Feature& feature = path.feature();
  if (path.encoded() || feature.shape.empty()) return nullptr;
  const auto named = [this](const std::string& name,
                            const std::vector<int64_t>& shape) {
    PathBuilder* const length = Named(name);
    return length != nullptr && length->feature().dtype == DType::kInt64 &&
                   length->feature().shape == shape
               ? length
               : nullptr;
  };
  if (PathBuilder* const length = named(feature.name + kLengthSuffix, {})) {
    return length;
  }
  if (feature.dtype != DType::kUint8) return nullptr;
  const std::vector<int64_t> texts(feature.shape.begin(),
                                   feature.shape.end() - 1);
  PathBuilder* const bytes = named(feature.name + kBytesSuffix, texts);
  // The name that text_lines gives it.
  return bytes == nullptr && feature.name == "text" ? named("bytes", texts)
                                                    : bytes;
}

bool RowBuilder::IsList(const PathBuilder& path) const {
  const PathBuilder* const length = LengthOf(path);
  return length != nullptr &&
         length->feature().name == path.feature().name + kLengthSuffix;
}

std::vector<PathBuilder*> RowBuilder::WithLength(PathBuilder* path) const {
  if (!IsList(*path)) return {path};
  return {path, LengthOf(*path)};
}

void RowBuilder::Keep(const std::vector<PathBuilder*>& kept) {
  std::vector<std::unique_ptr<PathBuilder>> paths;
  for (const PathBuilder* each : kept) {
    paths.push_back(std::move(paths_[PlaceOf(each)]));
  }
  for (auto& each : paths_) {
    if (each != nullptr) former_.push_back(std::move(each));
  }
  paths_ = std::move(paths);
}

StatusOr<PathBuilder*> RowBuilder::Copy(PathBuilder* path, std::string name) {
  Path made = {.name = path->name(), .from = path->slot(), .to = slots_};
  PENSTOCK_RETURN_IF_ERROR(path->Settle(slots_, &made.stages));
  if (!made.stages.empty()) {
    ++slots_;
    plan_.actions.push_back({std::move(made), {}});
  }
  auto copy = std::make_unique<PathBuilder>(*path, std::move(name));
  PathBuilder* const found = copy.get();
  paths_.insert(paths_.begin() + static_cast<ptrdiff_t>(PlaceOf(path)) + 1,
                std::move(copy));
  return found;
}

Status RowBuilder::AddStep(const std::vector<PathBuilder*>& taken,
                           const ElementSpec& put,
                           std::unique_ptr<RowStage> stage, bool decodes,
                           const std::vector<size_t>& beside) {
  Step step;
  step.name = taken.front()->name();
  step.part = kFirstStep + opening_->step;
  const size_t place = PlaceOf(taken.front());
  for (PathBuilder* const each : taken) {
    if (!decodes) PENSTOCK_RETURN_IF_ERROR(each->CheckDecoded());
    Path path = {.name = each->name(), .from = each->slot()};
    RawFeature form;
    PENSTOCK_RETURN_IF_ERROR(each->Finish(true, &path.stages, &form));
    path.to = path.stages.empty() ? path.from : slots_++;
    step.from.push_back(path.to);
    if (!path.stages.empty()) plan_.actions.push_back({std::move(path), {}});
  }
  step.from.insert(step.from.end(), beside.begin(), beside.end());
  std::vector<std::unique_ptr<PathBuilder>> made;
  for (const Feature& feature : put) {
    PENSTOCK_RETURN_IF_ERROR(CheckMade(feature));
    made.push_back(std::make_unique<PathBuilder>(RawFeature{feature, false},
                                                 slots_, opening_));
    step.to.push_back(slots_++);
    step.to_bytes.push_back(feature.RowBytes());
    // The same feature, changed.
    if (put.size() == taken.size()) {
      made.back()->known() = taken[made.size() - 1]->known();
    }
  }
  step.stage = std::move(stage);
  plan_.actions.push_back({{}, std::move(step)});
  // Behind the place, so that it stays where it is.
  paths_.insert(paths_.begin() + static_cast<ptrdiff_t>(place) + 1,
                std::make_move_iterator(made.begin()),
                std::make_move_iterator(made.end()));
  for (const PathBuilder* each : taken) {
    const auto gone = paths_.begin() + static_cast<ptrdiff_t>(PlaceOf(each));
    former_.push_back(std::move(*gone));
    paths_.erase(gone);
  }
  return CheckNames();
}

Status RowBuilder::CheckNames() const {
  std::set<std::string> names;
  for (const auto& path : paths_) {
    if (names.insert(path->feature().name).second) continue;
    return InvalidArgumentError(
        "two features are then named '{}': `rename` or `drop` one before",
        path->feature().name);
  }
  if (paths_.size() <= kFeaturesMax) return OkStatus();
  return InvalidArgumentError("a row of {} features; at most {}", paths_.size(),
                              kFeaturesMax);
}

void RowBuilder::AddPairStep(std::vector<PathBuilder*> features, PairMix mix) {
  PairStep& step = plan_.pair_steps.emplace_back();
  for (const PathBuilder* each : features) {
    step.features.push_back(PlaceOf(each));
  }
  step.mix = std::move(mix);
}

StatusOr<RowBuilder::Plan> RowBuilder::Finish() {
  for (const auto& each : paths_) {
    Path& path = plan_.paths.emplace_back();
    path.name = each->name();
    path.from = each->slot();
    PENSTOCK_RETURN_IF_ERROR(
        each->Finish(false, &path.stages, &plan_.out.emplace_back()));
  }
  for (size_t i = 0; i < paths_.size(); ++i) {
    const size_t picture = PlaceOf(paths_[i]->known().picture);
    if (picture == paths_.size()) continue;
    plan_.out[i].picture = plan_.out[picture].feature.name;
  }
  return std::move(plan_);
}

}  // namespace penstock
