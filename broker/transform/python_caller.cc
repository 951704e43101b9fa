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

// A call with so many rows, or so large ones, costs as little a row as any.
constexpr size_t kRowsOfCall = 64;
constexpr uint64_t kBytesOfCall = uint64_t{2} << 20;

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

StatusOr<std::string> CheckStarts(const PythonStep& step,
                                  const Cancelled& cancelled) {
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(memory.Reserve(RowsAt(step) + 1));
  PENSTOCK_ASSIGN_OR_RETURN(const auto process,
                            StartProcess(step, memory, cancelled));
  return process->greeting();
}

StatusOr<std::span<std::byte* const>> PythonCaller::Inputs(
    std::span<const uint64_t> bytes) {
  Clear();
  return Add(bytes);
}

uint64_t PythonCaller::RowsEnd() const {
  if (rows_.empty()) return RowsAt(step_);
  const Row& last = rows_.back();
  return last.begin + (last.layout.bytes + kFunctionAlign - 1) /
                          kFunctionAlign * kFunctionAlign;
}

bool PythonCaller::IsFull() const {
  return rows_.size() >= kRowsOfCall ||
         RowsEnd() - RowsAt(step_) >= kBytesOfCall;
}

StatusOr<std::span<std::byte* const>> PythonCaller::Add(
    std::span<const uint64_t> bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(RowLayout layout, PlanRow(bytes, step_.made));
  const uint64_t begin = RowsEnd();
  PENSTOCK_RETURN_IF_ERROR(
      memory_.Reserve(begin + std::max<uint64_t>(layout.bytes, 1)));
  Row& row = rows_.emplace_back();
  row.begin = begin;
  row.layout = std::move(layout);
  row.bytes.assign(bytes.begin(), bytes.end());
  for (const size_t i : step_.read) row.read.push_back(bytes[i]);
  places_.clear();
  for (const uint64_t offset : row.layout.input_offsets) {
    places_.push_back(memory_.data() + begin + offset);
  }
  return std::span<std::byte* const>(places_);
}

std::span<const std::byte> PythonCaller::Input(size_t i) const {
  const Row& row = rows_.back();
  return {memory_.data() + row.begin + row.layout.input_offsets[i],
          row.bytes[i]};
}

// Where the memory is may change with each row that is added.
const RawRecord& PythonCaller::MadeOf(size_t row) {
  const Row& of = rows_[row];
  std::byte* const begin = memory_.data() + of.begin;
  results_.clear();
  for (const auto& [made, number] : step_.from) {
    if (made) {
      results_.emplace_back(begin + of.layout.output_offsets[number],
                            step_.made[number].RowBytes());
    } else {
      results_.emplace_back(begin + of.layout.input_offsets[number],
                            of.bytes[number]);
    }
  }
  return results_;
}

StatusOr<const RawRecord*> PythonCaller::Call(const AugmentationKey& key,
                                              uint64_t step) {
  key_ = key;
  number_ = step;
  PENSTOCK_RETURN_IF_ERROR(CheckInputs());
  PENSTOCK_RETURN_IF_ERROR(CallOf(0, 1));
  return &MadeOf(0);
}

Status PythonCaller::CallOf(size_t first, size_t count) {
  numbers_.resize(kFirstPlace);
  numbers_[kMemoryBytes] = memory_.bytes();
  numbers_[kSeed] = key_.seed;
  numbers_[kEpoch] = key_.epoch;
  numbers_[kSample] = key_.sample;
  numbers_[kStep] = number_;
  for (const Row& row : std::span(rows_).subspan(first, count)) {
    for (size_t i = 0; i < step_.read.size(); ++i) {
      numbers_.push_back(row.begin + row.layout.input_offsets[step_.read[i]]);
      numbers_.push_back(row.read[i]);
    }
    for (const uint64_t offset : row.layout.output_offsets) {
      numbers_.push_back(row.begin + offset);
    }
  }
  const Status status = CallOnce();
  // After DataLoss the process continues with the next row.
  if (!status.ok() && status.code() != StatusCode::kDataLoss) {
    process_.reset();
  }
  if (status.code() == StatusCode::kUnavailable) {
    Log<"function-ended">(step_.name, status.message());
  }
  return status;
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
