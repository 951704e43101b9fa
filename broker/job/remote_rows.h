// Rows of a job whose first steps of `map` other hosts run, ahead of the
// workers that need them.
//
// A worker that comes to a row takes what has been made of it, checks a copy of
// it, and runs the rest of `map`. Whatever has not come by then it makes
// itself, at once: nobody waits for another host, and what other hosts do, or
// fail to do, decides neither order nor delivery nor errors.
//
// The rows lie in a memfd that this makes and seals, and that `penstock link`
// writes. It is not trusted: rows are read by pread, never mapped, and count by
// the checksum of the copy. A place in it is asked for again only after the
// link has said that it is done with it; another link gets another memfd.
//
// Who runs it: the control thread, which asks and hears; workers, which take,
// read and free, once per claim but for Read.
//
// Invariants
//   1. a place is free, or belongs to one row: asked, here, or in use by one
//      worker;
//   2. a place of an ask that is not over is never free;
//   3. a row is in the index only while its place is asked or here.
#ifndef BROKER_JOB_REMOTE_ROWS_H_
#define BROKER_JOB_REMOTE_ROWS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/job/dataset.h"
#include "broker/job/steps_of_makers.h"
#include "broker/plan/plan.h"
#include "broker/source/source.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class RemoteRows {
 public:
  static constexpr uint32_t kNoPlace = UINT32_MAX;
  static constexpr uint64_t kBytesMax = uint64_t{128} << 20;  // of the memfd
  static constexpr uint32_t kPlacesMax = 4096;
  static constexpr uint64_t kAskBytesMax = uint64_t{1} << 20;
  static constexpr uint32_t kAskRowsMax = 32;
  static constexpr uint32_t kAsksMax = 1024;  // at once
  // One of so many rows of each maker, drawn so that it cannot foresee which,
  // is made here, too, and compared; and all before the first that agrees.
  static constexpr uint64_t kCheckedOneIn = 256;

  // position: at which the job begins. Its dataset IsForMakers.
  RemoteRows(std::shared_ptr<const Dataset> dataset, uint64_t position);

  // How a row lies at its place.
  struct Form {
    ElementSpec features;           // what the first steps make
    std::vector<uint64_t> offsets;  // by feature
    uint64_t row_bytes = 0;
    uint32_t places = 0;
    uint32_t rows_of_ask = 0;  // at most
  };
  const Form& form() const { return form_; }
  // nullptr: they are not chosen, or there are none.
  const StepsOfMakers* steps() const { return steps_.get(); }

  // ---- the control thread

  // Once, when the first link comes: false is for those who come later.
  bool MayChooseSteps() { return !std::exchange(steps_are_chosen_, true); }
  // Before Begin. nullptr: there are none.
  void SetSteps(std::shared_ptr<const StepsOfMakers> steps);

  // A link makes rows from now on, so many asks at once. Its memory, which
  // stays this object's. Errors: those of reserve, which is asked for the bytes
  // of the first link's.
  StatusOr<int> Begin(uint32_t asks,
                      const std::function<Status(uint64_t)>& reserve);
  void SetAsks(uint32_t asks);
  // It makes no more. Rows that workers have in use stay readable.
  void End();
  bool begun() const { return begun_.load(std::memory_order_relaxed); }

  struct Row {
    uint64_t record = 0;
    uint64_t pass = 0;
    uint32_t place = 0;
  };
  struct Ask {
    uint64_t number = 0;
    std::vector<Row> rows;
  };
  // What may be asked for: rows of these ranks of the plan, before this
  // position.
  struct Wanted {
    std::vector<uint32_t> ranks;
    uint64_t end = UINT64_MAX;
    bool ranks_wait = false;  // all that makers can make; else the shortfall
  };
  // nullopt: nothing is wanted that local workers would not have made as soon,
  // or there is no room, or the link has enough.
  std::optional<Ask> Next(const Plan& plan, const Wanted& wanted);
  // Another ask may be made.
  bool hungry() const { return hungry_.load(std::memory_order_relaxed); }
  // The ask is over: rows are [place, checksum] of those that were made. The
  // checksum is CRC-32C of record, pass (uint64 each) and the row's bytes.
  // InvalidArgument: no such ask, or a place that is none of its.
  Status Made(uint64_t ask, const std::string& maker,
              std::span<const uint64_t> rows);
  // What workers of this host have done for the job since it began.
  struct Local {
    uint64_t rows = 0;  // made, those of other hosts finished included
    uint64_t ns = 0;    // in which they were made
    uint32_t workers = 1;
  };
  // Called with each tick: rows so far before the last claimed one are let go
  // if nobody took them.
  void Tick(uint64_t behind, const Local& local);
  // Makers whose rows differed from those made here since the last call, and
  // the first record that did.
  std::vector<std::pair<std::string, uint64_t>> TakeDistrusted();
  // null: no link has ever come.
  nlohmann::json StatusJson() const;

  // ---- workers

  // Rows up to this position are claimed.
  void Claimed(uint64_t position) {
    // Relaxed: a late view asks for rows that are late.
    if (position > claimed_.load(std::memory_order_relaxed)) {
      claimed_.store(position, std::memory_order_relaxed);
    }
  }
  // What a row of a claim has at its place, which is the claim's until Free.
  struct Head {
    uint32_t place = kNoPlace;  // kNoPlace: it is not here
    uint32_t crc = 0;
    bool checked = false;  // it is to be made here as well, and compared
  };
  // The heads of a claim's rows; none: of no row.
  struct Heads {
    std::shared_ptr<const Fd> memory;
    std::vector<Head> of_rows;
  };
  Heads Take(std::span<const Plan::Row> rows);
  // Copies what the head's place has, and points *made at its features.
  // DataLoss: it is not what its maker made of this row.
  Status Read(const Heads& heads, const Head& head, const Plan::Row& row,
              std::vector<std::byte>* bytes, RawRecord* made);
  // The row of a head that is checked is the one that this host made; or it, or
  // any head, is of no use.
  void Agrees(const Head& head);
  void Differs(const Head& head, uint64_t record);
  void Free(const Heads& heads);

 private:
  struct Key {
    uint64_t record = 0;
    uint64_t pass = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  enum class State : uint8_t { kFree, kAsked, kLate, kHere, kInUse };
  struct Place {
    State state = State::kFree;
    bool checked = false;
    uint32_t crc = 0;
    uint32_t maker = 0;
    Key key;
    uint64_t position = 0;
  };
  struct Asked {
    uint64_t asked_ns = 0;
    std::vector<uint32_t> places;
  };
  struct Maker {
    std::string name;
    uint64_t rows = 0;
    uint64_t bytes = 0;
    uint64_t checked = 0;  // that agreed; until one has, all are checked
    bool distrusted = false;
  };
  void FreeLocked(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t MakerLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double ShareLocked(bool ranks_wait) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t LeadLocked(bool ranks_wait) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const Dataset> dataset_;  // its program may be theirs
  // Workers have them since Take gave them heads.
  std::shared_ptr<const StepsOfMakers> steps_;
  Form form_;
  uint64_t check_key_ = 0;
  std::atomic<uint64_t> claimed_;
  std::atomic<bool> begun_{false};
  std::atomic<bool> hungry_{false};
  // Shown.
  std::atomic<uint64_t> damaged_rows_{0};
  std::atomic<uint64_t> wanted_rows_{0};

  // Only the control thread has these.
  bool steps_are_chosen_ = false;
  uint64_t next_ = 0;  // position
  double due_ = 0;     // rows that makers should have got of those before it
  uint64_t noted_ns_ = 0;
  uint64_t noted_claimed_ = 0;
  Local noted_;
  uint64_t noted_used_ = 0;
  Shuffles shuffles_;
  std::vector<Plan::Row> of_plan_;

  mutable Mutex mutex_;
  std::shared_ptr<const Fd> memory_ ABSL_GUARDED_BY(mutex_);
  uint64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t asks_max_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_ask_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Asked> asks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Place> places_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<Key, uint32_t, KeyHash> index_ ABSL_GUARDED_BY(mutex_);
  std::vector<Maker> makers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, uint64_t>> distrusted_
      ABSL_GUARDED_BY(mutex_);
  double rows_per_s_ ABSL_GUARDED_BY(mutex_) = 0;  // claimed, of all hosts
  // Rows of the plan for each that is of this host's ranks.
  double spread_ ABSL_GUARDED_BY(mutex_) = 1;
  // That workers of this host make while they do.
  double local_rows_per_s_ ABSL_GUARDED_BY(mutex_) = 0;
  double answer_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // of an ask
  // For people.
  uint64_t lead_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t asked_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t made_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t used_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t late_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lost_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unused_rows_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The spec of a dataset whose rows are what the first steps of `map` make of
// this one's, asked for by number (`asked`), for another host. rows: of a
// batch.
nlohmann::ordered_json SpecForMakers(const DatasetSpec& spec, size_t steps,
                                     uint32_t rows);

}  // namespace penstock
#endif  // BROKER_JOB_REMOTE_ROWS_H_
