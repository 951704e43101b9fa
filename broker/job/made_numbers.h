// Columns that only `map` makes: the length of a sound, of tokenized text.
#ifndef BROKER_JOB_MADE_NUMBERS_H_
#define BROKER_JOB_MADE_NUMBERS_H_

#include "broker/source/selection.h"
#include "broker/spec/dataset_spec.h"
#include "broker/transform/map_file.h"
#include "broker/user_code/trusted_code.h"

namespace penstock {

// The numbers of a row after those steps at the beginning of `map` that draw no
// random numbers: the same in each epoch. None where parts have maps of their
// own, or the steps are wrong, which is told when the whole map is compiled.
// Runs the steps on each record, so it is for columns that nothing else has.
MadeNumbers NumbersOfHead(const DatasetSpec& spec, const Source& source,
                          const FunctionOptions& functions,
                          OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_JOB_MADE_NUMBERS_H_
