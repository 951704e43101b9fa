// The second step of a row whose bytes are in the page cache: one copy, without
// a ticket.
//
// Begins after a read that was answered from there, and goes on while the next
// rows of its claim are. What is missing is left to WorkerReads.
//
// After kWarmRows rows of a job without a miss, its next ones are copied from
// the map of their file, if it has one: a system call costs more than a small
// row. Rows are copied in groups, so that one look at the file says of all that
// it had them. A page that has left the cache meanwhile is read by this thread,
// which waits for it; that is looked for after each group, and ends the copies
// until as many rows were read again without a miss.
#ifndef BROKER_WORKERS_CACHED_READS_H_
#define BROKER_WORKERS_CACHED_READS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/io/cached_range.h"
#include "broker/io/read_request.h"
#include "broker/io/reads_in_flight.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/worker_host.h"

namespace penstock {

// Runs on its worker's thread.
class CachedReads {
 public:
  // entry: of `in_flight`, for the group that is read.
  CachedReads(WorkerHost* host, ReadsInFlight* in_flight, uint32_t entry)
      : host_(host), in_flight_(in_flight), entry_(entry) {}

  // The rows of the claim from rows->started on, which must outlive the run.
  void Begin(ClaimedRows* rows);
  // Reads the next row and counts it as started. False: there is none, or it
  // takes a ticket. The bytes are valid until the next call. from_cache: they
  // are an entry of the job's cache.
  bool Next(uint64_t* index, ReadBytes* read, bool* from_cache);
  // Counts what was read since Begin.
  void End();

 private:
  static constexpr uint64_t kWarmRows = 1024;
  // A run's groups grow: rows that are read and not made are read again.
  static constexpr size_t kGroupRowsMin = 4;
  static constexpr size_t kGroupRowsMax = 32;
  static constexpr uint64_t kGroupBytes = 64 << 10;

  struct Row {
    ReadRequest request;
    uint64_t bytes = 0;  // of all parts
    std::byte* to = nullptr;
    bool from_cache = false;
  };

  void ReadGroup();
  size_t LocateGroup();
  bool KeepsGroup(size_t count);

  WorkerHost* const host_;
  ReadsInFlight* const in_flight_;
  const uint32_t entry_;
  ClaimedRows* rows_ = nullptr;
  std::optional<size_t> in_place_;  // the feature that is read into its slot
  std::array<Row, kGroupRowsMax> group_;
  size_t group_rows_ = 0;  // read
  size_t next_ = 0;        // of them
  size_t group_max_ = 0;
  std::vector<std::byte> buffer_;  // of the group's rows that are not in place
  std::vector<uint64_t> ends_;     // of the parts of the row that was taken
  uint64_t reads_ = 0;
  uint64_t bytes_ = 0;
  int64_t faults_ = 0;  // of this thread, that read storage
};

}  // namespace penstock
#endif  // BROKER_WORKERS_CACHED_READS_H_
