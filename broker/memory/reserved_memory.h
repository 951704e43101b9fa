// The memory that this broker has promised, by user, and its limits.
//
// Thread safe. Shared: a job or a dataset may outlive the table of jobs.
#ifndef BROKER_MEMORY_RESERVED_MEMORY_H_
#define BROKER_MEMORY_RESERVED_MEMORY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "broker/base/mutex.h"
#include "broker/memory/available_memory.h"
#include "common/status.h"

namespace penstock {

class ReservedMemory;

// Memory of a user, counted until this object goes.
class MemoryReservation {
 public:
  MemoryReservation() = default;  // of nothing
  MemoryReservation(std::shared_ptr<ReservedMemory> all, uint32_t uid)
      : all_(std::move(all)), uid_(uid) {}
  ~MemoryReservation();
  MemoryReservation(MemoryReservation&& other) noexcept { Swap(&other); }
  MemoryReservation& operator=(MemoryReservation&& other) noexcept {
    Swap(&other);
    return *this;
  }

  // Call before taking bytes more. ResourceExhausted: they are not left. Counts
  // up to twice as much, so that many small steps are cheap.
  Status Grow(uint64_t bytes);
  // What is kept in the end: no more than that is counted.
  Status Settle(uint64_t bytes);
  // As Grow, for bytes whose pages come later (Populated).
  Status GrowUnpopulated(uint64_t bytes);
  // So many bytes more have pages now: the machine's free memory shows them.
  void Populated(uint64_t bytes);
  // Its job has ended: it goes when workers have noticed and the pages are
  // unmapped.
  void WillReturn();

 private:
  friend class ReservedMemory;
  void Swap(MemoryReservation* other) noexcept;

  std::shared_ptr<ReservedMemory> all_;
  uint32_t uid_ = 0;
  // Guarded by all_->mutex_:
  uint64_t bytes_ = 0;        // counted
  uint64_t used_ = 0;         // of them
  uint64_t unpopulated_ = 0;  // of them
  bool returning_ = false;
};

class ReservedMemory : public std::enable_shared_from_this<ReservedMemory> {
 public:
  struct Limits {
    std::optional<uint64_t> bytes;         // of all users together
    std::optional<uint64_t> bytes_of_uid;  // of each
  };
  void SetLimits(const Limits& limits);
  Limits limits() const;

  // Those of all users.
  uint64_t bytes() const;
  // Memory left for this user, and the limit that says so.
  AvailableMemory AvailableFor(uint32_t uid) const;

  // Counts bytes of uid, whatever the limits. So two jobs that open at once
  // cannot both take the same bytes: each counts first and then checks what was
  // taken before.
  struct Taken {
    uint64_t before = 0;  // in all
    uint64_t before_of_uid = 0;
    uint64_t before_unpopulated = 0;  // the machine's free memory has it yet
    MemoryReservation reservation;
  };
  Taken Take(uint32_t uid, uint64_t bytes, uint64_t unpopulated = 0);

  // How often memory of jobs that have ended has returned.
  uint64_t returns() const;
  // Waits until that is no longer *returns, and updates it. False: no bytes
  // will return, it took until `latest`, or `cancel` was set.
  bool AwaitReturn(uint64_t* returns,
                   std::chrono::steady_clock::time_point latest,
                   const std::atomic<bool>& cancel);

 private:
  friend class MemoryReservation;
  void Add(MemoryReservation* to, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Subtract(MemoryReservation* from, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  AvailableMemory Left(uint32_t uid, AvailableMemory room) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Limits limits_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unpopulated_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, uint64_t> bytes_of_ ABSL_GUARDED_BY(mutex_);
  CondVar returned_;
  uint64_t returning_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t returns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
#endif  // BROKER_MEMORY_RESERVED_MEMORY_H_
