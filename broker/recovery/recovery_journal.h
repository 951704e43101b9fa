// What one life of the broker leaves for the next: registered datasets, jobs
// and their ranks, rows that producers put, in a journal in the state
// directory; the ranks' cursor pages, the producers' memory and the pidfds of
// both in the service manager's descriptor store (systemd's, or that of
// `penstock run`), which outlives the process.
//
// Who runs it: Open the starting thread; all else the control thread, and
// Completed, HandedOver, Opened and what streams record any thread that holds a
// job's mutex. Lock order: a job's mutex, then this one's. One thread of its
// own (the writer) does all that touches the state directory after Open. Nobody
// waits for the writer but the destructor, and no mutex is held while it waits
// for the file system: a state directory that hangs holds up nobody.
//
// A record is copied into the journal's tail (journal_tail.h), memory that
// outlives the process, under the mutex under which the state changes that it
// tells of. From then on it survives the death of this process. The writer
// moves records from there into the file (journal.h), those of kGatherTime in
// one write, and compacts the file.
//
// The progress of a split job is what its ranks say. Of a dynamic job each
// completed batch is recorded before the lease that held it is given out again:
// so a batch is known to be completed here or by the page of the rank that
// completed it. The death of the machine ends the ranks too.
//
// What is not written yet is bounded (kTailBytes). When the state directory
// refuses writes or does not answer until no room is left, jobs go on and
// records are lost; the tail says so to the next life (T3), which treats what
// it finds as incomplete. Once the directory answers again, a compaction writes
// all that is known, and nothing is lost any more.
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

// A descriptor that the store gave back, with the name it was stored under.
struct StoredFd {
  std::string name;
  Fd fd;
};

// A rank's process of a former life, as far as it is known.
struct FormerRank {
  uint32_t rank = 0;
  uint64_t from = 0;                       // where it was to begin
  std::shared_ptr<const CursorPage> page;  // nullptr: it was not stored
  uint64_t inode = 0;                      // of the page; 0: as above
  std::shared_ptr<Fd> pidfd;               // nullptr: as above
  bool left = false;                       // orderly
  // It counts as dead, though its process may live.
  bool evicted = false;
  uint64_t segment = 0;  // that it got, by a number; 0: not recorded
  uint64_t bytes = 0;    // of it
  // It detached when no broker was there to hear it. True: at the end of its
  // data.
  std::optional<bool> LeftUnheard() const;
  // Not known to be dead, did not leave and was not evicted.
  bool MayLive() const;
  // The broker died before it answered: the process of pidfd attaches again.
  bool WasNotAnswered(int pidfd) const;
};

// The process of a pidfd; 0: it is dead, or of a namespace that is not seen
// from here.
pid_t PidOf(int pidfd);

// A process that may still map a segment, though its job is over or knows
// nothing of it any more: it was evicted, or has not noticed yet.
struct FormerMapping {
  uint64_t job = 0;
  uint64_t attach = 0;
  uint32_t uid = 0;
  uint64_t segment = 0;
  uint64_t bytes = 0;
  std::shared_ptr<Fd> pidfd;
  // It was evicted before it could hear of it: the inode of its page, by which
  // it is known when it reconnects.
  uint64_t evicted = 0;
};

// A job that was not over when the broker died.
struct FormerJob {
  uint64_t id = 0;
  JobKey key;
  JobOptions options;
  Incarnation incarnation;
  bool named = false;
  Launch launch;
  // The journal has not all that was to be recorded.
  bool incomplete = false;
  uint64_t segment_bytes = 0;            // that its ranks may still map
  std::map<uint64_t, FormerRank> ranks;  // by the number of the attach
  // dynamic: no step from `opened` on was opened; completed are all from the
  // start up to `low`, and these, by position.
  uint64_t opened = 0;
  uint64_t low = 0;
  std::set<uint64_t> completed;
  // By rank: steps it released outside the order of positions (StepId).
  HandedOverSteps handed_over;
  std::vector<FormerPhase> phases;
  std::unique_ptr<FormerStream> stream;  // nullptr: no producer has joined
};

// An incarnation whose data are all delivered while ranks of its launch have
// not been told so: they died, or have yet to attach.
struct EndedJob {
  uint64_t id = 0;
  JobKey key;
  Incarnation incarnation;
  Launch launch;
  uint32_t agreement = 0;  // AgreementDigest of its options
  std::chrono::system_clock::time_point ended;
};

// What the ranks of a job must agree on, as the journal keeps it.
nlohmann::json JobOptionsToJson(const JobOptions& options);
// The same for the same of these options in every process: CRC-32 of their JSON
// without wait_s, which each rank says for itself.
uint32_t AgreementDigest(const JobOptions& options);

class RecoveryJournal {
 public:
  struct Dataset {
    uid_t uid = 0;
    std::string name;
    std::string spec;  // YAML text
  };
  // directory "": nothing survives, everything else is the same. Stored
  // descriptors that belong to no job are closed and removed from the store.
  static StatusOr<std::unique_ptr<RecoveryJournal>> Open(
      const std::string& directory, std::vector<StoredFd> stored);
  // Waits until all is written, for as long as the state directory does not
  // answer; not when it refuses.
  ~RecoveryJournal();
  RecoveryJournal(const RecoveryJournal&) = delete;
  RecoveryJournal& operator=(const RecoveryJournal&) = delete;

  // The state directory's (memory_folder.h); "": there is none.
  const std::string& memory_folder() const { return memory_folder_; }

  // A job that was not over and is not among what the former life left: there
  // is none.
  bool KnowsAllJobs() const;
  // What the former life left. Once, mappings before jobs.
  std::vector<Dataset> TakeDatasets();
  std::vector<FormerMapping> TakeMappings();
  std::vector<FormerJob> TakeJobs();
  std::vector<EndedJob> TakeEnded();

  // An error of these, of ProducerJoined and of RetainedOpened: it is not
  // recorded. They are refused while the state directory refuses writes, and
  // while records are lost; not a job or a rank's number that is known already.
  Status DatasetRegistered(const Dataset& dataset);
  Status DatasetUnregistered(uid_t uid, const std::string& name);
  // The job's number, unique over all lives. former: it goes on under its own.
  StatusOr<uint64_t> JobOpened(const JobKey& key, const JobOptions& options,
                               const Incarnation& incarnation, bool named,
                               std::optional<uint64_t> former);
  // Its plan begins at position, its segment has so many bytes. Any thread.
  void Begun(uint64_t job, uint64_t position, uint64_t segment_bytes);
  void JobEnded(uint64_t job);
  // As JobEnded, but for its ranks that have not been told the end. Again when
  // some of them were.
  void JobDelivered(const EndedJob& job);
  // Keeps the rank's page and pidfd; the number of the attach.
  struct Rank {
    uint32_t rank = 0;
    uint64_t from = 0;  // the position of the first batch that it is to get
    bool left = false;
    // The segment that it got. Until it is told (Unmapped) that the process
    // has it no more, the pidfd is kept, whatever becomes of rank and job.
    uint64_t segment = 0;
    uint64_t bytes = 0;
    bool unmapped = false;
    uint64_t evicted = 0;  // as in FormerMapping
  };
  StatusOr<uint64_t> RankAttached(uint64_t job, const Rank& rank, int cursor_fd,
                                  int pidfd);
  // It is gone for good, and how far it was still matters. finished: it had
  // been told that the data are over.
  void RankLeft(uint64_t job, uint64_t attach, bool finished);
  // It is of a former life, and counts as dead from now on; inode of its page.
  void RankEvicted(uint64_t job, uint64_t attach, uint64_t inode);
  // What this process had matters no more.
  void RankForgotten(uint64_t job, uint64_t attach);
  // It is dead, or has said that it unmapped everything.
  void Unmapped(uint64_t job, uint64_t attach);
  void PhaseBegun(uint64_t job, const FormerPhase& phase);

  void Completed(uint64_t job, uint64_t position, uint64_t next);
  void HandedOver(uint64_t job, uint32_t rank, uint64_t step);
  void Opened(uint64_t job, uint64_t position);

  // As StreamRecord.
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

  // Returns once all that was recorded before is in the file, compacted if that
  // was wanted, or the state directory has refused it. For tests.
  void Flush();
  // Now and then while WantsTick, on the control thread: tells the log what
  // Trouble has to say.
  void Tick();
  bool WantsTick() const;
  // "": all is well; else what is wrong with the state directory, since when,
  // and what the next life would know, for status.
  std::string Trouble() const;

  // So long records are gathered for one write.
  static constexpr std::chrono::milliseconds kGatherTime{20};
  // A call that takes longer is told of.
  static constexpr std::chrono::seconds kSilentTime{2};

 private:
  RecoveryJournal() = default;
  using Clock = std::chrono::system_clock;  // told to people
  struct Live {
    nlohmann::json job;  // its record
    Launch launch;
    std::map<uint64_t, Rank> ranks;  // by the number of the attach
    uint64_t opened = 0;
    uint64_t low = 0;
    uint64_t segment_bytes = 0;
    uint64_t segment = 0;                    // of this life
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
  // Its ranks' and producers' descriptors are given back.
  void Forget(uint64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rank is not one any more: keeps its pidfd as long as it matters.
  void LetGo(uint64_t id, const Live& live, uint64_t attach, const Rank& rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of all ranks of a job that is over.
  void LetGoAll(uint64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static nlohmann::json MappedRecord(const FormerMapping& mapping);
  void TakeStream(uint64_t id, const Live& live, FormerJob* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refused: not recorded, and the caller does not go on. The other two are
  // recorded, or noted as lost.
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

  // The writer's.
  void Write();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for work; false: it is to end.
  bool BeginRound();
  bool EndRound(const Status& status);
  Status WriteTail();
  // true: done.
  StatusOr<bool> CompactIfWanted();
  std::vector<std::pair<uint8_t, std::string>> LiveRecords() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  enum class Health { kWell, kSilent, kRefuses, kLoses };
  Health health() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string TroubleText() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string memory_folder_;
  std::string directory_;
  std::unique_ptr<Journal> journal_;   // after Open the writer's
  std::unique_ptr<JournalTail> tail_;  // nullptr: no state directory
  std::thread writer_;
  mutable Mutex mutex_;
  CondVar work_;                               // for the writer
  CondVar written_;                            // for Flush
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // the writer waits for work_
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;   // Flush waits
  bool look_ ABSL_GUARDED_BY(mutex_) = true;     // whether to compact
  bool named_ ABSL_GUARDED_BY(mutex_) = false;   // the file names the tail
  uint64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;  // of the writer, over
  // Records that were lost in this life.
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;
  // The writer is in a call since then; not: it waits.
  std::optional<Clock::time_point> asked_ ABSL_GUARDED_BY(mutex_);
  // What the last write was refused with, and since when it has been.
  Status refusal_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point refused_ ABSL_GUARDED_BY(mutex_);
  Health told_ ABSL_GUARDED_BY(mutex_) = Health::kWell;
  std::map<std::pair<uid_t, std::string>, std::string> datasets_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Live> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, EndedJob> ended_ ABSL_GUARDED_BY(mutex_);  // by id
  // By job and attach; without their pidfds, which are in the store.
  std::map<std::pair<uint64_t, uint64_t>, FormerMapping> mapped_
      ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::string boot_ ABSL_GUARDED_BY(mutex_);  // of the last life: BootId
  // As the file has it: the tail that goes on behind it (0: none), and where.
  uint64_t tail_token_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t tail_from_ ABSL_GUARDED_BY(mutex_) = 0;
  bool incomplete_ ABSL_GUARDED_BY(mutex_) = false;           // as it was found
  std::map<std::string, Fd> stored_ ABSL_GUARDED_BY(mutex_);  // until TakeJobs
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_RECOVERY_JOURNAL_H_
