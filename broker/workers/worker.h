// One worker: claim (claims.h), read (worker_reads.h), make (claim_maker.h),
// finish (claimed_rows.h).
//
// A worker has rows of several jobs at once. It makes rows that have arrived or
// need no reading in the order of ServedNext: one arrived row (and cheap ones
// after it, while their bytes are in the page cache and kCachedNs last), or
// kInlineNs of rows that need no reading. So a job waits at most one row, or
// that long, for another job that has had more than its share.
#ifndef BROKER_WORKERS_WORKER_H_
#define BROKER_WORKERS_WORKER_H_

#include <cstdint>
#include <vector>

#include "broker/io/reads_in_flight.h"
#include "broker/workers/cached_reads.h"
#include "broker/workers/claim_maker.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/claims.h"
#include "broker/workers/worker_host.h"
#include "broker/workers/worker_reads.h"

namespace penstock {

// Runs on its own thread. The only shared data it touches are a Job's row
// memory and counters, its ReadsInFlight and its line of the
// SampleQuarantine.
class Worker {
 public:
  // most: bound of one job's reads in flight for any read_depth of the host.
  Worker(WorkerHost* host, const WorkerSeat& seat, uint32_t most,
         ReadsInFlight* in_flight);

  // Claims and makes rows until none can be claimed and no awaited read is in
  // flight. False: there was nothing to do, or the host stops.
  bool RunOnce();
  const WorkerSeat& seat() const { return seat_; }
  bool blocking() const { return reads_.blocking(); }
  bool owes() const { return reads_.owes(); }

 private:
  // Starts permitted reads of all rows claimed here, and claims more. True: it
  // claimed some.
  bool ReadAhead();
  // Makes rows of the job that is served next. False: there are none.
  bool MakeNext();
  // One row, and those after it whose bytes are in the page cache as well.
  void MakeArrived(WorkerJob* job);
  uint64_t MakeCached(ClaimedRows& rows, uint64_t begin_ns);
  void MakeUnread(ClaimedRows& rows);  // need no reading; for kInlineNs
  uint64_t Begin(ClaimedRows& rows);   // when
  void Made(ClaimedRows& rows, uint64_t count, uint64_t begin_ns);

  WorkerHost* const host_;
  const WorkerSeat seat_;
  WorkerJobs jobs_;
  WorkerReads reads_;
  Claims claims_;
  CachedReads cached_;
  ClaimMaker maker_;
  // MakeNext's choices.
  struct Makeable {
    ClaimedRows* rows = nullptr;
    WorkerJob* arrived = nullptr;  // none: its rows need no reading
  };
  std::vector<Makeable> makeable_;
  std::vector<Candidate> candidates_;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_H_
