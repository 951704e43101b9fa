#include "broker/source/python_records.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "broker/base/log.h"

namespace penstock {
namespace {

// A process that grows by more is replaced.
constexpr uint64_t kGrowthBytes = uint64_t{1} << 30;
// Processes that end at a record before it is to blame.
constexpr int kDeathsMax = 2;

// What the template says of the dataset.
Status ReadDescription(const std::string& text, GrowingMemory* memory,
                       PythonRecords* records, bool* forks) {
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
  records->iterators = described.value("iterators", 0u);
  if (records->iterators > kPythonProcessesMax) {
    return InvalidArgumentError("it has more than {} iterators",
                                kPythonProcessesMax);
  }
  records->decoded_bytes = described.value("decoded_bytes", uint64_t{0});
  const uint64_t begin = described.value("begin", uint64_t{0});
  PENSTOCK_RETURN_IF_ERROR(memory->Follow(begin));
  records->begin.assign(reinterpret_cast<const char*>(memory->data()), begin);
  records->argument["features"] = described["features"];
  records->argument["structure"] = described["structure"];
  return OkStatus();
}

}  // namespace

Status FillMemory(const PythonRecords& records, uint64_t bytes,
                  GrowingMemory* memory) {
  const std::string& given = records.given;
  PENSTOCK_RETURN_IF_ERROR(
      memory->Reserve(std::max<uint64_t>(bytes, given.size())));
  std::memcpy(memory->data(), given.data(), given.size());
  return OkStatus();
}

Status TakeTemplate(std::unique_ptr<PythonProcess> process, bool in_columns,
                    GrowingMemory* memory, PythonRecords* records) {
  bool forks = false;
  PENSTOCK_RETURN_IF_ERROR(
      ReadDescription(process->greeting(), memory, records, &forks));
  if (in_columns) PENSTOCK_RETURN_IF_ERROR(LayOutColumns(records));
  if (forks && !records->parent) {
    records->parent = std::make_shared<PythonTemplate>(std::move(process));
  } else {
    process->Drop();
  }
  records->argument["template"] = false;
  return OkStatus();
}

Status AwaitFile(const std::string& path, const Cancelled& cancelled) {
  constexpr std::chrono::milliseconds kLook{50};
  constexpr std::chrono::seconds kWritten{60};
  const auto give_up = std::chrono::steady_clock::now() + kWritten;
  std::error_code error;
  while (!std::filesystem::exists(path, error)) {
    if (cancelled && cancelled()) return CancelledError("nobody waits for it");
    if (std::chrono::steady_clock::now() > give_up) {
      return NotFoundError(
          "'{}': the program that forked its processes has not written it",
          path);
    }
    std::this_thread::sleep_for(kLook);
  }
  return OkStatus();
}

uint64_t PythonWaitNs(const FunctionOptions& options) {
  return (kDeathsMax + 2) *
         (options.call_timeout_ns + options.start_timeout_ns);
}

Status PythonRecordProcess::Start(uint64_t bytes) {
  if (process_ != nullptr) return memory_.Reserve(bytes);
  PENSTOCK_RETURN_IF_ERROR(FillMemory(*records_, bytes, &memory_));
  const FunctionOptions& options = records_->options;
  nlohmann::json argument = records_->argument;
  argument["index"] = index_;
  argument["columns"] = records_->columns;
  argument["heap"] = records_->heap;
  argument["rows"] = records_->rows;
  // The next one may grow more: the dataset may need it.
  argument["growth_bytes"] = kGrowthBytes << std::min(starts_++, 10);
  argument["memory_bytes"] = memory_.bytes();
  if (records_->parent) {
    auto forked = PythonProcess::Fork(options, records_->parent,
                                      argument.dump(), memory_, cancelled_);
    // Else the template has ended.
    if (forked.status().code() != StatusCode::kUnavailable) {
      PENSTOCK_ASSIGN_OR_RETURN(process_, std::move(forked));
      return OkStatus();
    }
    if (const nlohmann::json& object = argument.at("object");
        object.is_string()) {
      PENSTOCK_RETURN_IF_ERROR(AwaitFile(object, cancelled_));
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      process_, PythonProcess::Start(options, PythonDatasetSource::Program(),
                                     argument.dump(), memory_, cancelled_));
  return OkStatus();
}

StatusOr<PythonProcess::Answer> PythonRecordProcess::Receive(size_t number) {
  if (process_ == nullptr) return NoProcess();
  PENSTOCK_ASSIGN_OR_RETURN(
      PythonProcess::Answer answer,
      process_->Receive(records_->options.call_timeout_ns, cancelled_));
  if (answer.kind == PythonProcess::Answer::Kind::kFailed) return answer;
  uint64_t bytes = 0;
  if (answer.body.size() < (number + 1) * sizeof(bytes)) return WrongAnswer();
  std::memcpy(&bytes, answer.body.data() + number * sizeof(bytes),
              sizeof(bytes));
  if (bytes > kMemoryBytesMax) return WrongAnswer();
  PENSTOCK_RETURN_IF_ERROR(memory_.Follow(bytes));
  return answer;
}

Status PythonRecordProcess::NoProcess() {
  return UnavailableError("its process has ended");
}

Status PythonRecordProcess::WrongAnswer() {
  return UnavailableError("its process gave a wrong answer");
}

std::optional<uint64_t> PythonRecordProcess::InWork(uint64_t rows) const {
  uint64_t number = 0;
  // Written by the process: it only names a row.
  std::memcpy(&number, memory_.data(), sizeof(number));
  if (number == UINT64_MAX) return std::nullopt;
  return std::min(number, rows - 1);
}

Status PythonRecordProcess::Ended(const Status& status,
                                  std::optional<uint64_t> record) {
  process_.reset();
  if (status.code() != StatusCode::kUnavailable &&
      status.code() != StatusCode::kDeadlineExceeded) {
    return status;
  }
  if (record) {
    Log<"sample-ended-process">(records_->name, *record, status.message());
    if (!IsSuspect(*record)) suspect_ = {*record, 0, {}};
    ++suspect_->deaths;
    suspect_->status = status;
  }
  return AbortedError("{}", status.message());
}

Status PythonRecordProcess::Blame(uint64_t record) const {
  if (!IsSuspect(record)) return OkStatus();
  if (suspect_->status.code() == StatusCode::kDeadlineExceeded) {
    return suspect_->status;
  }
  if (suspect_->deaths < kDeathsMax) return OkStatus();
  return DataLossError("{}, twice at this sample", suspect_->status.message());
}

}  // namespace penstock
