#include "broker/job/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

namespace penstock {

std::string DatasetKey(const DatasetSpec& spec) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  return json.at("source").dump() + json.at("map").dump();
}

bool RunsFunctions(const DatasetSpec& spec) {
  return std::holds_alternative<PythonDatasetSource>(spec.source) ||
         std::any_of(spec.map.begin(), spec.map.end(),
                     [](const TransformSpec& op) {
                       return std::holds_alternative<PythonOp>(op) ||
                              std::holds_alternative<PluginOp>(op);
                     });
}

StatusOr<std::shared_ptr<const Dataset>> OpenDataset(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress) {
  auto dataset = std::make_shared<Dataset>();
  auto source = OpenSource(spec.source, progress, functions);
  if (!source.ok()) {
    return source.status().Prepend("dataset '" + spec.name + "'");
  }
  dataset->source = *std::move(source);
  auto program =
      RowProgram::Compile(spec.map, dataset->source->raw_spec(), functions,
                          [progress] { return progress->cancel.load(); });
  if (!program.ok()) {
    return program.status().Prepend("dataset '" + spec.name + "'");
  }
  dataset->program = *std::move(program);
  return std::shared_ptr<const Dataset>(std::move(dataset));
}

}  // namespace penstock
