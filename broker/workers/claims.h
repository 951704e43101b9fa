// The first step of a row: a worker claims rows of the job that is served next.
//
// A worker has at most one open claim per job, and claims of several jobs.
#ifndef BROKER_WORKERS_CLAIMS_H_
#define BROKER_WORKERS_CLAIMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "broker/io/read.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/worker_host.h"
#include "broker/workers/worker_reads.h"

namespace penstock {

// Runs on its worker's thread.
class Claims {
 public:
  Claims(WorkerHost* host, const WorkerSeat& seat, WorkerReads* reads,
         WorkerJobs* jobs, const RowMaker::Watch& watch)
      : host_(host), seat_(seat), reads_(reads), jobs_(jobs), watch_(watch) {}

  // Claims with rows not yet started.
  const std::vector<std::shared_ptr<ClaimedRows>>& open() const {
    return open_;
  }
  // All rows of open()[i] are started. More of its job may be claimed.
  void Close(size_t i);
  // Claims rows of a job without an open claim here. False: there are none.
  bool ClaimMore();
  // The next ClaimMore asks the host even if the last one found nothing.
  void Retry() {
    failed_ = false;
    order_.Expire();
  }

 private:
  WorkerJob& StateOf(const std::shared_ptr<Job>& job, uint64_t number);
  static void Sort(ClaimedRows* rows);

  WorkerHost* const host_;
  const WorkerSeat seat_;
  WorkerReads* const reads_;
  WorkerJobs* const jobs_;
  const RowMaker::Watch watch_;
  std::vector<std::shared_ptr<ClaimedRows>> open_;
  std::vector<const Job*> jobs_of_open_;
  ServingOrder order_;
  bool failed_ = false;  // since the host's news_seen_
  uint64_t news_seen_ = 0;
  ReadRequest request_;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_CLAIMS_H_
