// The workers of jobs with a Python function: how many threads each such job
// has, and how many of them make rows.
//
// Each waits for a Python process, which would delay other jobs' rows on shared
// workers. They may run on all processors of the broker; the kernel schedules
// them. Only they make rows of their job, they make no other rows, and they end
// with the job. There are as many as workers. Where they wait for something
// else than a processor, there may be more of them (base/tuner.h), unless the
// dataset says how many.
//
// Used on the control thread.
#ifndef BROKER_WORKERS_FUNCTION_WORKERS_H_
#define BROKER_WORKERS_FUNCTION_WORKERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "broker/base/tuner.h"
#include "broker/job/bottleneck.h"
#include "broker/job/job.h"
#include "broker/memory/idle_processors.h"
#include "broker/memory/topology.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/worker_threads.h"
#include "common/status.h"

namespace penstock {

// Processes of a Python function for each worker, where the broker chooses.
inline constexpr uint32_t kProcessesOfWorker = 4;

class FunctionWorkers {
 public:
  // Called when so many of the job's function workers are to make rows; the
  // others sleep.
  using Use = std::function<void(uint64_t job_number, uint32_t processes,
                                 uint32_t threads)>;
  FunctionWorkers(const Topology* topology, WorkerThreads* threads, Use use)
      : topology_(topology), threads_(threads), use_(std::move(use)) {}

  // Starts those of a job. number: the pool's. workers: as configured.
  Status Add(const std::shared_ptr<Job>& job, uint64_t number,
             uint32_t workers);
  // Called every `seconds`. now_ns: the pool's clock.
  void Adapt(double seconds, const SampleQuarantine& samples, uint64_t now_ns);

  // How many of the job are at work, and why; 0: none. set_by: what set the
  // number of workers.
  uint32_t CountOf(const Job& job, const std::string& set_by,
                   std::string* why) const;
  // Their current activity.
  FunctionWorkersUse UseOf(const Job& job, const SampleQuarantine& samples,
                           uint64_t now_ns) const;

 private:
  struct Processes {
    std::weak_ptr<Job> job;
    Tuner tuner;
    uint32_t threads = 0;
    uint64_t rows_seen = 0;
    double starting_s = 0;  // since the tuner's number changed
  };

  // Those from `from` to `to` of the job. Returns how many it has then, if any.
  StatusOr<uint32_t> Start(const JobKey& key, uint64_t number, uint32_t from,
                           uint32_t to);
  bool AreReady(uint64_t number, uint32_t processes) const;
  FunctionWorkersUse UseOf(uint64_t number, const Job& job,
                           const SampleQuarantine& samples,
                           uint64_t now_ns) const;
  void DropEnded();

  const Topology* const topology_;
  WorkerThreads* const threads_;
  const Use use_;
  std::map<uint64_t, Processes> processes_;  // by the job's number
  std::unique_ptr<IdleProcessors> idle_processors_;
  double idle_processors_share_ = 0;
  double look_in_s_ = 0;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_FUNCTION_WORKERS_H_
