// The workers: threads that share nothing, each pinned to one processor, each
// with its own reads in flight, decoders and scratch.
//
// A worker claims a chunk of rows of the job that has had the least CPU time,
// starts the reads of all of them, decodes each record as it arrives straight
// into its row of the slot, and the last to finish a share publishes it. No
// sample passes from one thread to another. A worker without rows sleeps: slots
// that are all full (back-pressure) burn no processor.
#ifndef BROKER_WORKER_POOL_H_
#define BROKER_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "broker/job.h"
#include "broker/mutex.h"
#include "broker/read.h"
#include "broker/topology.h"
#include "common/status.h"

namespace penstock {

struct WorkerOptions {
  uint32_t workers = 0;      // 0: one per processor
  uint32_t read_depth = 16;  // reads in flight per worker
  ReadBackend read_backend = ReadBackend::kAuto;
};

class WorkerPool {
 public:
  // Starts the threads. topology outlives the pool.
  static StatusOr<std::unique_ptr<WorkerPool>> Start(
      const Topology& topology, const WorkerOptions& options);
  ~WorkerPool();  // stops and joins them

  void Add(std::shared_ptr<Job> job);
  // Afterwards no worker starts on it; claims under way go on.
  void Remove(const Job* job);

  uint32_t workers() const { return static_cast<uint32_t>(threads_.size()); }
  std::string read_backend() const { return read_backend_; }
  uint32_t read_depth() const { return options_.read_depth; }

  // A claim of the job served next, empty when no job has rows. The job is kept
  // alive by *job.
  Claim ClaimFair(std::shared_ptr<Job>* job);

 private:
  WorkerPool() = default;
  void Run(uint32_t index);
  void NotifyWork();
  // Sleeps until there may be work; false: the pool stops.
  bool WaitForWork();

  const Topology* topology_ = nullptr;
  WorkerOptions options_;
  std::string read_backend_;
  std::vector<std::thread> threads_;

  Mutex mutex_;
  CondVar work_;
  std::vector<std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  uint64_t virtual_now_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
#endif  // BROKER_WORKER_POOL_H_
