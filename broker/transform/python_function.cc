// Each worker's Caller has its own process, which is restarted when it dies.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/base/log.h"
#include "broker/declare/declaration.h"
#include "broker/transform/python_function_program.h"
#include "broker/transform/row_function.h"
#include "broker/user_code/python_process.h"

namespace penstock {
namespace {

// The numbers that python_function.py expects: memory size, key, step, then the
// offsets.
enum { kMemoryBytes, kSeed, kEpoch, kSample, kStep, kFirstPlace };

class PythonCaller final : public RowFunction::Caller {
 public:
  PythonCaller(const FunctionOptions& options, const std::string& name,
               const std::string& argument, const ElementSpec& outputs,
               Cancelled cancelled)
      : options_(options),
        name_(name),
        argument_(argument),
        outputs_(outputs),
        cancelled_(std::move(cancelled)) {}

  StatusOr<std::span<std::byte* const>> Inputs(
      std::span<const uint64_t> bytes) override {
    PENSTOCK_ASSIGN_OR_RETURN(const RowLayout layout, PlanRow(bytes, outputs_));
    PENSTOCK_RETURN_IF_ERROR(
        memory_.Reserve(std::max<uint64_t>(layout.bytes, 1)));
    numbers_.resize(kFirstPlace);
    numbers_[kMemoryBytes] = memory_.bytes();
    places_.clear();
    for (size_t i = 0; i < bytes.size(); ++i) {
      places_.push_back(memory_.data() + layout.input_offsets[i]);
      numbers_.push_back(layout.input_offsets[i]);
      numbers_.push_back(bytes[i]);
    }
    results_.clear();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      results_.push_back(
          {memory_.data() + layout.output_offsets[i], outputs_[i].RowBytes()});
      numbers_.push_back(layout.output_offsets[i]);
    }
    return std::span<std::byte* const>(places_);
  }

  StatusOr<const RawRecord*> Call(const AugmentationKey& key,
                                  uint64_t step) override {
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
      Log<"function-ended">(name_, status.message());
    }
    if (!status.ok()) return status;
    return &results_;
  }

  std::optional<uint64_t> own_ns() const override { return own_ns_; }

 private:
  Status CallOnce() {
    own_ns_.reset();
    if (process_ == nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(
          process_, PythonProcess::Start(options_, kPythonFunctionProgram,
                                         argument_, memory_, cancelled_));
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const PythonProcess::Answer answer,
        process_->Call(numbers_, options_.call_timeout_ns, cancelled_));
    if (answer.kind != PythonProcess::Answer::Kind::kDone) {
      return DataLossError("{}", answer.body);
    }
    if (answer.body.size() == sizeof(uint64_t)) {
      std::memcpy(&own_ns_.emplace(), answer.body.data(), sizeof(uint64_t));
    }
    return OkStatus();
  }

  const FunctionOptions& options_;
  const std::string& name_;
  const std::string& argument_;
  const ElementSpec& outputs_;
  const Cancelled cancelled_;
  GrowingMemory memory_;
  std::unique_ptr<PythonProcess> process_;
  std::vector<uint64_t> numbers_;
  std::vector<std::byte*> places_;
  RawRecord results_;
  std::optional<uint64_t> own_ns_;
};

class PythonFunction final : public RowFunction {
 public:
  PythonFunction(FunctionOptions options, std::string name,
                 std::string argument, ElementSpec outputs)
      : options_(std::move(options)),
        name_(std::move(name)),
        argument_(std::move(argument)),
        outputs_(std::move(outputs)) {}

  const ElementSpec& outputs() const override { return outputs_; }
  std::unique_ptr<Caller> MakeCaller(Cancelled cancelled) const override {
    return std::make_unique<PythonCaller>(options_, name_, argument_, outputs_,
                                          std::move(cancelled));
  }
  uint64_t wait_ns() const override {
    return 2 * (options_.call_timeout_ns + options_.start_timeout_ns);
  }

 private:
  const FunctionOptions options_;
  const std::string name_;
  const std::string argument_;
  const ElementSpec outputs_;
};

nlohmann::json ToJson(const Feature& feature) {
  return {{"name", feature.name},
          {"dtype", DTypeName(feature.dtype)},
          {"shape", feature.shape}};
}

}  // namespace

const Declaration<PythonOp>& PythonOp::Declared() {
  static const auto declared =
      Declaration<PythonOp>("python", "A Python function of a whole row.")
          .Gives("a row as a dict of arrays → features")
          .Example("{function: \"augment.pictures:rotate\"}")
          .Required("function", &PythonOp::function,
                    Text("\"package.module:function\"", IsFunctionName),
                    "found in the broker's python_path")
          .Optional("features", &PythonOp::features, Maybe(Features()),
                    kOutputsText);
  return declared;
}

std::string_view PythonOp::Program() { return kPythonFunctionProgram; }

StatusOr<std::unique_ptr<RowFunction>> PythonOp::Open(
    const RawSpec& inputs, const FunctionOptions& options,
    const Cancelled& cancelled) const {
  PENSTOCK_ASSIGN_OR_RETURN(ElementSpec outputs, OutputsOf(features, inputs));
  PENSTOCK_RETURN_IF_ERROR(CheckRunsPython(options));
  nlohmann::json argument = {{"function", function},
                             {"inputs", nlohmann::json::array()},
                             {"outputs", nlohmann::json::array()}};
  std::vector<uint64_t> bytes;
  for (const RawFeature& input : inputs) {
    argument["inputs"].push_back(ToJson(input.feature));
    argument["inputs"].back()["encoded"] = input.encoded;
    bytes.push_back(input.encoded ? 0 : input.feature.RowBytes());
  }
  PENSTOCK_RETURN_IF_ERROR(PlanRow(bytes, outputs).status());
  for (const Feature& output : outputs) {
    argument["outputs"].push_back(ToJson(output));
  }
  const std::string text =
      argument.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Checks the import before any row waits for it.
  GrowingMemory memory;
  PENSTOCK_RETURN_IF_ERROR(memory.Reserve(1));
  PENSTOCK_RETURN_IF_ERROR(PythonProcess::Start(options, kPythonFunctionProgram,
                                                text, memory, cancelled)
                               .status());
  return std::unique_ptr<RowFunction>(
      new PythonFunction(options, function, text, std::move(outputs)));
}

}  // namespace penstock
