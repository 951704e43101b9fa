// All jobs of the broker: opens datasets, reserves memory, creates jobs when
// their first rank attaches and removes them when the last has left.
//
// Runs on the control thread. Lengthy work (indexing, populating memory) runs
// on one thread per opening, which posts its result back.
#ifndef BROKER_REGISTRY_JOB_TABLE_H_
#define BROKER_REGISTRY_JOB_TABLE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "broker/base/deferred_destruction.h"
#include "broker/base/event_loop.h"
#include "broker/base/mutex.h"
#include "broker/job/bank_placement.h"
#include "broker/job/dataset.h"
#include "broker/job/job.h"
#include "broker/memory/placement.h"
#include "broker/memory/populate.h"
#include "broker/memory/reserved_memory.h"
#include "broker/recovery/recovery_journal.h"
#include "broker/recovery/restore.h"
#include "broker/registry/data_policy.h"
#include "broker/workers/worker_pool.h"
#include "common/fd.h"

namespace penstock {

// Open datasets, one for each source and map however many jobs and ranks use
// it. A second request waits for an opening under way. Thread safe.
class OpenDatasets {
 public:
  // For a user; shared with those who may read the same (FileAccess::key).
  // What it keeps in memory is counted in reserved.
  StatusOr<std::shared_ptr<const Dataset>> Get(
      const DatasetSpec& spec, uint32_t uid,
      const std::shared_ptr<ReservedMemory>& reserved, OpenProgress* progress);
  // What datasets may run and read that are opened from now on; no functions
  // before.
  void Set(FunctionOptions functions, DataPolicy data,
           std::optional<std::vector<std::string>> snapshots);
  // The dataset is one that such a Get gave. nullptr: there are none.
  std::shared_ptr<const StepsOfMakers> ChooseSteps(
      const DatasetSpec& spec, const Dataset& dataset, uint32_t uid,
      const std::shared_ptr<ReservedMemory>& reserved, OpenProgress* progress);
  // Wakes waiting Get calls to check their OpenProgress::cancel.
  void NoticeCancel();

 private:
  struct Entry {
    bool opening = false;
    std::weak_ptr<const Dataset> dataset;
  };
  Mutex mutex_;
  CondVar opened_;
  FunctionOptions functions_ ABSL_GUARDED_BY(mutex_);
  DataPolicy data_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<std::string>> snapshots_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

class JobTable {
 public:
  struct Limits {
    ReservedMemory::Limits memory;
    uint32_t jobs = 256;
    uint32_t jobs_per_uid = 64;
    // At once, one thread each; more wait until one ends.
    uint32_t openings = 64;
    uint32_t openings_per_uid = 16;
    FunctionOptions functions;
    DataPolicy data;
    // Folders below which snapshots may be written; nullopt: anywhere.
    std::optional<std::vector<std::string>> snapshots;
  };
  // Takes over the jobs that a former broker instance left in the journal.
  JobTable(EventLoop* loop, WorkerPool* workers, DeferredDestruction* deferred,
           RecoveryJournal* journal, const Limits& limits);
  ~JobTable();

  // The limits of memory, functions and data of what opens from now on.
  void SetLimits(const Limits& limits);

  struct AttachRequest {
    JobKey key;
    JobOptions options;
    Delivery::Joining joining;
    // The job can be told from the user's next one: it has its own name or
    // numbered ranks. So it may wait for ranks, even when all died.
    bool named = false;
    // independent: the request gave a number; false: it gets a free one.
    bool numbered = true;
    // Set if it reconnects: the incarnation it belongs to.
    std::optional<Incarnation> incarnation;
    uint64_t former_inode = 0;  // of joining.former
    // The broker died before it answered this same request.
    bool asked_before = false;
    Fd cursor_fd;
    int pidfd = -1;  // the caller's, valid until CancelAttach
  };
  struct Attached {
    std::shared_ptr<Job> job;
    Delivery::Joined joined;
    Incarnation incarnation;
    // Counts the segment of a former broker instance, which this process may
    // still map. Keep until the process has unmapped it or is dead.
    std::shared_ptr<void> former_memory;
  };
  using AttachDone = std::function<void(StatusOr<Attached>)>;
  // Calls done on the control thread, at once or when the job is open. Returns
  // a number for CancelAttach.
  uint64_t Attach(AttachRequest request, AttachDone done);
  // The connection that asked is gone before done was called.
  void CancelAttach(uint64_t attach);
  // The process has unmapped everything (orderly) or is dead.
  void Leave(const std::shared_ptr<Job>& job, uint32_t seat, bool orderly);
  // The spec of the job that this rank belongs to, whatever is registered by
  // now; nullptr: none.
  const DatasetSpec* SpecOf(const JobKey& key, uint32_t rank,
                            std::optional<Incarnation> incarnation) const;
  // Running jobs.
  std::vector<std::shared_ptr<Job>> Find(const JobQuery& query) const;
  // All of them.
  std::vector<std::shared_ptr<Job>> Running() const;
  // Records evicted ranks: the next broker instance must not wait for them.
  void NoteEvicted(const std::shared_ptr<Job>& job);
  // Evicts a rank of a former broker instance that has not reconnected: it
  // counts as dead and cannot come back. If its process wakes, it may still
  // take batches published before. By user `by`. InvalidArgument: CheckOneJob.
  Status EvictAway(const JobQuery& query, uint32_t rank, uint32_t replica,
                   uint32_t by);
  // Forgets ended incarnations, so that their late ranks begin anew. False:
  // there was none. InvalidArgument: CheckOneJob.
  StatusOr<bool> ForgetEnded(const JobQuery& query);

  // A job may yet open: its ranks are attaching, or it waits for ranks from
  // before a restart of the broker.
  bool MayOpen(const JobQuery& query) const;

  // Opens the dataset and describes it and the needs of a job of uid: the
  // answer of the `index` operation.
  using InspectDone = std::function<void(StatusOr<nlohmann::json>)>;
  // scan: as OpenProgress::scans_remote.
  uint64_t Inspect(uint32_t uid, JobOptions options,
                   std::optional<Job::Place> row, bool scan, InspectDone done);
  void CancelInspect(uint64_t inspect);

  // Gives them to its remote rows, which have none, when they are chosen.
  void ChooseStepsOfMakers(const std::shared_ptr<Job>& job);

  // Progress of the opening that this attach or inspect waits for; false: none.
  // *fetches: the bytes that its indexes fetch; 0: nothing.
  bool Progress(uint64_t number, uint64_t* done, uint64_t* total,
                uint64_t* fetches) const;

  // Connected processes, by seats of jobs and by producers.
  struct ProcessIds {
    std::map<std::pair<const Job*, int64_t>, pid_t> of_seats;
    std::map<std::pair<const Job*, int64_t>, pid_t> of_producers;
  };
  // With pids: includes the ranks and the bottleneck.
  // Those whose owner is accepted.
  nlohmann::json StatusJson(const ProcessIds* pids,
                            const std::function<bool(uint32_t)>& accepts) const;
  size_t jobs() const { return entries_.size(); }
  // Rows made for all jobs, ended ones included.
  uint64_t RowsMade() const;
  const BankPlacement& placement() const { return placement_; }
  // Called on the control thread when a job is over or its producers may be
  // told of free room.
  void SetOnProducers(std::function<void(const std::shared_ptr<Job>&)> call) {
    on_producers_ = std::move(call);
  }
  // Called on the control thread when other hosts may be asked for rows of a
  // job.
  void SetOnHungry(std::function<void(const std::shared_ptr<Job>&)> call) {
    on_hungry_ = std::move(call);
  }
  void Shutdown();
  // Whether Sweep has anything to check.
  bool busy() const {
    return !openings_.empty() || !entries_.empty() || !holders_.empty();
  }
  // The memory of all jobs, of the indexes of their datasets, and of segments
  // that processes may still map from a former broker instance.
  const ReservedMemory& reserved() const { return *reserved_; }
  // Samples ranks and workers, and fails jobs whose ranks are missing for too
  // long. Called with each tick: it checks all ranks.
  void CheckTimeouts();
  // Removes jobs that are over.
  void Sweep();

 private:
  // How long a job without ranks waits for ranks to come.
  static constexpr std::chrono::seconds kDesertedJobKept{300};
  // How long late ranks are told the end of an incarnation whose data are all
  // delivered.
  static constexpr std::chrono::seconds kAwaitedKept{600};
  // How long an ended incarnation's number is kept from reuse.
  static constexpr std::chrono::seconds kEndedKept{3600};
  static constexpr size_t kEndedMax = 4096;
  struct Ended : EndedJob {
    // Some of its ranks have not been told the end.
    bool awaited = false;
  };

  struct Pending {
    uint64_t number = 0;
    AttachRequest request;
    AttachDone done;
  };
  // Lengthy work on a thread of its own.
  struct Opening {
    uint32_t uid = 0;
    OpenProgress progress;
    std::function<void()> body;  // empty: it runs
    std::thread thread;
    std::vector<uint64_t> waiting;  // numbers of attaches and inspects
    // Waiting ranks whose NUMA node is known.
    Mutex mutex;
    std::vector<KnownRank> known ABSL_GUARDED_BY(mutex);
  };
  // What has become of an incarnation:
  //
  //   kUnopened ──Begin──► kOpening ──Open──► kOpen ──End──► kOver ──► removed
  //       ▲ │                │   │                             ▲
  //       │ └────────End─────┼───┼─────────────────────────────┘
  //       └─────Return───────┘   └─Cancel─► kCancelled ──► removed
  //
  // kUnopened: by a former broker instance, and no rank has come since.
  // kCancelled: nobody waits for its opening, which goes on. kOver: it accepts
  // nobody, and is removed when nothing refers to its memory.
  class State {
   public:
    enum Stage : uint8_t { kUnopened, kOpening, kOpen, kCancelled, kOver };
    Stage stage() const { return stage_; }
    bool over() const { return stage_ >= kCancelled; }
    // Set when it is open, and if it was when it is over.
    const std::shared_ptr<Job>& job() const { return job_; }
    // Set when it is kOpening.
    Opening* opening() const { return opening_; }

    void Begin(Opening* opening) { Move(kOpening, opening); }
    void Return() { Move(kUnopened, nullptr); }
    Opening* Cancel() { return Move(kCancelled, nullptr); }
    void Open(std::shared_ptr<Job> job) {
      Move(kOpen, nullptr);
      job_ = std::move(job);
    }
    void End() { Move(kOver, nullptr); }

   private:
    Opening* Move(Stage to, Opening* opening) {
      stage_ = to;
      return std::exchange(opening_, opening);
    }

    Stage stage_ = kUnopened;
    Opening* opening_ = nullptr;
    std::shared_ptr<Job> job_;
  };
  struct Entry {
    JobKey key;
    JobOptions options;
    State state;
    std::vector<Pending> pending;
    Incarnation incarnation;
    bool named = false;
    Launch launch;
    // Set if its ranks reconnected and this broker instance knows nothing of
    // it, until all of them have come or their time is over.
    std::optional<std::chrono::steady_clock::time_point> forgotten;
    // The time since which nobody is attached, or can come back from before a
    // restart.
    std::optional<std::chrono::steady_clock::time_point> deserted;

    uint64_t number = 0;  // in the recovery journal; 0: not in it yet
    struct Attachment {
      uint64_t attach = 0;  // its number in the recovery journal
      uint32_t rank = 0;
      std::shared_ptr<const CursorPage> cursor;
      uint64_t inode = 0;  // of cursor
    };
    std::map<uint32_t, Attachment> attachments;  // by seat
    // Gone or from before a restart, with batches not all released yet.
    std::vector<Attachment> retired;
    // From a former broker instance, until it is known which batches its ranks
    // had; set when it is kUnopened.
    std::unique_ptr<FormerJob> former;
    std::shared_ptr<void> former_memory;  // until all have told their positions
    struct Reconnected {
      std::shared_ptr<const CursorPage> page;  // from before the restart
      uint64_t inode = 0;                      // of page
      uint64_t position = 0;
    };
    std::map<uint32_t, Reconnected> reconnected;  // by rank
  };

  // A process that may map a segment of a former broker instance. The segment
  // counts until the process is dead or has unmapped it.
  struct Holder {
    uint64_t job = 0;  // job and attach: their numbers in the recovery journal
    uint64_t attach = 0;
    std::optional<uint32_t> rank;  // it may reconnect as this rank
    std::shared_ptr<Fd> pidfd;
    std::shared_ptr<void> memory;
    uint64_t evicted = 0;  // as in RecordedMapping
  };
  // The former memory this process holds as this rank, until the last reference
  // goes.
  std::shared_ptr<void> FormerMemoryOf(const Entry& entry, uint32_t rank,
                                       int pidfd);
  void Unmapped(uint64_t job, uint64_t attach);
  void CheckHolders();

  // The entry this request belongs to; nullptr: it opens one. Fences the entry
  // that the request replaces.
  StatusOr<Entry*> EntryFor(AttachRequest* request);
  // A process that has not been told the end may attach as this rank.
  static bool Expects(const Entry& entry, uint32_t rank);
  // The oldest incarnation before number `before` that was delivered without
  // this rank.
  const Ended* AwaitedBy(const AttachRequest& request, uint64_t before) const;
  // Opens it once more, for its late ranks.
  Entry* Reopen(const Ended& ended, const AttachRequest& request);
  static Status ForgottenError(const std::string& job);
  // As EntryFor, for a rank that reconnects.
  StatusOr<Entry*> EntryOf(const AttachRequest& request);
  Incarnation NextIncarnation(const JobKey& key) const;
  void NoteEnded(const Entry& entry, bool awaited);
  // Forgets unanswered attaches of the requesting process. True: one of them
  // has a place in a broadcast, where request now continues.
  bool TakeUpUnanswered(Entry& entry, AttachRequest* request);
  static bool AnyMayLive(const FormerJob& former);
  // No process from before the restart can come back, and none has come since.
  static bool FormerIsDeserted(const Entry& entry);
  // All whose attach waits for the opening, and all of a former broker
  // instance.
  static bool OpenersAreDead(const Entry& entry);
  // Notes ranks that left unheard, perhaps even after this instance began.
  void HearFormer(Entry& entry);
  // Answers the attach, now or when possible.
  void Route(Pending attach);
  void Postpone(Entry& entry, Pending attach);
  // Until it is known which batches the former ranks had.
  static bool MustWait(const Entry& entry, const AttachRequest& request);
  // Why this rank cannot attach to a job from before a restart; ok: it can.
  Status CheckFormer(const Entry& entry, const AttachRequest& request) const;
  // A rank that had batches never begins at the first one again:
  // FailedPrecondition if the job, after RestoreDead, does not know where a
  // former rank was.
  static Status CheckRestored(const Entry& entry, uint32_t rank);
  static std::vector<FormerProcess> ProcessesOf(const Entry& entry);
  // The rank died, perhaps before a restart, and may be replaced.
  static bool WaitsFor(const Entry& entry, uint32_t rank);
  // Restores former phases; ranks' batches are restored later.
  Status Restore(Entry& entry);
  bool OwesAnybody(Entry& entry);
  // split: restores dead ranks that nobody has replaced yet, and predecessors
  // of ranks that reconnect.
  void RestoreDead(Entry& entry);
  // Retires the rank's former processes, which the job knows now.
  void RetireFormer(Entry& entry, uint32_t rank);
  // It is not known yet which batches its ranks had.
  static bool Gathers(const Entry& entry);
  // Resumes the job once it is known which batches all ranks had, or the time
  // to report them is over.
  void TryGather(Entry& entry);
  // The same for split: applies on_rank_death to the dead.
  void FinishFormer(Entry& entry);
  void FinishForgotten(Entry& entry);
  // Why a rank cannot begin with what this broker instance knows of its job.
  static Status CheckForgotten(const Entry& entry,
                               const AttachRequest& request);
  void End(Entry& entry, const std::string& reason) {
    End(entry, reason, false);
  }
  // awaited: everything was delivered, but not all ranks were told the end.
  void End(Entry& entry, const std::string& reason, bool awaited);
  // What is still needed of its former ranks, and whether anybody comes back.
  void SweepRanks(Entry& entry);
  // Attaches that wait for an entry that is over begin anew. True: it is gone,
  // as nothing refers to its memory any more.
  bool Release(Entry& entry);
  // Decides the future of an entry without attached ranks.
  void Deserted(Entry& entry);
  // Another page tells where the rank of a dead process continues.
  static bool Superseded(const Entry& entry, const Entry::Attachment& dead);
  void OpenFor(Entry* entry, uint64_t attach);
  // How long it is kept while nobody can come back.
  static std::chrono::duration<double> DesertedKept(const Entry& entry);
  bool FormerIsOver(Entry& entry) const;
  // Ranks from before a restart that may live and have not reconnected, by the
  // numbers that people know.
  static std::map<uint32_t, const RecordedRank*> Away(const Entry& entry);
  StatusOr<Attached> AttachTo(Entry& entry, AttachRequest request);
  static Status CheckAgreement(const Entry& entry,
                               const AttachRequest& request);
  Status CheckConsumers(const AttachRequest& request) const;
  Status Open(Entry* entry);
  Status CheckLimits(uint32_t uid) const;
  // Runs body, which ends with a posted EndOpening, on a thread as soon as the
  // limits allow.
  void Start(Opening* opening, uint32_t uid, std::function<void()> body);
  // Starts openings that wait: users with few running ones first.
  void StartWaiting();
  StatusOr<std::shared_ptr<Job>> MakeJob(const JobKey& key,
                                         const JobOptions& options,
                                         uint64_t number, Opening* opening);
  // The memory of the job's segment, and for a stream of its retained rows.
  // ResourceExhausted says how much is needed and left.
  StatusOr<MemoryReservation> ReserveMemory(const JobKey& key,
                                            const JobOptions& options,
                                            const Job::Layout& layout);
  // Why the job's labels differ from those of another job of this user; "":
  // they do not.
  std::string ClassWarning(const Job& job) const;
  void Opened(Entry* entry, StatusOr<std::shared_ptr<Job>> job);
  void EndOpening(Opening* opening);
  // Nobody waits for it any more. True: it had not begun, and is gone.
  bool Cancel(Opening& opening);
  void GiveUpOpening(Entry* entry);
  PoolUse RecentPoolUse() const;
  // For building an order, after which the job's own memory counts.
  OrderBudget BudgetOf(uint32_t uid, const OpenProgress& progress);
  Status PopulateJob(Job& job, const OpenProgress& progress,
                     const std::function<void()>& on_first);
  // Seconds it still waits for replacements while nobody is attached.
  std::optional<double> KeptFor(const Entry& entry) const;
  static void NoteNode(Opening* opening, const AttachRequest& request);
  // Moves banks of a job that is open.
  void StartMover(const std::shared_ptr<Job>& job);

  EventLoop* const loop_;
  WorkerPool* const workers_;
  DeferredDestruction* const deferred_;
  RecoveryJournal* const journal_;
  Limits limits_;  // control thread; those of memory are in reserved_ as well
  const std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
  std::function<void(const std::shared_ptr<Job>&)> on_producers_;
  std::function<void(const std::shared_ptr<Job>&)> on_hungry_;
  OpenDatasets datasets_;
  std::list<Entry> entries_;
  std::vector<Holder> holders_;
  std::vector<Ended> ended_;
  std::list<Opening> openings_;
  std::map<uint64_t, InspectDone> inspects_;
  uint64_t next_number_ = 1;
  uint64_t rows_of_ended_jobs_ = 0;
  const uint64_t instance_id_ = NewToken();
  static uint64_t NewToken();

  const std::shared_ptr<ReservedMemory> reserved_ =
      std::make_shared<ReservedMemory>();
  BankPlacement placement_;
};

}  // namespace penstock
#endif  // BROKER_REGISTRY_JOB_TABLE_H_
