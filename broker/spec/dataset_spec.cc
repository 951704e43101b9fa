#include "broker/spec/dataset_spec.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/transform/draws.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMapOpsMax = 64;
constexpr uint64_t kEpochsMax = uint64_t{1} << 40;
constexpr uint64_t kStepsMax = uint64_t{1} << 40;
constexpr uint32_t kPrefetchMax = 64;
constexpr uint32_t kHoldMax = 64;
constexpr size_t kShownBytesMax = 120;

bool MixesRows(const TransformSpec& step) {
  return std::holds_alternative<MixupOp>(step) ||
         std::holds_alternative<CutmixOp>(step);
}

// The parts of the source; nullptr: it has none.
const std::vector<PartSpec>* PartsOf(const SourceSpec& source) {
  if (const auto* concat = std::get_if<ConcatSource>(&source)) {
    return &concat->parts;
  }
  if (const auto* mix = std::get_if<MixSource>(&source)) return &mix->parts;
  return nullptr;
}

// `map_by_part` and batch.by_part: there is one for each part.
Status CheckParts(const YamlValue& root, const DatasetSpec& spec) {
  const std::vector<PartSpec>* const parts = PartsOf(spec.source);
  const auto check = [&](const YamlValue& value, size_t given,
                         std::string_view what, std::string_view none) {
    if (parts == nullptr) {
      return value.Error("the source has no parts: leave it out, or use `mix`");
    }
    if (given == parts->size()) return OkStatus();
    return value.Error(Format("{} for {}: give one for each{}",
                              Counted(given, what),
                              Counted(parts->size(), "part"), none));
  };
  if (!spec.map_by_part.empty()) {
    const YamlValue value = root.Optional("map_by_part");
    PENSTOCK_RETURN_IF_ERROR(check(value, spec.map_by_part.size(), "list",
                                   ", [] for one without steps of its own"));
    for (size_t i = 0; i < spec.map_by_part.size(); ++i) {
      const auto& list = spec.map_by_part[i];
      const auto mixes = std::find_if(list.begin(), list.end(), MixesRows);
      if (mixes == list.end()) continue;
      return value.Item(i)
          .Item(static_cast<size_t>(mixes - list.begin()))
          .Error("mixes rows of all parts: put it into `map`");
    }
  }
  if (spec.batch.by_part.empty()) return OkStatus();
  const YamlValue value = root.Required("batch").Required("by_part");
  PENSTOCK_RETURN_IF_ERROR(check(value, spec.batch.by_part.size(), "size", ""));
  const auto* const mix = std::get_if<MixSource>(&spec.source);
  if (mix == nullptr) {
    return value.Error(
        "batches of one part each are taken in turn: use `mix` instead of "
        "`concat`");
  }
  if (mix->block != 1) {
    return value.Error("the mix has blocks: leave out mix.block");
  }
  if (!spec.select.empty()) {
    return value.Error(
        "`select` chooses rows of the mix, and a batch would lose some: put it "
        "into the parts");
  }
  if (spec.shard == ShardPolicy::kFile || spec.shard == ShardPolicy::kOff) {
    return value.Error(
        "each batch is divided by rows: use `shard: data`, or leave it out");
  }
  return OkStatus();
}

// Rejects options that make no sense for a stream's rows.
Status CheckStream(const YamlValue& root, const DatasetSpec& spec) {
  if (!std::holds_alternative<StreamSource>(spec.source)) return OkStatus();
  struct Option {
    std::string_view key;
    bool is_refused;
    const char* why;
  };
  const Option options[] = {
      {"select", !spec.select.empty(),
       "the records of a stream are not known before they come: select them "
       "where they are put"},
      {"shuffle", spec.shuffle.has_value(),
       "a stream comes in the order in which its producers put it: shuffle "
       "there"},
      {"shard", spec.shard == ShardPolicy::kFile,
       "a stream has no files: use `data`, which divides each batch by rows"},
      {"map", std::any_of(spec.map.begin(), spec.map.end(), MixesRows),
       "rows of a stream cannot be made again, as mixup and cutmix may need "
       "them: mix them where they are put, or in the trainer"},
      {"epochs", spec.epochs != 1,
       "a stream comes once: its epoch ends when its producers finish"},
      {"steps_per_epoch", spec.steps_per_epoch.has_value(),
       "a stream is one epoch, as long as its producers make it"},
      {"on_error", spec.on_error != OnError::kFail,
       "rows of a stream are in memory, none can be unreadable"}};
  for (const auto& [key, is_refused, why] : options) {
    if (is_refused) return root.Optional(key).Error(why);
  }
  return OkStatus();
}

std::string_view NameOf(const TransformSpec& step) {
  return std::visit(
      [](const auto& op) -> std::string_view { return op.Declared().name(); },
      step);
}

// Rows are kept of records that are the same each time.
Status CheckCache(const YamlValue& root, const DatasetSpec& spec) {
  const bool cached = spec.cache && spec.cache->keeps_rows();
  if (!cached && !spec.snapshot) return OkStatus();
  const YamlValue value = root.Optional(cached ? "cache" : "snapshot");
  if (cached && spec.snapshot) {
    return value.Error(
        "there is a snapshot too: leave one of them out; memory that is left "
        "keeps files of a snapshot anyway");
  }
  const bool made_anew = AnySource(spec.source, [](const SourceSpec& source) {
    return std::holds_alternative<PythonDatasetSource>(source);
  });
  if (std::holds_alternative<StreamSource>(spec.source)) {
    return value.Error("rows of a stream come once: leave it out");
  }
  if (made_anew) {
    return value.Error(
        "a dataset of Python may draw random numbers for each record: leave it "
        "out, and keep what it makes there");
  }
  for (size_t part = 0; part < MapsOf(spec); ++part) {
    const std::vector<MapStep> steps = MapOf(spec, part);
    const size_t own = steps.size() - spec.map.size();
    const size_t most = StepsToKeep(steps);
    const std::optional<uint64_t> at =
        cached ? spec.cache->at : spec.snapshot->at;
    if (own + at.value_or(0) <= most) continue;
    const YamlValue at_value = at ? value.Optional("at") : value;
    if (most == steps.size()) {
      return at_value.Error(
          Format("{} steps, and `map` has {}: use at most that", *at,
                 spec.map.size()));
    }
    const TransformSpec& step = *steps[most].op;
    const std::string_view name = NameOf(step);
    return at_value.Error(Format(
        "{}.{} {}: {}", steps[most].path, name,
        !Draws(step) ? "puts channels first, which steps after it may not take"
        : name == "python" || name == "plugin"
            ? "is a function, which may draw random numbers, and what is kept "
              "is the same each time"
            : "draws random numbers, and what is kept is the same each time",
        most < own ? "move it into `map`"
                   : Format("use at most {}, or put steps without random "
                            "numbers before it",
                            most - own)));
  }
  return OkStatus();
}

ValueType<std::vector<TransformSpec>> MapSteps() {
  return List(
      OneKind<TransformSpec>(), 0, kMapOpsMax,
      Format("a list of at most {} steps, such as [flip: {{}}]", kMapOpsMax));
}

ValueType<std::vector<std::vector<TransformSpec>>> StepsByPart() {
  return LeftOutAt(
      {}, List(MapSteps(), 1, kSourcePartsMax,
               Format("a list of 1 to {} lists of steps, one for each part",
                      kSourcePartsMax)));
}

ValueType<ShardPolicy> ShardPolicies() {
  return LeftOutAt(ShardPolicy::kAuto,
                   Words<ShardPolicy>({{"auto", ShardPolicy::kAuto},
                                       {"file", ShardPolicy::kFile},
                                       {"data", ShardPolicy::kData},
                                       {"off", ShardPolicy::kOff}}));
}

// Buckets are made of all records of a pass.
Status CheckBuckets(const YamlValue& root, const DatasetSpec& spec) {
  if (!spec.batch.buckets) return OkStatus();
  const YamlValue value = root.Required("batch").Required("buckets");
  if (std::holds_alternative<StreamSource>(spec.source)) {
    return value.Error(
        "rows of a stream come one after the other: send those of one length "
        "together, or leave this out");
  }
  if (spec.shuffle && spec.shuffle->window_files) {
    return value.Error(
        "rows of one length are not in one window of files: leave out "
        "shuffle.window_files");
  }
  if (spec.shard == ShardPolicy::kFile) {
    return value.Error(
        "rows of one length are not in the files of one rank: use `shard: "
        "data`");
  }
  const auto mixes = std::find_if(spec.map.begin(), spec.map.end(), MixesRows);
  if (mixes == spec.map.end()) return OkStatus();
  return value.Error(
      "mixup and cutmix mix neighbours, which may be of two buckets: leave one "
      "of them out");
}

// Sequences are made of the documents of a pass.
Status CheckPack(const YamlValue& root, const DatasetSpec& spec) {
  if (!spec.batch.pack) return OkStatus();
  const YamlValue value = root.Required("batch").Required("pack");
  if (std::holds_alternative<StreamSource>(spec.source)) {
    return value.Error(
        "rows of a stream come one after the other: let the producer put "
        "sequences, or leave this out");
  }
  if (spec.shard == ShardPolicy::kFile) {
    return value.Error(
        "the documents of a sequence are not in the files of one rank: use "
        "`shard: data`");
  }
  if (spec.on_error == OnError::kSubstitute) {
    return value.Error(
        "another document is not as long as the one whose place it takes: use "
        "`on_error: skip`, which leaves the place empty");
  }
  const auto mixes = std::find_if(spec.map.begin(), spec.map.end(), MixesRows);
  if (mixes != spec.map.end()) {
    return value.Error(
        "mixup and cutmix mix rows, and `map` makes documents: leave one of "
        "them out");
  }
  const bool parts = std::holds_alternative<MixSource>(spec.source) &&
                     !spec.batch.pack->across_parts;
  if (parts && !spec.select.empty()) {
    return value.Error(
        "parts of a mix are packed before they are mixed: put `select` into "
        "the parts, or set `across_parts: true`");
  }
  if (parts && spec.shuffle && spec.shuffle->window_files) {
    return value.Error(
        "a mix has no windows of files: leave out shuffle.window_files");
  }
  return OkStatus();
}

bool IsCyclicSource(const SourceSpec& source) {
  using Order = MegatronSource::Order;
  const auto* const megatron = std::get_if<MegatronSource>(&source);
  return megatron != nullptr && (megatron->order == Order::kCyclic ||
                                 megatron->order == Order::kCyclicUnsharded);
}

// Megatron's sampler decides the order, as the micro batch and the ranks say.
Status CheckCyclic(const YamlValue& root, const DatasetSpec& spec) {
  if (!AnySource(spec.source, IsCyclicSource)) return OkStatus();
  constexpr const char* kAlone =
      "Megatron's sampler `cyclic` has an order of its own: ";
  if (!IsCyclicSource(spec.source)) {
    return root.Required("source").Error(
        Format("{}a dataset that is no part of another", kAlone));
  }
  const std::tuple<const char*, bool, const char*> others[] = {
      {"shuffle", spec.shuffle.has_value(), "leave `shuffle` out"},
      {"select", !spec.select.empty(), "leave `select` out"},
      {"steps_per_epoch", spec.steps_per_epoch.has_value(),
       "its epochs are passes: leave `steps_per_epoch` out"},
      {"shard",
       spec.shard == ShardPolicy::kFile || spec.shard == ShardPolicy::kOff,
       "use `shard: data`, or leave it out"}};
  for (const auto& [key, present, remedy] : others) {
    if (present) {
      return root.Required(key).Error(Format("{}{}", kAlone, remedy));
    }
  }
  const YamlValue order =
      root.Required("source").Required("megatron").Required("order");
  if (!spec.batch.per_rank || spec.batch.tokens || spec.batch.buckets ||
      spec.batch.pack) {
    return order.Error(
        "goes by Megatron's micro batch: give `batch: {per_rank: "
        "micro_batch_size}`");
  }
  return OkStatus();
}

// Rejects what decides which rows there are, or needs others beside them.
Status CheckAsked(const YamlValue& root, const DatasetSpec& spec) {
  if (!spec.asked) return OkStatus();
  const std::tuple<const char*, bool> options[] = {
      {"source", std::holds_alternative<StreamSource>(spec.source)},
      {"select", !spec.select.empty()},
      {"shuffle", spec.shuffle.has_value()},
      {"shard", spec.shard != ShardPolicy::kAuto},
      {"cache", spec.cache.has_value()},
      {"snapshot", spec.snapshot.has_value()},
      {"map", std::any_of(spec.map.begin(), spec.map.end(), MixesRows)},
      {"map_by_part", !spec.map_by_part.empty()},
      {"epochs", spec.epochs != 1},
      {"steps_per_epoch", spec.steps_per_epoch.has_value()},
      {"batch", spec.batch.buckets || spec.batch.pack || spec.batch.tokens ||
                    !spec.batch.by_part.empty() ||
                    AnySource(spec.source, IsCyclicSource)},
      {"on_error", spec.on_error == OnError::kSubstitute}};
  for (const auto& [key, is_refused] : options) {
    if (!is_refused) continue;
    return root.Optional(key).Error(
        "rows are asked for one by one (`asked`): a source that has them, "
        "`map` without mixup and cutmix, a batch size and `on_error: skip` are "
        "all that goes with it");
  }
  return OkStatus();
}

Status Finish(const YamlValue& root, DatasetSpec* spec) {
  if (spec->shuffle && !root.Optional("seed").present()) {
    spec->seed = spec->shuffle->seed;
  }
  PENSTOCK_RETURN_IF_ERROR(CheckParts(root, *spec));
  PENSTOCK_RETURN_IF_ERROR(CheckBuckets(root, *spec));
  PENSTOCK_RETURN_IF_ERROR(CheckPack(root, *spec));
  PENSTOCK_RETURN_IF_ERROR(CheckCyclic(root, *spec));
  PENSTOCK_RETURN_IF_ERROR(CheckCache(root, *spec));
  PENSTOCK_RETURN_IF_ERROR(CheckAsked(root, *spec));
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

DatasetSpec::DatasetSpec() = default;
DatasetSpec::~DatasetSpec() = default;
DatasetSpec::DatasetSpec(const DatasetSpec&) = default;
DatasetSpec::DatasetSpec(DatasetSpec&&) noexcept = default;
DatasetSpec& DatasetSpec::operator=(const DatasetSpec& other) {
  return *this = DatasetSpec(other);
}
DatasetSpec& DatasetSpec::operator=(DatasetSpec&&) noexcept = default;
bool DatasetSpec::operator==(const DatasetSpec&) const = default;

const Declaration<DatasetSpec>& DatasetSpec::Declared() {
  static const auto declared =
      Declaration<DatasetSpec>("spec", "A dataset, and how it is delivered.")
          .Example("{dataset: numbers, source: {range: 100}, batch: {size: 8}}")
          .Required("dataset", &DatasetSpec::name, Name(),
                    "the name for `penstock register` and `attach`")
          .Required("source", &DatasetSpec::source, OneKind<SourceSpec>(),
                    "the records")
          .Optional("select", &DatasetSpec::select, SelectSteps(), kSelectText)
          .Optional("shuffle", &DatasetSpec::shuffle,
                    WordOr("none", MappingOf(ShuffleSpec::Declared())),
                    "the order of the records; none: the source's")
          .Optional(
              "seed", &DatasetSpec::seed,
              WholeNumber<uint64_t>(0, std::numeric_limits<uint64_t>::max()),
              "of augmentation; if there is a shuffle, by default its seed")
          .Optional("map", &DatasetSpec::map, MapSteps(),
                    "operations on each row, in this order")
          .Optional("map_by_part", &DatasetSpec::map_by_part, StepsByPart(),
                    "of a mix or concat, operations on the rows of each part, "
                    "before those of `map`: they make the same features of "
                    "all; with batch.by_part their shapes may differ")
          .Optional("cache", &DatasetSpec::cache,
                    Maybe(MappingOf(CacheSpec::Declared())),
                    "keeps rows as the first steps of `map` have made them")
          .Optional("snapshot", &DatasetSpec::snapshot,
                    Maybe(MappingOf(SnapshotSpec::Declared())),
                    "the same in a folder, for good")
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
                    Maybe(WholeNumber<uint32_t>(1, kPrefetchMax)),
                    "finished batches per rank; with hold it determines the "
                    "memory. By default 2; in split and independent up to 16 "
                    "where ranks are measured to wait less with more, and "
                    "these take at most 64 MiB in all")
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
          .Optional("shard", &DatasetSpec::shard, ShardPolicies(),
                    "how delivery `split` divides the data. auto, the default, "
                    "and data: each batch by rows; file: each rank has whole "
                    "files; off: not at all, every rank gets all of them, as "
                    "in `broadcast`, in batches of its share")
          .Optional(
              "asked", &DatasetSpec::asked, LeftOutAt(false, Bool()),
              "true: its rows are those that its rank asks for by number, "
              "in that order (the request `ask`), as `penstock link` does "
              "for another host")
          .Check(Finish);
  return declared;
}

bool IsCyclic(const DatasetSpec& spec) { return IsCyclicSource(spec.source); }

size_t MapsOf(const DatasetSpec& spec) {
  return std::max<size_t>(spec.map_by_part.size(), 1);
}

std::vector<MapStep> MapOf(const DatasetSpec& spec, size_t part) {
  std::vector<MapStep> steps;
  if (!spec.map_by_part.empty()) {
    steps = StepsOf(spec.map_by_part[part], Format("map_by_part[{}]", part),
                    (part + 1) * kMapOpsMax);
  }
  const std::vector<MapStep> of_all = StepsOf(spec.map);
  steps.insert(steps.end(), of_all.begin(), of_all.end());
  return steps;
}

size_t StepNumbers(const DatasetSpec& spec) {
  return spec.map_by_part.empty() ? spec.map.size()
                                  : (MapsOf(spec) + 1) * kMapOpsMax;
}

std::optional<size_t> KeptSteps(const DatasetSpec& spec) {
  const bool cached = spec.cache && spec.cache->keeps_rows();
  if (!cached && !spec.snapshot) return std::nullopt;
  if (const auto at = cached ? spec.cache->at : spec.snapshot->at) {
    return at;
  }
  size_t most = spec.map.size();
  for (size_t part = 0; part < MapsOf(spec); ++part) {
    const std::vector<MapStep> steps = MapOf(spec, part);
    const size_t kept = StepsToKeep(steps);
    most = std::min(most, kept - (steps.size() - spec.map.size()));
  }
  // A copy takes no time, and would be kept twice.
  while (most > 0 && std::holds_alternative<CopyOp>(spec.map[most - 1])) --most;
  return most;
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
  StatusOr<DatasetSpec> spec = Parse(text, file, base_dir, kSpecBytesMax);
  if (spec.ok() && !file.empty()) {
    spec->written = {file, std::make_shared<const std::string>(text)};
  }
  return spec;
}

Status Located(const DatasetSpec& spec, const Status& status) {
  if (status.ok()) return status;
  const std::string_view path = PathOf(status.message());
  if (spec.written.text != nullptr && !path.empty()) {
    const auto root = ReadYaml(*spec.written.text, spec.written.file);
    const YamlPosition at =
        root.ok() ? PositionOf(*root, path) : YamlPosition();
    if (at.line > 0) {
      return status.Prepend(
          Format("{}:{}:{}", spec.written.file, at.line, at.column));
    }
  }
  return status.Prepend("dataset '" + spec.name + "'");
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
