// The workers: threads that share nothing, each pinned to one processor, each
// with its own reads in flight, decoders and scratch.
//
// A worker claims a chunk of rows of the job that is served next
// (serving_order.h), starts all their reads and decodes each arriving record
// straight into its ring row. The worker that finishes the last row of a rank
// batch publishes it. No sample passes between threads. A worker without rows
// sleeps, so full slots (back-pressure) use no processor time.
//
// The pool's clock (now_ns) advances with the control thread's ticks, each time
// by at most what a tick can take. So it stops while the whole broker is
// stopped (SIGSTOP, a debugger, a suspended machine), and no timeout expires
// because of that. It also measures how long a worker is on one sample; CPU
// time would miss a blocked decoder. Reading it costs one load.
//
// A worker's index is below workers() and selects its processor. When workers()
// falls to the index or below, the worker finishes its claims and sleeps until
// workers() rises again.
//
// A job whose map has a Python function has its own function workers
// (function_workers.h).
//
// Without io_uring a read blocks its worker. The number of workers then follows
// what storage gains by more (read_tuning.h), unless it is configured; the
// kernel divides the processors between them.
//
// A hung read blocks its worker for good. Then another thread takes
// over the worker index, once, so threads are at most twice the workers. The
// blocked thread stays when it returns: asleep it costs nothing. Workers with
// blocking reads claim no rows of that job until its read has returned.
#ifndef BROKER_WORKERS_WORKER_POOL_H_
#define BROKER_WORKERS_WORKER_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/io/read.h"
#include "broker/job/bottleneck.h"
#include "broker/job/job.h"
#include "broker/memory/topology.h"
#include "broker/workers/function_workers.h"
#include "broker/workers/read_tuning.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/serving_order.h"
#include "broker/workers/worker_host.h"
#include "broker/workers/worker_threads.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kWorkersMax = 4096;

class Worker;

struct WorkerOptions {
  uint32_t workers = 0;     // 0: one per processor
  uint32_t read_depth = 0;  // per worker, of one job; 0: see read_depth.h
  ReadBackend read_backend = ReadBackend::kAuto;
  // A read in flight for longer fails its job.
  uint64_t read_timeout_ns = uint64_t{60} * 1'000'000'000;
  // Tick reports a worker that is on one sample for longer.
  uint64_t decode_timeout_ns = uint64_t{60} * 1'000'000'000;
  // Outlives the pool; nullptr: the pool makes one without a file.
  SampleQuarantine* samples = nullptr;
};

class WorkerPool final : public WorkerHost {
 public:
  static constexpr std::chrono::milliseconds kTickInterval{200};

  // The read backend that Start would use; errors name read_backend.
  static StatusOr<std::string> CheckReads(const WorkerOptions& options);

  // Starts the threads. topology outlives the pool.
  static StatusOr<std::unique_ptr<WorkerPool>> Start(
      const Topology& topology, const WorkerOptions& options);
  ~WorkerPool();  // stops and joins the threads

  // Control thread only if the job has function workers.
  void Add(std::shared_ptr<Job> job);
  // Afterwards no worker claims rows of the job; open claims go on.
  void Remove(const Job* job);

  uint32_t workers() const {
    // Relaxed: a number; workers that sleep because of it are woken under the
    // mutex.
    return workers_.load(std::memory_order_relaxed);
  }
  // The processors used, and the reasons for their number and choice.
  std::string Description() const;
  std::string read_backend() const { return read_backend_; }
  bool ReadsBlock() const { return read_backend_.starts_with("pread"); }
  // Pinned by workers for direct reads; a slot counts once per worker.
  uint64_t pinned_bytes() const {
    // Relaxed: shown.
    return pinned_bytes_.load(std::memory_order_relaxed);
  }
  bool read_depth_is_automatic() const {
    return read_tuning_.depth().automatic();
  }
  // Why this depth, with what was measured.
  std::string ReadDepthReason() const {
    return read_tuning_.DepthReason(ReadsBlock());
  }
  const Topology& topology() const { return *topology_; }
  // Workers per NUMA node, without unpinned workers.
  std::map<uint32_t, uint32_t> workers_of_nodes() const;

  // ---- the control thread's

  // True while there are jobs or reads: call Tick every kTickInterval.
  bool WantsTick();
  // workers 0: one per processor. InvalidArgument: too many; ResourceExhausted:
  // no more threads can be started, so there are fewer. by: what set it.
  Status SetWorkers(uint32_t workers, std::string by);
  void SetTimeouts(uint64_t read_timeout_ns, uint64_t decode_timeout_ns) {
    options_.read_timeout_ns = read_timeout_ns;
    options_.decode_timeout_ns = decode_timeout_ns;
  }
  // Advances the clock and fails jobs with late reads. Returns a description,
  // with the sample, when a decoder hangs; the caller must end the broker.
  std::optional<std::string> Tick();
  // For the watchdog: see WorkerThreads. Control thread only.
  std::optional<uint32_t> StandsStill() {
    return threads_.StandsStill(*samples_);
  }

  // Recent fraction of workers that slept.
  double recently_idle() const { return idle_share_.mean(); }

  // How many function workers the job has at work, and why; 0: none. Control
  // thread only.
  uint32_t ProcessesOf(const Job& job, std::string* why) const {
    return function_workers_.CountOf(job, set_by_, why);
  }
  // Current activity of the job's function workers.
  FunctionWorkersUse UseOfFunctionWorkers(const Job& job) const {
    return function_workers_.UseOf(job, *samples_, now_ns());
  }

  // A read in flight for more than a second.
  struct LateRead {
    uint32_t worker = 0;
    uint32_t uid = 0;
    std::string job;
    std::string dataset;
    std::string file;  // and offset
    double seconds = 0;
  };
  std::vector<LateRead> LateReads();

  // ---- the workers'

  Claimed ClaimFair(ServingOrder* order, const std::vector<const Job*>& but,
                    const Turn& before, const WorkerSeat& seat,
                    bool blocking) override;
  std::unique_ptr<StorageReader> MakeWorkerReader(
      uint32_t worker) const override;

 private:
  struct Entry {
    std::shared_ptr<Job> job;  // nullptr: no job has this account
    JobAccount* account = nullptr;
    uint64_t number = 0;
    // Only its own threads make its rows; they sleep on work.
    bool function_workers = false;
    uint32_t processes = 0;  // of its threads, those that make rows
    uint32_t threads = 0;
    std::shared_ptr<CondVar> work;
    bool reads = true;    // its rows are read before they are made
    bool blocks = false;  // a worker hangs in a read of it
  };
  using Entries = std::vector<Entry>;  // by the index of their account
  // Kept after the job has ended, while reads of it may be in flight.
  struct Named {
    JobKey key;
    std::weak_ptr<Job> job;
    std::weak_ptr<const Dataset> dataset;
  };

  explicit WorkerPool(const Topology& topology) : topology_(&topology) {}
  // So many of the job's function workers make rows; the others sleep.
  void UseProcesses(uint64_t number, uint32_t processes, uint32_t threads);
  void Run(WorkerSeat seat, ReadsInFlight* reads);
  void ReplaceBlocked(uint64_t now_ns);
  void AdaptReads(double seconds);
  // Starts what is missing of so many threads at workers, and uses as many as
  // there are.
  Status UseWorkers(uint32_t workers);
  // The job with this account has rows.
  void NotifyWork(size_t index);
  // Changes a copy, so that readers keep a consistent list.
  void ChangeJobs(const std::function<void(Entries*)>& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes one worker that serves the entry, which wakes the next if work
  // remains after its claim. So only workers with work are awake, however many
  // the host has.
  void WakeOne(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sleeps until this worker may have work, at most kOweInterval if it owes
  // something. False: the pool stops, or the function worker's job is gone.
  bool WaitForWork(const Worker& worker);
  // blocking: the worker's reads block it.
  static bool Serves(const WorkerSeat& seat, bool blocking, const Entry& entry);
  bool AnyClaimable(const WorkerSeat& seat, bool blocking) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lists the jobs with claimable rows that the seat serves.
  void List(const Entries& jobs, const WorkerSeat& seat, bool blocking,
            uint64_t now_ns, ServingOrder* order) const;
  Named NamedOf(uint64_t number);
  void CountSleep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Topology* const topology_;
  WorkerOptions options_;
  uint32_t reads_most_ = 0;  // bound of read_depth; set before threads start
  std::unique_ptr<SampleQuarantine> own_samples_;
  std::string read_backend_;
  std::atomic<uint32_t> workers_{0};
  ClaimableJobs claimable_;

  // ---- control thread only

  std::string set_by_ = "`workers`";  // the number
  WorkerThreads threads_;
  ReadTuning read_tuning_;
  FunctionWorkers function_workers_{
      topology_, &threads_,
      [this](uint64_t number, uint32_t processes, uint32_t threads) {
        UseProcesses(number, processes, threads);
      }};
  uint64_t ticked_ns_ = 0;
  bool any_blocks_ = false;     // any Entry::blocks; written under mutex_
  uint64_t slept_seen_ns_ = 0;  // slept_ns_ at the last Tick
  RecentMean idle_share_;

  // ----

  Mutex mutex_;
  CondVar work_;
  CondVar more_workers_;
  std::shared_ptr<const Entries> jobs_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const Entries>();
  std::map<uint64_t, Named> named_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  uint32_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;  // without function workers
  uint64_t slept_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // by all, until:
  uint64_t slept_until_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // asleep, nothing in flight
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_POOL_H_
