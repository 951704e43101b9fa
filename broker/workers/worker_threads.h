// The threads of the workers, by an index that selects their line in the sample
// quarantine.
//
// The control thread starts and looks at them. A function worker's thread ends
// with its job; its index is then used again.
#ifndef BROKER_WORKERS_WORKER_THREADS_H_
#define BROKER_WORKERS_WORKER_THREADS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "broker/io/reads_in_flight.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/worker_host.h"
#include "common/status.h"

namespace penstock {

class WorkerThreads {
 public:
  static constexpr uint32_t kNoWorkerIndex = UINT32_MAX;

  struct Thread {
    std::thread thread;
    std::unique_ptr<ReadsInFlight> reads;
    std::unique_ptr<WorkerTurns> turns;
    uint64_t turns_seen = 0;  // by StandsStill
    // Function workers have no worker_index but a job, of the user uid.
    WorkerSeat seat;
    uint32_t uid = 0;
    // Function workers: set when the job is gone; the thread can be joined and
    // this entry reused.
    std::unique_ptr<std::atomic<bool>> ended;
  };

  // run: what a thread does until it ends. entries: of each thread's reads.
  void Prepare(std::function<void(const WorkerSeat&, ReadsInFlight*)> run,
               uint32_t entries) {
    run_ = std::move(run);
    entries_ = entries;
  }
  // job: the function worker's job; 0: a worker. process: of the function
  // worker. ResourceExhausted: there can be no more.
  Status Start(uint32_t worker_index, uint64_t job = 0, uint32_t uid = 0,
               uint32_t process = 0);
  // Waits until all of them have ended.
  void Join();

  const std::vector<Thread>& all() const { return threads_; }
  // Those that have not ended.
  size_t running() const {
    // Relaxed: a late view costs a tick.
    return threads_.size() - ended_.load(std::memory_order_relaxed);
  }
  size_t CountAt(uint32_t worker_index) const;
  // Function workers: of all users, and of one.
  std::pair<uint32_t, uint32_t> CountFunctionWorkers(uint32_t uid) const;

  // Sums over all threads, ended ones too.
  struct Reads {
    uint64_t bytes = 0;
    uint64_t waited_ns = 0;
    uint64_t ended = 0;
    uint64_t in_flight = 0;  // now
  };
  Reads CountReads() const;

  // The thread of a worker that was busy at the last call and has made no turn
  // since. Not one in a read or in a sample, for which there are time-outs.
  std::optional<uint32_t> StandsStill(const SampleQuarantine& samples);

 private:
  std::function<void(const WorkerSeat&, ReadsInFlight*)> run_;
  uint32_t entries_ = 0;
  std::vector<Thread> threads_;  // ended entries are reused, none removed
  std::atomic<uint32_t> ended_{0};
  Reads reused_;  // of threads whose entry was reused
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_THREADS_H_
