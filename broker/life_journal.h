// What one life of the broker leaves for the next: registered datasets, jobs
// and their ranks, rows that producers put, in a journal in the state
// directory; the ranks' cursor pages, the producers' memory and the pidfds of
// both in the service manager's descriptor store (systemd's, or that of
// `penstock run`), which outlives the process.
//
// Who runs it: the control thread; Completed and Opened any thread that holds a
// job's mutex. Lock order: a job's mutex, then this one's.
//
// The progress of a split job is what its ranks say. Of a dynamic job each
// completed batch is recorded before the lease that held it is given out again:
// so a batch is known to be completed here or by the page of the rank that
// completed it. What is recorded survives the death of this process; the death
// of the machine ends the ranks too.
#ifndef BROKER_LIFE_JOURNAL_H_
#define BROKER_LIFE_JOURNAL_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "broker/job.h"
#include "broker/journal.h"
#include "broker/launch.h"
#include "broker/mutex.h"
#include "broker/restore.h"
#include "common/layout.h"
#include "common/message.h"
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
  uint64_t segment = 0;  // that it got, by a number; 0: not recorded
  uint64_t bytes = 0;    // of it
  // Not known to be dead, and it did not leave.
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

class LifeJournal {
 public:
  struct Dataset {
    uid_t uid = 0;
    std::string name;
    std::string spec;  // YAML text
  };
  // directory "": nothing survives, everything else is the same. Stored
  // descriptors that belong to no job are closed and removed from the store.
  static StatusOr<std::unique_ptr<LifeJournal>> Open(
      const std::string& directory, std::vector<StoredFd> stored);

  // A job that was not over and is not among what the former life left: there
  // is none.
  bool KnowsAllJobs() const;
  // What the former life left. Once, mappings before jobs.
  std::vector<Dataset> TakeDatasets();
  std::vector<FormerMapping> TakeMappings();
  std::vector<FormerJob> TakeJobs();
  std::vector<EndedJob> TakeEnded();

  // An error of these four: it could not be recorded, and is not.
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
  };
  StatusOr<uint64_t> RankAttached(uint64_t job, const Rank& rank, int cursor_fd,
                                  int pidfd);
  // It is gone for good, and how far it was still matters. finished: it had
  // been told that the data are over.
  void RankLeft(uint64_t job, uint64_t attach, bool finished);
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
  Status AtticOpened(uint64_t job, uint64_t rows, int memory);
  void RowsMoved(uint64_t job, uint64_t row,
                 const std::vector<StreamLedger::Chunk>& needed);

  // Now and then, on the control thread.
  void CompactIfWanted();
  // "": all is well; else what is not recorded and why, for status.
  std::string Trouble() const;

 private:
  LifeJournal() = default;
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
  Status Append(uint8_t type, const nlohmann::json& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Replay(uint8_t type, std::string_view payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status PutLive(const JournalRecord& put);

  std::unique_ptr<Journal> journal_;
  mutable Mutex mutex_;
  std::map<std::pair<uid_t, std::string>, std::string> datasets_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Live> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, EndedJob> ended_ ABSL_GUARDED_BY(mutex_);  // by id
  // By job and attach; without their pidfds, which are in the store.
  std::map<std::pair<uint64_t, uint64_t>, FormerMapping> mapped_
      ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);
  std::string boot_ ABSL_GUARDED_BY(mutex_);         // of the last life: BootId
  bool incomplete_ ABSL_GUARDED_BY(mutex_) = false;  // as it was found
  std::map<std::string, Fd> stored_ ABSL_GUARDED_BY(mutex_);  // until TakeJobs
};

}  // namespace penstock
#endif  // BROKER_LIFE_JOURNAL_H_
