// The memory that this broker has promised, by user, and its limits.
//
// Thread safe. Shared: a job or a dataset may outlive the table of jobs.
#ifndef BROKER_REGISTRY_RESERVED_MEMORY_H_
#define BROKER_REGISTRY_RESERVED_MEMORY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "broker/base/mutex.h"
#include "broker/memory/available_memory.h"
#include "common/status.h"

namespace penstock {

class ReservedMemory : public std::enable_shared_from_this<ReservedMemory> {
 public:
  struct Limits {
    std::optional<uint64_t> bytes;         // of all users together
    std::optional<uint64_t> bytes_of_uid;  // of each
  };
  void SetLimits(const Limits& limits);
  Limits limits() const;

  // Of all users.
  uint64_t bytes() const;
  // Memory left for this user, and the limit that says so.
  AvailableMemory AvailableFor(uint32_t uid) const;

  // Counts bytes of uid until the last reference goes, whatever the limits. So
  // two jobs that open at once cannot both take the same bytes: each counts
  // first and then checks what was taken before.
  struct Taken {
    uint64_t before = 0;  // in all
    uint64_t before_of_uid = 0;
    std::shared_ptr<void> bytes;
  };
  Taken Take(uint32_t uid, uint64_t bytes);

  // These bytes, Taken::bytes, are of a job that has ended: they go when its
  // workers have noticed and its pages are unmapped.
  void WillReturn(const void* bytes);
  // How often such bytes have returned.
  uint64_t returns() const;
  // Waits until that is no longer *returns, and updates it. False: no bytes
  // will return, it took until `latest`, or `cancel` was set.
  bool AwaitReturn(uint64_t* returns,
                   std::chrono::steady_clock::time_point latest,
                   const std::atomic<bool>& cancel);

  // Bytes taken and not populated yet, which the machine's free memory does not
  // show.
  std::atomic<uint64_t> unpopulated{0};

 private:
  friend class DatasetMemory;
  struct Reservation {
    uint32_t uid = 0;
    uint64_t bytes = 0;
  };
  void Return(const Reservation* reservation);
  void Add(uint32_t uid, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Subtract(uint32_t uid, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  AvailableMemory Left(uint32_t uid, AvailableMemory room) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Limits limits_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, uint64_t> bytes_of_ ABSL_GUARDED_BY(mutex_);
  CondVar returned_;
  std::set<const void*> returning_ ABSL_GUARDED_BY(mutex_);
  uint64_t returns_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What a dataset keeps in memory beside rows, its index for example: counted as
// it grows, until this object goes. Of the user who opened it first.
class DatasetMemory {
 public:
  DatasetMemory(std::shared_ptr<ReservedMemory> all, uint32_t uid)
      : all_(std::move(all)), uid_(uid) {}
  ~DatasetMemory();
  DatasetMemory(const DatasetMemory&) = delete;
  DatasetMemory& operator=(const DatasetMemory&) = delete;

  // Call before taking bytes more. ResourceExhausted: they are not left. Counts
  // up to twice as much, so that many small steps are cheap.
  Status Grow(uint64_t bytes);
  // What is kept in the end: no more than that is counted.
  Status Settle(uint64_t bytes);

 private:
  const std::shared_ptr<ReservedMemory> all_;
  const uint32_t uid_;
  // Guarded by all_->mutex_:
  uint64_t bytes_ = 0;  // counted
  uint64_t used_ = 0;   // of them
};

}  // namespace penstock
#endif  // BROKER_REGISTRY_RESERVED_MEMORY_H_
