// The state that one broker instance leaves for the next. A journal in the
// state directory holds registered datasets, jobs and their ranks, and rows
// that producers put (recovery_state.h). The service manager's descriptor store
// (systemd's, or that of `penstock run`), which outlives the process, holds the
// ranks' cursor pages, the producers' memory and the pidfds of both.
//
// Threads: the starting thread calls Open. Any thread that holds a job's mutex
// calls Completed, HandedOver, Opened and the stream functions. The control
// thread calls the rest. Lock order: a job's mutex, then mutex_, then the
// writer's. None of these waits for the state directory.
//
// A record is put under the mutex that protects the state it describes. From
// then on it survives the death of this process (journal_writer.h).
//
// The ranks report the progress of a split job. In a dynamic job each
// completed batch is recorded before its lease is reused, so either the journal
// or the page of the rank that completed it shows the completion. The death of
// the machine ends the ranks too.
#ifndef BROKER_RECOVERY_RECOVERY_JOURNAL_H_
#define BROKER_RECOVERY_RECOVERY_JOURNAL_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/recovery/journal_writer.h"
#include "broker/recovery/recorded_job.h"
#include "broker/recovery/recovery_state.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

// A descriptor from the store, with the name it was stored under.
struct StoredFd {
  std::string name;
  Fd fd;
};

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
  // Waits as the writer's destructor does.
  ~RecoveryJournal() = default;
  RecoveryJournal(const RecoveryJournal&) = delete;
  RecoveryJournal& operator=(const RecoveryJournal&) = delete;

  // See memory_folder.h; "": there is none.
  const std::string& memory_folder() const { return writer_->memory_folder(); }

  // TakeJobs returns every job that had not ended.
  bool KnowsAllJobs() const;
  // What the former broker instance left. Each once, mappings before jobs.
  std::vector<Dataset> TakeDatasets();
  std::vector<RecordedMapping> TakeMappings();
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
  // Stores the rank's page and pidfd, and returns the attach number. from: the
  // position of its first batch. The pidfd is kept until Unmapped, even when
  // the rank or the job has ended. -1: there is no such descriptor.
  StatusOr<uint64_t> RankAttached(uint64_t job, uint32_t rank, uint64_t from,
                                  int cursor_fd, int pidfd);
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
  // Fails as JobOpened does; any thread.
  Status WeightsChanged(uint64_t job, const WeightsChange& change);

  void Completed(uint64_t job, uint64_t position, uint64_t next);
  void HandedOver(uint64_t job, uint32_t rank, uint64_t step);
  void Opened(uint64_t job, uint64_t position);

  // See StreamRecord.
  Status ProducerJoined(uint64_t job, const StreamLedger& before,
                        const StreamLedger::Producer& producer, int memory,
                        int pidfd);
  void RowsPut(uint64_t job, uint32_t producer, uint64_t ring_position,
               uint64_t rows, uint64_t first);
  void ProducerLeft(uint64_t job, uint32_t producer, bool finished);
  void RowsReleased(uint64_t job, uint64_t row);
  Status RetainedOpened(uint64_t job, uint64_t rows, int memory);
  void RowsMoved(uint64_t job, uint64_t row,
                 const std::vector<StreamLedger::Chunk>& needed);

  // As JournalWriter's.
  void Flush() { writer_->Flush(); }
  void Tick() { writer_->Tick(); }
  bool WantsTick() const { return writer_->WantsTick(); }
  std::string Trouble() const { return writer_->Trouble(); }

 private:
  RecoveryJournal() = default;
  // Both apply and put the record; RecordOrRefuse only if it can be recorded.
  void Record(const StateRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status RecordOrRefuse(const StateRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // nullptr: there is no such job, or it is no stream.
  StreamLedger* LedgerOf(uint64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rank has ended: keeps its pidfd while that is needed.
  void LetGo(const RecordedJob& job, uint64_t attach, const RecordedRank& rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the rank's descriptors from the store.
  void UnstoreRank(uint64_t job, uint64_t attach)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records the job's end, and removes its descriptors from the store.
  void End(uint64_t job, const StateRecord& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the rank what the store kept of it.
  void TakeStored(uint64_t job, uint64_t attach, RecordedRank* rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<FormerStream> TakeStream(const RecordedJob& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  RecoveryState state_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Fd> stored_ ABSL_GUARDED_BY(mutex_);  // until TakeJobs
  // Last: its thread reads the state.
  std::unique_ptr<JournalWriter> writer_;
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_RECOVERY_JOURNAL_H_
