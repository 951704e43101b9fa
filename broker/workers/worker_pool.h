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
// A job whose map has a Python function has its own *function workers*: as many
// threads as there are workers, each with a Python process. They wait for that
// process, which would delay other jobs' rows on shared workers. They may run
// on all processors of the broker; the kernel schedules them. Only they make
// rows of that job, they make no other rows, and they end with the job. Where
// they wait for something else than a processor, there may be more of them,
// unless the dataset says how many (worker_pool_adapt.cc).
//
// Without io_uring a read blocks its worker. The number of workers then follows
// what storage gains by more (base/tuner.h), unless it is configured; the
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
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/io/read.h"
#include "broker/io/read_depth.h"
#include "broker/io/reads_in_flight.h"
#include "broker/job/bottleneck.h"
#include "broker/job/job.h"
#include "broker/memory/idle_processors.h"
#include "broker/memory/topology.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/serving_order.h"
#include "broker/workers/trace.h"
#include "broker/workers/worker_turns.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kWorkersMax = 4096;
// Where reads block workers, and the broker chooses their number.
inline constexpr uint32_t kThreadsOfProcessorMax = 16;
// Processes of a Python function for each worker, likewise.
inline constexpr uint32_t kProcessesOfWorker = 4;

std::string BytesPerSecondText(double bytes_per_s);

class Worker;

// A worker's thread, and the jobs it serves.
struct WorkerSeat {
  uint32_t thread_index = 0;
  uint32_t worker_index = 0;     // below workers(); function workers have none
  uint64_t job = 0;              // serves only this job; 0: all
  uint32_t number = 0;           // of its function workers
  std::optional<uint32_t> node;  // NUMA node it is pinned to
  WorkerTurns* turns = nullptr;
};

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

// The dataset of a job. A given up read keeps it, because it owns the file.
inline std::shared_ptr<const Dataset> SharedDataset(
    const std::shared_ptr<Job>& job) {
  return job->shared_dataset();
}

class WorkerPool {
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
  // Current bound of reads in flight per worker and job.
  uint32_t read_depth() const {
    // Relaxed: a late view starts a read more or less.
    return read_depth_.load(std::memory_order_relaxed);
  }
  bool read_depth_is_automatic() const { return depth_.automatic(); }
  // Why this depth, with what was measured.
  std::string ReadDepthReason() const;
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
  // For the watchdog: the thread of a worker that was busy at the last call and
  // has made no turn since. Not one in a read, which read_timeout is for, or in
  // a sample, which decode_timeout is for. Control thread only.
  std::optional<uint32_t> StandsStill();

  // Recent fraction of workers that slept.
  double recently_idle() const { return idle_share_.mean(); }

  // How many function workers the job has at work, and why; 0: none. Control
  // thread only.
  uint32_t ProcessesOf(const Job& job, std::string* why) const;
  // Current activity of the job's function workers.
  FunctionWorkersUse UseOfFunctionWorkers(const Job& job);

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

  struct Claimed {
    Claim claim;
    std::shared_ptr<Job> job;
    JobAccount* account = nullptr;  // the job's, while the job exists
    size_t index = 0;               // of the account
    uint64_t number = 0;            // of the job; never used again
  };
  // Claims rows of the job served next by the worker's order, except the jobs
  // in `but` (sorted). The claim's batch is nullptr if no such job has rows, or
  // the worker index is not below workers() any more. A job whose rows need no
  // reading is considered only if its turn is before `before`: the worker has
  // such rows already, and with many jobs it would claim a chunk of each.
  Claimed ClaimFair(ServingOrder* order, const std::vector<const Job*>& but,
                    const Turn& before, const WorkerSeat& seat, bool blocking);
  // Called for each job served.
  void Served(const JobAccount& account) {
    if (!account.shares) return;
    account.user->present.Follow(account.virtual_time);
    present_.Follow(account.user->virtual_time);
  }
  // Changes when ClaimFair may find new rows.
  uint64_t news() const {
    // Relaxed: a late view claims late.
    return news_.load(std::memory_order_relaxed);
  }
  bool stopping() const {
    // Relaxed: polled.
    return stopping_.load(std::memory_order_relaxed);
  }
  uint64_t now_ns() const {
    // Relaxed: a clock; no other data depend on it.
    return now_ns_.load(std::memory_order_relaxed);
  }
  // Memory that direct reads land in; to subtract, modulo 2^64.
  void CountPinned(uint64_t bytes) {
    // Relaxed: shown.
    pinned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  SampleQuarantine* samples() const { return options_.samples; }
  Trace& trace() { return trace_; }
  // As the options say; for the calling worker's thread.
  std::unique_ptr<StorageReader> MakeWorkerReader(uint32_t worker) const;

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

  WorkerPool() = default;
  struct Thread {
    std::thread thread;
    std::unique_ptr<ReadsInFlight> reads;
    std::unique_ptr<WorkerTurns> turns;
    uint64_t turns_seen = 0;    // by StandsStill
    uint32_t worker_index = 0;  // function workers: kNoWorkerIndex
    uint32_t uid = 0;           // function workers: owner of the job
    uint64_t job = 0;           // function workers: the job's number
    uint32_t number = 0;        // function workers: of the job's
    // Function workers: set when the job is gone; the thread can be joined and
    // this entry reused.
    std::unique_ptr<std::atomic<bool>> ended;
  };
  static constexpr uint32_t kNoWorkerIndex = UINT32_MAX;
  // job: the function worker's job; 0: a worker.
  // number: of the function worker.
  Status StartThread(uint32_t worker_index, uint64_t job = 0, uint32_t uid = 0,
                     uint32_t number = 0);
  // Those numbered from `from` to `to` of the job `number`. Returns how many it
  // has then, if any.
  StatusOr<uint32_t> StartFunctionWorkers(const JobKey& key, uint64_t number,
                                          uint32_t from, uint32_t to);
  Status AddProcesses(const std::shared_ptr<Job>& job, uint64_t number);
  // So many of the job's function workers make rows; the others sleep.
  void UseProcesses(uint64_t number, uint32_t processes, uint32_t threads);
  bool ProcessesAreReady(uint64_t number, uint32_t processes) const;
  void Run(WorkerSeat seat, ReadsInFlight* reads);
  size_t ThreadsAt(uint32_t worker_index) const;
  void ReplaceBlocked(uint64_t now_ns);
  // Called with the nanoseconds since the last call.
  void AdaptReads(uint64_t ns);
  void AdaptProcesses(double seconds);
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
  // The index of an account for the job; kJobsMax: there are too many.
  size_t OpenAccount(const std::shared_ptr<Job>& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UserAccount* AccountOf(uint32_t uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Named NamedOf(uint64_t number);
  void CountSleep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Topology* topology_ = nullptr;
  WorkerOptions options_;
  uint32_t reads_most_ = 0;  // bound of read_depth; set before threads start
  std::unique_ptr<SampleQuarantine> own_samples_;
  std::string read_backend_;
  Trace trace_;
  std::atomic<uint32_t> workers_{0};
  std::atomic<uint32_t> read_depth_{0};
  std::atomic<uint64_t> pinned_bytes_{0};
  std::string set_by_ = "`workers`";  // the number; control thread only
  std::vector<Thread> threads_;       // ended entries are reused, none removed

  std::atomic<uint64_t> now_ns_{1};  // written by the control thread
  uint64_t ticked_ns_ = 0;      // control thread only, as up to idle_share_
  bool any_blocks_ = false;     // any Entry::blocks; written under mutex_
  uint64_t slept_seen_ns_ = 0;  // slept_ns_ at the last Tick
  ReadDepth depth_;
  // Threads at each processor, where a read blocks its worker: there they are
  // what is in flight.
  Tuner threads_of_processor_{{1, kThreadsOfProcessorMax, true}};
  RecentMean reads_per_s_;
  RecentMean reads_at_once_;
  uint64_t reads_seen_ = 0;  // ended, at the last Tick
  // Of a job with function workers.
  struct Processes {
    std::weak_ptr<Job> job;
    Tuner tuner;
    uint32_t threads = 0;
    uint64_t rows_seen = 0;
    double starting_s = 0;  // since the number changed
  };
  std::map<uint64_t, Processes> processes_;  // by the job's number
  std::unique_ptr<IdleProcessors> idle_processors_;
  double idle_processors_share_ = 0;
  double look_in_s_ = 0;
  uint64_t bytes_seen_ = 0;      // bytes read by all threads, at the last Tick
  uint64_t waited_seen_ns_ = 0;  // their waits for reads, likewise
  RecentMean idle_share_;
  ClaimableJobs claimable_;
  std::atomic<uint64_t> news_{0};
  // Worker time that recently served users have had: a new one starts here, and
  // one that slept near it.
  VirtualTime present_;
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  CondVar work_;
  CondVar more_workers_;
  std::shared_ptr<const Entries> jobs_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const Entries>();
  std::deque<JobAccount> accounts_ ABSL_GUARDED_BY(mutex_);
  std::deque<UserAccount> users_ ABSL_GUARDED_BY(mutex_);
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
