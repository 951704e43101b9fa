// A job: one dataset being consumed by the ranks of one training run.
//
// Holds the segment, the delivery and the counters; hands rows to
// workers and finished shares to the ranks. Thread safe: the control thread
// attaches and detaches, every worker claims and finishes. One mutex, taken per
// chunk of rows and per wake, never per sample.
#ifndef BROKER_JOB_JOB_H_
#define BROKER_JOB_JOB_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/delivery/delivery.h"
#include "broker/job/bottleneck.h"
#include "broker/job/dataset.h"
#include "broker/job/launch.h"
#include "broker/plan/plan.h"
#include "broker/stream/stream.h"
#include "common/job_state.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// One course of a job. The number is for people; who reconnects shows the
// token, which is not given to another.
struct Incarnation {
  uint64_t number = 1;
  uint64_t token = 0;
};

// Who a job belongs to and what its ranks must agree on.
struct JobKey {
  uint32_t uid = 0;
  std::string name;
  std::string dataset;
  // independent: each consumer has a job of its own.
  std::optional<uint32_t> consumer;
  auto operator<=>(const JobKey&) const = default;
};

struct JobOptions {
  DatasetSpec spec;
  uint32_t world_size = 1;
  uint32_t local_world_size = 1;
  bool repeat_first = false;  // one batch is made, the ranks repeat it
  DeliveryOptions delivery;
  uint32_t consumer = 0;          // independent: whose order it is
  uint32_t consumers_max = 1;     // broadcast: at once; else the local ranks
  std::optional<JobState> start;  // absent: the beginning
  double wait_s = 600;  // for ranks that are missing, then the job fails
  // All of its data are delivered: it only tells late ranks so.
  bool at_end = false;
};

// independent: each consumer is a launch of its own.
inline Launch LaunchOf(const JobOptions& options) {
  return options.delivery.mode == DeliveryMode::kIndependent
             ? Launch(1, 1)
             : Launch(options.world_size, options.local_world_size);
}

// Told of what a later life has to know of a job.
class JobRecord : public DeliveryRecord, public StreamRecord {};

// Rows of one share that one worker makes. Empty: share == nullptr.
struct Claim {
  OpenBatch* batch = nullptr;
  uint64_t begin = 0;  // rows of the share
  uint64_t end = 0;
  uint32_t slot = 0;  // of the segment, where they are made
  bool local = true;  // it is on the worker's NUMA node
};

class Job {
 public:
  // How many bytes of segment and what shape the options need of this dataset.
  // Errors: what Plan and PlanSegment refuse; FailedPrecondition: options.start
  // is of other data.
  struct Layout {
    Plan plan;
    SegmentPlan segment;
    uint32_t lanes;
    uint32_t slots_per_lane;
    uint32_t leases;
    uint64_t row_bytes;
    uint32_t copies;  // of every slot, one on each node
    // See Delivery::Shape. PlanLayout leaves them empty.
    std::vector<uint32_t> bank_nodes = {};
    std::vector<uint32_t> worker_nodes = {};
    // Of a stream: the rows of batches that are held for long, at most.
    uint64_t retained_rows = 0;
    uint64_t retained_bytes = 0;

    // All that the job may come to need.
    uint64_t memory_bytes() const {
      return segment.segment_bytes + retained_bytes;
    }
  };
  // nodes: NUMA nodes that the slots are to be on; more than one makes banks.
  // replicate: of a broadcast every slot is on each node, else half of them.
  static StatusOr<Layout> PlanLayout(const JobOptions& options,
                                     const Dataset& dataset, uint32_t nodes = 1,
                                     bool replicate = false);

  // memory is the promise of layout.memory_bytes(), kept as long as the segment
  // and the stream.
  Job(JobKey key, JobOptions options, std::shared_ptr<const Dataset> dataset,
      Layout layout, std::unique_ptr<Segment> segment,
      std::shared_ptr<void> memory, uint32_t workers,
      std::unique_ptr<JobRecord> record);

  const JobKey& key() const { return key_; }
  const JobOptions& options() const { return options_; }
  const Dataset& dataset() const { return *dataset_; }
  const std::shared_ptr<const Dataset>& shared_dataset() const {
    return dataset_;
  }
  // Of the first incarnation of ranks; its order of rows holds for all.
  const Plan& plan() const { return layout_.plan; }
  const Segment& segment() const { return *segment_; }
  const Layout& layout() const { return layout_; }
  // What may be wrong with it, for people; "": nothing. Set before anybody
  // attaches.
  const std::string& warning() const { return warning_; }
  void SetWarning(std::string warning) { warning_ = std::move(warning); }

  // ---- the control thread's

  // See Delivery. record is called before anybody is given anything because of
  // it; what it refuses has not joined.
  using Record = std::function<Status(const Delivery::Joined&)>;
  StatusOr<Delivery::Joined> Attach(Delivery::Joining joining,
                                    const Record& record);
  void Leave(uint32_t seat);
  void Died(uint32_t seat);
  // Before the wake socket of a seat is closed.
  void Mute(uint32_t seat);
  // NotFound: no such rank is attached.
  Status Evict(uint32_t rank, const std::string& reason);
  void EvictSeat(uint32_t seat, const std::string& reason);
  std::vector<Delivery::RanksChanged> TakeRanksChanged();
  void RanksTold(uint32_t seat, uint32_t phase);
  bool GoesOnWithout(uint32_t rank) const;
  size_t phases() const;
  bool AllCame() const;
  // Ranks of this host that never came or are waited for, as a list.
  std::string MissingText() const;
  bool OwesPredecessor(uint32_t rank) const;
  // Before anybody attaches, after a former life.
  Status RestorePhases(const std::vector<FormerPhase>& phases);
  void RestoreRank(const Delivery::FormerConsumer& former);
  void RestoreStream(FormerStream former);
  void BeginRecovery();
  bool gathering() const;
  void TakeOverSteps(const Delivery::FormerSteps& former);
  void DeferEnd();
  bool Unsettled() const;
  void FinishRecovery(bool shrink);
  // Ranks finish the step that the furthest of them was given; no more follow.
  // Look ends it with an error when that waits for a function that hangs.
  void Drain();
  // Ends it at once, for all ranks.
  void Recall(const std::string& reason);
  bool OwesTheDead() const;
  bool AllDelivered() const;
  bool HasAttached() const;
  bool Finished(uint32_t rank) const;
  bool ToldTheEnd(uint32_t rank) const;
  bool Knows(uint32_t rank) const;
  bool WaitsFor(uint32_t rank) const;
  // The process at this seat is a rank of the job, not one that was evicted.
  bool IsAt(uint32_t seat);
  // No process has a seat and no worker writes: nothing refers to the segment.
  bool Abandoned() const;
  // Its rows are made by threads of its own: they wait for other processes.
  bool has_function_workers() const { return dataset().program->wait_ns() > 0; }
  // Now and then: fails the job when ranks are missing for longer than
  // options().wait_s, notes what its ranks and its workers do.
  void CheckTimeouts(const FunctionWorkersUse& function_workers);
  bool failed() const;
  Status failure() const;  // and why
  JobState State() const;
  // The state of a rank that is at this position.
  JobState StateAt(const PlanStart& start) const;
  // The ranks at these seats sent wakes, which were drained before.
  void Advance(const std::vector<uint32_t>& seats);
  // All that ranks did by now is seen, though their wakes are on their way.
  void AdvanceAll();
  // As many slots of every lane are populated.
  void SetUsableSlots(uint32_t slots);
  void Fail(const Status& status);
  // nullptr: its source is none. What producers do there is made known by
  // StreamChanged.
  Stream* stream() const { return stream_.get(); }
  void StreamChanged();
  // The NUMA node of each bank of slots, by now; empty: the machine has one.
  std::vector<uint32_t> BankNodes() const;
  // Banks that were made on another node than that of the rank that got them.
  // One thread at a time moves them: first who opened the job, then whoever
  // StartMoving says true to, until EndMoving says true.
  bool StartMoving();
  // nodes: of each bank; where nullopt is returned all are on them.
  std::optional<uint32_t> NextBankToMove(std::vector<uint32_t>* nodes);
  bool EndMoving();
  // kept_s: nobody is attached, and the job waits so long for replacements.
  nlohmann::json StatusJson(bool with_ranks,
                            std::optional<double> kept_s) const;
  // Workers at a time, of its function workers if it has one, that made its
  // rows, or waited for its reads, lately.
  double RecentDecoding() const;
  double RecentStorage() const;
  // absent: ranks that are to reconnect; those that are to attach it knows.
  Bottleneck FindBottleneck(const PoolUse& pool, AbsentRanks absent) const;

  // ---- workers'

  // No slot will be moved to another node any more: its pages may be pinned.
  bool MayPin() const {
    // Relaxed: seen late, it is pinned late.
    return layout_.segment.bank_slots == 0 ||
           settled_.load(std::memory_order_relaxed);
  }
  // Locks, and reads the pages of the ranks: not for every claim.
  Demand Wanted();
  // node: the worker's.
  Claim ClaimRows(std::optional<uint32_t> node);
  // Its rows are done; the last of the share publishes it.
  void FinishRows(const Claim& claim);
  // row is left out or was replaced (on_error), text names file and reason.
  void LeaveOut(OpenBatch* batch, uint64_t row, const std::string& text);
  void CountSubstitute(const std::string& text);
  // Nobody will get the share: what became of its rows is no matter.
  bool GivenUp(const OpenBatch* batch) const;

  // What workers did for this job, for fairness and status.
  struct Counters {
    std::atomic<uint64_t> rows{0};
    std::atomic<uint64_t> rows_skipped{0};
    std::atomic<uint64_t> rows_substituted{0};
    std::atomic<uint64_t> reads{0};
    std::atomic<uint64_t> reads_cached{0};  // of reads: found in the page cache
    std::atomic<uint64_t> bytes_read{0};
    // Of workers that had nothing else to do; one that waits for reads of two
    // jobs counts for both.
    std::atomic<uint64_t> read_wait_ns{0};
    std::atomic<uint64_t> decode_ns{0};
    std::atomic<uint64_t> decoded{0};  // rows that decode_ns was spent on
    // Of rows: made by workers of the slot's NUMA node, and by others.
    std::atomic<uint64_t> rows_local{0};
    std::atomic<uint64_t> rows_remote{0};
    // Slots' pages that were looked at, and those found on another node.
    std::atomic<uint64_t> pages_seen{0};
    std::atomic<uint64_t> pages_elsewhere{0};
  };
  Counters& counters() { return counters_; }

  // Called, with the job's lock held, when rows become claimable (true) and
  // when none are left (false). Set before the first Attach.
  void SetOnWork(std::function<void(bool)> on_work) {
    on_work_ = std::move(on_work);
  }
  // Called, with the job's lock held, when producers may be told of room. Set
  // before the first Attach.
  void SetOnFreed(std::function<void()> on_freed) {
    on_freed_ = std::move(on_freed);
  }
  // Nobody will take what is being made: a worker need not make it.
  bool Cancelled() const {
    // Relaxed: seen late, a few rows too many are made.
    return pointless_.load(std::memory_order_relaxed);
  }

 private:
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteSettledLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckProducersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StreamChangedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseStreamLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GoneLocked(const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteMissingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Their numbers as people know them.
  std::vector<uint32_t> MissingLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool StarvedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteRanksLocked(const FunctionWorkersUse& function_workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CopyRows(const Claim& claim);
  void AssembleLocked(OpenBatch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ChunkRowsNow() const;
  void EndIfStopHangsLocked(const FunctionWorkersUse& function_workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailIfNothingIsReadable(uint64_t rows_done);

  const JobKey key_;
  const JobOptions options_;
  const std::shared_ptr<const Dataset> dataset_;
  const Layout layout_;
  const bool keep_shape_;  // last: pad
  const std::shared_ptr<void> memory_;
  const std::unique_ptr<Segment> segment_;
  const uint64_t chunk_rows_;
  const std::unique_ptr<JobRecord> record_;
  const std::unique_ptr<Stream> stream_;
  std::string warning_;
  std::function<void(bool)> on_work_ = [](bool) {};
  std::function<void()> on_freed_ = [] {};

  mutable Mutex mutex_;
  mutable Delivery delivery_ ABSL_GUARDED_BY(mutex_);
  // Since when ranks are missing.
  std::chrono::steady_clock::time_point missing_since_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  size_t missing_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> drained_
      ABSL_GUARDED_BY(mutex_);
  // What a rank had done when it was looked at last, and since when that is so.
  struct Seen {
    uint64_t taken = 0;
    uint32_t held = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::map<uint32_t, Seen> seen_ ABSL_GUARDED_BY(mutex_);  // by rank
  RecentUse recent_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> banks_to_move_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> settled_{false};  // of slots in banks
  bool moving_ ABSL_GUARDED_BY(mutex_) = true;
  Status failure_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> pointless_{false};
  Counters counters_;
};

}  // namespace penstock
#endif  // BROKER_JOB_JOB_H_
