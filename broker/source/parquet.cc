// Parquet and Arrow, read by processes (python_parquet.py): the daemon links no
// Arrow, whose parsers are larger than all of it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "broker/base/text.h"
#include "broker/declare/declaration.h"
#include "broker/index/concatenation.h"
#include "broker/index/data_files.h"
#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "broker/source/parquet_metadata.h"
#include "broker/source/parquet_rows.h"
#include "common/layout.h"

namespace penstock {
namespace {

class Parquet final : public Source {
 public:
  Parquet(std::shared_ptr<const DataFiles> files, ParquetRecords records,
          uint32_t processes)
      : files_(std::move(files)),
        records_(std::make_shared<const ParquetRecords>(std::move(records))),
        processes_(processes) {}

  uint64_t record_count() const override { return records_->python.length; }
  const RawSpec& raw_spec() const override { return records_->python.features; }
  uint64_t memory_bytes() const override {
    return groups().rows.memory_bytes() +
           groups().begins.size() * sizeof(uint64_t) +
           groups().places.size() * sizeof(RemoteFile::Range);
  }
  bool Changed() const override { return files_->Changed(); }
  void AddTimes(Fingerprint* to) const override { files_->AddTimes(to); }
  void ListFiles(const FileVisit& visit) const override { files_->List(visit); }
  std::string fingerprint() const override {
    Fingerprint fingerprint("parquet");
    fingerprint.Add(*files_);
    fingerprint.Add(record_count());
    return fingerprint.Hex();
  }

  std::string_view FileOf(uint64_t record) const override {
    return (*files_)[groups().FileOf(groups().rows.Find(record).part)].path();
  }
  Columns columns(uint64_t first) const override {
    Columns columns = Source::columns(first);
    columns.push_back({"row_group", [this, first](uint64_t record) {
                         return static_cast<int64_t>(
                             groups().rows.Find(record - first).part);
                       }});
    return columns;
  }
  std::string shuffle_warning() const override {
    const uint64_t bytes = records_->python.decoded_bytes;
    if (bytes <= DecodedGroups::kBytesMax) return "";
    return Format(
        "a shuffle of all rows together decodes a row group of Parquet for "
        "nearly every row, as {} are more than the {} that stay decoded; "
        "shuffle: {{window_files: 4}} shuffles row groups, and rows within 4 "
        "of them",
        BytesText(bytes), BytesText(DecodedGroups::kBytesMax));
  }
  std::string Describe(uint64_t record) const override {
    const auto [group, row] = groups().rows.Find(record);
    const size_t file = groups().FileOf(group);
    const uint64_t of_file = groups().begins[file];
    return Format("{}, row {} (row group {})", (*files_)[file].path(),
                  record - groups().rows.BeginOf(of_file), group - of_file);
  }

  Status Unpack(uint64_t record, const ReadBytes&, std::vector<std::byte>*,
                RawRecord*) const override {
    return InternalError("{} is made by a process", Describe(record));
  }
  std::unique_ptr<Maker> MakeMaker(Cancelled cancelled) const override {
    // Relaxed: only counted.
    const uint32_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    return MakeParquetRows(records_, index, std::move(cancelled));
  }
  std::optional<SharedRanges> SharedRangesOf(uint64_t record) const override {
    const size_t group = groups().rows.Find(record).part;
    RemoteFile* const remote = groups().RemoteOf(group);
    if (remote == nullptr) return std::nullopt;
    SharedRanges shared = {
        remote,
        group,
        groups().rows.BeginOf(group + 1) - groups().rows.BeginOf(group),
        {}};
    if (!records_->decoded->Has(group)) {
      shared.ranges = records_->RangesOf(group);
    }
    return shared;
  }
  std::unique_ptr<Source> OfFeatures(
      std::span<const std::string> names) const override {
    ParquetRecords narrow = *records_;
    PythonRecords& python = narrow.python;
    const RawSpec& features = raw_spec();
    python.features.clear();
    python.argument["structure"] = nlohmann::json::array();
    narrow.columns.clear();
    narrow.places.clear();
    const auto wanted = [&](size_t feature) {
      return std::find(names.begin(), names.end(),
                       features[feature].feature.name) != names.end();
    };
    for (size_t i = 0; i < records_->columns.size(); ++i) {
      ParquetColumn column = records_->columns[i];
      const size_t first = column.feature;
      const size_t end = first + (column.HasLength() ? 2 : 1);
      if (!wanted(first) && !wanted(end - 1)) continue;
      column.feature = python.features.size();
      for (size_t j = first; j < end; ++j) {
        python.features.push_back(features[j]);
      }
      narrow.columns.push_back(std::move(column));
      if (!records_->places.empty()) {
        narrow.places.push_back(records_->places[i]);
      }
      python.argument["structure"].push_back(
          records_->python.argument["structure"][i]);
    }
    if (narrow.columns.empty()) return nullptr;
    narrow.decoded = std::make_shared<DecodedGroups>();
    return std::make_unique<Parquet>(files_, std::move(narrow), processes_);
  }
  uint64_t wait_ns() const override {
    // Fetches end by themselves, far sooner.
    constexpr uint64_t kFetchWaitNs = 3600 * uint64_t{1'000'000'000};
    return PythonWaitNs(records_->python.options) +
           (groups().places.empty() ? 0 : kFetchWaitNs);
  }
  uint32_t processes() const override { return processes_; }

 private:
  const ParquetGroups& groups() const { return *records_->groups; }

  const std::shared_ptr<const DataFiles> files_;
  const std::shared_ptr<const ParquetRecords> records_;
  const uint32_t processes_;
  mutable std::atomic<uint32_t> next_index_{0};
};

// What python_parquet.py says of the files.
StatusOr<std::shared_ptr<const ParquetGroups>> GroupsOf(
    const PythonRecords& records, std::shared_ptr<const DataFiles> files) {
  ParquetGroups groups;
  groups.files = std::move(files);
  const std::string& said = records.begin;
  size_t at = 0;
  uint64_t begin = 0;
  const auto next = [&](uint64_t* number) {
    if (said.size() - at < sizeof(*number)) return false;
    std::memcpy(number, said.data() + at, sizeof(*number));
    at += sizeof(*number);
    return true;
  };
  for (size_t file = 0; file < groups.files->size(); ++file) {
    uint64_t count = 0;
    if (!next(&count)) return PythonRecordProcess::WrongAnswer();
    groups.begins.push_back(begin);
    begin += count;
    for (uint64_t rows = 0; count > 0; --count) {
      if (!next(&rows)) return PythonRecordProcess::WrongAnswer();
      PENSTOCK_RETURN_IF_ERROR(groups.rows.Append(rows));
    }
  }
  if (groups.rows.count() != records.length || records.length == 0) {
    return PythonRecordProcess::WrongAnswer();
  }
  for (RemoteFile::Range place; next(&place.offset) && next(&place.bytes);) {
    groups.places.push_back(place);
  }
  groups.columns = groups.places.size() / begin;
  if (groups.places.size() != groups.columns * begin) {
    return PythonRecordProcess::WrongAnswer();
  }
  for (size_t i = 0; i < groups.places.size(); ++i) {
    const RemoteFile::Range& place = groups.places[i];
    const uint64_t bytes =
        (*groups.files)[groups.FileOf(i / groups.columns)].bytes();
    if (place.offset > bytes || place.bytes > bytes - place.offset) {
      return PythonRecordProcess::WrongAnswer();
    }
  }
  return std::make_shared<const ParquetGroups>(std::move(groups));
}

std::vector<size_t> AllPlaces(const ParquetGroups& groups) {
  std::vector<size_t> places(groups.columns);
  std::iota(places.begin(), places.end(), size_t{0});
  return places;
}

// What a process says of the files.
Status Describe(PythonRecords* records, const OpenProgress& progress) {
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(FillMemory(*records, 1, &memory));
  auto process =
      PythonProcess::Start(records->options, PythonDatasetSource::Program(),
                           records->argument.dump(), memory,
                           [&progress] { return progress.cancel.load(); });
  if (!process.ok()) return process.status().Prepend(records->name);
  return TakeTemplate(*std::move(process), /*in_columns=*/false, &memory,
                      records)
      .Prepend(records->name);
}

}  // namespace

const Declaration<ParquetSource>& ParquetSource::Declared() {
  static const auto declared =
      Declaration<ParquetSource>(
          "parquet",
          "Rows of Parquet and Arrow files (Arrow's files and streams, the "
          "cache files of Hugging Face), which processes read with pyarrow.")
          .Gives(
              "numbers and arrays of the columns' dtypes, times as int64 in "
              "their unit, bytes as an encoded picture; of text, NAME uint8 "
              "[max_bytes] and NAME_bytes int64, of a list, NAME [max_length, "
              "*shape] and NAME.length int64: how many are the row's; zeros "
              "follow")
          .Example(
              "{files: \"data/*.parquet\", columns: [image.bytes, label, "
              "tokens], max_length: {tokens: 512}}")
          .Required("files", &ParquetSource::files, Files(), kFilesText)
          .Optional("columns", &ParquetSource::columns,
                    Maybe(OneOrList(Name(), "a name", kFeaturesMax)),
                    "those that are read, of structs with a dot (image.bytes); "
                    "left out: all")
          .Optional("max_length", &ParquetSource::max_length,
                    Maybe(ValueOfEachFeature(
                        WholeNumber<uint64_t>(1, kRecordBytesMax))),
                    "{NAME: n}: room for lists that differ in length, or for "
                    "bytes that are no picture; other lists have the shape of "
                    "the first one")
          .Optional("max_bytes", &ParquetSource::max_bytes,
                    WholeNumber<uint64_t>(0, kPythonTextBytesMax),
                    "room for a text; 0: four times the longest of the first "
                    "100 rows, 1024 at least")
          .Optional("default", &ParquetSource::fallbacks, AnyMapping(),
                    "{NAME: a number, a text, or []}: where a row has null, "
                    "else an error of the sample")
          .Optional("longer", &ParquetSource::longer, LongerType(), kLongerText)
          .Optional("processes", &ParquetSource::processes,
                    WholeNumber<uint32_t>(0, kPythonProcessesMax),
                    "how many read; 0: one per worker");
  return declared;
}

OpenedSource ParquetSource::Open(OpenProgress* progress,
                                 const FunctionOptions& options) const {
  // A private broker runs Python as its user; a service says that it does.
  if (options.object_dir.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckRunsPython(options).Prepend("parquet"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      DataFiles opened, DataFiles::Open(files, *progress, InflateBy::kNever));
  const auto data = std::make_shared<const DataFiles>(std::move(opened));
  ParquetRecords shared;
  PythonRecords& records = shared.python;
  records.name = "parquet";
  records.options = options;
  // The processes open them by name, and read only what was opened here.
  nlohmann::json given = nlohmann::json::array();
  PENSTOCK_RETURN_IF_ERROR(InParallel(
      data->size(),
      [&](size_t i) { return FetchParquetMetadata((*data)[i], *progress); },
      data->threads()));
  bool any_remote = false;
  for (const DataFile& file : *data) {
    PENSTOCK_ASSIGN_OR_RETURN(const DataFile::Identity is, file.identity());
    given.push_back({file.path(), file.real_path(), is.device, is.inode,
                     file.bytes(), is.mtime_ns});
    // A local copy is written to.
    if (file.remote() != nullptr) given.back().back() = nullptr;
    any_remote |= file.remote() != nullptr;
  }
  records.given =
      given.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  records.argument = {{"object", nlohmann::json()},
                      {"given", records.given.size()},
                      {"wanted", columns.value_or(std::vector<std::string>())},
                      {"names", nlohmann::json::array()},
                      {"max_bytes", max_bytes},
                      {"max_length", nlohmann::json::object()},
                      {"default", nlohmann::json::parse(fallbacks)},
                      {"processes", processes},
                      {"index", 0},
                      {"template", true},
                      {"places", any_remote}};
  for (const auto& [name, room] :
       max_length.value_or(FeatureValues<uint64_t>())) {
    records.argument["max_length"][name] = room;
  }
  HeldRanges first;
  if (any_remote) {
    // The first rows say what the columns hold: first, where those are.
    ParquetRecords placed = shared;
    placed.python.argument["places_only"] = true;
    PENSTOCK_RETURN_IF_ERROR(Describe(&placed.python, *progress));
    PENSTOCK_ASSIGN_OR_RETURN(placed.groups, GroupsOf(placed.python, data));
    placed.places = AllPlaces(*placed.groups);
    const size_t group = placed.groups->rows.Find(0).part;
    const DataFile& file = (*data)[placed.groups->FileOf(group)];
    if (file.remote() != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(first,
                                file.Fetch(placed.RangesOf(group), *progress));
    }
  }
  PENSTOCK_RETURN_IF_ERROR(Describe(&records, *progress));
  PENSTOCK_ASSIGN_OR_RETURN(shared.groups, GroupsOf(records, data));
  shared.places = AllPlaces(*shared.groups);
  auto described =
      ParquetColumnsOf(records.argument["structure"], records.features);
  if (!described) return PythonRecordProcess::WrongAnswer();
  shared.columns = *std::move(described);
  shared.decoded = std::make_shared<DecodedGroups>();
  shared.cuts = longer == Longer::kCut;
  if (!shared.places.empty() && shared.places.size() != shared.columns.size()) {
    return PythonRecordProcess::WrongAnswer();
  }
  auto source = std::make_unique<Parquet>(data, std::move(shared), processes);
  PENSTOCK_RETURN_IF_ERROR(progress->reserve(source->memory_bytes()));
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace penstock
