#include "broker/job/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <variant>

#include "broker/declare/spec_path.h"
#include "broker/index/file_times.h"
#include "broker/index/fingerprint.h"

namespace penstock {

std::string DatasetKey(const DatasetSpec& spec) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  const bool has_file = std::any_of(
      spec.select.begin(), spec.select.end(), [](const SelectSpec& step) {
        const auto* filter = std::get_if<FilterStep>(&step);
        return filter != nullptr && !filter->records.empty();
      });
  std::string key = json.at("source").dump() + json.at("map").dump();
  for (const char* const kept : {"cache", "snapshot"}) {
    if (json.contains(kept)) key += json.at(kept).dump();
  }
  return key + (has_file ? json.at("select").dump() : "");
}

bool Dataset::Changed() const {
  return source->Changed() || kept.Changed() ||
         std::any_of(files.begin(), files.end(),
                     [](const auto& file) { return file->Changed(); });
}

uint64_t Dataset::memory_bytes() const {
  uint64_t bytes = source->memory_bytes() + kept.memory_bytes();
  for (const auto& file : files) bytes += file->memory_bytes();
  return bytes;
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
  kept.AddDigests(&digests);
  return digests;
}

std::string Dataset::warning() const {
  std::string all = source->warning();
  for (const std::string& text : {map_warning, cache_warning}) {
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

StatusOr<Plan> PlanOf(const DatasetSpec& spec, const Dataset& dataset,
                      uint32_t world_size, uint32_t shards,
                      const OrderBudget& budget) {
  const SelectContext context = {dataset.source->columns(0), budget,
                                 dataset.kept.Lookup(0)};
  auto of_source = dataset.source->OrderOf(0, budget);
  if (!of_source.ok()) return AtPath("source", of_source.status());
  std::unique_ptr<Order> order = *std::move(of_source);
  PENSTOCK_ASSIGN_OR_RETURN(order,
                            Select(spec.select, std::move(order), context));
  if (spec.shuffle) {
    PENSTOCK_ASSIGN_OR_RETURN(
        order, InWindows(*spec.shuffle, std::move(order), context));
  }
  if (spec.shard == ShardPolicy::kFile) {
    PENSTOCK_ASSIGN_OR_RETURN(
        order, ShardByFile(std::move(order), shards,
                           GlobalBatchOf(spec, shards), context));
  }
  return Plan::Make(spec, std::move(order), world_size);
}

std::string SelectionOf(const DatasetSpec& spec, const Dataset& dataset) {
  const bool windows = spec.shuffle && spec.shuffle->window_files;
  std::string text =
      SelectionText(spec.source, spec.select, dataset.FilesOfSelection());
  if (text.empty() && !windows) return "";
  if (windows) text += Format(" {}", *spec.shuffle->window_files);
  // FNV-1a: mistakes are found, not forgeries.
  uint64_t digest = 0xcbf2'9ce4'8422'2325;
  for (const unsigned char c : text) digest = (digest ^ c) * 0x100'0000'01b3;
  return Format("{:016x}", digest);
}

bool RunsFunctions(const DatasetSpec& spec) {
  return AnySource(spec.source,
                   [](const SourceSpec& source) {
                     return std::holds_alternative<PythonDatasetSource>(source);
                   }) ||
         std::any_of(spec.map.begin(), spec.map.end(),
                     [](const TransformSpec& op) {
                       return std::holds_alternative<PythonOp>(op) ||
                              std::holds_alternative<PluginOp>(op);
                     });
}

namespace {

// What the rows that the first `steps` of `map` make depend on.
KeptRows RowsOf(const DatasetSpec& spec, const Dataset& dataset, size_t steps,
                const FileAccess& access) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  nlohmann::ordered_json key;
  key["source"] = json.at("source");
  key["map"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < steps; ++i) {
    key["map"].push_back(json.at("map").at(i));
  }
  KeptRows rows;
  rows.access = access.key();
  rows.name = key.dump();
  Fingerprint changed("changed");
  AddTimesOf(*dataset.source, &changed);
  key["data"] = dataset.source->fingerprint();
  key["changed"] = changed.Hex();
  key["files"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < dataset.program->head_files(); ++i) {
    key["files"].push_back(dataset.files[i]->digest());
  }
  // Another one may make other values.
  key["penstock"] = PENSTOCK_VERSION;
  rows.key = key.dump();
  rows.records = dataset.source->record_count();
  rows.features = dataset.program->head_spec();
  return rows;
}

}  // namespace

StatusOr<std::shared_ptr<const Dataset>> OpenDataset(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress, const CacheHost& host) {
  auto dataset = std::make_shared<Dataset>();
  auto source = OpenSource(spec.source, progress, functions);
  if (!source.ok()) {
    // Of one that is made of parts.
    const bool has_path = !PathOf(source.status().message()).empty();
    return Located(
        spec, has_path ? AtPath("source", source.status()) : source.status());
  }
  dataset->source = *std::move(source);
  auto selected =
      KeptFiles::Open(spec.select, spec.source, *dataset->source, progress);
  if (!selected.ok()) return Located(spec, selected.status());
  dataset->kept = *std::move(selected);
  MapOpening opening = {progress};
  opening.fingerprint = [&] { return dataset->source->fingerprint(); };
  const std::optional<size_t> kept = KeptSteps(spec);
  auto program = RowProgram::Compile(spec.map, dataset->source->raw_spec(),
                                     functions, &opening, kept);
  if (!program.ok()) return Located(spec, program.status());
  dataset->program = *std::move(program);
  dataset->files = std::move(opening.files);
  dataset->map_warning = std::move(opening.warning);
  if (kept) {
    const KeptRows rows = RowsOf(spec, *dataset, *kept, *progress->access);
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
  return std::shared_ptr<const Dataset>(std::move(dataset));
}

}  // namespace penstock
