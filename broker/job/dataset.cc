#include "broker/job/dataset.h"

#include <nlohmann/json.hpp>

namespace penstock {

std::string DatasetKey(const DatasetSpec& spec) {
  const nlohmann::ordered_json json = DatasetSpecToJson(spec);
  return json.at("source").dump() + json.at("map").dump();
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
