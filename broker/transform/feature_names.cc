#include "broker/transform/feature_names.h"

#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/transform/row_builder.h"
#include "common/layout.h"

namespace penstock {
namespace {

// 1 to 64 different names.
ValueType<FeatureNames> SomeFeatures() {
  ValueType<FeatureNames> type = FeatureNamesType();
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted, FeatureNames* out) {
    PENSTOCK_RETURN_IF_ERROR(read(value, wanted, out));
    return out->empty() ? value.Error("names no feature: give one at least")
                        : OkStatus();
  };
  return type;
}

// Adds the features to *found, each with the length of its text, once.
Status FindAll(const FeatureNames& names, const RowBuilder& row,
               std::vector<PathBuilder*>* found) {
  const auto add = [found](PathBuilder* path) {
    if (std::find(found->begin(), found->end(), path) == found->end()) {
      found->push_back(path);
    }
  };
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row.Find(name));
    add(path);
    if (PathBuilder* const length = row.LengthOf(*path)) add(length);
  }
  return OkStatus();
}

}  // namespace

const Declaration<SelectOp>& SelectOp::Declared() {
  static const auto declared =
      Declaration<SelectOp>("select",
                            "Keeps these features only. What no feature needs "
                            "is not decoded.")
          .Gives("a row → these features")
          .Example("{features: [image, label]}")
          .Required("features", &SelectOp::features, SomeFeatures(),
                    "their names, in the order that the row gets; each "
                    "brings its NAME_bytes or NAME.length");
  return declared;
}

Status SelectOp::AddToRow(RowBuilder* row) const {
  std::vector<PathBuilder*> kept;
  PENSTOCK_RETURN_IF_ERROR(FindAll(features, *row, &kept));
  row->Keep(kept);
  return OkStatus();
}

const Declaration<DropOp>& DropOp::Declared() {
  static const auto declared =
      Declaration<DropOp>("drop",
                          "Leaves features out. What no feature needs is not "
                          "decoded.")
          .Gives("a row → the other features")
          .Example("{features: [text]}")
          .Required("features", &DropOp::features, SomeFeatures(),
                    "their names; each takes its NAME_bytes or NAME.length "
                    "along");
  return declared;
}

Status DropOp::AddToRow(RowBuilder* row) const {
  std::vector<PathBuilder*> dropped;
  PENSTOCK_RETURN_IF_ERROR(FindAll(features, *row, &dropped));
  std::vector<PathBuilder*> kept;
  for (size_t i = 0; i < row->size(); ++i) {
    PathBuilder* const each = &(*row)[i];
    if (std::find(dropped.begin(), dropped.end(), each) == dropped.end()) {
      kept.push_back(each);
    }
  }
  if (kept.empty())
    return InvalidArgumentError("leaves a row no feature: keep one at least");
  row->Keep(kept);
  return OkStatus();
}

const Declaration<RenameOp>& RenameOp::Declared() {
  static const ValueType<FeatureValues<std::string>> names = {
      Format("a mapping of 1 to {} names, OLD: NEW", kFeaturesMax),
      ValueOfEachFeature(Name()).read, ValueOfEachFeature(Name()).write};
  static const auto declared =
      Declaration<RenameOp>("rename", "Gives features other names.")
          .Gives("a row → the same")
          .Example("{features: {x: image, y: label}}")
          .Required("features", &RenameOp::features, names,
                    "{OLD: NEW, ...}; each takes its OLD_bytes or OLD.length "
                    "along");
  return declared;
}

Status RenameOp::AddToRow(RowBuilder* row) const {
  std::vector<std::pair<PathBuilder*, std::string>> renamed;
  for (const auto& [from, to] : features) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row->Find(from));
    renamed.emplace_back(path, to);
    PathBuilder* const length = row->LengthOf(*path);
    const bool is_named =
        length != nullptr &&
        std::any_of(features.begin(), features.end(), [&](const auto& each) {
          return each.first == length->feature().name;
        });
    if (length != nullptr && !is_named) {
      renamed.emplace_back(
          length, to + (row->IsList(*path) ? kLengthSuffix : kBytesSuffix));
    }
  }
  // All at once: names may be swapped.
  for (auto& [path, to] : renamed) path->Rename(std::move(to));
  return row->CheckNames();
}

}  // namespace penstock
