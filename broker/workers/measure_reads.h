// Reads the records of a dataset and nothing else: how fast is its storage, and
// how fast the page cache? For `penstock explain`.
#ifndef BROKER_WORKERS_MEASURE_READS_H_
#define BROKER_WORKERS_MEASURE_READS_H_

#include <cstdint>
#include <cstdio>

#include "broker/spec/dataset_spec.h"
#include "broker/user_code/trusted_code.h"
#include "common/status.h"

namespace penstock {

struct MeasureReadsOptions {
  double seconds = 3;
  uint32_t threads = 1;
};

// Writes one line of JSON: {"reads": false} if records need no reads; else
// "threads", "in_flight" (of each), and "cold" and "cached", each with "rows",
// "bytes", "seconds", "read_s" (one read, on average) and "failed". Cold are
// those of which the kernel has dropped all from its page cache when asked,
// which it does on most file systems; without them "cold" is null, and
// "cold_why" says why. The records are the first of the plan.
Status MeasureReads(const DatasetSpec& spec, const FunctionOptions& functions,
                    const MeasureReadsOptions& options, std::FILE* out);

}  // namespace penstock
#endif  // BROKER_WORKERS_MEASURE_READS_H_
