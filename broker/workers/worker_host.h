// What a worker needs from its host, the pool of workers.
//
// Values that are read for each row are plain loads, without a virtual call.
#ifndef BROKER_WORKERS_WORKER_HOST_H_
#define BROKER_WORKERS_WORKER_HOST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/io/read.h"
#include "broker/job/job.h"
#include "broker/workers/accounts.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/serving_order.h"
#include "broker/workers/trace.h"
#include "broker/workers/worker_turns.h"

namespace penstock {

// A worker's thread, and the jobs it serves.
struct WorkerSeat {
  uint32_t thread_index = 0;
  uint32_t worker_index = 0;     // below workers(); function workers have none
  uint64_t job = 0;              // serves only this job; 0: all
  uint32_t process = 0;          // of its function workers, from 0
  std::optional<uint32_t> node;  // NUMA node it is pinned to
  WorkerTurns* turns = nullptr;
};

class WorkerHost {
 public:
  struct Claimed {
    Claim claim;
    std::shared_ptr<Job> job;
    JobAccount* account = nullptr;  // the job's, while the job exists
    uint64_t number = 0;            // of the job; never used again
  };
  // Claims rows of the job served next by the worker's order, except the jobs
  // in `but` (sorted). The claim's batch is nullptr if no such job has rows, or
  // the worker index is not below workers() any more. A job whose rows need no
  // reading is considered only if its turn is before `before`: the worker has
  // such rows already, and with many jobs it would claim a chunk of each.
  // blocking: the worker's reads block it.
  virtual Claimed ClaimFair(ServingOrder* order,
                            const std::vector<const Job*>& but,
                            const Turn& before, const WorkerSeat& seat,
                            bool blocking) = 0;
  // As the options say; for the calling worker's thread.
  virtual std::unique_ptr<StorageReader> MakeWorkerReader(
      uint32_t worker) const = 0;

  // Changes when ClaimFair may find new rows.
  uint64_t news() const {
    // Relaxed: a late view claims late.
    return news_.load(std::memory_order_relaxed);
  }
  bool stopping() const {
    // Relaxed: polled.
    return stopping_.load(std::memory_order_relaxed);
  }
  // The host's clock, which stops while the whole broker does.
  uint64_t now_ns() const {
    // Relaxed: a clock; no other data depend on it.
    return now_ns_.load(std::memory_order_relaxed);
  }
  // Current bound of reads in flight per worker and job.
  uint32_t read_depth() const {
    // Relaxed: a late view starts a read more or less.
    return read_depth_.load(std::memory_order_relaxed);
  }
  const std::atomic<uint64_t>* clock() const { return &now_ns_; }
  // Memory that direct reads land in; to subtract, modulo 2^64.
  void CountPinned(uint64_t bytes) {
    // Relaxed: shown.
    pinned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  SampleQuarantine* samples() const { return samples_; }
  Accounts& accounts() { return accounts_; }
  Trace& trace() { return trace_; }

 protected:
  WorkerHost() = default;
  ~WorkerHost() = default;

  std::atomic<uint64_t> news_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> now_ns_{1};
  std::atomic<uint32_t> read_depth_{0};
  std::atomic<uint64_t> pinned_bytes_{0};
  SampleQuarantine* samples_ = nullptr;  // set before any worker runs
  Accounts accounts_;
  Trace trace_;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_HOST_H_
