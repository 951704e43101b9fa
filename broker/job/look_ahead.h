// Fetches what the next rows of a job read from object stores, in the order of
// the plan, before workers claim them: those of the ranks of this host.
//
// The plan tells every row that is ever read, so this is no guess. A thread of
// its own, which ends at once if the first rows read nothing remote.
#ifndef BROKER_JOB_LOOK_AHEAD_H_
#define BROKER_JOB_LOOK_AHEAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
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

// Positions of a plan.
struct Positions {
  uint64_t begin = 0;
  uint64_t end = 0;
};
// The next rows of these ranks of the plan, in order, from a position on: so
// many of one step at most; none are left in it: its end.
Positions NextRowsOf(const std::vector<uint32_t>& ranks, const Plan& plan,
                     uint64_t next, uint64_t most);

class LookAhead {
 public:
  // Rows that are held, or not remote.
  static constexpr uint64_t kRowsMax = 1 << 16;

  using PlanNow = std::function<std::shared_ptr<const Plan>()>;

  // plan_now: the plan of the rows, which may change but for its steps and
  // ranks; outlives this. behind: rows so far before the last claimed one are
  // of batches that were given up.
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

  // Whose rows are read here, of the plan's ranks, in order; at first nobody's.
  // Those that come begin with the first row that is not claimed. What is held
  // for one that goes is held until others pass it: it may come back.
  void SetRanks(std::vector<uint32_t> ranks);
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
  // Ranges that rows share, held until the last of them is made.
  struct Shared {
    std::shared_ptr<FetchWait> wait;
    HeldRanges held;
  };
  struct Row {
    std::vector<Part> parts;  // held
    std::vector<std::shared_ptr<Shared>> shared;
    uint64_t bytes = 0;  // of ranges that rows share: of the first one
    // What it waits for; nullptr: all is there, or cannot come.
    std::shared_ptr<FetchWait> wait;

    bool local() const { return parts.empty() && shared.empty(); }
  };
  using Rows = std::map<uint64_t, Row>;  // by position
  enum class More : uint8_t { kYes, kNotNow, kNever };

  void Run();
  void Follow(uint64_t claimed);
  void Forget(uint64_t claimed);
  Rows::iterator Erase(Rows::iterator row);
  void Settle();
  void Note(uint64_t claimed);
  More Extend(const Plan& plan, uint64_t claimed);
  void Add(uint64_t record, Row* row);
  void AddShared(uint64_t record, Row* row);

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
  std::optional<std::vector<uint32_t>> ranks_now_;  // not followed yet
  Use use_;
  // Only the thread has these.
  std::vector<uint32_t> ranks_;
  uint64_t next_;         // position
  uint64_t located_ = 0;  // rows
  bool remote_ = false;
  uint64_t ahead_bytes_ = 0;  // as of a file of the last rows
  Rows rows_;                 // not made yet
  // By file and group; those that have ended until the next of the group.
  std::map<std::pair<const RemoteFile*, uint64_t>, std::weak_ptr<Shared>>
      shared_;
  uint64_t passed_;       // position: those before it are claimed
  uint64_t settled_ = 0;  // position: those before it wait for nothing
  uint64_t bytes_ = 0;    // of those that are not claimed
  uint64_t coming_ = 0;   // of those that wait
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
