// The index.json of an MDS dataset, version 2 (MosaicML Streaming 0.13).
// Untrusted input.
#ifndef BROKER_SOURCE_MDS_INDEX_H_
#define BROKER_SOURCE_MDS_INDEX_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "broker/index/data_file.h"
#include "broker/index/data_files.h"
#include "broker/index/open_progress.h"
#include "broker/source/mds_columns.h"
#include "common/status.h"

namespace penstock {

struct MdsShard {
  std::string path;  // of its file, uncompressed; within the folder
  uint64_t bytes = 0;
  uint64_t samples = 0;
  std::vector<std::pair<std::string, std::string>> hashes;  // by algorithm
  // The same file, compressed as a whole; "": there is none.
  std::string zip_path;
  std::string compression;
};

struct MdsIndex {
  MdsColumns columns;  // of every shard
  std::vector<MdsShard> shards;

  // file: that of the index. DataLoss: it is none; InvalidArgument: another
  // version or format, shards of unlike columns, no sample.
  static StatusOr<MdsIndex> Read(const DataFile& file, OpenProgress* progress);

  // NotFound: a shard is not there; InvalidArgument: it is compressed;
  // DataLoss: it has another size. Each says what helps.
  StatusOr<DataFiles> OpenShards(const OpenProgress& progress) const;
  // Compares the shards with a hash that the index has of each. Reads them all.
  Status Verify(const DataFiles& files, OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_MDS_INDEX_H_
