// Rows that one worker has claimed, and its state of their jobs.
//
// Only the thread of the owning worker touches this.
#ifndef BROKER_WORKERS_CLAIMED_ROWS_H_
#define BROKER_WORKERS_CLAIMED_ROWS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "broker/io/read.h"
#include "broker/job/job.h"
#include "broker/plan/plan.h"
#include "broker/stream/stream.h"
#include "broker/workers/row_maker.h"
#include "broker/workers/worker_host.h"
#include "common/deadline.h"

namespace penstock {

// Relaxed: counters are only shown and compared.
inline void Count(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.fetch_add(value, std::memory_order_relaxed);
}

// Where a row's bytes are. True: in the cache's files, as it keeps them; else
// in its source's.
inline bool LocateRow(const Source& source, const RowCache* cache,
                      uint64_t record, ReadRequest* request) {
  request->more.clear();
  if (cache != nullptr && cache->is_read() && cache->Locate(record, request)) {
    return true;
  }
  source.Locate(record, request);
  return false;
}

// A finished read, with its bytes in the reader's buffer or in the slot.
struct Arrival {
  uint32_t group = 0;
  StorageReader::Done done;
};

// The reads of one job by one worker. Only WorkerReads changes it.
struct JobReads {
  static constexpr uint32_t kGroupsMax = 4;
  // By read group: in flight, or arrived but not made.
  std::array<uint32_t, kGroupsMax> in_group{};
  std::deque<Arrival> arrived;
  uint32_t at_once = 0;      // reads whose bytes were in the page cache
  uint32_t fetching = 0;     // reads in flight that an object store answers
  uint64_t cached_rows = 0;  // the last ones, without a miss (CachedReads)
  double buffer_bytes = 0;   // mean size of reads not in place
  // By slot: its StorageReader::Pin in the current group for direct reads, if
  // tried.
  std::vector<std::optional<uint32_t>> pins;
  uint64_t pin_bytes = 0;  // of each pin
};

struct ClaimedRows;

// A worker's state of a job.
struct WorkerJob {
  std::weak_ptr<Job> job;
  std::unique_ptr<RowMaker> maker;
  Shuffles shuffles;
  JobReads reads;
  ClaimedRows* in_work = nullptr;  // of which a row is being made
};
using WorkerJobs = std::map<const Job*, WorkerJob>;

// One claim.
struct ClaimedRows {
  std::shared_ptr<Job> job;
  JobAccount* account = nullptr;  // the host's, for job
  WorkerJob* state = nullptr;     // for job
  uint64_t job_number = 0;        // the host's
  Claim claim;
  // The rows; if the job packs, their documents, of which `packed` says where
  // they go.
  std::vector<Plan::Row> rows;
  struct Packed {
    uint64_t row = 0;  // of the claim
    Piece piece;
  };
  std::vector<Packed> packed;
  SlotRows in_slot;  // of its batch
  // The indices of the rows of a job with a cache, or with heads: first those
  // that are read before they are made, from its files or the cache's. Else
  // empty: rows are in their order, and all are read or none.
  std::vector<uint32_t> order;
  uint64_t to_read = 0;  // so many of them are read
  uint64_t started = 0;  // of those
  uint64_t at_once = 0;  // one past the last made of the others
  uint64_t finished = 0;
  bool reads = false;              // records of its source are read
  bool cut_off = false;            // the broker stops before all rows are made
  std::vector<uint64_t> left_out;  // rows of the claim that on_error skips
  std::vector<Stream::Piece> pieces;  // of a stream, instead of reads
  RemoteRows::Heads heads;            // what other hosts have made

  uint64_t IndexOf(uint64_t i) const { return order.empty() ? i : order[i]; }
  bool AllStarted() const {
    return started == to_read && at_once == rows.size();
  }
  // The row of the batch that rows[index] is, or is a part of, and its place.
  uint64_t RowOf(uint64_t index) const {
    return claim.begin + (packed.empty() ? index : packed[index].row);
  }
  std::byte* Place(uint64_t index, size_t feature) const {
    return in_slot.Place(RowOf(index), feature);
  }
  int64_t& Id(uint64_t index) const { return in_slot.Id(RowOf(index)); }
  // nullptr: nothing of the row is made.
  const RemoteRows::Head* HeadOf(uint64_t index) const {
    if (heads.of_rows.empty()) return nullptr;
    const RemoteRows::Head& head = heads.of_rows[index];
    return head.place == RemoteRows::kNoPlace ? nullptr : &head;
  }
  // Puts the documents of the sequences of which they are rows in their place,
  // and writes what else is in those.
  void Unpack();
  // Its process has ended: of the rows that are not started only the first
  // `begun` stay here.
  void GiveBack(uint64_t begun);
  // Counts `count` more rows done. The last row hands back the whole claim, so
  // the job's lock is taken once.
  void Finish(uint64_t count);
};

}  // namespace penstock
#endif  // BROKER_WORKERS_CLAIMED_ROWS_H_
