// The state that one broker instance leaves for the next. A journal in the
// state directory holds registered datasets, jobs and their ranks, and rows
// that producers put. The service manager's descriptor store (systemd's, or
// that of `penstock run`), which outlives the process, holds the ranks' cursor
// pages, the producers' memory and the pidfds of both.
//
// Threads: the starting thread calls Open. Any thread that holds a job's mutex
// calls Completed, HandedOver, Opened and the stream functions. The control
// thread calls the rest. Lock order: a job's mutex, then mutex_. After Open
// only the writer thread touches the state directory. Only the destructor waits
// for the writer, which holds no mutex while it waits for the file system. So a
// hung state directory blocks no other thread.
//
// A record is copied into the journal's tail (journal_tail.h), memory that
// outlives the process, under the mutex that protects the state it describes.
// From then on it survives the death of this process. The writer moves records
// from the tail into the file (journal.h), those of kGatherTime in one write,
// and compacts the file.
//
// The ranks report the progress of a split job. In a dynamic job each
// completed batch is recorded before its lease is reused, so either the journal
// or the page of the rank that completed it shows the completion. The death of
// the machine ends the ranks too.
//
// Unwritten records are bounded (kTailBytes). If the state directory refuses
// writes or does not answer until the tail is full, jobs go on and records are
// lost. The tail reports this to the next broker instance (T3), which treats
// the journal as incomplete. Once the directory answers again, a compaction
// writes all known state and ends the loss.
#ifndef BROKER_RECOVERY_RECOVERY_JOURNAL_H_
#define BROKER_RECOVERY_RECOVERY_JOURNAL_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/job/job.h"
#include "broker/job/launch.h"
#include "broker/recovery/journal.h"
#include "broker/recovery/journal_tail.h"
#include "broker/recovery/restore.h"
#include "common/fd.h"
#include "common/layout.h"
#include "common/status.h"

namespace penstock {

// A descriptor from the store, with the name it was stored under.
struct StoredFd {
  std::string name;
  Fd fd;
};

// What is known of a rank's process that a former broker instance attached.
struct FormerRank {
  uint32_t rank = 0;
  uint64_t from = 0;                       // its start position
  std::shared_ptr<const CursorPage> page;  // nullptr: not stored
  uint64_t inode = 0;                      // of the page; 0: not stored
  std::shared_ptr<Fd> pidfd;               // nullptr: not stored
  bool left = false;                       // it detached cleanly
  // It counts as dead, though its process may live.
  bool evicted = false;
  uint64_t segment = 0;  // number of its segment; 0: not recorded
  uint64_t bytes = 0;    // of the segment
  // Set if it detached while no broker ran. True: at the end of its data.
  std::optional<bool> LeftUnheard() const;
  // Not known to be dead, did not leave and was not evicted.
  bool MayLive() const;
  // The broker died before it answered: pidfd's process retries its attach.
  bool WasNotAnswered(int pidfd) const;
};

// The process of a pidfd; 0: it is dead, or in a namespace not visible here.
pid_t PidOf(int pidfd);

// A process that may still map a segment though its job is over or has dropped
// it: it was evicted, or has not noticed yet.
struct FormerMapping {
  uint64_t job = 0;
  uint64_t attach = 0;
  uint32_t uid = 0;
  uint64_t segment = 0;
  uint64_t bytes = 0;
  std::shared_ptr<Fd> pidfd;
  // If it was evicted before it could be told: the inode of its page, which
  // identifies it when it reconnects.
  uint64_t evicted = 0;
};

// A job that had not ended when the broker died.
struct FormerJob {
  uint64_t id = 0;
  JobKey key;
  JobOptions options;
  Incarnation incarnation;
  bool named = false;
  Launch launch;
  // The journal lacks records of this job.
  bool incomplete = false;
  uint64_t segment_bytes = 0;  // of the segment its ranks may still map
  std::map<uint64_t, FormerRank> ranks;  // by attach number
  // dynamic: no step from `opened` on was opened. Completed are all positions
  // below `low`, and those in `completed`.
  uint64_t opened = 0;
  uint64_t low = 0;
  std::set<uint64_t> completed;
  // By rank: steps (StepId) it released out of position order.
  HandedOverSteps handed_over;
  std::vector<FormerPhase> phases;
  std::unique_ptr<FormerStream> stream;  // nullptr: no producer has joined
};

// A fully delivered incarnation with ranks of its launch that have not been
// told so: they died, or have yet to attach.
struct EndedJob {
  uint64_t id = 0;
  JobKey key;
  Incarnation incarnation;
  Launch launch;
  uint32_t agreement = 0;  // AgreementDigest(options)
  std::chrono::system_clock::time_point ended;
};

// The options that a job's ranks must agree on, as the journal stores them.
nlohmann::json JobOptionsToJson(const JobOptions& options);
// Equal for equal options in every process: CRC-32 of their JSON without
// wait_s, which each rank sets for itself.
uint32_t AgreementDigest(const JobOptions& options);

class RecoveryJournal {
 public:
  struct Dataset {
    uid_t uid = 0;
    std::string name;
    std::string spec;  // YAML text
  };
  // directory "": nothing survives, all else works the same. Stored descriptors
  // that belong to no job are closed and removed from the store.
  static StatusOr<std::unique_ptr<RecoveryJournal>> Open(
      const std::string& directory, std::vector<StoredFd> stored);
  // Waits until all is written, however long the state directory does not
  // answer. Does not wait if it refuses writes.
  ~RecoveryJournal();
  RecoveryJournal(const RecoveryJournal&) = delete;
  RecoveryJournal& operator=(const RecoveryJournal&) = delete;

  // See memory_folder.h; "": there is none.
  const std::string& memory_folder() const { return memory_folder_; }

  // TakeJobs returns every job that had not ended.
  bool KnowsAllJobs() const;
  // What the former broker instance left. Each once, mappings before jobs.
  std::vector<Dataset> TakeDatasets();
  std::vector<FormerMapping> TakeMappings();
  std::vector<FormerJob> TakeJobs();
  std::vector<EndedJob> TakeEnded();

  // These, ProducerJoined and RetainedOpened record nothing if they fail. They
  // fail while the state directory refuses writes and while records are lost,
  // except for a job or rank that is known already.
  Status DatasetRegistered(const Dataset& dataset);
  Status DatasetUnregistered(uid_t uid, const std::string& name);
  // Returns the job's number, unique over all broker instances. former: the
  // number of a continued job.
  StatusOr<uint64_t> JobOpened(const JobKey& key, const JobOptions& options,
                               const Incarnation& incarnation, bool named,
                               std::optional<uint64_t> former);
  // position: where the plan begins. Any thread.
  void Begun(uint64_t job, uint64_t position, uint64_t segment_bytes);
  void JobEnded(uint64_t job);
  // As JobEnded, but keeps the job for ranks that have not been told the end.
  // Called again when some were told.
  void JobDelivered(const EndedJob& job);
  // See RankAttached.
  struct Rank {
    uint32_t rank = 0;
    uint64_t from = 0;  // the position of its first batch
    bool left = false;
    // Its segment. The pidfd is kept until Unmapped, even when the rank or the
    // job has ended.
    uint64_t segment = 0;
    uint64_t bytes = 0;
    bool unmapped = false;
    uint64_t evicted = 0;  // as in FormerMapping
  };
  // Stores the rank's page and pidfd, and returns the attach number.
  StatusOr<uint64_t> RankAttached(uint64_t job, const Rank& rank, int cursor_fd,
                                  int pidfd);
  // The rank detached for good; its progress still matters. finished: it had
  // been told the end of the data.
  void RankLeft(uint64_t job, uint64_t attach, bool finished);
  // A rank of a former broker instance counts as dead now. inode: of its page.
  void RankEvicted(uint64_t job, uint64_t attach, uint64_t inode);
  // The progress of this process is not needed any more.
  void RankForgotten(uint64_t job, uint64_t attach);
  // The process is dead, or reported that it unmapped everything.
  void Unmapped(uint64_t job, uint64_t attach);
  void PhaseBegun(uint64_t job, const FormerPhase& phase);

  void Completed(uint64_t job, uint64_t position, uint64_t next);
  void HandedOver(uint64_t job, uint32_t rank, uint64_t step);
  void Opened(uint64_t job, uint64_t position);

  // See StreamRecord.
  Status ProducerJoined(uint64_t job, const StreamLedger& before,
                        const StreamLedger::Producer& producer, int memory,
                        int pidfd);
  void RowsPut(uint64_t job, uint32_t producer, uint64_t place, uint64_t rows,
               uint64_t first);
  void ProducerLeft(uint64_t job, uint32_t producer, bool finished);
  void RowsReleased(uint64_t job, uint64_t row);
  Status RetainedOpened(uint64_t job, uint64_t rows, int memory);
  void RowsMoved(uint64_t job, uint64_t row,
                 const std::vector<StreamLedger::Chunk>& needed);

  // Returns once all earlier records are in the file, compacted if that was
  // wanted, or the state directory has refused them. For tests.
  void Flush();
  // Logs changes of Trouble. The control thread calls it while WantsTick.
  void Tick();
  bool WantsTick() const;
  // For status: what is wrong with the state directory, since when, and what
  // the next broker instance would know. "": nothing is wrong.
  std::string Trouble() const;

  // How long records are gathered for one write.
  static constexpr std::chrono::milliseconds kGatherTime{20};
  // A slower call is reported.
  static constexpr std::chrono::seconds kSilentTime{2};

 private:
  RecoveryJournal() = default;
  using Clock = std::chrono::system_clock;  // for messages
  struct Live {
    nlohmann::json job;  // the job's record
    Launch launch;
    std::map<uint64_t, Rank> ranks;  // by attach number
    uint64_t opened = 0;
    uint64_t low = 0;
    uint64_t segment_bytes = 0;
    uint64_t segment = 0;                    // of this broker instance
    std::map<uint64_t, uint64_t> completed;  // above low: position, next
    HandedOverSteps handed_over;
    std::vector<nlohmann::json> phases;
    std::optional<StreamLedger> stream;

    void Complete(uint64_t position, uint64_t next);
  };
  static nlohmann::json OpenedRecord(uint64_t id, const Live& live);
  static nlohmann::json RankRecord(uint64_t id, uint64_t attach,
                                   const Rank& rank);
  static nlohmann::json StreamJson(uint64_t id, const StreamLedger& ledger);
  // Removes its ranks' and producers' descriptors from the store.
  void Forget(uint64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rank has ended: keeps its pidfd while that is needed.
  void LetGo(uint64_t id, const Live& live, uint64_t attach, const Rank& rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // LetGo for all ranks of an ended job.
  void LetGoAll(uint64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static nlohmann::json MappedRecord(const FormerMapping& mapping);
  void TakeStream(uint64_t id, const Live& live, FormerJob* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An error means not recorded: the caller stops. The other two record, or
  // note the loss.
  Status RecordOrRefuse(uint8_t type, const nlohmann::json& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Record(uint8_t type, const nlohmann::json& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordText(uint8_t type, std::string_view text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PutInTail(uint8_t type, std::string_view text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Replay(uint8_t type, std::string_view payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OpenTail(const std::string& directory, const JournalReplay& replayed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  nlohmann::json BootRecord(uint64_t written) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The writer thread's.
  void Write();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for work; false: the writer must end.
  bool BeginRound();
  bool EndRound(const Status& status);
  Status WriteTail();
  // True: it compacted.
  StatusOr<bool> CompactIfWanted();
  std::vector<std::pair<uint8_t, std::string>> LiveRecords() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  enum class Health { kWell, kSilent, kRefuses, kLoses };
  Health health() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string TroubleText() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string memory_folder_;
  std::string directory_;
  std::unique_ptr<Journal> journal_;   // the writer's after Open
  std::unique_ptr<JournalTail> tail_;  // nullptr: no state directory
  std::thread writer_;
  mutable Mutex mutex_;
  CondVar work_;                               // for the writer
  CondVar written_;                            // for Flush
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // the writer waits for work_
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;   // Flush waits
  bool look_ ABSL_GUARDED_BY(mutex_) = true;     // check whether to compact
  bool named_ ABSL_GUARDED_BY(mutex_) = false;   // the file names the tail
  uint64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;  // of the writer, done
  // Records that this broker instance lost.
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;
  // When the writer's current call began; nullopt: it waits.
  std::optional<Clock::time_point> asked_ ABSL_GUARDED_BY(mutex_);
  // The last write's error, and since when writes have been refused.
  Status refusal_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point refused_ ABSL_GUARDED_BY(mutex_);
  Health told_ ABSL_GUARDED_BY(mutex_) = Health::kWell;
  std::map<std::pair<uid_t, std::string>, std::string> datasets_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Live> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, EndedJob> ended_ ABSL_GUARDED_BY(mutex_);  // by id
  // By job and attach, without the pidfds, which are in the store.
  std::map<std::pair<uint64_t, uint64_t>, FormerMapping> mapped_
      ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::string boot_ ABSL_GUARDED_BY(mutex_);  // BootId of the last instance
  // From the file: the tail that continues it (0: none), and the position.
  uint64_t tail_token_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t tail_from_ ABSL_GUARDED_BY(mutex_) = 0;
  bool incomplete_ ABSL_GUARDED_BY(mutex_) = false;           // as found
  std::map<std::string, Fd> stored_ ABSL_GUARDED_BY(mutex_);  // until TakeJobs
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_RECOVERY_JOURNAL_H_
