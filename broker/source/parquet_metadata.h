// What pyarrow reads of a remote file before any row: the footer of Parquet or
// Arrow, and what Arrow's messages say of their bodies.
#ifndef BROKER_SOURCE_PARQUET_METADATA_H_
#define BROKER_SOURCE_PARQUET_METADATA_H_

#include "broker/index/data_file.h"
#include "broker/index/open_progress.h"
#include "common/status.h"

namespace penstock {

// It is there for as long as the file is open, and from now on nothing but what
// is asked for is fetched. All of a file is where Arrow's bodies are
// compressed, since pyarrow then reads them to count rows. What is wrong with a
// file is left to pyarrow. Of a file of this machine, nothing is done.
Status FetchParquetMetadata(const DataFile& file, const OpenProgress& progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_PARQUET_METADATA_H_
