// A job: one dataset being consumed by the ranks of one training run.
//
// Holds the segment, the delivery and the counters; hands rows to workers and
// finished batches to the ranks. Thread safe: the control thread attaches and
// detaches, every worker claims and finishes. One mutex, taken per chunk of
// rows and per wake, never per sample.
#ifndef BROKER_JOB_JOB_H_
#define BROKER_JOB_JOB_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/delivery/delivery.h"
#include "broker/job/agreement.h"
#include "broker/job/asked_rows.h"
#include "broker/job/bottleneck.h"
#include "broker/job/dataset.h"
#include "broker/job/job_options.h"
#include "broker/job/look_ahead.h"
#include "broker/job/prefetch.h"
#include "broker/job/remote_rows.h"
#include "broker/memory/reserved_memory.h"
#include "broker/plan/plan.h"
#include "broker/stream/stream.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// Records what the next broker instance must know of a job.
class JobRecord : public DeliveryRecord, public StreamRecord {
 public:
  // Before it takes effect. On an error nothing was recorded.
  virtual Status WeightsChanged(const WeightsChange& change) = 0;
};

// Rows of one batch that one worker makes. Empty: batch == nullptr.
struct Claim {
  OpenBatch* batch = nullptr;
  uint64_t begin = 0;  // rows of the batch
  uint64_t end = 0;
  uint32_t slot = 0;                 // segment slot in which they are made
  bool local = true;                 // the slot is on the worker's NUMA node
  std::shared_ptr<const Plan> plan;  // which rows these are
};

class Job {
 public:
  // Size and shape of the segment that the options need for this dataset.
  // Errors: those of Plan and PlanSegment; FailedPrecondition: options.start
  // belongs to other data.
  struct Layout {
    Plan plan;
    SegmentPlan segment;
    uint32_t lanes;
    uint32_t slots_per_lane;
    uint32_t leases;
    uint64_t row_bytes;  // of the largest
    uint32_t copies;     // of every slot, one per node
    Tuner prefetch = PrefetchOf({}, UINT64_MAX);
    // See Delivery::Shape. PlanLayout leaves them empty.
    std::vector<uint32_t> bank_nodes = {};
    std::vector<uint32_t> worker_nodes = {};
    // For a stream: the most rows of long-held batches to retain.
    uint64_t retained_rows = 0;
    uint64_t retained_bytes = 0;
    uint32_t ranks_min = 0;      // as in Delivery::Shape
    uint64_t order_bytes = 0;    // of the plan
    std::string selection = {};  // as in a state
    // What states say of its mix, the changes of the weights before those of
    // this job, and what is other than in the state that it began at.
    std::optional<JobState::Mix> mix = {};
    std::vector<WeightsChange> weights = {};
    std::string news = {};

    // The most memory the job may need.
    uint64_t memory_bytes() const {
      return segment.PopulatedBytes() + retained_bytes + order_bytes;
    }
  };
  // nodes: NUMA nodes for the slots; more than one makes banks. replicate: in
  // broadcast every node gets a copy of every slot; otherwise the slots are
  // divided over the nodes. ahead: with slots to make more batches ahead than a
  // job begins with (prefetch.h).
  static StatusOr<Layout> PlanLayout(const JobOptions& options,
                                     const Dataset& dataset, uint32_t nodes = 1,
                                     bool replicate = false, bool ahead = true,
                                     const OrderBudget& budget = {});

  struct Place {
    uint64_t epoch = 0;
    uint64_t row = 0;
  };
  // Where a row is, and the state with which a job begins with its step: see
  // the answer to `index`. InvalidArgument: there is no such row.
  static StatusOr<nlohmann::json> FindRow(const JobOptions& options,
                                          const Dataset& dataset,
                                          const Layout& layout, Place place);

  // memory is the reservation of layout.memory_bytes(), held as long as the
  // segment and the stream.
  Job(JobKey key, JobOptions options, std::shared_ptr<const Dataset> dataset,
      Layout layout, std::unique_ptr<Segment> segment, MemoryReservation memory,
      uint32_t workers, std::unique_ptr<JobRecord> record);

  const JobKey& key() const { return key_; }
  MemoryReservation& memory() { return memory_; }
  const JobOptions& options() const { return options_; }
  const Dataset& dataset() const { return *dataset_; }
  const std::shared_ptr<const Dataset>& shared_dataset() const {
    return dataset_;
  }
  // Plan of the original set of ranks; its steps hold for all.
  const Plan& plan() const { return layout_.plan; }
  const Segment& segment() const { return *segment_; }
  const Layout& layout() const { return layout_; }
  // A possible mistake in the job, for people; "": none. Set before anybody
  // attaches.
  const std::string& warning() const { return warning_; }
  void SetWarning(std::string warning) { warning_ = std::move(warning); }

  // ---- for the control thread

  // Calls a method of the delivery: a question, or a change that makes no batch
  // ready.
  template <typename Method, typename... Arguments>
  auto Locked(Method method, Arguments&&... arguments) const {
    MutexLock lock(&mutex_);
    return std::invoke(method, delivery_,
                       std::forward<Arguments>(arguments)...);
  }
  // A change that may make some ready: ranks are then given what they can get.
  template <typename Method, typename... Arguments>
  void Change(Method method, Arguments&&... arguments) {
    MutexLock lock(&mutex_);
    std::invoke(method, delivery_, std::forward<Arguments>(arguments)...);
    AdvanceLocked();
  }
  // See Delivery. record is called before anybody is given a batch as a result;
  // if it fails, the rank has not joined.
  using Record = std::function<Status(const Delivery::Joined&)>;
  StatusOr<Delivery::Joined> Attach(Delivery::Joining joining,
                                    const Record& record);
  void Leave(uint32_t seat);
  void Died(uint32_t seat);
  // NotFound: no such rank is attached.
  Status Evict(uint32_t rank, const std::string& reason);
  void EvictSeat(uint32_t seat, const std::string& reason);
  // Ranks of this host that never attached, or that are gone and waited for, as
  // a list.
  std::string MissingText() const;
  // The process of this number, as people know it.
  std::string NameOf(uint32_t rank) const {
    return RankName(NumberOf(rank), options_.replicas);
  }
  uint32_t NumberOf(uint32_t rank) const {
    return key_.ProcessOf(rank, options_.replicas);
  }
  // After a restart of the broker, before anybody attaches.
  void RestoreStream(FormerStream former);
  void FinishRecovery(bool shrink);
  // Ranks finish the step that the furthest of them was given; no more follow.
  // CheckTimeouts fails the job if that waits for a function that hangs.
  void Drain();
  // Ends the job at once, for all ranks.
  void Recall(const std::string& reason);
  // No process has a seat and no worker writes: nothing refers to the segment.
  bool Abandoned() const;
  // Its rows are made by threads of its own, which wait for other processes.
  bool has_function_workers() const { return dataset().wait_ns() > 0; }
  // Called regularly. Fails the job if ranks are missing for longer than
  // options().wait_s; samples what ranks and workers do.
  void CheckTimeouts(const FunctionWorkersUse& function_workers);
  Status failure() const;  // the reason it failed
  bool failed() const { return !failure().ok(); }
  // Measures the parts of making rows for so long from now on.
  void Measure(double seconds);
  // What was measured since the job began.
  nlohmann::json PartsJson() const;
  // Rows that were left out or replaced, oldest first: those since the last
  // call, up to kFailuresAtOnce, and whether there are more; `forgotten` counts
  // those before them that were too many to keep.
  static constexpr size_t kFailuresKept = 16'384;
  static constexpr size_t kFailuresAtOnce = 4096;
  nlohmann::json TakeFailuresJson();
  // Gives its mix other weights from a row of an epoch on; nullopt: from the
  // first step that nobody has begun to make, which no rank can have. Returns
  // the change as it was made. InvalidArgument: it is no mix, wrong weights;
  // FailedPrecondition: the row is made already, none is left, ranks of other
  // hosts could begin elsewhere; Unavailable: not known yet after a restart;
  // those of the record. tell: called before anybody can get a row of it.
  StatusOr<WeightsChange> ChangeWeights(
      const std::vector<double>& weights, std::optional<Place> from,
      const std::function<void(const WeightsChange&)>& tell);
  // All changes so far.
  std::vector<WeightsChange> weights() const;
  // Behind all rows that can be made before a rank takes another batch. Ranks
  // of several hosts that wait for one another change the weights there: at the
  // last of these rows of all hosts. Unavailable: not known yet after a
  // restart.
  StatusOr<Place> FirstFreeRow() const;
  // Made at its first use, by any thread: a pass over the index.
  const Agreement& agreement() const;
  // The state for a rank at this position.
  JobState StateAt(const PlanStart& start) const;
  // The ranks at these seats sent wakes, already drained.
  void Advance(const std::vector<uint32_t>& seats);
  // What the job makes ahead follows what limits it.
  void TunePrefetch(const PoolUse& pool);
  // This many slots of every lane are populated.
  void SetUsableSlots(uint32_t slots);
  void Fail(const Status& status);
  // A row of the batch ends the job, once the batches before it are delivered.
  void FailBatch(OpenBatch* batch, const Status& status);
  // nullptr: the source is no stream. Call StreamChanged after producers did
  // anything there.
  Stream* stream() const { return stream_.get(); }
  void StreamChanged();
  // nullptr: its rows are not asked for (AskedRows).
  const AskedRows* asked() const { return asked_.get(); }
  // Errors: of AskedRows::Add; FailedPrecondition: its rows are not asked for.
  Status Ask(std::span<const uint64_t> numbers);
  // Rows that other hosts make. nullptr: none may be
  // (IsForMakers).
  RemoteRows* remote() const { return remote_.get(); }
  std::optional<RemoteRows::Ask> NextAsk();
  // Called with each tick.
  void TickRemote();
  // Moving banks that were made on another node than that of their rank. One
  // thread at a time does it: first the one that opened the job, later the one
  // that got true from StartMoving, until EndMoving returns true.
  bool StartMoving();
  // nodes: of each bank. nullopt: no bank is left to move.
  std::optional<uint32_t> NextBankToMove(std::vector<uint32_t>* nodes);
  bool EndMoving();
  // kept_s: nobody is attached; the job waits this long for replacements.
  nlohmann::json StatusJson(bool with_ranks,
                            std::optional<double> kept_s) const;
  struct Recent {
    // Workers (of its function workers if it has any) that made its rows, or
    // that waited for its reads.
    double decoding = 0;
    double storage = 0;
    double ranks_wait = 0;  // of the time, by the rank that waits most
  };
  Recent recent() const;
  // absent: ranks that are to reconnect; the job adds those that are to attach.
  // pid_of: of the process at a seat; 0: unknown.
  Bottleneck FindBottleneck(
      const PoolUse& pool, AbsentRanks absent,
      const std::function<pid_t(uint32_t seat)>& pid_of) const;

  // ---- for workers

  // No slot will move to another node: its pages may be pinned.
  bool MayPin() const {
    // Relaxed: a late view only pins late.
    return layout_.segment.bank_slots == 0 ||
           settled_.load(std::memory_order_relaxed);
  }
  // node: the worker's.
  Claim ClaimRows(std::optional<uint32_t> node);
  // The rows are done; the last of a batch publish it.
  void FinishRows(const Claim& claim);
  // Others may claim the rows, which were not made. What is finished and given
  // back of a claim is all of it, each row once.
  void GiveBack(const Claim& rows);
  // The row of this record is left out or was replaced (on_error); error has
  // file and reason.
  void LeaveOut(OpenBatch* batch, uint64_t row, uint64_t record,
                const Status& error);
  void CountSubstitute(uint64_t record, const Status& error);
  // A document of a packed row, whose place stays empty.
  void CountLeftOut(uint64_t record, const Status& error);
  // Nobody will get the batch, so errors in its rows do not matter.
  bool GivenUp(const OpenBatch* batch) const;

  // Workers' activity for this job, for fairness and status.
  struct Counters {
    std::atomic<uint64_t> rows{0};
    std::atomic<uint64_t> rows_skipped{0};
    std::atomic<uint64_t> rows_substituted{0};
    // Why rows were left out or replaced: by kDataLoss, by kNotFound, by
    // others.
    std::atomic<uint64_t> rows_damaged{0};
    std::atomic<uint64_t> rows_missing{0};
    std::atomic<uint64_t> rows_of_other_errors{0};
    std::atomic<uint64_t> reads{0};
    std::atomic<uint64_t> reads_cached{0};  // those found in the page cache
    std::atomic<uint64_t> bytes_read{0};
    // Rows whose first steps a cache had, and had not.
    std::atomic<uint64_t> cache_hits{0};
    std::atomic<uint64_t> cache_misses{0};
    // By workers that had nothing else to do; one that waits for reads of two
    // jobs counts for both.
    std::atomic<uint64_t> read_wait_ns{0};
    std::atomic<uint64_t> fetch_wait_ns{0};  // of these, for object stores
    std::atomic<uint64_t> decode_ns{0};
    std::atomic<uint64_t> decoded{0};    // rows made in decode_ns
    std::atomic<uint64_t> documents{0};  // of packed rows, made or left out
    // Rows made by workers on the slot's NUMA node, and on others.
    std::atomic<uint64_t> rows_local{0};
    std::atomic<uint64_t> rows_remote{0};
    // Pages of slots that were checked, and those found on another node.
    std::atomic<uint64_t> pages_seen{0};
    std::atomic<uint64_t> pages_elsewhere{0};
  };
  Counters& counters() { return counters_; }

  // How long the parts of making rows take (step_clock.h), while they are
  // measured.
  bool measured() const {
    // Relaxed: a late view measures a chunk more or less.
    return measured_.load(std::memory_order_relaxed);
  }
  size_t parts() const { return part_ns_.size(); }  // RowParts
  void CountPart(uint32_t part, uint64_t ns) {
    // Relaxed: shown.
    part_ns_[part].fetch_add(ns, std::memory_order_relaxed);
  }
  void CountParts(const std::vector<uint64_t>& ns, uint64_t rows);

  // Called with the job's lock held when rows become claimable (true) and when
  // none are left (false). Set before the first Attach.
  void SetOnWork(std::function<void(bool)> on_work) {
    on_work_ = std::move(on_work);
  }
  // Called with the job's lock held when producers may be told of free room.
  // Set before the first Attach.
  void SetOnFreed(std::function<void()> on_freed) {
    on_freed_ = std::move(on_freed);
  }
  // Called with the job's lock held when another ask may be made. Set before
  // the first Attach.
  void SetOnHungry(std::function<void()> on_hungry) {
    on_hungry_ = std::move(on_hungry);
  }
  // Nobody will take the batches being made: workers may skip them.
  bool Cancelled() const {
    // Relaxed: a late view only makes a few rows too many.
    return pointless_.load(std::memory_order_relaxed);
  }

 private:
  Recent RecentLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UseSlotsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteSettledLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckProducersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StreamChangedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseStreamLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailIfBrokenIsNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GoneLocked(const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotePresentLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // By the numbers that people know.
  std::vector<uint32_t> MissingLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Some rows are those of ranks of other hosts.
  bool follows_ranks() const {
    return options_.several_hosts() && plan().world_size() > 1;
  }
  bool StarvedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteRanksLocked(const FunctionWorkersUse& function_workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the segment.
  uint32_t SlotOfCopy(const OpenBatch& batch, uint32_t copy) const {
    return copy * (layout_.segment.slot_count / layout_.copies) + batch.slot;
  }
  uint64_t FirstPosition(const Claim& claim) const;
  void CopyRows(const Claim& claim);
  void CountRoom(const Claim& claim);
  void CountFailedRow(StatusCode code);
  void NoteFailureLocked(uint64_t record, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rows of the batch are all made, and nobody else touches it meanwhile.
  void Assemble(OpenBatch* batch) const;
  uint64_t ChunkRowsNow() const;
  void EndIfStopHangsLocked(const FunctionWorkersUse& function_workers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailIfNothingIsReadable(uint64_t rows_done);

  const JobKey key_;
  const JobOptions options_;
  const std::shared_ptr<const Dataset> dataset_;
  const Layout layout_;
  const bool keep_shape_;  // last: pad
  MemoryReservation memory_;
  const std::shared_ptr<const void> windows_;  // its use of the packing
  const std::unique_ptr<Segment> segment_;
  const uint32_t workers_;       // when it began
  const uint64_t part_of_step_;  // rows
  // By slot, of datasets of batches: what is counted for it. Of its worker.
  std::vector<uint64_t> batch_bytes_;
  // Why the batches in these slots are broken.
  std::map<uint32_t, Status> broken_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<JobRecord> record_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<AskedRows> asked_;
  const std::unique_ptr<RemoteRows> remote_;
  std::string warning_;
  std::function<void(bool)> on_work_ = [](bool) {};
  std::function<void()> on_freed_ = [] {};
  std::function<void()> on_hungry_ = [] {};

  // Locked after mutex_.
  mutable Mutex weights_mutex_;
  std::vector<WeightsChange> weights_ ABSL_GUARDED_BY(weights_mutex_);
  // Which row is which record, under these weights.
  std::shared_ptr<const Plan> rows_plan_ ABSL_GUARDED_BY(weights_mutex_);

  mutable Mutex mutex_;
  mutable Delivery delivery_ ABSL_GUARDED_BY(mutex_);
  // Since when ranks are missing.
  std::chrono::steady_clock::time_point missing_since_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  size_t missing_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> drained_
      ABSL_GUARDED_BY(mutex_);
  // A rank's state at the last check, and since when it is unchanged.
  struct Seen {
    uint64_t taken = 0;
    uint32_t held = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::map<uint32_t, Seen> seen_ ABSL_GUARDED_BY(mutex_);  // by rank
  RecentUse recent_ ABSL_GUARDED_BY(mutex_);
  Tuner prefetch_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point tuned_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  uint64_t tuned_rows_ ABSL_GUARDED_BY(mutex_) = 0;  // made until then
  uint32_t populated_ ABSL_GUARDED_BY(mutex_) = 0;   // slots of every lane
  std::vector<uint32_t> banks_to_move_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> settled_{false};  // for slots in banks
  bool moving_ ABSL_GUARDED_BY(mutex_) = true;
  Status failure_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> first_errors_ ABSL_GUARDED_BY(mutex_);
  struct Failure {
    uint64_t record = 0;
    std::string message;
  };
  std::deque<Failure> failures_ ABSL_GUARDED_BY(mutex_);  // not taken yet
  uint64_t failures_forgotten_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<bool> pointless_{false};
  std::atomic<bool> measured_{false};
  std::chrono::steady_clock::time_point measured_until_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::atomic<uint64_t>> part_ns_;  // by RowPart
  std::atomic<uint64_t> measured_rows_{0};
  Counters counters_;
  mutable std::once_flag agreement_once_;
  mutable std::optional<Agreement> agreement_;
  std::unique_ptr<LookAhead> look_ahead_;  // nullptr: no object stores
};

}  // namespace penstock
#endif  // BROKER_JOB_JOB_H_
