#include "broker/job/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <variant>

#include "broker/declare/spec_path.h"
#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/job/made_numbers.h"
#include "broker/job/steps_of_makers.h"
#include "broker/plan/mix.h"
#include "broker/plan/orders.h"
#include "broker/transform/mixup.h"
#include "common/hash.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Each worker has a process for each function of each part.
constexpr size_t kFunctionPartsMax = 16;

using SideFiles = std::vector<std::shared_ptr<const SideFile>>;

}  // namespace

std::string DatasetKey(const DatasetSpec& spec) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  const bool has_file = std::any_of(
      spec.select.begin(), spec.select.end(),
      [](const SelectSpec& step) { return FileOf(step) != nullptr; });
  std::string key = json.at("source").dump() + json.at("map").dump();
  for (const char* const more : {"map_by_part", "cache", "snapshot"}) {
    if (json.contains(more)) key += more + json.at(more).dump();
  }
  // Columns are read when a dataset is opened.
  std::set<std::string> columns;
  for (const SelectSpec& step : spec.select) {
    for (std::string& name : ColumnsOf(step)) columns.insert(std::move(name));
  }
  if (spec.on_error != OnError::kFail &&
      (spec.batch.buckets || spec.batch.pack || !columns.empty())) {
    key += " without bad ones";
  }
  // With them shapes may differ.
  const bool buckets = spec.batch.buckets.has_value();
  if (buckets) key += json.at("batch").at("buckets").dump();
  if (!spec.batch.by_part.empty()) key += json.at("batch").dump();
  if (spec.batch.pack) {
    key += "pack" + json.at("batch").at("pack").dump();
    if (spec.shuffle) key += json.at("shuffle").dump();
  }
  if (has_file || ((buckets || spec.batch.pack) && !spec.select.empty())) {
    return key + json.at("select").dump();
  }
  for (const std::string& name : columns) key += " by " + name;
  return key;
}

bool Dataset::Changed() const {
  return source->Changed() || selection.Changed() ||
         std::any_of(files.begin(), files.end(),
                     [](const auto& file) { return file->Changed(); });
}

uint64_t Dataset::memory_bytes() const {
  uint64_t bytes = source->memory_bytes() + selection.memory_bytes();
  for (const auto& file : files) bytes += file->memory_bytes();
  if (packing) bytes += packing->memory_bytes();
  return bytes + (buckets ? buckets->memory_bytes() : 0);
}

bool Dataset::ShapesDiffer() const {
  for (uint32_t part = 0; part < forms(); ++part) {
    if (element_spec(part) != element_spec()) return true;
  }
  return false;
}

void Dataset::DescribeRows(nlohmann::json* answer) const {
  (*answer)["element_spec"] = ElementSpecToJson(element_spec());
  if (packing != nullptr) {
    const Packing::Totals& totals = packing->totals();
    (*answer)["packing"] = {
        {"documents", totals.documents}, {"items", totals.items},
        {"left_out", totals.left_out},   {"cut_off", totals.cut_off},
        {"fill", packing->fill()},       {"in_sequence", totals.in_sequence},
        {"sequences", totals.sequences}};
  }
  if (!ShapesDiffer()) return;
  nlohmann::json& parts = (*answer)["element_spec_by_part"];
  for (uint32_t part = 0; part < forms(); ++part) {
    parts.push_back(ElementSpecToJson(element_spec(part)));
  }
}

uint64_t Dataset::wait_ns() const {
  uint64_t longest = 0;
  for (const auto& each : programs) {
    longest = std::max(longest, each->wait_ns());
  }
  return source->wait_ns() + longest;
}

std::optional<size_t> Dataset::FeatureReadInPlace() const {
  if (packed_rows != nullptr) return std::nullopt;
  const std::optional<size_t> feature = source->plain_feature();
  const bool all = feature && std::all_of(programs.begin(), programs.end(),
                                          [&](const auto& each) {
                                            return each->Copies(*feature);
                                          });
  return all ? feature : std::nullopt;
}

std::string Dataset::fingerprint() const {
  const std::string records = source->fingerprint();
  const FileDigests digests = FilesOfSelection();
  if (files.empty() && digests.empty()) return records;
  Fingerprint fingerprint("map");
  fingerprint.Add(records);
  // Not in the order of their paths, which differ from host to host.
  std::set<std::string> of_selection;
  for (const auto& [path, digest] : digests) of_selection.insert(digest);
  for (const std::string& digest : of_selection) fingerprint.Add(digest);
  for (const auto& file : files) fingerprint.Add(file->digest());
  return fingerprint.Hex();
}

FileDigests Dataset::FilesOfSelection() const {
  FileDigests digests;
  source->AddDigests(&digests);
  selection.AddDigests(&digests);
  return digests;
}

std::string Dataset::warning() const {
  std::string all = source->warning();
  for (const std::string& text :
       {selection.warning(), map_warning, cache_warning}) {
    if (!text.empty()) all += (all.empty() ? "" : "; ") + text;
  }
  return all;
}

uint64_t GlobalBatchOf(const DatasetSpec& spec, uint32_t world_size) {
  const BatchSpec& batch = spec.batch;
  if (spec.shard == ShardPolicy::kOff) {
    return batch.per_rank ? batch.size
                          : (batch.size + world_size - 1) / world_size;
  }
  return batch.per_rank ? batch.size * world_size : batch.size;
}

namespace {

// The rows of a pass as `select` leaves them.
StatusOr<std::unique_ptr<Order>> SelectedOrder(const DatasetSpec& spec,
                                               const Dataset& dataset,
                                               const SelectContext& context) {
  auto of_source = dataset.source->OrderOf(0, context.budget);
  if (!of_source.ok()) return AtPath("source", of_source.status());
  return Select(spec.select, *std::move(of_source), context);
}

// Whether each part of a mix is packed alone, and then mixed.
bool PacksParts(const DatasetSpec& spec) {
  return std::holds_alternative<MixSource>(spec.source) &&
         !spec.batch.pack->across_parts;
}

StatusOr<std::unique_ptr<Order>> SequencesOf(const DatasetSpec& spec,
                                             const Dataset& dataset,
                                             const OrderBudget& budget) {
  if (!PacksParts(spec)) return dataset.packing->SequencesOf(0);
  Source::Orders parts(dataset.packing->parts());
  for (size_t i = 0; i < parts.size(); ++i) {
    auto sequences = dataset.packing->SequencesOf(i);
    if (!sequences.ok()) {
      return AtPath(Format("source.mix.parts[{}]", i), sequences.status());
    }
    parts[i] = *std::move(sequences);
  }
  auto mixed = dataset.source->Combined(std::move(parts), budget);
  if (!mixed.ok()) return AtPath("source", mixed.status());
  return mixed;
}

}  // namespace

StatusOr<std::shared_ptr<const Order>> OrderOf(const DatasetSpec& spec,
                                               const Dataset& dataset,
                                               uint32_t shards,
                                               const OrderBudget& budget) {
  // As many as a plan may have: the number is unknown.
  if (spec.asked) return std::shared_ptr<const Order>(AllRecords(kRecordsMax));
  const SelectContext context =
      dataset.selection.Context(*dataset.source, 0, budget);
  if (dataset.packing != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Order> sequences,
                              SequencesOf(spec, dataset, budget));
    return std::shared_ptr<const Order>(std::move(sequences));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Order> order,
                            SelectedOrder(spec, dataset, context));
  if (spec.shuffle && spec.shard != ShardPolicy::kFile) {
    PENSTOCK_ASSIGN_OR_RETURN(
        order, InWindows(*spec.shuffle, std::move(order), context));
  }
  if (!spec.batch.by_part.empty()) {
    auto batches = order->mix()->InBatches(spec.batch.by_part, budget);
    if (!batches.ok()) return AtPath("source.mix", batches.status());
    order = *std::move(batches);
  }
  if (dataset.buckets != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(
        order,
        InBuckets(
            std::move(order), dataset.buckets, spec.batch,
            spec.batch.per_rank && spec.shard != ShardPolicy::kOff ? shards : 1,
            spec.shuffle ? &*spec.shuffle : nullptr, budget));
  }
  if (IsCyclic(spec)) {
    const auto& megatron = std::get<MegatronSource>(spec.source);
    auto cyclic =
        Cyclic(std::move(order), spec.batch.size, shards,
               megatron.order == MegatronSource::Order::kCyclic, budget);
    if (!cyclic.ok()) return AtPath("source.megatron.order", cyclic.status());
    order = *std::move(cyclic);
  }
  if (spec.shard == ShardPolicy::kFile) {
    PENSTOCK_ASSIGN_OR_RETURN(
        order,
        ShardByFile(std::move(order), shards, GlobalBatchOf(spec, shards),
                    spec.shuffle ? &*spec.shuffle : nullptr, context));
  }
  return std::shared_ptr<const Order>(std::move(order));
}

StatusOr<Plan> PlanOf(const DatasetSpec& spec, const Dataset& dataset,
                      uint32_t world_size, uint32_t shards,
                      const OrderBudget& budget) {
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const Order> order,
                            OrderOf(spec, dataset, shards, budget));
  return Plan::Make(spec, std::move(order), world_size);
}

std::string RuleOf(const DatasetSpec& spec, const Dataset& dataset) {
  DatasetSpec rule = spec;
  if (auto* const mix = std::get_if<MixSource>(&rule.source)) {
    mix->parts.clear();
  }
  return SelectionOf(rule, dataset);
}

std::string SelectionOf(const DatasetSpec& spec, const Dataset& dataset) {
  const bool windows = spec.shuffle && spec.shuffle->window_files;
  std::string text =
      SelectionText(spec.source, spec.select, dataset.FilesOfSelection());
  const bool batch = spec.batch.buckets || spec.batch.pack;
  if (text.empty() && !windows && !batch && !IsCyclic(spec)) return "";
  if (IsCyclic(spec)) {
    const auto& megatron = std::get<MegatronSource>(spec.source);
    text += megatron.order == MegatronSource::Order::kCyclic
                ? " cyclic"
                : " cyclic_unsharded";
  }
  if (windows) text += Format(" {}", *spec.shuffle->window_files);
  for (const uint64_t size : spec.batch.by_part) text += Format(" by {}", size);
  if (spec.batch.buckets) {
    text += DatasetSpecToJson(spec).at("batch").dump();
  }
  if (spec.batch.pack) {
    nlohmann::ordered_json pack =
        DatasetSpecToJson(spec).at("batch").at("pack");
    for (const char* const key : {"pad", "with", "mask_first"}) {
      pack.erase(key);  // the sequences are the same
    }
    text += pack.dump();
    // Other documents may make as many sequences. Parts may come and go.
    if (dataset.packing != nullptr && !PacksParts(spec)) {
      text += Format(" {:016x}", dataset.packing->totals().digest);
    }
  }
  return Format("{:016x}", Fnv1a(text));
}

bool RunsFunctions(const DatasetSpec& spec) {
  if (AnySource(spec.source, [](const SourceSpec& source) {
        return std::holds_alternative<PythonDatasetSource>(source);
      })) {
    return true;
  }
  for (size_t part = 0; part < MapsOf(spec); ++part) {
    const std::vector<MapStep> steps = MapOf(spec, part);
    if (StepsOfFunctions(steps) > 0) return true;
  }
  return false;
}

namespace {

// What the rows that the steps of each part, and the first `steps` of `map`,
// make depend on.
KeptRows RowsOf(const DatasetSpec& spec, const Dataset& dataset, size_t steps,
                const SideFiles& head_files, const FileAccess& access) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  nlohmann::ordered_json key;
  key["source"] = json.at("source");
  if (json.contains("map_by_part")) key["by_part"] = json.at("map_by_part");
  key["map"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < steps; ++i) {
    key["map"].push_back(json.at("map").at(i));
  }
  KeptRows rows;
  rows.access = access.key();
  rows.name = key.dump();
  Fingerprint changed("changed");
  dataset.source->AddTimes(&changed);
  key["data"] = dataset.source->fingerprint();
  key["changed"] = changed.Hex();
  key["files"] = nlohmann::ordered_json::array();
  for (const auto& file : head_files) key["files"].push_back(file->digest());
  // Another one may make other values.
  key["penstock"] = PENSTOCK_VERSION;
  for (const auto& program : dataset.programs) {
    if (const std::string made_by = program->made_by(); !made_by.empty()) {
      key["made_by"].push_back(made_by);
    }
  }
  rows.key = key.dump();
  rows.records = dataset.source->record_count();
  rows.features = dataset.programs[0]->head_spec();
  return rows;
}

// InvalidArgument: what does not hold of the rows of all parts.
Status CheckPrograms(const DatasetSpec& spec, const Dataset& dataset) {
  const ElementSpec& first = dataset.element_spec();
  if (dataset.of_batches() &&
      (dataset.source->parts() > 1 || KeptSteps(spec) || !spec.map.empty())) {
    return InvalidArgumentError(
        "a pickled dataset makes whole batches: it has no map, cache or "
        "snapshot and is no part of another source");
  }
  for (size_t part = 1; part < dataset.programs.size(); ++part) {
    const ElementSpec& here = dataset.element_spec(static_cast<uint32_t>(part));
    const auto path = [part] { return Format("map_by_part[{}]", part); };
    if (here.size() != first.size()) {
      return InvalidArgumentError(
          "{}: makes rows of {}, and those of part 0 have {}: all parts need "
          "the same; `select` and `drop` leave some out",
          path(), Counted(here.size(), "feature"),
          Counted(first.size(), "feature"));
    }
    for (size_t i = 0; i < here.size(); ++i) {
      if (here[i] == first[i]) continue;
      const bool same_form = SameButSizes({here[i]}, {first[i]});
      if (same_form && !spec.batch.by_part.empty()) continue;
      return InvalidArgumentError(
          "{}: makes feature {} {}, and of part 0 it is {}: all parts need "
          "the same{}",
          path(), i, here[i].ToString(), first[i].ToString(),
          same_form ? "; with batch.by_part, a batch size for each part, their "
                      "shapes may differ"
                    : "; `rename`, `cast` and `reshape` make them so");
    }
  }
  if (!dataset.mixes_pairs() || !dataset.ShapesDiffer()) return OkStatus();
  for (const uint64_t size : spec.batch.by_part) {
    if (size % kPairedRows == 0) continue;
    return InvalidArgumentError(
        "batch.by_part: {} rows: mixup and cutmix mix neighbours, {} together, "
        "which have to be of one shape: use multiples of {}",
        size, kPairedRows, kPairedRows);
  }
  return OkStatus();
}

// Steps of another kind may make other labels.
bool ChangesLabel(const TransformSpec& op) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires(FeatureNames names) { names = each.feature; }) {
          return std::count(each.feature.begin(), each.feature.end(), "label") >
                 0;
        } else {
          return true;
        }
      },
      op);
}

// Labels are known before any training where they are the numbers of classes.
Status CheckClasses(const std::vector<MapStep>& steps, size_t classes) {
  const auto step =
      std::find_if(steps.begin(), steps.end(),
                   [](const MapStep& each) { return ChangesLabel(*each.op); });
  if (step == steps.end()) return OkStatus();
  const auto* one_hot = std::get_if<OneHotOp>(step->op);
  if (one_hot == nullptr ||
      one_hot->out_of_range == OneHotOp::OutOfRange::kZeros ||
      static_cast<uint64_t>(one_hot->classes) >= classes) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "{}.one_hot.classes: {}, and the data have {}: give that many",
      step->path, one_hot->classes, Counted(classes, "class", "classes"));
}

// One for all rows, or one for those of each part.
Status CompilePrograms(const DatasetSpec& spec,
                       const FunctionOptions& functions, MapOpening* opening,
                       Dataset* dataset, SideFiles* head_files) {
  if (spec.map_by_part.empty()) {
    const Status alike = dataset->source->CheckAlike();
    if (!alike.ok()) return AtPath("source", alike);
  }
  for (size_t part = 0; part < MapsOf(spec); ++part) {
    const std::vector<MapStep> steps = MapOf(spec, part);
    std::optional<size_t> head = KeptSteps(spec);
    if (head) *head += steps.size() - spec.map.size();
    // What makers run ends with a function: nothing is split that is one pass.
    const size_t of_functions = StepsOfFunctions(steps);
    const bool splits = of_functions > 0 && IsForMakers(spec);
    const auto files = static_cast<ptrdiff_t>(opening->files.size());
    auto compiled =
        RowProgram::Compile(steps, dataset->source->RawSpecOfPart(part),
                            functions, opening, splits ? of_functions : head);
    if (!compiled.ok() && !spec.map_by_part.empty()) {
      return Status(
          compiled.status().code(),
          Format("{} (rows of part {})", compiled.status().message(), part));
    }
    PENSTOCK_RETURN_IF_ERROR(compiled.status());
    PENSTOCK_RETURN_IF_ERROR(
        CheckClasses(steps, dataset->source->class_names().size()));
    std::unique_ptr<RowProgram> program = *std::move(compiled);
    if (part >= kFunctionPartsMax && program->wait_ns() > 0) {
      return InvalidArgumentError(
          "map_by_part: {} with Python functions, each with processes of its "
          "own: at most {} may be",
          Counted(MapsOf(spec), "part"), kFunctionPartsMax);
    }
    head_files->insert(
        head_files->end(), opening->files.begin() + files,
        opening->files.begin() + static_cast<ptrdiff_t>(program->head_files()));
    if (head && part > 0 &&
        program->head_spec() != dataset->programs[0]->head_spec()) {
      return InvalidArgumentError(
          "{}: the rows of part {} have other features than those of part 0 "
          "where they are kept, and all need the same: leave it out, make them "
          "alike by steps of map_by_part, or keep them after a step of `map` "
          "that does (`at`)",
          spec.snapshot ? "snapshot" : "cache", part);
    }
    dataset->programs.push_back(std::move(program));
  }
  dataset->files = opening->files;
  dataset->map_warning = opening->warning;
  return CheckPrograms(spec, *dataset);
}

// Whether a number is the length of what is packed, as far as its name tells.
bool IsLengthOf(const PackSpec& pack, std::string_view name) {
  return pack.feature.empty() ? name.ends_with(kLengthSuffix)
                              : name == pack.feature + kLengthSuffix;
}

// Columns that buckets go by: one, and the lengths of the lists that they make
// narrower. The one that packing goes by; without a name it is one of those of
// the lists.
std::vector<ColumnUse> ColumnsOfBatches(const DatasetSpec& spec,
                                        const Source& source,
                                        const MadeNumbers& made) {
  std::vector<ColumnUse> uses;
  if (const auto& pack = spec.batch.pack; pack && !pack->by.empty()) {
    uses.push_back({"batch.pack.by", pack->by});
  } else if (pack) {
    ElementSpec features;
    for (const RawFeature& raw : source.raw_spec()) {
      features.push_back(raw.feature);
    }
    for (const Feature& feature : features) {
      if (!pack->feature.empty() && feature.name != pack->feature) continue;
      if (const auto length = LengthOf(features, feature)) {
        uses.push_back({"batch.pack", features[*length].name});
      }
    }
    for (const Feature& each : made.features) {
      if (IsLengthOf(*pack, each.name))
        uses.push_back({"batch.pack", each.name});
    }
  }
  if (!spec.batch.buckets) return uses;
  uses.push_back({"batch.buckets.by", spec.batch.buckets->by});
  ElementSpec numbers = made.features;
  for (const RawFeature& raw : source.raw_spec()) {
    numbers.push_back(raw.feature);
  }
  for (const Feature& each : numbers) {
    if (each.name.ends_with(kLengthSuffix)) {
      uses.push_back({"batch.buckets", each.name});
    }
  }
  return uses;
}

// `map` is run on all records only for a column that nothing else has.
MadeNumbers NumbersWanted(const DatasetSpec& spec, const Source& source,
                          const FunctionOptions& functions,
                          OpenProgress* progress) {
  std::set<std::string> missing;
  const auto want = [&](const std::string& name) {
    if (!ReadColumns::Has(source, name)) missing.insert(name);
  };
  if (spec.batch.buckets) want(spec.batch.buckets->by);
  for (const SelectSpec& step : spec.select) {
    for (const std::string& name : ColumnsOf(step)) want(name);
  }
  const auto& pack = spec.batch.pack;
  bool wants_length = false;
  if (pack && !pack->by.empty()) {
    want(pack->by);
  } else if (pack) {
    const RawSpec& raw = source.raw_spec();
    wants_length =
        std::none_of(raw.begin(), raw.end(), [&](const RawFeature& each) {
          return IsLengthOf(*pack, each.feature.name);
        });
  }
  if (missing.empty() && !wants_length) return {};
  MadeNumbers made = NumbersOfHead(spec, source, functions, progress);
  const bool any = std::any_of(
      made.features.begin(), made.features.end(), [&](const Feature& each) {
        return missing.count(each.name) > 0 ||
               (wants_length && IsLengthOf(*pack, each.name));
      });
  return any ? std::move(made) : MadeNumbers{};
}

// A list has room for the longest of its bucket where a column says its length.
Status SortIntoBuckets(const DatasetSpec& spec, OpenProgress* progress,
                       Dataset* dataset) {
  if (!spec.batch.buckets) return OkStatus();
  const OrderBudget budget = {
      progress->reserve,
      [progress] { return progress->cancel.load(std::memory_order_relaxed); }};
  const SelectContext context =
      dataset->selection.Context(*dataset->source, 0, budget);
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Order> order,
                            SelectedOrder(spec, *dataset, context));
  auto buckets = Buckets::Make(*spec.batch.buckets, *order, context);
  if (!buckets.ok()) return AtPath("batch.buckets", buckets.status());
  dataset->buckets = *std::move(buckets);
  const ElementSpec& row = dataset->element_spec();
  std::vector<ElementSpec> specs(dataset->buckets->size(), row);
  for (size_t i = 0; i < row.size(); ++i) {
    const auto length = LengthOf(row, row[i]);
    if (!length) continue;
    const auto column = FindColumn(row[*length].name, context);
    if (!column.ok()) continue;
    auto longest = dataset->buckets->LongestOf(*column, *order, budget);
    if (!longest.ok()) return AtPath("batch.buckets", longest.status());
    for (size_t bucket = 0; bucket < specs.size(); ++bucket) {
      const bool by = column->name == spec.batch.buckets->by;
      const uint64_t width = std::max<uint64_t>(
          {1, (*longest)[bucket], by ? dataset->buckets->boundary(bucket) : 0});
      int64_t& items = specs[bucket][i].shape[0];
      items = std::min(items, static_cast<int64_t>(width));
    }
  }
  dataset->bucket_specs = std::move(specs);
  return OkStatus();
}

// The documents that are packed together, by part.
StatusOr<Source::Orders> DocumentsOf(const DatasetSpec& spec,
                                     const Dataset& dataset,
                                     const SelectContext& context) {
  if (PacksParts(spec)) {
    auto parts = dataset.source->OrdersOfParts(0, context.budget);
    if (!parts.ok()) return AtPath("source", parts.status());
    for (size_t i = 0; i < parts->size(); ++i) {
      if ((*parts)[i]->shuffled_parts() == 0) continue;
      return AtPath(Format("source.mix.parts[{}]", i),
                    InvalidArgumentError(
                        "a mix itself, whose parts would share sequences: name "
                        "its parts in the outer mix, or set "
                        "`batch.pack.across_parts: true`"));
    }
    return parts;
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Order> order,
                            SelectedOrder(spec, dataset, context));
  if (spec.shuffle) {
    PENSTOCK_ASSIGN_OR_RETURN(
        order, InWindows(*spec.shuffle, std::move(order), context));
  }
  Source::Orders documents;
  documents.push_back(std::move(order));
  return documents;
}

StatusOr<Column> ColumnOfLengths(const PackSpec& spec, const std::string& list,
                                 const std::string& length,
                                 const SelectContext& context) {
  auto column = FindColumn(spec.by.empty() ? length : spec.by, context);
  if (column.ok()) return column;
  return InvalidArgumentError(
      "{}: how long each '{}' is has to be known before it is read. Name "
      "another column by `by`, or `penstock convert` the rows first",
      column.status().message(), list);
}

Status PackDocuments(const DatasetSpec& spec, OpenProgress* progress,
                     Dataset* dataset) {
  if (!spec.batch.pack) return OkStatus();
  const PackSpec& pack = *spec.batch.pack;
  const OrderBudget budget = {
      progress->reserve,
      [progress] { return progress->cancel.load(std::memory_order_relaxed); }};
  const SelectContext context =
      dataset->selection.Context(*dataset->source, 0, budget);
  const auto at = [](const Status& status) {
    return AtPath("batch.pack", status);
  };
  const ElementSpec& document = dataset->element_spec();
  const auto list = PackedRows::ListOf(pack, document);
  if (!list.ok()) return at(list.status());
  const Feature& feature = document[list->feature];
  auto column =
      ColumnOfLengths(pack, feature.name, document[list->length].name, context);
  if (!column.ok()) return at(column.status());
  PENSTOCK_ASSIGN_OR_RETURN(auto documents,
                            DocumentsOf(spec, *dataset, context));
  uint64_t rows = 0;
  for (const auto& part : documents) rows += part->size();
  progress->done.store(0, std::memory_order_relaxed);
  progress->total.store(rows, std::memory_order_relaxed);
  auto packing = Packing::Make(
      {pack, spec.shuffle, *std::move(column),
       std::min(static_cast<uint64_t>(feature.shape[0]),
                Packing::kDocumentItemsMax)},
      std::move(documents),
      [](size_t count, const auto& work) { return InParallel(count, work); },
      budget, [progress](uint64_t more) { progress->CountDone(more); });
  if (!packing.ok()) {
    // Says why documents were left out.
    const std::string warning = dataset->warning();
    return at(Status(
        packing.status().code(),
        packing.status().message() + (warning.empty() ? "" : "; " + warning)));
  }
  auto packed_rows = PackedRows::Make(
      pack, document,
      pack.documents.value_or((*packing)->totals().in_sequence));
  if (!packed_rows.ok()) return at(packed_rows.status());
  dataset->packing = *std::move(packing);
  dataset->packed_rows = *std::move(packed_rows);
  return OkStatus();
}

}  // namespace

StatusOr<std::shared_ptr<const Dataset>> OpenDataset(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress, const CacheHost& host) {
  auto dataset = std::make_shared<Dataset>();
  if (spec.cache) progress->copies.most = spec.cache->files;
  auto source = OpenSource(spec.source, progress, functions);
  if (!source.ok()) {
    // The error of one that is made of parts names its place.
    const bool has_path = !PathOf(source.status().message()).empty();
    return Located(
        spec, has_path ? AtPath("source", source.status()) : source.status());
  }
  dataset->source = *std::move(source);
  const MadeNumbers made =
      NumbersWanted(spec, *dataset->source, functions, progress);
  auto selected =
      Selection::Open(spec.select, spec.source, *dataset->source, progress,
                      ColumnsOfBatches(spec, *dataset->source, made), made,
                      spec.on_error != OnError::kFail);
  if (!selected.ok()) return Located(spec, selected.status());
  dataset->selection = *std::move(selected);
  MapOpening opening = {progress};
  opening.fingerprint = [&] { return dataset->source->fingerprint(); };
  const std::optional<size_t> kept = KeptSteps(spec);
  SideFiles head_files;
  const Status compiled =
      CompilePrograms(spec, functions, &opening, dataset.get(), &head_files);
  if (!compiled.ok()) return Located(spec, compiled);
  const Status sorted = SortIntoBuckets(spec, progress, dataset.get());
  if (!sorted.ok()) return Located(spec, sorted);
  const Status packed = PackDocuments(spec, progress, dataset.get());
  if (!packed.ok()) return Located(spec, packed);
  if (kept) {
    const KeptRows rows =
        RowsOf(spec, *dataset, *kept, head_files, *progress->access);
    auto cache =
        spec.snapshot
            ? OpenSnapshot(rows, *spec.snapshot, progress->access, host)
        : spec.cache->memory
            ? OpenMemoryCache(rows, *spec.cache->memory, host)
            : OpenDiskCache(rows, *spec.cache->disk, spec.cache->zstd, host);
    const std::string key = spec.snapshot ? "snapshot" : "cache";
    if (cache.ok()) {
      dataset->cache = *std::move(cache);
    } else if (cache.status().code() == StatusCode::kUnavailable) {
      dataset->cache_warning = cache.status().Prepend(key).message();
    } else {
      return Located(spec, AtPath(key, cache.status()));
    }
  }
  dataset->copied_files = progress->copies.files;
  dataset->copied_bytes = progress->copies.bytes;
  const OpenProgress::Remote& remote = progress->remote;
  dataset->remote = {remote.files,  remote.bytes,   remote.kept,
                     remote.beside, remote.scanned, remote.scanned_bytes};
  return std::shared_ptr<const Dataset>(std::move(dataset));
}

}  // namespace penstock
