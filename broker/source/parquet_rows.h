// Rows of Parquet and Arrow, which processes decode (parquet_table.h).
//
// Threads: groups are shared by all makers; each maker has a thread of its own.
#ifndef BROKER_SOURCE_PARQUET_ROWS_H_
#define BROKER_SOURCE_PARQUET_ROWS_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "broker/index/concatenation.h"
#include "broker/index/data_files.h"
#include "broker/io/remote_file.h"
#include "broker/source/parquet_table.h"
#include "broker/source/python_records.h"

namespace penstock {

// Row groups of Parquet, record batches of Arrow.
struct ParquetGroups {
  Concatenation rows;
  std::vector<uint64_t> begins;  // of each file: its first group
  std::shared_ptr<const DataFiles> files;
  // Where the columns of a group lie in its file, one after the other; of no
  // bytes: nowhere. Empty: no file is remote.
  std::vector<RemoteFile::Range> places;
  size_t columns = 0;  // of a group, in places

  // nullptr: the file is not remote.
  RemoteFile* RemoteOf(uint64_t group) const {
    return (*files)[FileOf(group)].remote();
  }
  size_t FileOf(size_t group) const {
    return static_cast<size_t>(
        std::upper_bound(begins.begin(), begins.end(), group) - begins.begin() -
        1);
  }
};

// The row groups that stay decoded, each decoded once for all workers.
class DecodedGroups {
 public:
  // So many bytes, or so many groups if those are more: rows of a window of
  // large ones need all of them.
  static constexpr uint64_t kBytesMax = uint64_t{1} << 30;
  static constexpr size_t kGroupsMin = 8;

  explicit DecodedGroups(uint64_t bytes_max = kBytesMax)
      : bytes_max_(bytes_max) {}

  struct Found {
    uint64_t group = 0;
    // nullptr: the caller is to decode it, and to call End.
    std::shared_ptr<const ParquetTable> table;
  };
  // One of these groups: a decoded one, else one that nobody decodes. nullopt:
  // others still decode all of them after a while.
  std::optional<Found> Find(std::span<const uint64_t> groups);
  bool Has(uint64_t group);
  // nullptr: it could not be decoded.
  void End(uint64_t group, std::shared_ptr<const ParquetTable> table);

 private:
  struct Group {
    std::shared_ptr<const ParquetTable> table;  // nullptr: in work
    std::list<uint64_t>::iterator used = {};
  };

  const uint64_t bytes_max_;
  std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by mutex_.
  std::map<uint64_t, Group> groups_;
  std::list<uint64_t> used_;  // the decoded ones, the last used last
  uint64_t bytes_ = 0;
};

// What the makers of a source share. Constant, but for `decoded`.
struct ParquetRecords {
  PythonRecords python;
  std::vector<ParquetColumn> columns;
  std::vector<size_t> places;  // of each column, among those of a group
  std::shared_ptr<const ParquetGroups> groups;
  std::shared_ptr<DecodedGroups> decoded;
  bool cuts = false;  // longer lists and texts lose their end

  // Where these columns of a group of a remote file lie; in order.
  std::vector<RemoteFile::Range> RangesOf(uint64_t group) const;
};

std::unique_ptr<Source::Maker> MakeParquetRows(
    std::shared_ptr<const ParquetRecords> records, uint32_t index,
    Cancelled cancelled);

}  // namespace penstock
#endif  // BROKER_SOURCE_PARQUET_ROWS_H_
