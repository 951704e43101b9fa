// Writes records so that they survive this process, and never waits for the
// state directory: into the journal's tail (journal_tail.h), memory that
// outlives the process, and from there with a thread of its own into the file
// (journal.h), those of kGatherTime in one write.
//
// Threads: the starting thread calls Open and Start. Any thread calls the rest;
// only the destructor and Flush wait for the writer's thread, which holds no
// mutex while it waits for the file system. After Start only that thread
// touches the state directory. So a hung state directory blocks no other
// thread.
//
// Unwritten records are bounded (kTailBytes). If the state directory refuses
// writes or does not answer until the tail is full, records are lost. The tail
// reports this to the next broker instance (T3), which treats the journal as
// incomplete. Once the directory answers again, a compaction writes all known
// state and ends the loss.
#ifndef BROKER_RECOVERY_JOURNAL_WRITER_H_
#define BROKER_RECOVERY_JOURNAL_WRITER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/recovery/journal.h"
#include "broker/recovery/journal_tail.h"
#include "broker/recovery/recovery_state.h"
#include "common/status.h"

namespace penstock {

// The type of the writer's own record, the last of each write: its boot id, and
// the tail and position where later records begin.
inline constexpr uint8_t kBootRecord = 20;

class JournalWriter {
 public:
  // All that is recorded up to one moment. The moment is Now() of the writer,
  // taken while no record is put.
  struct Moment {
    uint64_t end = 0;     // position in the tail
    uint64_t losses = 0;  // records lost so far
  };
  struct Snapshot {
    std::vector<StateRecord> records;
    Moment moment;
  };

  // Replays what the former broker instance left, in order, and prepares the
  // tail for this one. directory "": nothing is written, and all calls succeed.
  // Errors: those of OpenJournalDirectory and Journal::Open.
  static StatusOr<std::unique_ptr<JournalWriter>> Open(
      const std::string& directory,
      const std::function<void(uint8_t type, std::string_view text)>& replay);
  // snapshot is called by the writer's thread, until the destructor returns.
  void Start(std::function<Snapshot()> snapshot);
  // Waits until all is written, however long the state directory does not
  // answer. Does not wait if it refuses writes.
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // See memory_folder.h; "": there is none.
  const std::string& memory_folder() const { return memory_folder_; }
  // Whether there is a journal, and whether records of the former broker
  // instance are missing.
  bool records() const { return tail_ != nullptr; }
  bool incomplete() const { return incomplete_; }

  // An error means not recorded: the state directory refuses writes, or records
  // are lost.
  Status PutOrRefuse(const StateRecord& record);
  // Puts the record, or notes the loss.
  void Put(const StateRecord& record);
  Moment Now() const;

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
  JournalWriter() = default;
  using Clock = std::chrono::system_clock;  // for messages
  // From the last kBootRecord of the file.
  struct Boot {
    std::string id;      // BootId of the instance that wrote it
    uint64_t token = 0;  // of the tail that continues the file; 0: none
    uint64_t from = 0;   // the position there
  };
  static Boot BootOf(std::string_view text);
  void OpenTail(
      const std::function<void(uint8_t type, std::string_view text)>& replay,
      const JournalReplay& replayed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // written: position up to which the file has the tail's records.
  std::string BootText(uint64_t token, uint64_t written) const;
  bool PutInTail(const StateRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The writer's thread.
  void Write();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for work; false: the thread must end.
  bool BeginRound();
  bool EndRound(const Status& status);
  Status WriteTail();
  // True: it compacted.
  StatusOr<bool> CompactIfWanted();

  enum class Health { kWell, kSilent, kRefuses, kLoses };
  Health health() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string TroubleText() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Set by Open.
  std::string directory_;
  std::string memory_folder_;
  Boot boot_;
  bool incomplete_ = false;

  std::function<Snapshot()> snapshot_;
  std::unique_ptr<Journal> journal_;   // the thread's after Start
  std::unique_ptr<JournalTail> tail_;  // nullptr: no state directory
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar work_;                               // for the thread
  CondVar written_;                            // for Flush
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // the thread waits for work_
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool flush_ ABSL_GUARDED_BY(mutex_) = false;   // Flush waits
  bool check_ ABSL_GUARDED_BY(mutex_) = true;    // check whether to compact
  bool named_ ABSL_GUARDED_BY(mutex_) = false;   // the file names the tail
  uint64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;  // of the thread, done
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;  // records of this instance
  // When the thread's current call began; nullopt: it waits.
  std::optional<Clock::time_point> call_began_ ABSL_GUARDED_BY(mutex_);
  // The last write's error, and since when writes have been refused.
  Status refusal_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point refused_ ABSL_GUARDED_BY(mutex_);
  Health reported_ ABSL_GUARDED_BY(mutex_) = Health::kWell;
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_JOURNAL_WRITER_H_
