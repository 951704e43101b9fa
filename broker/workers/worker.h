// One worker: claim (claims.h), read (worker_reads.h), make (row_maker.h),
// finish (claimed_rows.h).
//
// It has rows of several jobs at once: what has arrived of them, and what needs
// no reading, is made in the order of ServedNext, one row after the other, or
// kInlineNs of rows that need none. So a row is all that a job waits for
// another one that has had more than its share.
#ifndef BROKER_WORKERS_WORKER_H_
#define BROKER_WORKERS_WORKER_H_

#include <cstdint>
#include <vector>

#include "broker/io/reads_in_flight.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/claims.h"
#include "broker/workers/row_maker.h"
#include "broker/workers/worker_pool.h"
#include "broker/workers/worker_reads.h"

namespace penstock {

// Lives on its own thread; touches a Job's row memory and counters, its
// ReadsInFlight and its line of the pool's SampleQuarantine, else nothing
// shared.
class Worker {
 public:
  // most: reads in flight of one job, whatever the pool's read_depth will be.
  Worker(WorkerPool* pool, const WorkerSeat& seat, uint32_t most,
         ReadsInFlight* in_flight);

  // Claims and makes rows until there are none to claim and no read is in
  // flight that somebody waits for. False: there was nothing to do, or the pool
  // stops.
  bool RunOnce();
  const WorkerSeat& seat() const { return seat_; }
  bool blocking() const { return reads_.blocking(); }
  bool owes() const { return reads_.owes(); }

 private:
  // Starts the reads that may be started, of all rows that are claimed here,
  // and claims more. True: it claimed some.
  bool ReadAhead();
  // Rows of the job that is served next. False: there are none to make.
  bool MakeNext();
  void MakeArrived(WorkerJob* job);    // one row
  void MakeUnread(ClaimedRows& rows);  // that need no reading, for kInlineNs

  WorkerPool* const pool_;
  const WorkerSeat seat_;
  WorkerJobs jobs_;
  WorkerReads reads_;
  Claims claims_;
  RowMaker maker_;
  // MakeNext's: what it may choose from.
  struct Makeable {
    ClaimedRows* rows = nullptr;
    WorkerJob* arrived = nullptr;  // none: its rows need no reading
  };
  std::vector<Makeable> makeable_;
  std::vector<Candidate> candidates_;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_H_
