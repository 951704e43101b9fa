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

}  // namespace

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
  PENSTOCK_RETURN_IF_ERROR(memory_.Reserve(bytes));
  if (process_ != nullptr) return OkStatus();
  const FunctionOptions& options = records_->options;
  nlohmann::json argument = records_->argument;
  argument["index"] = index_;
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
