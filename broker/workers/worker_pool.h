// The workers: threads that share nothing, each pinned to one processor, each
// with its own reads in flight, decoders and scratch.
//
// A worker claims a chunk of rows of the job that is served next (ServedNext),
// starts the reads of all of them, decodes each record as it arrives straight
// into its row of the slot, and the last to finish a share publishes it. No
// sample passes from one thread to another. A worker without rows sleeps: slots
// that are all full (back-pressure) burn no processor.
//
// The pool's clock (now_ns) advances with the control thread's ticks, by what a
// tick can have taken. So it stands still while the whole broker does (SIGSTOP,
// a debugger, a machine that sleeps): afterwards nothing has taken long. What a
// worker's one sample took is measured by it too, and not by the worker's CPU
// time: that would miss a decoder that is blocked. Reading it costs one load.
//
// A worker has an index below workers(), which chooses its processor. That
// number may change: a worker whose index is not below it any more finishes
// what it has claimed and sleeps until it is.
//
// A job whose map has a Python function is served by *function workers* of its
// own, as many threads as there are workers, each with a process of Python:
// they wait for it, which would hold up everybody else's rows here. They may
// run on all processors of the broker, and how much of those they get the
// kernel decides. Others take no row of that job, and its function workers none
// of another; it ends with the job.
//
// Where there is no io_uring, a read that hangs holds its worker. Then another
// thread takes over the worker's index, once (so there are at most twice as
// many; the one that comes back stays too: asleep it costs nothing), and
// workers that read in this way claim no more rows of that job until its read
// has returned.
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
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/io/read.h"
#include "broker/io/read_depth.h"
#include "broker/io/reads_in_flight.h"
#include "broker/job/bottleneck.h"
#include "broker/job/job.h"
#include "broker/memory/topology.h"
#include "broker/workers/sample_quarantine.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kWorkersMax = 4096;

class Worker;

// Which thread a worker is, and whom it works for.
struct WorkerSeat {
  uint32_t thread_index = 0;
  uint32_t worker_index = 0;     // below workers(); of function workers none
  uint64_t job = 0;              // it works for this one only; 0: for all
  std::optional<uint32_t> node;  // NUMA, that it is pinned to
};

struct WorkerOptions {
  uint32_t workers = 0;     // 0: one per processor
  uint32_t read_depth = 0;  // per worker, of one job; 0: see read_depth.h
  ReadBackend read_backend = ReadBackend::kAuto;
  // A read in flight for longer ends its job.
  uint64_t read_timeout_ns = uint64_t{60} * 1'000'000'000;
  // A worker that is on one sample for longer is what Tick speaks of.
  uint64_t decode_timeout_ns = uint64_t{60} * 1'000'000'000;
  // Outlives the pool; none: the pool's own, without a file.
  SampleQuarantine* samples = nullptr;
};

// The dataset of a job, for a read that is given up: its file is the dataset's.
inline std::shared_ptr<const Dataset> SharedDataset(
    const std::shared_ptr<Job>& job) {
  return job->shared_dataset();
}

// A job with rows to claim.
struct Candidate {
  uint64_t virtual_time_ns = 0;  // workers' time it has had
  Demand demand = Demand::kAhead;
};
// A job that no rank is attached to comes last. One with a rank that waits is
// served before one whose ranks have batches, until it has had so much more of
// the workers' time. Without that bound a job that can never get enough would
// come first always, and one that takes less than its share would have each of
// its batches made only once its ranks stand still.
inline constexpr uint64_t kHeadStartNs = 50'000'000;
// A job that slept gets back so much of the time it did not need: more than the
// head start, so a job that takes less than its share comes first.
inline constexpr uint64_t kCreditNs = 2 * kHeadStartNs;
// The least is served next: fair shares.
inline uint64_t TurnOf(const Candidate& candidate) {
  // More of the workers' time than any job ever gets.
  constexpr uint64_t kLastNs = uint64_t{1} << 62;
  return candidate.virtual_time_ns +
         (candidate.demand == Demand::kNow ? 0 : kHeadStartNs) +
         (candidate.demand == Demand::kNobody ? kLastNs : 0);
}
// Its index; candidates: at least one.
size_t ServedNext(std::span<const Candidate> candidates);

// What a claim looks at of every job. The accounts of all jobs lie side by
// side, and nothing else is in their cache lines.
struct alignas(64) JobAccount {
  // Relaxed, all: hints; a slightly old one is as fair.
  std::atomic<uint64_t> virtual_time_ns{0};
  std::atomic<uint64_t> wanted_seen_ns{0};  // when wanted was looked at
  std::atomic<Demand> wanted{Demand::kAhead};
  std::atomic<bool> claimable{false};  // it may have rows to claim
  std::weak_ptr<const Job> job;        // gone: free. Under the pool's mutex.
};
// As was seen 5 ms ago at most: a rank that goes to sleep tells nobody, and
// looking at the pages of all is not for every claim. now_ns: steady.
Candidate CandidateOf(JobAccount& account, Job& job, uint64_t now_ns);

class WorkerPool {
 public:
  static constexpr std::chrono::milliseconds kTickInterval{200};

  // The backend that Start would read with; its error names read_backend.
  static StatusOr<std::string> CheckReads(const WorkerOptions& options);

  // Starts the threads. topology outlives the pool.
  static StatusOr<std::unique_ptr<WorkerPool>> Start(
      const Topology& topology, const WorkerOptions& options);
  ~WorkerPool();  // stops and joins them

  // The control thread's, where the job has function workers.
  void Add(std::shared_ptr<Job> job);
  // Afterwards no worker starts on it; claims under way go on.
  void Remove(const Job* job);

  uint32_t workers() const {
    // Relaxed: a number; who sleeps because of it is woken under the mutex.
    return workers_.load(std::memory_order_relaxed);
  }
  // On which processors, and why so many and there.
  std::string Description() const;
  std::string read_backend() const { return read_backend_; }
  // By workers for their direct reads; a slot counts once for each.
  uint64_t pinned_bytes() const {
    // Relaxed: shown.
    return pinned_bytes_.load(std::memory_order_relaxed);
  }
  // Reads in flight per worker, of one job, by now.
  uint32_t read_depth() const {
    // Relaxed: seen late, a read more or less is started.
    return read_depth_.load(std::memory_order_relaxed);
  }
  bool read_depth_is_automatic() const { return depth_.automatic(); }
  const Topology& topology() const { return *topology_; }
  // How many are on each NUMA node; of those that are on one.
  std::map<uint32_t, uint32_t> workers_of_nodes() const;

  // ---- the control thread's
  // ---------------------------------------------------

  // Tick is to be called, every kTickInterval: there are jobs, or reads.
  bool WantsTick();
  // So many from now on; 0: one per processor. InvalidArgument: too many;
  // ResourceExhausted: no more threads can be started, there are fewer.
  Status SetWorkers(uint32_t workers);
  // Advances the clock and ends jobs whose reads are late. Not nothing: a
  // decoder hangs, on which sample; no other worker can help it, the broker has
  // to be ended.
  std::optional<std::string> Tick();

  // OpenBatch of the workers that slept, lately.
  double recently_idle() const { return idle_share_.mean(); }

  // What the job's function_workers does now.
  FunctionWorkersUse UseOfFunctionWorkers(const Job& job);

  // A read that the storage has not answered for more than a second.
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
  // -----------------------------------------------------------

  struct Claimed {
    Claim claim;
    std::shared_ptr<Job> job;
    JobAccount* account = nullptr;  // the job's, as long as somebody has it
    uint64_t number = 0;            // of the job; never used again
  };
  // Rows of the job served next, but of none of these (sorted); no share when
  // no such job has rows, or the worker is one too many by now. before:
  // of jobs whose rows need no reading only one whose turn is before that: the
  // worker has such rows already, and with many jobs it would claim a chunk of
  // each.
  Claimed ClaimFair(const std::vector<const Job*>& but, uint64_t before,
                    const WorkerSeat& seat, bool blocking);
  // A job gets rows made that had had so much of the workers' time.
  void Served(uint64_t virtual_time_ns);
  // Another number than before: ClaimFair may find what it did not find.
  uint64_t news() const {
    // Relaxed: seen late, a claim is made late.
    return news_.load(std::memory_order_relaxed);
  }
  bool stopping() const {
    // Relaxed: asked again and again.
    return stopping_.load(std::memory_order_relaxed);
  }
  uint64_t now_ns() const {
    // Relaxed: a clock, nothing else is read because of it.
    return now_ns_.load(std::memory_order_relaxed);
  }
  // Memory that direct reads land in; less: modulo 2^64.
  void CountPinned(uint64_t bytes) {
    // Relaxed: shown.
    pinned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  SampleQuarantine* samples() const { return options_.samples; }
  // What the options say; for the calling worker's thread.
  std::unique_ptr<StorageReader> MakeWorkerReader(uint32_t worker) const;

 private:
  struct Entry {
    std::shared_ptr<Job> job;
    JobAccount* account;
    uint64_t number;
    bool function_workers = false;  // only its own threads make its rows
    bool reads = true;              // its rows are read before they are made
    bool blocks = false;            // a worker is stuck in a read of it
  };
  using Entries = std::vector<Entry>;  // those that read come first
  // A job by its number, also after it has ended: reads of it may be in flight.
  struct Named {
    JobKey key;
    std::weak_ptr<Job> job;
    std::weak_ptr<const Dataset> dataset;
  };

  WorkerPool() = default;
  struct Thread {
    std::thread thread;
    std::unique_ptr<ReadsInFlight> reads;
    uint32_t worker_index = 0;  // kNoWorkerIndex: of function workers
    uint32_t uid = 0;           // of function workers: whose job
    uint64_t job = 0;           // likewise: its number
    // Of function workers whose job is gone: to be joined, its entry to be used
    // again.
    std::unique_ptr<std::atomic<bool>> ended;
  };
  static constexpr uint32_t kNoWorkerIndex = UINT32_MAX;
  // job: whose function workers it is; 0: it is a worker.
  Status StartThread(uint32_t worker_index, uint64_t job = 0, uint32_t uid = 0);
  Status StartFunctionWorkers(const Job& job, uint64_t number);
  void Run(WorkerSeat seat, ReadsInFlight* reads);
  // How many threads have this worker index.
  size_t ThreadsAt(uint32_t worker_index) const;
  void ReplaceBlocked(uint64_t now_ns);
  // What the workers read in the last ns.
  void AdaptReadDepth(uint64_t ns);
  void NotifyWork();
  // Changes a copy: who looks at the jobs keeps what it looks at.
  void ChangeJobs(const std::function<void(Entries*)>& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One worker more; it wakes the next when there is more than it takes. So as
  // many are awake as have work, on a host with a hundred as on one with two.
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sleeps until there may be work for this worker, for kOweInterval at most
  // if it owes something; false: the pool stops, or its one job is gone.
  bool WaitForWork(const Worker& worker);
  // blocking: while the worker reads, it does nothing else.
  static bool MayClaim(const Entry& entry, const WorkerSeat& seat,
                       bool blocking);
  JobAccount* Open(const std::shared_ptr<Job>& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Named NamedOf(uint64_t number);
  void CountSleep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Topology* topology_ = nullptr;
  WorkerOptions options_;
  uint32_t reads_most_ = 0;  // what read_depth may become; set before threads
  std::unique_ptr<SampleQuarantine> own_samples_;
  std::string read_backend_;
  std::atomic<uint32_t> workers_{0};
  std::atomic<uint32_t> read_depth_{0};
  std::atomic<uint64_t> pinned_bytes_{0};
  bool set_ = false;  // while it runs: the control thread's, likewise
  std::vector<Thread> threads_;  // what ended is used again, nothing taken away

  std::atomic<uint64_t> now_ns_{1};  // the control thread's to write
  uint64_t ticked_ns_ = 0;           // the control thread's
  bool any_blocks_ = false;          // of Entry::blocks; likewise, under mutex_
  uint64_t slept_seen_ns_ = 0;       // likewise: of slept_ns_
  ReadDepth depth_;                  // likewise
  uint64_t bytes_seen_ = 0;          // likewise: read by all threads
  uint64_t waited_seen_ns_ = 0;      // likewise: for reads
  RecentMean idle_share_;            // likewise
  std::atomic<uint64_t> news_{0};
  // What the jobs served lately had had: where a newcomer, or one that slept,
  // comes in.
  std::atomic<uint64_t> virtual_now_ns_{0};
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  CondVar work_;
  CondVar function_workers_work_;
  CondVar more_workers_;
  std::shared_ptr<const Entries> jobs_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const Entries>();
  std::deque<JobAccount> accounts_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Named> named_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  uint32_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;  // not of function workers
  uint64_t slept_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // by all, up to:
  uint64_t slept_until_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // asleep, nothing in flight
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_POOL_H_
