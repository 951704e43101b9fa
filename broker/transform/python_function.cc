#include <nlohmann/json.hpp>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/transform/python_caller.h"
#include "broker/transform/python_function_program.h"
#include "broker/transform/row_function.h"

namespace penstock {
namespace {

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
    MapOpening* opening) const {
  PythonStep step;
  PENSTOCK_ASSIGN_OR_RETURN(step.made, OutputsOf(features, inputs));
  PENSTOCK_RETURN_IF_ERROR(CheckRunsPython(options));
  step.options = options;
  step.name = function;
  step.program = kPythonFunctionProgram;
  step.outputs = RawSpecOf(step.made);
  nlohmann::json argument = {{"function", function},
                             {"inputs", nlohmann::json::array()},
                             {"outputs", nlohmann::json::array()}};
  std::vector<uint64_t> bytes;
  for (const RawFeature& input : inputs) {
    argument["inputs"].push_back(ToJson(input.feature));
    argument["inputs"].back()["encoded"] = input.encoded;
    step.read.push_back(bytes.size());
    bytes.push_back(input.encoded ? 0 : input.feature.RowBytes());
  }
  PENSTOCK_RETURN_IF_ERROR(PlanRow(bytes, step.made).status());
  for (const Feature& output : step.made) {
    argument["outputs"].push_back(ToJson(output));
    step.from.push_back({true, step.from.size()});
  }
  step.argument =
      argument.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  PENSTOCK_ASSIGN_OR_RETURN(std::string made_by,
                            CheckStarts(step, opening->cancelled()));
  return std::unique_ptr<RowFunction>(
      new PythonFunction(std::move(step), std::move(made_by)));
}

}  // namespace penstock
