// Rows of NumPy's arrays in files, one array for each feature: what the sources
// npy and npz are made of.
#ifndef BROKER_SOURCE_ARRAYS_H_
#define BROKER_SOURCE_ARRAYS_H_

#include <memory>
#include <string>
#include <vector>

#include "broker/index/data_files.h"
#include "broker/source/concatenation.h"
#include "broker/source/npy_header.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// One feature: arrays that are concatenated along their first axis.
struct ArrayFeature {
  struct Part {
    std::string name;      // for messages
    const DataFile* file;  // of `files`
    uint64_t data_at;      // offset of its first row there
    uint64_t bytes;        // of its rows
  };

  Feature feature;
  size_t files = 0;  // which of OpenArrays
  std::vector<Part> parts;
  Concatenation rows;  // of the parts

  // Adds the array at offset of one of the files. InvalidArgument: a dtype that
  // Penstock does not have, or rows unlike those before.
  Status Append(std::string name, const DataFile& file, uint64_t offset,
                const NpyHeader& header);
};

// A record is a row of each feature. The largest rows are read; those of other
// features are kept in memory, as far as 64 MiB go. InvalidArgument: no rows,
// or not as many of each feature.
OpenedSource OpenArrays(std::vector<DataFiles> files,
                        std::vector<ArrayFeature> features, Io io,
                        OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_ARRAYS_H_
