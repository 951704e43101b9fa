// An opened dataset: its source and its compiled transforms, shared by every
// job that consumes it.
//
// Opened on a thread of its own (indexing a large folder takes minutes), then
// constant.
#ifndef BROKER_JOB_DATASET_H_
#define BROKER_JOB_DATASET_H_

#include <memory>
#include <optional>
#include <string>

#include "broker/spec/dataset_spec.h"
#include "broker/transform/row_program.h"
#include "common/status.h"

namespace penstock {

// Contains nothing of a job: jobs with other seeds or batches share it.
struct Dataset {
  std::unique_ptr<Source> source;
  std::unique_ptr<RowProgram> program;

  // The longest that a row waits for other processes; 0: workers make it alone.
  uint64_t wait_ns() const { return source->wait_ns() + program->wait_ns(); }

  // The feature that is read directly into its row of the slot.
  std::optional<size_t> FeatureReadInPlace() const {
    const std::optional<size_t> feature = source->plain_feature();
    return feature && program->Copies(*feature) ? feature : std::nullopt;
  }
};

// Specs with the same key, their source and map, share an opened dataset.
std::string DatasetKey(const DatasetSpec& spec);

// The dataset is made by functions of users, in Python or C, at least in part.
bool RunsFunctions(const DatasetSpec& spec);

// Errors: those of OpenSource and RowProgram::Compile, plus the dataset's name.
StatusOr<std::shared_ptr<const Dataset>> OpenDataset(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_JOB_DATASET_H_
