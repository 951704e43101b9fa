// Steps of `map` whose rows a process of Python makes: the memory that a worker
// shares with its process, and the calls.
#ifndef BROKER_TRANSFORM_PYTHON_CALLER_H_
#define BROKER_TRANSFORM_PYTHON_CALLER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/transform/row_function.h"
#include "broker/user_code/python_process.h"

namespace penstock {

// What all callers of a step have in common.
struct PythonStep {
  FunctionOptions options;
  std::string name;  // for the log
  std::string_view program;
  std::string argument;  // its JSON
  // Lies at the beginning of the memory, before the rows.
  std::string given;
  std::vector<size_t> read;  // the inputs that the process is told of
  ElementSpec made;          // what it makes
  RawSpec outputs;
  // Where each output is: of those made, or of the inputs, which pass by the
  // process.
  struct From {
    bool made;
    size_t number;
  };
  std::vector<From> from;
};

// Starts a process, which it ends: checks what it imports and reads before any
// row waits for it. Returns what it answers to its start.
StatusOr<std::string> CheckStarts(const PythonStep& step,
                                  const Cancelled& cancelled);

class PythonCaller : public RowFunction::Caller, public SeveralRows {
 public:
  // step outlives it.
  PythonCaller(const PythonStep& step, Cancelled cancelled)
      : step_(step), cancelled_(std::move(cancelled)) {}

  StatusOr<std::span<std::byte* const>> Inputs(
      std::span<const uint64_t> bytes) override;
  StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                  uint64_t step) override;
  std::optional<uint64_t> own_ns() const override { return own_ns_; }

  void Clear() override { rows_.clear(); }
  bool IsFull() const override;
  StatusOr<std::span<std::byte* const>> Add(
      std::span<const uint64_t> bytes) override;
  Status CheckInputs() override { return OkStatus(); }
  void DropLast() override { rows_.pop_back(); }
  size_t size() const override { return rows_.size(); }
  Status CallOf(size_t first, size_t count) override;
  const RawRecord& MadeOf(size_t row) override;

 protected:
  // An input of the last row.
  std::span<const std::byte> Input(size_t i) const;
  // The process is told of fewer bytes of what it reads: of step.read[i].
  void Narrow(size_t i, uint64_t bytes) { rows_.back().read[i] = bytes; }

 private:
  struct Row {
    uint64_t begin = 0;  // in the memory
    RowLayout layout;
    std::vector<uint64_t> bytes;  // of each input
    std::vector<uint64_t> read;   // of those that the process is told of
  };

  uint64_t RowsEnd() const;
  Status CallOnce();

  const PythonStep& step_;
  const Cancelled cancelled_;
  GrowingMemory memory_;
  std::unique_ptr<PythonProcess> process_;
  AugmentationKey key_ = {};
  uint64_t number_ = 0;  // of the step
  std::vector<Row> rows_;
  std::vector<uint64_t> numbers_;
  std::vector<std::byte*> places_;
  RawRecord results_;
  std::optional<uint64_t> own_ns_;
};

class PythonFunction : public RowFunction {
 public:
  PythonFunction(PythonStep step, std::string made_by)
      : step_(std::move(step)), made_by_(std::move(made_by)) {}

  const RawSpec& outputs() const override { return step_.outputs; }
  std::string made_by() const override { return made_by_; }
  std::unique_ptr<Caller> MakeCaller(Cancelled cancelled) const override {
    return std::make_unique<PythonCaller>(step_, std::move(cancelled));
  }
  uint64_t wait_ns() const override {
    return 2 * (step_.options.call_timeout_ns + step_.options.start_timeout_ns);
  }

 protected:
  const PythonStep step_;

 private:
  const std::string made_by_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PYTHON_CALLER_H_
