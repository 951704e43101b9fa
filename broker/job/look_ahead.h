// Fetches what the next rows of a job read from object stores, in the order of
// the plan, before workers claim them.
//
// The plan tells every row that is ever read, so this is no guess. A thread of
// its own, which ends at once if the first rows read nothing remote.
#ifndef BROKER_JOB_LOOK_AHEAD_H_
#define BROKER_JOB_LOOK_AHEAD_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "broker/io/remote_file.h"
#include "broker/job/bottleneck.h"
#include "broker/job/dataset.h"
#include "broker/plan/plan.h"

namespace penstock {

class LookAhead {
 public:
  // Rows that are held, or not remote.
  static constexpr uint64_t kRowsMax = 1 << 16;

  using PlanNow = std::function<std::shared_ptr<const Plan>()>;

  // plan_now: the plan of the rows, which may change; outlives this. behind:
  // rows so far before the last claimed one are of batches that were given up.
  LookAhead(std::shared_ptr<const Dataset> dataset, uint64_t position,
            uint64_t behind, PlanNow plan_now);
  ~LookAhead();

  // How far ahead it is, and what the rows that it has come to needed.
  struct Use {
    uint64_t bytes = 0;          // in object stores
    uint64_t fetched_bytes = 0;  // asked of them: the rest was in copies
    double bytes_per_s = 0;      // both, of the last seconds
    double fetched_bytes_per_s = 0;
    uint64_t rows_ahead = 0;  // unclaimed, before the first that is not there
    double rows_per_s = 0;    // claimed, of the last seconds

    // {"bytes", ...}: `remote` of a status.
    nlohmann::json ToJson() const;
  };
  // nullopt: nothing of what it has come to is in an object store.
  std::optional<Use> use() const;

  // A worker has made the rows from one position to the other.
  void Made(uint64_t begin, uint64_t end);
  // A worker has claimed rows up to this position.
  void Claimed(uint64_t position) {
    // Relaxed: a late view fetches late.
    if (position > claimed_.load(std::memory_order_relaxed)) {
      claimed_.store(position, std::memory_order_relaxed);
    }
  }

 private:
  struct Part {
    RemoteFile* file;
    RemoteFile::Range range;
  };
  struct Row {
    uint64_t position = 0;
    std::vector<Part> parts;  // held; none: it was made
    uint64_t bytes = 0;
    // What it waits for; nullptr: all was there.
    std::shared_ptr<FetchWait> wait;
  };

  void Run();
  void Forget(uint64_t claimed);
  static void Release(Row* row);
  void Settle();
  void Note(uint64_t claimed);
  bool Extend(const Plan& plan, uint64_t claimed);
  void Add(uint64_t record, Row* row);

  const std::shared_ptr<const Dataset> dataset_;
  const uint64_t behind_;
  const PlanNow plan_now_;
  const std::shared_ptr<FetchSignal> signal_;
  std::atomic<uint64_t> claimed_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> ended_{false};  // nothing is remote
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::pair<uint64_t, uint64_t>> made_;
  Use use_;
  // Only the thread has these.
  uint64_t next_;  // position
  bool remote_ = false;
  uint64_t ahead_bytes_ = 0;  // as of a file of the last rows
  std::deque<Row> rows_;      // of positions without a gap
  size_t passed_ = 0;         // of them, at the front: claimed
  size_t settled_ = 0;        // of them, at the front
  uint64_t bytes_ = 0;        // of those that are not claimed
  uint64_t coming_ = 0;       // bytes of those that are not settled
  // For use_: what has been located and asked for; the last Note.
  uint64_t needed_bytes_ = 0;
  uint64_t asked_bytes_ = 0;
  uint64_t noted_ns_ = 0;
  uint64_t noted_claimed_ = 0;
  RecentMean rows_per_s_;
  RecentMean needed_per_s_;
  RecentMean asked_per_s_;
  Shuffles shuffles_;
  ReadRequest request_;
  std::vector<Plan::Row> of_plan_;
  std::vector<Piece> pieces_;
  std::thread thread_;
};

}  // namespace penstock
#endif  // BROKER_JOB_LOOK_AHEAD_H_
