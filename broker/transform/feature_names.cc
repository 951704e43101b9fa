#include "broker/transform/feature_names.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/transform/row_builder.h"
#include "broker/transform/values.h"
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

class KeepEncodedStage final : public RowStage {
 public:
  explicit KeepEncodedStage(uint64_t room) : room_(room) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    const std::span<const std::byte> file = in[0];
    if (file.size() > room_) {
      // `penstock convert` knows it by these words.
      return DataLossError("{} bytes; keep_encoded has room for {} (max_bytes)",
                           file.size(), room_);
    }
    std::memcpy(out[0], file.data(), file.size());
    std::memset(out[0] + file.size(), 0, room_ - file.size());
    Store(static_cast<int64_t>(file.size()), out[1]);
    return OkStatus();
  }

 private:
  const uint64_t room_;
};

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

const Declaration<CopyOp>& CopyOp::Declared() {
  static const auto each =
      ValueOfEachFeature(OneOrList(Name(), "a name", kFeaturesMax));
  static const ValueType<FeatureValues<std::vector<std::string>>> names = {
      Format("a mapping of 1 to {} names, OLD: NEW, or OLD: [NEW, ...]",
             kFeaturesMax),
      each.read, each.write};
  static const auto declared =
      Declaration<CopyOp>("copy",
                          "Features once more under other names: steps on "
                          "each have random numbers of their own.")
          .Gives("a row → the same, and behind each feature its copies")
          .Example("{features: {image: view_2}}")
          .Required("features", &CopyOp::features, names,
                    "{OLD: NEW, ...}, or a list of new names; each takes a "
                    "copy of its OLD_bytes or OLD.length along");
  return declared;
}

Status CopyOp::AddToRow(RowBuilder* row) const {
  struct Copied {
    PathBuilder* from;
    std::vector<PathBuilder*> copies;
  };
  std::vector<Copied> all;
  for (const auto& [from, names] : features) {
    PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row->Find(from));
    PathBuilder* const length = row->LengthOf(*path);
    const char* const suffix =
        row->IsList(*path) ? kLengthSuffix : kBytesSuffix;
    Copied& copied = all.emplace_back(Copied{path, {}});
    // The last first, as each is put behind the original.
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      if (length != nullptr) {
        PENSTOCK_RETURN_IF_ERROR(row->Copy(length, *name + suffix).status());
      }
      PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const copy,
                                row->Copy(path, *name));
      copied.copies.insert(copied.copies.begin(), copy);
    }
  }
  // What is copied with its picture is that of the copy.
  for (const Copied& objects : all) {
    const auto picture =
        std::find_if(all.begin(), all.end(), [&](const Copied& each) {
          return each.from == objects.from->known().picture;
        });
    if (picture == all.end()) continue;
    for (size_t i = 0;
         i < std::min(objects.copies.size(), picture->copies.size()); ++i) {
      objects.copies[i]->known().picture = picture->copies[i];
    }
  }
  return row->CheckNames();
}

const Declaration<KeepEncodedOp>& KeepEncodedOp::Declared() {
  static const auto declared =
      Declaration<KeepEncodedOp>(
          "keep_encoded",
          "Pictures and sounds that are not decoded yet, as the bytes of their "
          "files: for a decoder of yours, such as one on the GPU.")
          .Gives(
              "each encoded feature → NAME uint8 [max_bytes] and NAME.length "
              "int64: how many are the row's; zeros follow")
          .Example("{max_bytes: 262144}")
          .Required("max_bytes", &KeepEncodedOp::max_bytes,
                    WholeNumber<int64_t>(1, kRecordBytesMax),
                    "room for a file; a larger one is an error of its sample");
  return declared;
}

Status KeepEncodedOp::AddToRow(RowBuilder* row) const {
  std::vector<PathBuilder*> encoded;
  for (size_t i = 0; i < row->size(); ++i) {
    if ((*row)[i].encoded()) encoded.push_back(&(*row)[i]);
  }
  for (PathBuilder* const each : encoded) {
    const std::string name = each->feature().name;
    PENSTOCK_RETURN_IF_ERROR(row->AddStep(
        {each},
        {{name, DType::kUint8, {max_bytes}},
         {name + kLengthSuffix, DType::kInt64, {}}},
        std::make_unique<KeepEncodedStage>(static_cast<uint64_t>(max_bytes)),
        /*decodes=*/true));
  }
  return OkStatus();
}

}  // namespace penstock
