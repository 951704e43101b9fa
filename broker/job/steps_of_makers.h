// Which steps of a dataset's `map` other hosts run, and the program that does
// the rest of them here.
#ifndef BROKER_JOB_STEPS_OF_MAKERS_H_
#define BROKER_JOB_STEPS_OF_MAKERS_H_

#include <cstddef>
#include <memory>
#include <span>

#include "broker/job/dataset.h"
#include "broker/source/kinds.h"
#include "broker/spec/dataset_spec.h"
#include "broker/transform/row_program.h"

namespace penstock {

struct StepsOfMakers {
  size_t count = 0;
  // In two parts: other hosts run its head, this one the rest. It is
  // programs[0] of the dataset, or beside it: own.
  const RowProgram* program = nullptr;
  std::unique_ptr<RowProgram> own;
};

// Whether other hosts may run steps of its map.
bool IsForMakers(const DatasetSpec& spec);
// The steps up to the last function; 0: there is none.
size_t StepsOfFunctions(std::span<const MapStep> steps);

// The steps after which a row is smallest; of a map with functions those up to
// the last one, where programs[0] is in two parts. nullptr: there are none.
// Takes as long as opening the map, whose files it may read.
std::shared_ptr<const StepsOfMakers> ChooseStepsOfMakers(
    const DatasetSpec& spec, const Dataset& dataset, OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_JOB_STEPS_OF_MAKERS_H_
