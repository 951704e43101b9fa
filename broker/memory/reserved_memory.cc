#include "broker/memory/reserved_memory.h"

#include <algorithm>
#include <utility>

#include "broker/base/text.h"

namespace penstock {

void ReservedMemory::SetLimits(const Limits& limits) {
  MutexLock lock(&mutex_);
  limits_ = limits;
}

ReservedMemory::Limits ReservedMemory::limits() const {
  MutexLock lock(&mutex_);
  return limits_;
}

uint64_t ReservedMemory::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

AvailableMemory ReservedMemory::Left(uint32_t uid, AvailableMemory room) const {
  room.bytes -= std::min(room.bytes, unpopulated_);
  const auto limit = [&room](const std::optional<uint64_t>& bytes,
                             uint64_t used, const char* name) {
    if (!bytes) return;
    const uint64_t left = *bytes - std::min(*bytes, used);
    if (left < room.bytes) room = {left, name};
  };
  limit(limits_.bytes, bytes_, "the broker's memory_limit");
  const auto of_uid = bytes_of_.find(uid);
  limit(limits_.bytes_of_uid, of_uid == bytes_of_.end() ? 0 : of_uid->second,
        "memory_limit_per_user");
  return room;
}

AvailableMemory ReservedMemory::AvailableFor(uint32_t uid) const {
  AvailableMemory room = FindAvailableMemory(SystemFiles{});
  MutexLock lock(&mutex_);
  return Left(uid, std::move(room));
}

void ReservedMemory::Add(MemoryReservation* to, uint64_t bytes) {
  to->bytes_ += bytes;
  bytes_ += bytes;
  bytes_of_[to->uid_] += bytes;
}

void ReservedMemory::Subtract(MemoryReservation* from, uint64_t bytes) {
  from->bytes_ -= bytes;
  bytes_ -= bytes;
  const auto of_uid = bytes_of_.find(from->uid_);
  if (of_uid == bytes_of_.end()) return;
  if ((of_uid->second -= bytes) == 0) bytes_of_.erase(of_uid);
}

ReservedMemory::Taken ReservedMemory::Take(uint32_t uid, uint64_t bytes,
                                           uint64_t unpopulated) {
  Taken taken;
  taken.reservation = MemoryReservation(shared_from_this(), uid);
  MutexLock lock(&mutex_);
  taken.before = bytes_;
  taken.before_unpopulated = unpopulated_;
  Add(&taken.reservation, bytes);
  taken.before_of_uid = bytes_of_[uid] - bytes;
  taken.reservation.used_ = bytes;
  taken.reservation.unpopulated_ = unpopulated;
  unpopulated_ += unpopulated;
  return taken;
}

uint64_t ReservedMemory::returns() const {
  MutexLock lock(&mutex_);
  return returns_;
}

bool ReservedMemory::AwaitReturn(uint64_t* returns,
                                 std::chrono::steady_clock::time_point latest,
                                 const std::atomic<bool>& cancel) {
  MutexLock lock(&mutex_);
  while (returns_ == *returns) {
    if (returning_ == 0 || cancel.load() ||
        std::chrono::steady_clock::now() >= latest) {
      return false;
    }
    returned_.WaitFor(&mutex_, std::chrono::milliseconds(100));
  }
  *returns = returns_;
  return true;
}

MemoryReservation::~MemoryReservation() {
  if (all_ == nullptr) return;
  MutexLock lock(&all_->mutex_);
  all_->unpopulated_ -= unpopulated_;
  all_->Subtract(this, bytes_);
  if (!returning_) return;
  --all_->returning_;
  ++all_->returns_;
  all_->returned_.NotifyAll();
}

void MemoryReservation::Swap(MemoryReservation* other) noexcept {
  std::swap(all_, other->all_);
  std::swap(uid_, other->uid_);
  std::swap(bytes_, other->bytes_);
  std::swap(used_, other->used_);
  std::swap(unpopulated_, other->unpopulated_);
  std::swap(returning_, other->returning_);
}

Status MemoryReservation::Grow(uint64_t bytes) {
  // A look at the machine's memory costs as much as indexing dozens of records.
  constexpr uint64_t kAheadMax = uint64_t{1} << 20;
  {
    MutexLock lock(&all_->mutex_);
    if (bytes <= bytes_ - used_) {
      used_ += bytes;
      return OkStatus();
    }
  }
  AvailableMemory room = FindAvailableMemory(SystemFiles{});
  MutexLock lock(&all_->mutex_);
  room = all_->Left(uid_, std::move(room));
  const uint64_t more = bytes - std::min(bytes, bytes_ - used_);
  if (more > room.bytes) {
    return ResourceExhaustedError("needs {} in memory, only {} are left by {}",
                                  BytesText(used_ + bytes),
                                  BytesText(room.bytes + bytes_), room.limit);
  }
  const uint64_t ahead = std::min({bytes_, kAheadMax, room.bytes - more});
  used_ += bytes;
  all_->Add(this, more + ahead);
  return OkStatus();
}

Status MemoryReservation::Settle(uint64_t bytes) {
  uint64_t used = 0;
  {
    MutexLock lock(&all_->mutex_);
    used = used_;
  }
  if (bytes > used) PENSTOCK_RETURN_IF_ERROR(Grow(bytes - used));
  MutexLock lock(&all_->mutex_);
  all_->Subtract(this, bytes_ - bytes);
  used_ = bytes;
  return OkStatus();
}

Status MemoryReservation::GrowUnpopulated(uint64_t bytes) {
  PENSTOCK_RETURN_IF_ERROR(Grow(bytes));
  MutexLock lock(&all_->mutex_);
  unpopulated_ += bytes;
  all_->unpopulated_ += bytes;
  return OkStatus();
}

void MemoryReservation::Populated(uint64_t bytes) {
  MutexLock lock(&all_->mutex_);
  bytes = std::min(bytes, unpopulated_);
  unpopulated_ -= bytes;
  all_->unpopulated_ -= bytes;
}

void MemoryReservation::WillReturn() {
  MutexLock lock(&all_->mutex_);
  if (!std::exchange(returning_, true)) ++all_->returning_;
}

}  // namespace penstock
