// What a dataset in object stores costs, as pure functions: what its epochs
// download, for how long, and which window of files makes that less.
//
// Blocks that copies keep are downloaded once. Others are downloaded when a row
// needs them and dropped behind it, so rows of one block download it again
// unless all of them are looked ahead at the same time. A host downloads what
// its own ranks read: under `shard: file` whole files, else of each step some
// rows, whose blocks and units have rows of other hosts.
#ifndef CLIENT_COMMAND_REMOTE_COST_H_
#define CLIENT_COMMAND_REMOTE_COST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "client/command/spec_file.h"

namespace penstock {

// As one of the hosts has it.
struct RemoteData {
  uint64_t files = 0;
  uint64_t bytes = 0;  // of the files
  uint64_t rows = 0;   // of an epoch
  double row_bytes = 0;
  double row_block_bytes = 0;  // of the blocks that a row is in
  uint64_t room_bytes = 0;     // for copies, and what of it stays
  uint64_t kept_bytes = 0;
  uint64_t ahead_bytes = 0;  // is looked ahead at most
  uint64_t ahead_rows = 0;
  uint64_t free_bytes = 0;  // of the disk of the copies
  bool shuffled = false;
  std::optional<uint64_t> window_files;
  bool same_order = false;    // in every epoch
  uint64_t hosts = 1;         // of the job
  uint64_t sharing = 1;       // of them: those that divide these rows
  uint64_t windows = 1;       // that are read at the same time
  uint64_t global_batch = 1;  // rows of a step
  uint64_t all_files = 0;     // of all hosts
  uint64_t all_bytes = 0;
};
// nullopt: the dataset reads nothing from object stores. hosts: of a job of so
// many ranks, each with equally many.
std::optional<RemoteData> RemoteDataOf(const DatasetIndex& index,
                                       uint64_t hosts = 1, uint64_t ranks = 1);

struct Downloads {
  bool all_kept = false;
  uint64_t first_bytes = 0;  // in the first epoch
  uint64_t later_bytes = 0;  // in each of the others
  // In these, by whatever rule of what is kept in this room.
  uint64_t least_bytes = 0;
  double times = 1;  // how often a byte that is not kept comes in a pass
  // In the first epoch by all hosts, and each byte once.
  uint64_t all_hosts_bytes = 0;
  uint64_t all_hosts_least_bytes = 0;
};
Downloads DownloadsOf(const RemoteData& data);

// The most files whose rows are looked ahead all at once, so that a shuffle of
// so many at a time downloads each byte once in a pass; 0: not even one's.
uint64_t WindowOf(const RemoteData& data);
// What the copies of a window's files take.
uint64_t WindowBytes(const RemoteData& data, uint64_t files);

// ---- for people; bytes_per_s: of the link; 0: not known.

// "3 of 147 files beside them, ...": where the indexes are from.
std::string IndexText(const DatasetIndex& index);
std::string DownloadsText(const RemoteData& data, double bytes_per_s);
// made_per_s: samples that all but the network give; 0: not known.
std::string RemoteText(const RemoteData& data, double bytes_per_s,
                       double made_per_s);
nlohmann::ordered_json RemoteJson(const RemoteData& data, double bytes_per_s);
// What is known without a bandwidth, where there are several hosts.
nlohmann::json HostsJson(const RemoteData& data);

}  // namespace penstock
#endif  // CLIENT_COMMAND_REMOTE_COST_H_
