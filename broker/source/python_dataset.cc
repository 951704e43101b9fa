// A dataset whose records are made by processes of Python.
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
#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "broker/source/python_dataset_program.h"
#include "broker/source/python_records.h"
#include "broker/user_code/python_process.h"

namespace penstock {
namespace {

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

  std::unique_ptr<Maker> MakeMaker(Cancelled cancelled) const override {
    if (records_->iterators > 0) {
      return MakePythonIterators(records_, std::move(cancelled));
    }
    // Relaxed: only counted.
    const uint32_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    return (of_object_ ? MakePythonBatches : MakePythonRows)(
        records_, index, std::move(cancelled));
  }
  // Rows are made whole.
  std::unique_ptr<Source> OfFeatures(
      std::span<const std::string>) const override {
    if (of_object_ || records_->iterators > 0) return nullptr;
    return std::make_unique<PythonDataset>(*records_, processes_, of_object_);
  }
  uint64_t wait_ns() const override { return PythonWaitNs(records_->options); }
  bool in_order() const override { return records_->iterators > 0; }
  // One worker asks all iterators.
  uint32_t processes() const override {
    return records_->iterators > 0 ? 1 : processes_;
  }

 private:
  const std::shared_ptr<const PythonRecords> records_;
  const uint32_t processes_;
  const bool of_object_;
  mutable std::atomic<uint32_t> next_index_{0};
};

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
  return OkStatus();
}

Status CheckFile(const std::string& path, const FunctionOptions& options) {
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
              "arrays and numbers, named by their keys, fields and indices "
              "(image, 0, 1.boxes); a text NAME with NAME_bytes, a list NAME "
              "with NAME.length; bytes as an encoded picture")
          .Example("{dataset: \"data.photos:Train\", args: {root: /data}}")
          .Optional("dataset", &PythonDatasetSource::dataset,
                    Maybe(Text("\"package.module:factory\"", IsFunctionName)),
                    "a class or function that gives an object with __len__ and "
                    "__getitem__, found in the broker's python_path")
          .Optional("args", &PythonDatasetSource::args, AnyMapping(),
                    "its keyword arguments")
          .Optional("object", &PythonDatasetSource::object, Maybe(Path()),
                    "instead of dataset: a pickled one of penstock.torch")
          .Optional("names", &PythonDatasetSource::names,
                    Maybe(OneOrList(Name(), "a name", 64)),
                    "names for the items of a sample that is a tuple")
          .Optional(
              "max_bytes", &PythonDatasetSource::max_bytes,
              WholeNumber<uint64_t>(0, kPythonTextBytesMax),
              "room for a text; 0: four times the first one's, 1024 at least. "
              "Of an object: of a batch; 0: 256 MiB, or 32 times the first "
              "batch's")
          .Optional("max_length", &PythonDatasetSource::max_length,
                    Maybe(ValueOfEachFeature(
                        WholeNumber<uint64_t>(1, kRecordBytesMax))),
                    "{NAME: n}: room for arrays or lists that differ in length")
          .Optional("longer", &PythonDatasetSource::longer, LongerType(),
                    "text, list: an error of its sample, or cut")
          .Optional("processes", &PythonDatasetSource::processes,
                    WholeNumber<uint32_t>(0, kPythonProcessesMax),
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
      {"max_length", nlohmann::json::object()},
      {"cuts", longer == Longer::kCut},
      {"processes", processes},
      {"given", 0},
      {"index", 0},
      {"template", true}};
  for (const auto& [name, room] :
       max_length.value_or(FeatureValues<uint64_t>())) {
    records.argument["max_length"][name] = room;
  }
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(memory.Reserve(1));
  const Cancelled cancelled = [progress] { return progress->cancel.load(); };
  StatusOr<std::unique_ptr<PythonProcess>> process =
      UnavailableError("no program has forked a template");
  if (of_object) {
    auto of_program = PythonTemplate::Connect(options, kPythonDatasetProgram,
                                              *object + ".socket");
    if (of_program.ok()) {
      records.parent = *std::move(of_program);
      process = PythonProcess::Fork(options, records.parent,
                                    records.argument.dump(), memory, cancelled);
    }
  }
  if (process.status().code() == StatusCode::kUnavailable ||
      process.status().code() == StatusCode::kDeadlineExceeded) {
    records.parent.reset();
    if (of_object) {
      struct stat st;
      if (lstat((*object + ".socket").c_str(), &st) == 0) {
        PENSTOCK_RETURN_IF_ERROR(AwaitFile(*object, cancelled));
      }
      PENSTOCK_RETURN_IF_ERROR(CheckFile(*object, options));
    }
    process = PythonProcess::Start(options, kPythonDatasetProgram,
                                   records.argument.dump(), memory, cancelled);
  }
  if (!process.ok()) return prepend(process.status());
  if (const Status taken =
          TakeTemplate(*std::move(process), !of_object, &memory, &records);
      !taken.ok()) {
    return prepend(taken);
  }
  return std::unique_ptr<Source>(
      new PythonDataset(std::move(records), processes, of_object));
}

}  // namespace penstock
