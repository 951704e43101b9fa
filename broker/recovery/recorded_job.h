// What the recovery journal knows of a job and of its ranks' processes. A
// broker keeps these of its own jobs; the next one gets them as former jobs.
//
// Plain data, not thread-safe. Pages are untrusted: their ranks write them.
#ifndef BROKER_RECOVERY_RECORDED_JOB_H_
#define BROKER_RECOVERY_RECORDED_JOB_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "broker/delivery/delivery.h"
#include "broker/job/job_options.h"
#include "broker/recovery/restore.h"
#include "broker/stream/stream.h"
#include "common/fd.h"
#include "common/layout.h"

namespace penstock {

// A process that attached as a rank.
struct RecordedRank {
  uint32_t rank = 0;
  uint64_t from = 0;     // the position of its first batch
  bool left = false;     // it detached cleanly
  uint64_t segment = 0;  // number of its segment; 0: not recorded
  uint64_t bytes = 0;    // of the segment
  // The inode of its page since it counts as dead, though it may live: that
  // identifies it when it reconnects. 0: not evicted.
  uint64_t evicted = 0;
  bool unmapped = false;  // it cannot map the segment; not recorded

  // ---- of a former broker instance, from the descriptor store
  std::shared_ptr<const CursorPage> page;  // nullptr: not stored
  uint64_t inode = 0;                      // of the page; 0: not stored
  std::shared_ptr<Fd> pidfd;               // nullptr: not stored

  // Set if it detached while no broker ran. True: at the end of its data.
  std::optional<bool> LeftUnheard() const;
  // Not known to be dead, did not leave and was not evicted.
  bool MayLive() const;
  // The broker died before it answered: pidfd's process retries its attach.
  bool WasNotAnswered(int pidfd) const;
};

// The process of a pidfd; 0: it is dead, or in a PID namespace not visible
// here.
pid_t PidOf(int pidfd);
// Whether two pidfds are of one process. False if that cannot be told: before
// Linux 6.9, of a process that is not visible here.
bool IsSameProcess(int pidfd, int other);

// A process that may still map a segment though its job is over or has dropped
// it: it was evicted, or has not noticed yet.
struct RecordedMapping {
  uint64_t job = 0;
  uint64_t attach = 0;
  uint32_t uid = 0;
  uint64_t segment = 0;
  uint64_t bytes = 0;
  uint64_t evicted = 0;  // as in RecordedRank
  std::shared_ptr<Fd> pidfd;
};

// A job that has not ended.
struct RecordedJob {
  uint64_t id = 0;
  JobKey key;
  JobOptions options;
  Incarnation incarnation;
  bool named = false;
  Launch launch;
  // The journal lacks records of this job.
  bool incomplete = false;
  uint64_t segment = 0;                    // number of this instance's segment
  uint64_t segment_bytes = 0;              // of the segment its ranks may map
  std::map<uint64_t, RecordedRank> ranks;  // by attach number
  // dynamic: no step from `opened` on was opened. Completed are all positions
  // below `low`, and those in `completed`, which maps to the next position.
  uint64_t opened = 0;
  uint64_t low = 0;
  std::map<uint64_t, uint64_t> completed;
  HandedOverSteps handed_over;
  std::vector<FormerPhase> phases;
  std::optional<StreamLedger> ledger;  // absent: no producer has joined

  // Idempotent: a compacted journal may repeat a completion.
  void Complete(uint64_t position, uint64_t next);
  // Likewise. One at the place of the last replaces it.
  void ChangeWeights(WeightsChange change);
};

// One that a former broker instance left.
struct FormerJob : RecordedJob {
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

}  // namespace penstock
#endif  // BROKER_RECOVERY_RECORDED_JOB_H_
