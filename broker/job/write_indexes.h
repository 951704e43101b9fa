// The indexes of a dataset's files as files that lie beside them, so that
// nobody who opens the dataset has to scan it. For `penstock index`.
#ifndef BROKER_JOB_WRITE_INDEXES_H_
#define BROKER_JOB_WRITE_INDEXES_H_

#include <cstdio>
#include <string>

#include "broker/spec/dataset_spec.h"
#include "broker/user_code/trusted_code.h"
#include "common/status.h"

namespace penstock {

// Opens the dataset, which scans files without an index, and writes that of
// each below `out`, a folder or an address, where the file is below the folder
// that all files have in common. Writes to `to` one line of JSON: {"files",
// "records", "bytes" of the indexes, "at" (the first one's path)}.
// InvalidArgument: the source has no such indexes. Errors of OpenDataset, of
// writing, of Stores::Put.
Status WriteIndexes(const DatasetSpec& spec, const FunctionOptions& functions,
                    const std::string& out, std::FILE* to);

}  // namespace penstock
#endif  // BROKER_JOB_WRITE_INDEXES_H_
