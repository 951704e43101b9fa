// Each worker's PythonCaller has its own process, which is restarted when it
// dies.
#include "broker/transform/python_caller.h"

#include <algorithm>
#include <cstring>

#include "broker/base/log.h"

namespace penstock {
namespace {

// The numbers that the programs expect: memory size, key, step, then offset and
// bytes of each input that it reads, and the offset of each that it makes.
enum { kMemoryBytes, kSeed, kEpoch, kSample, kStep, kFirstPlace };

// Where the rows begin.
uint64_t RowsAt(const PythonStep& step) {
  return (step.given.size() + kFunctionAlign - 1) / kFunctionAlign *
         kFunctionAlign;
}

// In memory that has room for what it is given.
StatusOr<std::unique_ptr<PythonProcess>> StartProcess(
    const PythonStep& step, const GrowingMemory& memory,
    const Cancelled& cancelled) {
  std::copy(step.given.begin(), step.given.end(),
            reinterpret_cast<char*>(memory.data()));
  return PythonProcess::Start(step.options, step.program, step.argument, memory,
                              cancelled);
}

}  // namespace

Status CheckStarts(const PythonStep& step, const Cancelled& cancelled) {
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(memory.Reserve(RowsAt(step) + 1));
  return StartProcess(step, memory, cancelled).status();
}

StatusOr<std::span<std::byte* const>> PythonCaller::Inputs(
    std::span<const uint64_t> bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const RowLayout layout, PlanRow(bytes, step_.made));
  const uint64_t rows_at = RowsAt(step_);
  PENSTOCK_RETURN_IF_ERROR(
      memory_.Reserve(rows_at + std::max<uint64_t>(layout.bytes, 1)));
  std::byte* const rows = memory_.data() + rows_at;
  numbers_.resize(kFirstPlace);
  numbers_[kMemoryBytes] = memory_.bytes();
  places_.clear();
  inputs_.clear();
  for (size_t i = 0; i < bytes.size(); ++i) {
    places_.push_back(rows + layout.input_offsets[i]);
    inputs_.emplace_back(places_[i], bytes[i]);
  }
  for (const size_t i : step_.read) {
    numbers_.push_back(rows_at + layout.input_offsets[i]);
    numbers_.push_back(bytes[i]);
  }
  for (const uint64_t offset : layout.output_offsets) {
    numbers_.push_back(rows_at + offset);
  }
  results_.clear();
  for (const auto& [made, number] : step_.from) {
    if (made) {
      results_.emplace_back(rows + layout.output_offsets[number],
                            step_.made[number].RowBytes());
    } else {
      results_.push_back(inputs_[number]);
    }
  }
  return std::span<std::byte* const>(places_);
}

void PythonCaller::Narrow(size_t i, uint64_t bytes) {
  numbers_[kFirstPlace + 2 * i + 1] = bytes;
}

StatusOr<const RawRecord*> PythonCaller::Call(const AugmentationKey& key,
                                              uint64_t step) {
  numbers_[kSeed] = key.seed;
  numbers_[kEpoch] = key.epoch;
  numbers_[kSample] = key.sample;
  numbers_[kStep] = step;
  const Status status = CallOnce();
  // After DataLoss the process continues with the next row.
  if (!status.ok() && status.code() != StatusCode::kDataLoss) {
    process_.reset();
  }
  if (status.code() == StatusCode::kUnavailable) {
    Log<"function-ended">(step_.name, status.message());
  }
  if (!status.ok()) return status;
  return &results_;
}

Status PythonCaller::CallOnce() {
  own_ns_.reset();
  if (process_ == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(process_,
                              StartProcess(step_, memory_, cancelled_));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const PythonProcess::Answer answer,
      process_->Call(numbers_, step_.options.call_timeout_ns, cancelled_));
  if (answer.kind != PythonProcess::Answer::Kind::kDone) {
    return DataLossError("{}", answer.body);
  }
  if (answer.body.size() == sizeof(uint64_t)) {
    std::memcpy(&own_ns_.emplace(), answer.body.data(), sizeof(uint64_t));
  }
  return OkStatus();
}

}  // namespace penstock
