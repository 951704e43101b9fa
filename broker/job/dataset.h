// An opened dataset: its source and its compiled transforms, shared by every
// job that consumes it.
//
// Made on a thread of its own (a large folder takes minutes to index), constant
// afterwards.
#ifndef BROKER_JOB_DATASET_H_
#define BROKER_JOB_DATASET_H_

#include <memory>
#include <optional>
#include <string>

#include "broker/source/source.h"
#include "broker/transform/row_program.h"
#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

// Nothing of a job is in it: two jobs with other seeds or batches share it.
struct Dataset {
  std::unique_ptr<Source> source;
  std::unique_ptr<RowProgram> program;

  // The feature that is read straight into its row of the slot.
  std::optional<size_t> FeatureReadInPlace() const {
    const std::optional<size_t> feature = source->plain_feature();
    return feature && program->Copies(*feature) ? feature : std::nullopt;
  }
};

// What makes two specs the same opened dataset: their source and map.
std::string DatasetKey(const DatasetSpec& spec);

// Errors: as OpenSource and RowProgram::Compile, with the dataset's name.
StatusOr<std::shared_ptr<const Dataset>> OpenDataset(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_JOB_DATASET_H_
