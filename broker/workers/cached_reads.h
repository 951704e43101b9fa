// The second step of a row whose bytes are in the page cache: one copy, without
// a ticket.
//
// Begins after a read that was answered from there, and goes on while the next
// rows of its claim are. What is missing is left to WorkerReads.
//
// After kWarmRows rows of a job without a miss, its next ones are copied from
// the map of their file, if it has one: a system call costs more than a small
// row. A page that has left the cache meanwhile is then read by this thread,
// which waits for it; that is looked for every kCheckRows rows, and ends the
// copies until as many rows were read again without a miss.
#ifndef BROKER_WORKERS_CACHED_READS_H_
#define BROKER_WORKERS_CACHED_READS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "broker/io/cached_range.h"
#include "broker/io/read_request.h"
#include "broker/io/reads_in_flight.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/worker_pool.h"

namespace penstock {

// Runs on its worker's thread.
class CachedReads {
 public:
  // entry: of `in_flight`, for the row that is read.
  CachedReads(WorkerPool* pool, ReadsInFlight* in_flight, uint32_t entry)
      : pool_(pool), in_flight_(in_flight), entry_(entry) {}

  // The rows of the claim from rows->started on, which must outlive the run.
  void Begin(ClaimedRows* rows);
  // Reads the next row and counts it as started. False: there is none, or it
  // takes a ticket. The bytes are in the slot, or valid until the next call.
  bool Next(uint64_t* index, ReadBytes* read);
  // Counts what was read since Begin.
  void End();

 private:
  static constexpr uint64_t kWarmRows = 1024;
  static constexpr uint64_t kCheckRows = 64;
  // So far ahead rows are located.
  static constexpr uint64_t kAhead = 8;

  ReadRequest& Located(uint64_t index) { return located_[index % kAhead]; }
  void Locate(uint64_t index);
  void CheckFaults();

  WorkerPool* const pool_;
  ReadsInFlight* const in_flight_;
  const uint32_t entry_;
  CachedRange range_;
  ClaimedRows* rows_ = nullptr;
  std::optional<size_t> in_place_;  // the feature that is read into its slot
  ReadRequest located_[kAhead];
  uint64_t located_end_ = 0;  // one past the last row that is located
  uint64_t reads_ = 0;
  uint64_t bytes_ = 0;
  int64_t faults_ = 0;  // of this thread, that read storage
};

}  // namespace penstock
#endif  // BROKER_WORKERS_CACHED_READS_H_
