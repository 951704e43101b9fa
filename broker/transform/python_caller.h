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
// row waits for it.
Status CheckStarts(const PythonStep& step, const Cancelled& cancelled);

class PythonCaller : public RowFunction::Caller {
 public:
  // step outlives it.
  PythonCaller(const PythonStep& step, Cancelled cancelled)
      : step_(step), cancelled_(std::move(cancelled)) {}

  StatusOr<std::span<std::byte* const>> Inputs(
      std::span<const uint64_t> bytes) override;
  StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                  uint64_t step) override;
  std::optional<uint64_t> own_ns() const override { return own_ns_; }

 protected:
  std::span<const std::byte> Input(size_t i) const { return inputs_[i]; }
  // The process is told of fewer bytes of what it reads: of step.read[i].
  void Narrow(size_t i, uint64_t bytes);

 private:
  Status CallOnce();

  const PythonStep& step_;
  const Cancelled cancelled_;
  GrowingMemory memory_;
  std::unique_ptr<PythonProcess> process_;
  std::vector<uint64_t> numbers_;
  std::vector<std::byte*> places_;
  RawRecord inputs_;
  RawRecord results_;
  std::optional<uint64_t> own_ns_;
};

class PythonFunction : public RowFunction {
 public:
  explicit PythonFunction(PythonStep step) : step_(std::move(step)) {}

  const RawSpec& outputs() const override { return step_.outputs; }
  std::unique_ptr<Caller> MakeCaller(Cancelled cancelled) const override {
    return std::make_unique<PythonCaller>(step_, std::move(cancelled));
  }
  uint64_t wait_ns() const override {
    return 2 * (step_.options.call_timeout_ns + step_.options.start_timeout_ns);
  }

 protected:
  const PythonStep step_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PYTHON_CALLER_H_
