#include "broker/spec/dataset_spec.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "broker/declare/declaration.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMapOpsMax = 64;
constexpr uint64_t kEpochsMax = uint64_t{1} << 40;
constexpr uint64_t kStepsMax = uint64_t{1} << 40;
constexpr uint32_t kPrefetchMax = 64;
constexpr uint32_t kHoldMax = 64;
constexpr size_t kShownBytesMax = 120;

// Rejects options that make no sense for a stream's rows.
Status CheckStream(const YamlValue& root, const DatasetSpec& spec) {
  if (!std::holds_alternative<StreamSource>(spec.source)) return OkStatus();
  if (spec.shuffle) {
    return root.Optional("shuffle").Error(
        "a stream comes in the order in which its producers put it: shuffle "
        "there");
  }
  if (spec.epochs != 1) {
    return root.Optional("epochs").Error(
        "a stream comes once: its epoch ends when its producers finish");
  }
  if (spec.steps_per_epoch) {
    return root.Optional("steps_per_epoch")
        .Error("a stream is one epoch, as long as its producers make it");
  }
  if (spec.on_error != OnError::kFail) {
    return root.Optional("on_error")
        .Error("rows of a stream are in memory, none can be unreadable");
  }
  return OkStatus();
}

Status Finish(const YamlValue& root, DatasetSpec* spec) {
  if (spec->shuffle && !root.Optional("seed").present()) {
    spec->seed = spec->shuffle->seed;
  }
  return CheckStream(root, *spec);
}

// For a message: one line, truncated.
std::string Shown(const Json& json) {
  std::string text = json.is_string()
                         ? json.get<std::string>()
                         : json.dump(-1, ' ', /*ensure_ascii=*/false,
                                     Json::error_handler_t::replace);
  if (text.size() > kShownBytesMax) {
    text.resize(kShownBytesMax);
    text += "...";
  }
  return text;
}

std::string KeysShown(const Json& object) {
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    keys += (keys.empty() ? "" : ", ") + key;
  }
  return keys;
}

std::string Differ(const std::string& path, const std::string& here,
                   const std::string& there) {
  return Format("{}: {} here, {} there", path, here, there);
}

// The first difference below path, or "".
std::string FirstDifference(const std::string& path, const Json& here,
                            const Json& there) {
  if (here == there) return "";
  if (here.is_array() && there.is_array()) {
    if (here.size() != there.size()) {
      return Differ(path, Format("{} entries", here.size()),
                    Format("{} entries", there.size()));
    }
    for (size_t i = 0; i < here.size(); ++i) {
      std::string difference =
          FirstDifference(Format("{}[{}]", path, i), here[i], there[i]);
      if (!difference.empty()) return difference;
    }
  }
  if (!here.is_object() || !there.is_object()) {
    return Differ(path, Shown(here), Shown(there));
  }
  // The kind of source, of transform, of crop.
  if (here.size() == 1 && there.size() == 1 &&
      here.begin().key() != there.begin().key()) {
    return Differ(path, here.begin().key(), there.begin().key());
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const auto& [key, value] : here.items()) {
    const auto other = there.find(key);
    if (other == there.end()) {
      return Differ(prefix + key, Shown(value), "nothing");
    }
    std::string difference = FirstDifference(prefix + key, value, *other);
    if (!difference.empty()) return difference;
  }
  for (const auto& [key, value] : there.items()) {
    if (!here.contains(key)) {
      return Differ(prefix + key, "nothing", Shown(value));
    }
  }
  return Differ(path, "order " + KeysShown(here), "order " + KeysShown(there));
}

}  // namespace

const Declaration<DatasetSpec>& DatasetSpec::Declared() {
  static const auto declared =
      Declaration<DatasetSpec>("spec", "A dataset, and how it is delivered.")
          .Example("{dataset: numbers, source: {range: 100}, batch: {size: 8}}")
          .Required("dataset", &DatasetSpec::name, Name(),
                    "the name for `penstock register` and `attach`")
          .Required("source", &DatasetSpec::source, OneKind<SourceSpec>(),
                    "the records")
          .Optional("shuffle", &DatasetSpec::shuffle,
                    WordOr("none", MappingOf(ShuffleSpec::Declared())),
                    "the order of the records; none: the source's")
          .Optional(
              "seed", &DatasetSpec::seed,
              WholeNumber<uint64_t>(0, std::numeric_limits<uint64_t>::max()),
              "of augmentation; if there is a shuffle, by default its seed")
          .Optional("map", &DatasetSpec::map,
                    List(OneKind<TransformSpec>(), 0, kMapOpsMax,
                         Format("a list of at most {} steps", kMapOpsMax)),
                    "operations on each row, in this order")
          .Required("batch", &DatasetSpec::batch,
                    MappingOf(BatchSpec::Declared()), "the rows of a step")
          .Optional("epochs", &DatasetSpec::epochs,
                    WordOr("forever", WholeNumber<uint64_t>(1, kEpochsMax)),
                    "number of passes over the data")
          .Optional("steps_per_epoch", &DatasetSpec::steps_per_epoch,
                    Maybe(WholeNumber<uint64_t>(1, kStepsMax)),
                    "an epoch has exactly this many steps and then begins "
                    "again; it wraps if the data have fewer")
          .Optional("prefetch", &DatasetSpec::prefetch,
                    WholeNumber<uint32_t>(1, kPrefetchMax),
                    "finished batches per rank; with hold it determines the "
                    "memory")
          .Optional("hold", &DatasetSpec::hold,
                    WholeNumber<uint32_t>(1, kHoldMax),
                    "batches a rank may hold at once: the one in its loop, one "
                    "kept back (a pair of neighbours, a device copy that "
                    "overlaps the step), and the one requested next")
          .Optional("on_error", &DatasetSpec::on_error,
                    Words<OnError>({{"fail", OnError::kFail},
                                    {"skip", OnError::kSkip},
                                    {"substitute", OnError::kSubstitute}}),
                    "for a record that cannot be read or decoded: end the job; "
                    "leave the row out (the batch is shorter); take the next "
                    "readable record, and its id")
          .Check(Finish);
  return declared;
}

namespace {

StatusOr<DatasetSpec> Parse(std::string_view text, const std::string& file,
                            const std::string& base_dir, size_t bytes_max) {
  PENSTOCK_ASSIGN_OR_RETURN(const YamlNode root,
                            ReadYaml(text, file, bytes_max));
  const YamlPlace place = {file, base_dir};
  const YamlValue value(root, place);
  if (root.kind == YamlNode::Kind::kNull) {
    return value.Error("the spec is empty");
  }
  const Declaration<DatasetSpec>& declared = DatasetSpec::Declared();
  DatasetSpec spec;
  PENSTOCK_RETURN_IF_ERROR(declared.Read(value, declared.Wanted(), &spec));
  return spec;
}

}  // namespace

StatusOr<DatasetSpec> ParseDatasetSpec(std::string_view text,
                                       const std::string& file,
                                       const std::string& base_dir) {
  return Parse(text, file, base_dir, kSpecBytesMax);
}

StatusOr<DatasetSpec> ParseJournaledSpec(std::string_view json) {
  return Parse(json, "journal", "/", 8 * kSpecBytesMax);
}

Json DatasetSpecToJson(const DatasetSpec& spec) {
  Json json;
  DatasetSpec::Declared().Write(&spec, &json);
  return json;
}

std::string DifferingField(const DatasetSpec& here, const DatasetSpec& there) {
  return FirstDifference("", DatasetSpecToJson(here), DatasetSpecToJson(there));
}

}  // namespace penstock
