// All jobs of the broker: opens datasets, promises memory, creates jobs when
// their first rank attaches and removes them when the last has left.
//
// Runs on the control thread; what takes long (indexing, populating memory)
// runs on a thread per opening that posts its result back.
#ifndef BROKER_REGISTRY_JOB_TABLE_H_
#define BROKER_REGISTRY_JOB_TABLE_H_

#include <atomic>
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
#include "broker/memory/available_memory.h"
#include "broker/memory/placement.h"
#include "broker/memory/populate.h"
#include "broker/recovery/recovery_journal.h"
#include "broker/recovery/restore.h"
#include "broker/workers/worker_pool.h"
#include "common/fd.h"

namespace penstock {

// Datasets that are open, one for each source and map however many jobs and
// ranks use it; two that want the same one while it is opened wait for it.
// Thread safe.
class OpenDatasets {
 public:
  // What they may run.
  explicit OpenDatasets(FunctionOptions functions)
      : functions_(std::move(functions)) {}

  StatusOr<std::shared_ptr<const Dataset>> Get(const DatasetSpec& spec,
                                               OpenProgress* progress);
  // Some OpenProgress::cancel was set: who waits for another's opening looks.
  void NoticeCancel();

 private:
  struct Entry {
    bool opening = false;
    std::weak_ptr<const Dataset> dataset;
  };
  const FunctionOptions functions_;
  Mutex mutex_;
  CondVar opened_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

class JobTable {
 public:
  struct Limits {
    std::optional<uint64_t> memory_bytes;  // of all segments together
    std::optional<uint64_t> memory_bytes_per_uid;
    uint32_t jobs = 256;
    uint32_t jobs_per_uid = 64;
    uint32_t openings = 64;  // at once, each a thread
    FunctionOptions functions;
  };
  // Takes up the jobs that a former life left in life.
  JobTable(EventLoop* loop, WorkerPool* workers, DeferredDestruction* deferred,
           RecoveryJournal* life, Limits limits);
  ~JobTable();

  struct AttachRequest {
    JobKey key;
    JobOptions options;
    Delivery::Joining joining;
    // The job can be told from the next of this user: it has a name of its own
    // or ranks with numbers. So it may wait for ranks, even when all died.
    bool named = false;
    // independent: it has a number of its own, and was not given a free one.
    bool numbered = true;
    // It reconnects: the incarnation it belongs to.
    std::optional<Incarnation> incarnation;
    uint64_t former_inode = 0;  // of joining.former
    // The broker died before it answered the same request.
    bool asked_before = false;
    Fd cursor_fd;
    int pidfd = -1;  // the caller's, until it cancels
  };
  struct Attached {
    std::shared_ptr<Job> job;
    Delivery::Joined joined;
    Incarnation incarnation;
    // The segment of a former life counts as long as this process may map it:
    // to be kept until it says that it does not, or is dead.
    std::shared_ptr<void> former_memory;
  };
  using AttachDone = std::function<void(StatusOr<Attached>)>;
  // done is called on the control thread, at once or when the job is open.
  // Returns a number for CancelAttach.
  uint64_t Attach(AttachRequest request, AttachDone done);
  // The asking connection went away before done was called.
  void CancelAttach(uint64_t attach);
  // The process unmapped everything (orderly), or is dead.
  void Leave(const std::shared_ptr<Job>& job, uint32_t seat, bool orderly);
  // The spec of the job that this rank belongs to, whatever is registered by
  // now; nullptr: none.
  const DatasetSpec* SpecOf(const JobKey& key, uint32_t rank,
                            std::optional<Incarnation> incarnation) const;
  // Running jobs of this name that uid may act upon (its own; all as root).
  std::vector<std::shared_ptr<Job>> Find(uint32_t uid, const std::string& name,
                                         const std::string& dataset) const;
  // Ranks of this job were taken off: later lives are not to wait for them.
  void NoteEvicted(const std::shared_ptr<Job>& job);
  // Takes a rank of a former life that has not reconnected off the jobs of this
  // name that uid may act upon: it counts as dead and cannot come back. A
  // process that wakes may yet take what the former life published to it.
  Status EvictAway(uint32_t uid, const std::string& name,
                   const std::string& dataset, uint32_t rank);
  // Forgets incarnations that ended, so that their late ranks begin anew.
  // False: there was none that uid may act upon.
  bool ForgetEnded(uint32_t uid, const std::string& name,
                   const std::string& dataset);

  // A job of this name, or of this name and dataset, may be opened yet: its
  // ranks attach, or it waits for those of a former life.
  bool MayOpen(uint32_t uid, const std::string& name,
               const std::string& dataset) const;

  // Opens the dataset and describes it, and what a job of uid would need: the
  // answer of the `index` operation.
  using InspectDone = std::function<void(StatusOr<nlohmann::json>)>;
  uint64_t Inspect(uint32_t uid, JobOptions options, InspectDone done);
  void CancelInspect(uint64_t inspect);

  // How far the opening that attach or inspect waits for is; false: none.
  bool Progress(uint64_t number, uint64_t* done, uint64_t* total) const;

  // The processes at the seats of jobs, and those of their producers, that are
  // connected.
  struct ProcessIds {
    std::map<std::pair<const Job*, int64_t>, pid_t> of_seats;
    std::map<std::pair<const Job*, int64_t>, pid_t> of_producers;
  };
  // With pids: also the ranks, and who is the bottleneck.
  nlohmann::json StatusJson(const ProcessIds* pids) const;
  // Rows made for all jobs, those that ended too.
  uint64_t RowsMade() const;
  const BankPlacement& placement() const { return placement_; }
  // Called on the control thread when producers of a job may be told of room,
  // or that it is over.
  void SetOnProducers(std::function<void(const std::shared_ptr<Job>&)> call) {
    on_producers_ = std::move(call);
  }
  void Shutdown();
  // Whether Sweep has anything to look at.
  bool busy() const {
    return !openings_.empty() || !entries_.empty() || !holders_.empty();
  }
  // Of all jobs, and of segments that processes of former lives may map.
  uint64_t reserved_bytes() const;
  // Notes what ranks and workers do, fails jobs whose ranks are missing for
  // long. With each tick: it looks at all ranks.
  void CheckTimeouts();
  // Removes jobs that are over.
  void Sweep();

 private:
  // A job without ranks is kept so long for those that are to come.
  static constexpr std::chrono::seconds kDesertedJobKept{300};
  // All data of an incarnation are delivered: so long its late ranks are told
  // the end, kAwaitedMaxPerUid incarnations of one user at most.
  static constexpr std::chrono::seconds kAwaitedKept{600};
  static constexpr size_t kAwaitedMaxPerUid = 1024;
  // So long its number is known, so that the next of its name has another.
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
  // Something long under way on a thread of its own.
  struct Opening {
    OpenProgress progress;
    std::thread thread;
    std::vector<uint64_t> waiting;  // numbers of attaches and inspects
    // Ranks that wait for it and whose NUMA node is known.
    Mutex mutex;
    std::vector<KnownRank> known ABSL_GUARDED_BY(mutex);
  };
  struct Entry {
    JobKey key;
    JobOptions options;
    std::shared_ptr<Job> job;  // nullptr while it is opened
    Opening* opening = nullptr;
    std::vector<Pending> pending;
    Incarnation incarnation;
    bool named = false;
    Launch launch;
    // It takes nobody any more; removed when nothing refers to its memory.
    bool over = false;
    // Its ranks reconnected, and this life knows nothing of it: until all of
    // them have come, or their time is over.
    std::optional<std::chrono::steady_clock::time_point> forgotten;
    // Since when nobody is attached.
    std::optional<std::chrono::steady_clock::time_point> deserted;

    uint64_t number = 0;  // in the life journal; 0: not in it yet
    struct Attachment {
      uint64_t attach = 0;  // its number in the life journal
      uint32_t rank = 0;
      std::shared_ptr<const CursorPage> cursor;
      uint64_t inode = 0;  // of cursor
    };
    std::map<uint32_t, Attachment> attachments;  // by seat
    // Gone or of a former life, and not all that they had is released yet.
    std::vector<Attachment> retired;
    // Of a former life, until it is known what its ranks had.
    std::unique_ptr<FormerJob> former;
    std::shared_ptr<void> former_memory;  // until all have said where they are
    struct Reconnected {
      std::shared_ptr<const CursorPage> page;  // of the former life
      uint64_t inode = 0;                      // of page
      uint64_t position = 0;
    };
    std::map<uint32_t, Reconnected> reconnected;  // by rank
  };

  // A process of a former life that may map a segment: it counts until the
  // process is dead or has said that it does not.
  struct Holder {
    uint64_t job = 0;  // its number in the life journal, the attach's too
    uint64_t attach = 0;
    std::optional<uint32_t> rank;  // it may reconnect as this one
    std::shared_ptr<Fd> pidfd;
    pid_t pid = 0;  // of it
    std::shared_ptr<void> memory;
    uint64_t evicted = 0;  // as in FormerMapping
  };
  // What this process holds as this rank, until the last reference goes.
  std::shared_ptr<void> FormerMemoryOf(const Entry& entry, uint32_t rank,
                                       int pidfd);
  void Unmapped(uint64_t job, uint64_t attach);
  void CheckHolders();

  // The entry this request belongs to, nullptr: it opens one. Fences the one it
  // takes the place of.
  StatusOr<Entry*> EntryFor(AttachRequest* request);
  // A process may attach as this rank that has not been told the end.
  static bool Expects(const Entry& entry, uint32_t rank);
  // The oldest incarnation that was delivered without this rank, and is older
  // than `before`.
  const Ended* AwaitedBy(const AttachRequest& request, uint64_t before) const;
  // It is opened once more, for its late ranks.
  Entry* Reopen(const Ended& ended, const AttachRequest& request);
  static Status ForgottenError(const std::string& job);
  // The same of one that reconnects.
  StatusOr<Entry*> EntryOf(const AttachRequest& request);
  Incarnation NextIncarnation(const JobKey& key) const;
  void NoteEnded(const Entry& entry, bool awaited);
  // Attaches of the process that asks now, which never heard of them, are
  // forgotten. True: but a place in a broadcast, where request now goes on.
  bool TakeUpUnanswered(Entry& entry, AttachRequest* request);
  // No process of its former life can come back, and none of this one has come.
  static bool FormerIsDeserted(const Entry& entry);
  // Ranks of a former life that left without a broker to hear it, perhaps since
  // this one began.
  void HearFormer(Entry& entry);
  // Answers it, now or when it can be.
  void Route(Pending attach);
  void Postpone(Entry& entry, Pending attach);
  // Until it is known what the ranks of a former life had.
  static bool MustWait(const Entry& entry, const AttachRequest& request);
  // Why this rank cannot attach to a job of a former life; ok: it can.
  Status CheckFormer(const Entry& entry, const AttachRequest& request) const;
  static std::vector<FormerProcess> ProcessesOf(const Entry& entry);
  // It has, or had in a former life, the place of a dead process for rank.
  static bool WaitsFor(const Entry& entry, uint32_t rank);
  // The phases of a former life; what its ranks had is put in later.
  Status Restore(Entry& entry);
  bool OwesAnybody(Entry& entry);
  // split: puts in what is known of dead ranks that nobody has replaced yet,
  // and of the predecessors of those that reconnect.
  void RestoreDead(Entry& entry);
  // Its processes of the former life are known to the job: they are over like
  // those of this one.
  void RetireFormer(Entry& entry, uint32_t rank);
  // It is known of all ranks what they had, or they had their time to say it:
  // the job goes on.
  void TryGather(Entry& entry);
  // split: the same: what on_rank_death says of the dead is done.
  void FinishFormer(Entry& entry);
  void FinishForgotten(Entry& entry);
  // Why a rank cannot begin anything with what this life knows of its job.
  static Status CheckForgotten(const Entry& entry,
                               const AttachRequest& request);
  void End(Entry& entry, const std::string& reason) {
    End(entry, reason, false);
  }
  // awaited: all of it was delivered, and not all ranks were told so.
  void End(Entry& entry, const std::string& reason, bool awaited);
  // What becomes of it now that no rank is attached.
  void Deserted(Entry& entry);
  // Where the rank of a dead process goes on is told by another's page.
  static bool Superseded(const Entry& entry, const Entry::Attachment& dead);
  void OpenFor(Entry* entry, uint64_t attach);
  bool FormerIsOver(const Entry& entry) const;
  // Those of a former life that may live and have not reconnected, by their
  // numbers as people know them.
  static std::map<uint32_t, const FormerRank*> Away(const Entry& entry);
  StatusOr<Attached> AttachTo(Entry& entry, AttachRequest request);
  static Status CheckAgreement(const Entry& entry,
                               const AttachRequest& request);
  Status Open(Entry* entry);
  Status CheckLimits(uint32_t uid) const;
  // Refuses when openings_ (this one is in it) are too many.
  StatusOr<std::thread> StartOpening(std::function<void()> body);
  StatusOr<std::shared_ptr<Job>> MakeJob(const JobKey& key,
                                         const JobOptions& options,
                                         uint64_t number, Opening* opening);
  // Whether a source that this user opens may keep so many bytes in memory: its
  // index, unpacked files.
  Status CheckSource(uint32_t uid, uint64_t bytes) const;
  // What is left for a job of this user, and what says so. Any thread.
  AvailableMemory AvailableMemoryFor(uint32_t uid) const;
  // Counts bytes of uid until the last reference goes; what was counted before,
  // in all and of this user.
  std::shared_ptr<void> CountMemory(uint32_t uid, uint64_t bytes,
                                    uint64_t* before, uint64_t* before_of_uid);
  // Takes the job's memory off what is left: its segment, and of a stream its
  // retained rows. Given back when the last reference to it goes.
  // ResourceExhausted says what is needed and what is left.
  StatusOr<std::shared_ptr<void>> ReserveMemory(const JobKey& key,
                                                const JobOptions& options,
                                                const Job::Layout& layout);
  // "" or why its labels are not those of another job of this user.
  std::string ClassWarning(const Job& job) const;
  void Opened(Entry* entry, StatusOr<std::shared_ptr<Job>> job);
  void EndOpening(Opening* opening);
  PoolUse RecentPoolUse() const;
  Status PopulateJob(Job& job, const OpenProgress& progress,
                     const std::function<void()>& on_first);
  // Nobody is attached: how many seconds it waits for replacements yet.
  std::optional<double> KeptFor(const Entry& entry) const;
  static void NoteNode(Opening* opening, const AttachRequest& request);
  // Banks of a job that is open are to be moved.
  void StartMover(const std::shared_ptr<Job>& job);

  EventLoop* const loop_;
  WorkerPool* const workers_;
  DeferredDestruction* const deferred_;
  RecoveryJournal* const life_;
  const Limits limits_;
  const std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
  std::function<void(const std::shared_ptr<Job>&)> on_producers_;
  OpenDatasets datasets_;
  std::list<Entry> entries_;
  std::vector<Holder> holders_;
  std::vector<Ended> ended_;
  std::list<Opening> openings_;
  std::map<uint64_t, InspectDone> inspects_;
  uint64_t next_number_ = 1;
  uint64_t rows_of_ended_jobs_ = 0;
  const uint64_t life_id_ = NewLifeId();
  static uint64_t NewLifeId();

  // Bytes of jobs, by user; shared, for a job may outlive this table in a
  // worker.
  struct Reserved {
    Mutex mutex;
    uint64_t bytes ABSL_GUARDED_BY(mutex) = 0;
    std::map<uint32_t, uint64_t> bytes_of ABSL_GUARDED_BY(mutex);
    // Of them not populated yet: not seen in the machine's free memory.
    std::atomic<uint64_t> unpopulated{0};
  };
  const std::shared_ptr<Reserved> reserved_ = std::make_shared<Reserved>();
  BankPlacement placement_;
};

}  // namespace penstock
#endif  // BROKER_REGISTRY_JOB_TABLE_H_
