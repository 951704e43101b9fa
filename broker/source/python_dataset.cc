// A worker asks its process for the rows of a claim at once, and takes them one
// by one as they are made.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "broker/base/log.h"
#include "broker/declare/declaration.h"
#include "broker/source/kinds.h"
#include "broker/source/python_dataset_program.h"
#include "broker/user_code/python_process.h"

namespace penstock {
namespace {

constexpr uint64_t kAlign = 64;
// Bytes of the rows that a process makes at once, and their number: of a
// message with two numbers for each.
constexpr uint64_t kRowsBytes = uint64_t{8} << 20;
constexpr uint64_t kRowsMax = 1024;
constexpr uint64_t kRowBytesOfProcessMax = uint64_t{512} << 20;
// Bytes of the memory with its heap (python_dataset.py).
constexpr uint64_t kMemoryBytesMax = uint64_t{2} << 30;
constexpr uint32_t kProcessesMax = 4096;
constexpr uint64_t kTextBytesMax = uint64_t{64} << 20;
// A process that grows by more is replaced.
constexpr uint64_t kGrowthBytes = uint64_t{1} << 30;
// Processes that end at a record before it is to blame.
constexpr int kDeathsMax = 2;

// What the processes of a dataset share.
struct PythonRecords {
  std::string name;  // for messages
  FunctionOptions options;
  // nullptr: each process loads the dataset itself.
  std::shared_ptr<PythonTemplate> parent;
  nlohmann::json argument;
  uint64_t length = 0;
  RawSpec features;
  std::vector<uint64_t> columns;  // their offsets
  uint64_t heap = 0;              // its offset
  uint64_t rows = 0;              // in the columns
};

// In a column, for features of any size.
struct InHeap {
  uint64_t offset;
  uint64_t bytes;
};

uint64_t ColumnBytes(const RawFeature& feature) {
  return feature.encoded ? sizeof(InHeap) : feature.feature.RowBytes();
}

Status LayOut(PythonRecords* records) {
  uint64_t row_bytes = 0;
  for (const RawFeature& feature : records->features) {
    row_bytes += ColumnBytes(feature);
    if (row_bytes > kRowBytesOfProcessMax) {
      return ResourceExhaustedError(
          "a sample has more than {} bytes, as '{}' has {}",
          kRowBytesOfProcessMax, feature.feature.name,
          feature.feature.RowBytes());
    }
  }
  records->rows = std::clamp(kRowsBytes / std::max<uint64_t>(row_bytes, 1),
                             uint64_t{1}, kRowsMax);
  uint64_t at = kAlign;  // the number of the row in work
  for (const RawFeature& feature : records->features) {
    records->columns.push_back(at);
    at += records->rows * ColumnBytes(feature);
    at = (at + kAlign - 1) / kAlign * kAlign;
  }
  records->heap = at;
  return OkStatus();
}

class PythonMaker final : public Source::Maker {
 public:
  PythonMaker(std::shared_ptr<const PythonRecords> records, uint32_t index,
              Cancelled cancelled)
      : records_(std::move(records)),
        index_(index),
        cancelled_(std::move(cancelled)) {}

  void Expect(uint64_t seed, std::span<const Source::Wanted> wanted) override {
    if (next_ < wanted_.size() && seed == seed_) return;
    seed_ = seed;
    wanted = wanted.first(std::min<size_t>(wanted.size(), records_->rows));
    wanted_.assign(wanted.begin(), wanted.end());
    next_ = made_ = 0;
    asked_ = false;
  }

  Status Make(uint64_t seed, const Source::Wanted& wanted,
              RawRecord* raw) override {
    if (next_ == wanted_.size() || seed != seed_ ||
        !(wanted_[next_] == wanted)) {
      next_ = wanted_.size();
      Expect(seed, {&wanted, 1});
    }
    while (made_ == next_) {
      const Status status = Advance();
      if (status.ok()) continue;
      if (status.code() == StatusCode::kDataLoss ||
          status.code() == StatusCode::kDeadlineExceeded) {
        made_ = ++next_;
        asked_ = false;
        suspect_.reset();
      }
      return status;
    }
    if (suspect_ && suspect_->record == wanted.record) suspect_.reset();
    const Status status = Find(next_ - first_, raw);
    ++next_;
    return status;
  }

  size_t begun() const override { return wanted_.size() - next_ - 1; }

 private:
  // Waits until more rows are made. DataLoss, DeadlineExceeded: the next row
  // cannot be.
  Status Advance() {
    if (suspect_ && suspect_->record == wanted_[next_].record) {
      if (suspect_->status.code() == StatusCode::kDeadlineExceeded) {
        return suspect_->status;
      }
      if (suspect_->deaths >= kDeathsMax) {
        return DataLossError("{}, twice at this sample",
                             suspect_->status.message());
      }
    }
    StatusOr<PythonProcess::Answer> answer = Ask();
    if (!answer.ok()) return Ended(answer.status());
    if (answer->kind == PythonProcess::Answer::Kind::kFailed) {
      return DataLossError("{}", answer->body);
    }
    uint64_t numbers[2];  // rows made, bytes of the memory
    if (answer->body.size() != sizeof(numbers)) {
      return Ended(UnavailableError("its process gave a wrong answer"));
    }
    std::memcpy(numbers, answer->body.data(), sizeof(numbers));
    if (numbers[0] > wanted_.size() - first_ || numbers[0] < made_ - first_ ||
        numbers[1] > kMemoryBytesMax) {
      return Ended(UnavailableError("its process gave a wrong answer"));
    }
    if (const Status grown = memory_.Follow(numbers[1]); !grown.ok()) {
      return Ended(grown);
    }
    made_ = first_ + numbers[0];
    if (answer->kind != PythonProcess::Answer::Kind::kMore) asked_ = false;
    if (answer->kind == PythonProcess::Answer::Kind::kLast) process_.reset();
    return OkStatus();
  }

  StatusOr<PythonProcess::Answer> Ask() {
    const FunctionOptions& options = records_->options;
    if (process_ == nullptr) {
      asked_ = false;
      PENSTOCK_RETURN_IF_ERROR(memory_.Reserve(records_->heap));
      nlohmann::json argument = records_->argument;
      argument["index"] = index_;
      // The next one may grow more: the dataset may need it.
      argument["growth_bytes"] = kGrowthBytes << std::min(starts_++, 10);
      argument["memory_bytes"] = memory_.bytes();
      PENSTOCK_ASSIGN_OR_RETURN(process_, StartProcess(argument.dump()));
    }
    if (!asked_) {
      first_ = next_;
      numbers_.assign(1, seed_);
      for (size_t i = first_; i < wanted_.size(); ++i) {
        if (suspect_ && suspect_->record == wanted_[i].record && i > first_) {
          break;
        }
        numbers_.push_back(wanted_[i].record);
        numbers_.push_back(wanted_[i].pass);
      }
      PENSTOCK_RETURN_IF_ERROR(process_->Send(numbers_, cancelled_));
      asked_ = true;
    }
    return process_->Receive(options.call_timeout_ns, cancelled_);
  }

  StatusOr<std::unique_ptr<PythonProcess>> StartProcess(
      const std::string& argument) {
    const FunctionOptions& options = records_->options;
    if (records_->parent) {
      auto forked = PythonProcess::Fork(options, records_->parent, argument,
                                        memory_, cancelled_);
      // Else the template has ended.
      if (forked.status().code() != StatusCode::kUnavailable) return forked;
    }
    return PythonProcess::Start(options, kPythonDatasetProgram, argument,
                                memory_, cancelled_);
  }

  // The process is not usable any more. Aborted: another one is asked. It makes
  // the rows before the suspect first, so that nothing else can be to blame.
  Status Ended(const Status& status) {
    uint64_t in_work = next_;
    if (asked_) {
      // Written by the process: it only names a row.
      uint64_t number = 0;
      std::memcpy(&number, memory_.data(), sizeof(number));
      in_work = std::clamp<uint64_t>(
          first_ + std::min<uint64_t>(number, wanted_.size()), next_,
          wanted_.size() - 1);
    }
    process_.reset();
    asked_ = false;
    if (status.code() != StatusCode::kUnavailable &&
        status.code() != StatusCode::kDeadlineExceeded) {
      return status;
    }
    const uint64_t record = wanted_[in_work].record;
    Log<"sample-ended-process">(records_->name, record, status.message());
    if (!suspect_ || suspect_->record != record) suspect_ = {record, 0, {}};
    ++suspect_->deaths;
    suspect_->status = status;
    wanted_.resize(in_work + 1);
    return AbortedError("{}", status.message());
  }

  Status Find(uint64_t row, RawRecord* raw) const {
    const std::span<const std::byte> memory(memory_.data(), memory_.bytes());
    raw->clear();
    for (size_t i = 0; i < records_->features.size(); ++i) {
      const uint64_t bytes = ColumnBytes(records_->features[i]);
      const auto column =
          memory.subspan(records_->columns[i] + row * bytes, bytes);
      if (!records_->features[i].encoded) {
        raw->push_back(column);
        continue;
      }
      InHeap place;
      std::memcpy(&place, column.data(), sizeof(place));
      if (place.offset > memory.size() ||
          place.bytes > memory.size() - place.offset) {
        return DataLossError(
            "feature '{}' lies outside of its process's memory",
            records_->features[i].feature.name);
      }
      raw->push_back(memory.subspan(place.offset, place.bytes));
    }
    return OkStatus();
  }

  const std::shared_ptr<const PythonRecords> records_;
  const uint32_t index_;
  const Cancelled cancelled_;
  GrowingMemory memory_;
  std::unique_ptr<PythonProcess> process_;
  std::vector<uint64_t> numbers_;
  uint64_t seed_ = 0;
  std::vector<Source::Wanted> wanted_;
  size_t next_ = 0;     // of wanted_: taken before
  size_t made_ = 0;     // of wanted_: made before
  size_t first_ = 0;    // of wanted_: the first that the process was asked for
  bool asked_ = false;  // another answer will come
  int starts_ = 0;      // of processes
  // The record that was in work when a process ended or took too long.
  struct Suspect {
    uint64_t record = 0;
    int deaths = 0;
    Status status;
  };
  std::optional<Suspect> suspect_;
};

class PythonDataset final : public Source {
 public:
  PythonDataset(PythonRecords records, uint32_t processes, bool of_object)
      : records_(std::make_shared<const PythonRecords>(std::move(records))),
        processes_(processes),
        of_object_(of_object) {}

  uint64_t record_count() const override { return records_->length; }
  const RawSpec& raw_spec() const override { return records_->features; }

  Status Unpack(uint64_t record, const ReadBytes&, std::vector<std::byte>*,
                RawRecord*) const override {
    return InternalError("{} is made by a process", Describe(record));
  }
  std::string Describe(uint64_t record) const override {
    // An object's dataset has the name of its class.
    return Format("{}[{}]", of_object_ ? "dataset" : records_->name, record);
  }
  // A module may have changed, and nothing tells.
  bool Changed() const override { return !of_object_; }
  std::string structure() const override {
    return records_->argument.at("structure").dump();
  }

  std::unique_ptr<Maker> MakeMaker(Cancelled cancelled) const override {
    // Relaxed: only counted.
    return std::make_unique<PythonMaker>(
        records_, next_index_.fetch_add(1, std::memory_order_relaxed),
        std::move(cancelled));
  }
  uint64_t wait_ns() const override {
    const FunctionOptions& options = records_->options;
    return (kDeathsMax + 2) *
           (options.call_timeout_ns + options.start_timeout_ns);
  }
  uint32_t processes() const override { return processes_; }

 private:
  const std::shared_ptr<const PythonRecords> records_;
  const uint32_t processes_;
  const bool of_object_;
  mutable std::atomic<uint32_t> next_index_{0};
};

// What the template says of the dataset.
Status ReadDescription(const std::string& text, PythonRecords* records,
                       bool* forks) {
  const nlohmann::json described =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!described.is_object() || !described.contains("structure") ||
      !described.contains("features") || !described.contains("length") ||
      !described["length"].is_number_unsigned()) {
    return InternalError("its process described no dataset");
  }
  records->length = described["length"];
  *forks = described.value("forks", false);
  if (records->length > kRecordsMax) {
    return InvalidArgumentError("it has more than {} samples", kRecordsMax);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ElementSpec features,
                            ElementSpecFromJson(described["features"]));
  for (size_t i = 0; i < features.size(); ++i) {
    records->features.push_back(
        {features[i], described["features"][i].value("encoded", false)});
  }
  records->argument["features"] = described["features"];
  records->argument["structure"] = described["structure"];
  return OkStatus();
}

Status CheckObject(const std::string& path, const FunctionOptions& options) {
  std::error_code error;
  if (options.object_dir.empty() ||
      !std::filesystem::equivalent(std::filesystem::path(path).parent_path(),
                                   options.object_dir, error)) {
    return FailedPreconditionError(
        "a pickled dataset is loaded only by a private broker, from its own "
        "folder: code from elsewhere would run as the broker's user; in a "
        "service name a factory (`dataset: \"module:factory\"`)");
  }
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) {
    return ErrnoError(errno, Format("'{}'", path));
  }
  if (!S_ISREG(st.st_mode)) {
    return InvalidArgumentError("'{}' is not a file", path);
  }
  return CheckTrustedFile(path, st, options.writable_by);
}

Status CheckPython(const YamlValue& value, PythonDatasetSource*) {
  return value.OneOf({"dataset", "object"}).status();
}

}  // namespace

const Declaration<PythonDatasetSource>& PythonDatasetSource::Declared() {
  static const auto declared =
      Declaration<PythonDatasetSource>(
          "python",
          "A map-style dataset of Python, made by processes of its own.")
          .Gives(
              "the arrays and numbers of a sample, named by their keys, fields "
              "and indices (image, 0, 1.boxes); NAME uint8 [max_bytes] and "
              "NAME_bytes int64 of a text; bytes as an encoded picture")
          .Example("{dataset: \"data.photos:Train\", args: {root: /data}}")
          .Optional("dataset", &PythonDatasetSource::dataset,
                    Maybe(Text("\"package.module:factory\"", IsFunctionName)),
                    "a class or function that gives an object with __len__ and "
                    "__getitem__, found in the broker's python_path")
          .Optional("args", &PythonDatasetSource::args, AnyMapping(),
                    "its keyword arguments")
          .Optional("object", &PythonDatasetSource::object, Maybe(Path()),
                    "instead of dataset: a pickled one, which "
                    "penstock.torch.DataLoader writes for a private broker")
          .Optional("names", &PythonDatasetSource::names,
                    Maybe(OneOrList(Name(), "a name", 64)),
                    "names for the items of a sample that is a tuple")
          .Optional("max_bytes", &PythonDatasetSource::max_bytes,
                    WholeNumber<uint64_t>(0, kTextBytesMax),
                    "room for a text in each row; a longer one is an error of "
                    "its sample. 0: four times the first sample's, 1024 at "
                    "least")
          .Optional("processes", &PythonDatasetSource::processes,
                    WholeNumber<uint32_t>(0, kProcessesMax),
                    "how many make samples; 0: one per worker")
          .Check(CheckPython);
  return declared;
}

std::string_view PythonDatasetSource::Program() {
  return kPythonDatasetProgram;
}

OpenedSource PythonDatasetSource::Open(OpenProgress* progress,
                                       const FunctionOptions& options) const {
  const bool of_object = object.has_value();
  PythonRecords records;
  records.name =
      of_object ? std::filesystem::path(*object).stem().string() : *dataset;
  records.options = options;
  const auto prepend = [&](const Status& status) {
    return of_object ? status : status.Prepend("python " + records.name);
  };
  if (const Status allowed =
          of_object ? CheckObject(*object, options) : CheckRunsPython(options);
      !allowed.ok()) {
    return prepend(allowed);
  }
  records.argument = {
      {"dataset", dataset.value_or("")},
      {"args", nlohmann::json::parse(args)},
      {"object", of_object ? nlohmann::json(*object) : nlohmann::json()},
      {"names", names.value_or(std::vector<std::string>())},
      {"max_bytes", max_bytes},
      {"template", true}};
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(memory.Reserve(1));
  auto process = PythonProcess::Start(
      options, kPythonDatasetProgram, records.argument.dump(), memory,
      [progress] { return progress->cancel.load(); });
  if (!process.ok()) return prepend(process.status());
  bool forks = false;
  Status status = ReadDescription((*process)->greeting(), &records, &forks);
  if (status.ok()) status = LayOut(&records);
  if (!status.ok()) return prepend(status);
  if (forks) {
    records.parent = std::make_shared<PythonTemplate>(*std::move(process));
  }
  records.argument["template"] = false;
  records.argument["columns"] = records.columns;
  records.argument["heap"] = records.heap;
  records.argument["rows"] = records.rows;
  return std::unique_ptr<Source>(
      new PythonDataset(std::move(records), processes, of_object));
}

}  // namespace penstock
