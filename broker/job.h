// A job: one dataset being consumed by the ranks of one training run.
//
// Holds the segment, a feed per local rank and the counters; hands rows to
// workers and finished shares to the ranks. Thread safe: the control thread
// attaches and detaches, every worker claims and finishes. One mutex, taken per
// chunk of rows and per wake, never per sample.
#ifndef BROKER_JOB_H_
#define BROKER_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "broker/dataset.h"
#include "broker/feed.h"
#include "broker/mutex.h"
#include "broker/plan.h"
#include "common/message.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// Who a job belongs to and what its ranks must agree on.
struct JobKey {
  uint32_t uid = 0;
  std::string name;
  std::string dataset;
  auto operator<=>(const JobKey&) const = default;
};

struct JobOptions {
  DatasetSpec spec;
  uint32_t world_size = 1;
  uint32_t local_world_size = 1;
  bool repeat_first = false;  // one batch is made, the ranks repeat it
};

// Rows of one share that one worker makes. Empty: share == nullptr.
struct Claim {
  Share* share = nullptr;
  uint64_t begin = 0;  // rows of the share
  uint64_t end = 0;
};

class Job {
 public:
  // How many bytes of segment and what shape the options need of this dataset.
  // Errors: what Plan::Make and PlanSegment refuse.
  struct Layout {
    Plan plan;
    SegmentPlan segment;
    uint32_t slots_per_seat;
    uint64_t row_bytes;
  };
  static StatusOr<Layout> PlanLayout(const JobOptions& options,
                                     const Dataset& dataset);

  // memory is the promise of the segment's bytes, kept as long as the segment.
  Job(JobKey key, JobOptions options, std::shared_ptr<const Dataset> dataset,
      Layout layout, std::unique_ptr<Segment> segment,
      std::shared_ptr<void> memory, uint32_t workers);

  const JobKey& key() const { return key_; }
  const JobOptions& options() const { return options_; }
  const Dataset& dataset() const { return *dataset_; }
  const Plan& plan() const { return layout_.plan; }
  const Segment& segment() const { return *segment_; }

  // ---- the control thread's
  // ---------------------------------------------------

  // Takes a seat for rank. AlreadyExists: the rank is attached, or was and left
  // before its end. ResourceExhausted: no seat is left. *seat is its number.
  Status Attach(uint32_t rank, Mapping cursor, int wake_socket, uint32_t* seat);
  // Whether this rank took everything and left: its next attach opens a new
  // incarnation of the job.
  bool Finished(uint32_t rank) const;
  bool HasAttached() const;
  void Detach(uint32_t seat);
  // No rank is attached and no worker writes: nothing refers to the segment.
  bool Abandoned() const;
  // A rank sent a wake, or slots became usable.
  void Advance();
  // As many slots of every seat are populated.
  void SetUsableSlots(uint32_t slots);
  uint32_t slots_per_seat() const { return layout_.slots_per_seat; }
  void Fail(const Status& status);
  void Shutdown();
  nlohmann::json StatusJson(bool with_ranks) const;

  // ---- workers'
  // ---------------------------------------------------------------

  // Quick look without the lock: a claim may succeed.
  bool MayHaveWork() const {
    // Relaxed: a hint; who sleeps on it is woken after it was set.
    return claimable_.load(std::memory_order_relaxed);
  }
  Claim ClaimRows();
  // rows of the share are done (each once); the last publishes it.
  void FinishRows(Share* share, uint64_t rows);
  // row is left out or was replaced (on_error), text names file and reason.
  void LeaveOut(Share* share, uint64_t row, const std::string& text);
  void CountSubstitute(const std::string& text);

  // What workers did for this job, for fairness and status.
  struct Counters {
    std::atomic<uint64_t> rows{0};
    std::atomic<uint64_t> rows_skipped{0};
    std::atomic<uint64_t> rows_substituted{0};
    std::atomic<uint64_t> bytes_read{0};
    std::atomic<uint64_t> read_wait_ns{0};
    std::atomic<uint64_t> decode_ns{0};
    std::atomic<uint64_t> decoded{0};  // rows that decode_ns was spent on
  };
  Counters& counters() { return counters_; }
  // CPU time the job got, in ns; the pool serves the job with the least first.
  std::atomic<uint64_t> virtual_time_ns{0};

  // Called, with the job's lock held, when rows are claimable that were not.
  // Set before the first Attach.
  void SetOnWork(std::function<void()> on_work) {
    on_work_ = std::move(on_work);
  }
  // Called, with the job's lock held, when Advance stopped before it was
  // through: it must be called again, soon. Set before the first Attach.
  void SetOnMore(std::function<void()> on_more) {
    on_more_ = std::move(on_more);
  }
  // Nobody will take what is being made: a worker need not make it.
  bool Pointless() const {
    // Relaxed: seen late, a few rows too many are made.
    return pointless_.load(std::memory_order_relaxed);
  }

 private:
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishLocked(Feed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Feed& FeedOf(const Share& share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyAttached() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ChunkRowsNow() const;
  void FailIfNothingIsReadable(uint64_t rows_done);
  Share* OldestClaimable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobKey key_;
  const JobOptions options_;
  const std::shared_ptr<const Dataset> dataset_;
  const Layout layout_;
  const bool keep_shape_;  // last: pad
  const std::shared_ptr<void> memory_;
  const std::unique_ptr<Segment> segment_;
  const uint64_t chunk_rows_;
  std::function<void()> on_work_ = [] {};
  std::function<void()> on_more_ = [] {};

  mutable Mutex mutex_;
  std::vector<Feed> feeds_ ABSL_GUARDED_BY(mutex_);
  uint32_t seats_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  Status failure_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> claimable_{false};
  std::atomic<bool> pointless_{false};
  Counters counters_;
};

// "3.2 GiB"
std::string BytesText(uint64_t bytes);

}  // namespace penstock
#endif  // BROKER_JOB_H_
