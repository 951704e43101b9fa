// Parquet and Arrow, read by processes (python_parquet.py): the daemon links no
// Arrow, whose parsers are larger than all of it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "broker/base/text.h"
#include "broker/declare/declaration.h"
#include "broker/index/concatenation.h"
#include "broker/index/data_files.h"
#include "broker/index/fingerprint.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "broker/source/python_records.h"
#include "common/layout.h"

namespace penstock {
namespace {

// GROUPS_BYTES_MAX of python_parquet.py.
constexpr uint64_t kDecodedBytesMax = 256 << 20;

// Row groups of Parquet, record batches of Arrow.
struct Groups {
  Concatenation rows;
  std::vector<uint64_t> begins;  // of each file: its first group
};

class Parquet final : public Source {
 public:
  Parquet(std::shared_ptr<const DataFiles> files,
          std::shared_ptr<const Groups> groups, PythonRecords records,
          uint32_t processes)
      : files_(std::move(files)),
        groups_(std::move(groups)),
        records_(std::make_shared<const PythonRecords>(std::move(records))),
        processes_(processes) {}

  uint64_t record_count() const override { return records_->length; }
  const RawSpec& raw_spec() const override { return records_->features; }
  uint64_t memory_bytes() const override {
    return groups_->rows.memory_bytes() +
           groups_->begins.size() * sizeof(uint64_t);
  }
  bool Changed() const override { return files_->Changed(); }
  void AddTimes(Fingerprint* to) const override { files_->AddTimes(to); }
  std::string fingerprint() const override {
    Fingerprint fingerprint("parquet");
    fingerprint.Add(*files_);
    fingerprint.Add(record_count());
    return fingerprint.Hex();
  }

  std::string_view FileOf(uint64_t record) const override {
    return (*files_)[FileNumber(groups_->rows.Find(record).part)].path();
  }
  Columns columns(uint64_t first) const override {
    Columns columns = Source::columns(first);
    columns.push_back({"row_group", [this, first](uint64_t record) {
                         return static_cast<int64_t>(
                             groups_->rows.Find(record - first).part);
                       }});
    return columns;
  }
  std::string shuffle_warning() const override {
    if (records_->decoded_bytes <= kDecodedBytesMax) return "";
    return Format(
        "a shuffle of all rows together decodes a row group of Parquet for "
        "nearly every row, as {} are more than the {} that each process keeps "
        "decoded; shuffle: {{window_files: 4}} shuffles row groups, and rows "
        "within 4 of them",
        BytesText(records_->decoded_bytes), BytesText(kDecodedBytesMax));
  }
  std::string Describe(uint64_t record) const override {
    const auto [group, row] = groups_->rows.Find(record);
    const size_t file = FileNumber(group);
    const uint64_t of_file = groups_->begins[file];
    return Format("{}, row {} (row group {})", (*files_)[file].path(),
                  record - groups_->rows.BeginOf(of_file), group - of_file);
  }

  Status Unpack(uint64_t record, const ReadBytes&, std::vector<std::byte>*,
                RawRecord*) const override {
    return InternalError("{} is made by a process", Describe(record));
  }
  std::unique_ptr<Maker> MakeMaker(Cancelled cancelled) const override {
    // Relaxed: only counted.
    const uint32_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    return MakePythonRows(records_, index, std::move(cancelled));
  }
  std::unique_ptr<Source> OfFeatures(
      std::span<const std::string> names) const override {
    PythonRecords narrow = *records_;
    nlohmann::json& columns = narrow.argument["structure"];
    nlohmann::json features = nlohmann::json::array();
    columns = nlohmann::json::array();
    narrow.features.clear();
    const nlohmann::json& all = records_->argument["features"];
    for (const nlohmann::json& column : records_->argument["structure"]) {
      const std::vector<std::string> given = column.at("names");
      if (std::find_first_of(given.begin(), given.end(), names.begin(),
                             names.end()) == given.end()) {
        continue;
      }
      columns.push_back(column);
      for (size_t i = 0; i < raw_spec().size(); ++i) {
        const std::string& name = raw_spec()[i].feature.name;
        if (std::find(given.begin(), given.end(), name) == given.end()) {
          continue;
        }
        narrow.features.push_back(raw_spec()[i]);
        features.push_back(all[i]);
      }
    }
    narrow.argument["features"] = std::move(features);
    narrow.columns.clear();
    if (narrow.features.empty() || !LayOutColumns(&narrow).ok()) return nullptr;
    return std::make_unique<Parquet>(files_, groups_, std::move(narrow),
                                     processes_);
  }
  uint64_t wait_ns() const override { return PythonWaitNs(records_->options); }
  uint32_t processes() const override { return processes_; }

 private:
  size_t FileNumber(size_t group) const {
    const auto& begins = groups_->begins;
    return static_cast<size_t>(
        std::upper_bound(begins.begin(), begins.end(), group) - begins.begin() -
        1);
  }

  const std::shared_ptr<const DataFiles> files_;
  const std::shared_ptr<const Groups> groups_;
  const std::shared_ptr<const PythonRecords> records_;
  const uint32_t processes_;
  mutable std::atomic<uint32_t> next_index_{0};
};

// What python_parquet.py says of the files.
StatusOr<Groups> ReadGroups(const PythonRecords& records, size_t files) {
  Groups groups;
  const std::string& said = records.begin;
  size_t at = 0;
  uint64_t begin = 0;
  const auto next = [&](uint64_t* number) {
    if (said.size() - at < sizeof(*number)) return false;
    std::memcpy(number, said.data() + at, sizeof(*number));
    at += sizeof(*number);
    return true;
  };
  for (size_t file = 0; file < files; ++file) {
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
  return groups;
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
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles opened,
                            DataFiles::Open(files, *progress));
  const auto data = std::make_shared<const DataFiles>(std::move(opened));
  PythonRecords records;
  records.name = "parquet";
  records.options = options;
  // The processes open them by name, and read only what was opened here.
  nlohmann::json given = nlohmann::json::array();
  for (const DataFile& file : *data) {
    given.push_back({file.path(), file.real_path(), file.device(), file.inode(),
                     file.bytes(), file.mtime_ns()});
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
                      {"cuts", longer == Longer::kCut},
                      {"processes", processes},
                      {"index", 0},
                      {"template", true}};
  for (const auto& [name, room] :
       max_length.value_or(FeatureValues<uint64_t>())) {
    records.argument["max_length"][name] = room;
  }
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(FillMemory(records, 1, &memory));
  auto process = PythonProcess::Start(
      options, PythonDatasetSource::Program(), records.argument.dump(), memory,
      [progress] { return progress->cancel.load(); });
  if (!process.ok()) return process.status().Prepend("parquet");
  const Status taken =
      TakeTemplate(*std::move(process), /*in_columns=*/true, &memory, &records);
  if (!taken.ok()) return taken.Prepend("parquet");
  PENSTOCK_ASSIGN_OR_RETURN(Groups groups, ReadGroups(records, data->size()));
  PENSTOCK_RETURN_IF_ERROR(progress->reserve(groups.rows.memory_bytes()));
  return std::unique_ptr<Source>(
      new Parquet(data, std::make_shared<const Groups>(std::move(groups)),
                  std::move(records), processes));
}

}  // namespace penstock
