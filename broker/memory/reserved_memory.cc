#include "broker/registry/reserved_memory.h"

#include <algorithm>

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
  room.bytes -= std::min(room.bytes, unpopulated.load());
  MutexLock lock(&mutex_);
  return Left(uid, std::move(room));
}

void ReservedMemory::Add(uint32_t uid, uint64_t bytes) {
  bytes_ += bytes;
  bytes_of_[uid] += bytes;
}

void ReservedMemory::Subtract(uint32_t uid, uint64_t bytes) {
  bytes_ -= bytes;
  if ((bytes_of_[uid] -= bytes) == 0) bytes_of_.erase(uid);
}

ReservedMemory::Taken ReservedMemory::Take(uint32_t uid, uint64_t bytes) {
  Taken taken;
  {
    MutexLock lock(&mutex_);
    taken.before = bytes_;
    Add(uid, bytes);
    taken.before_of_uid = bytes_of_[uid] - bytes;
  }
  taken.bytes = {new Reservation{uid, bytes},
                 [all = shared_from_this()](const Reservation* reservation) {
                   all->Return(reservation);
                   delete reservation;
                 }};
  return taken;
}

void ReservedMemory::Return(const Reservation* reservation) {
  MutexLock lock(&mutex_);
  Subtract(reservation->uid, reservation->bytes);
  if (returning_.erase(reservation) == 0) return;
  ++returns_;
  returned_.NotifyAll();
}

void ReservedMemory::WillReturn(const void* bytes) {
  MutexLock lock(&mutex_);
  returning_.insert(bytes);
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
    if (returning_.empty() || cancel.load() ||
        std::chrono::steady_clock::now() >= latest) {
      return false;
    }
    returned_.WaitFor(&mutex_, std::chrono::milliseconds(100));
  }
  *returns = returns_;
  return true;
}

DatasetMemory::~DatasetMemory() {
  MutexLock lock(&all_->mutex_);
  if (bytes_ > 0) all_->Subtract(uid_, bytes_);
}

Status DatasetMemory::Grow(uint64_t bytes) {
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
  room.bytes -= std::min(room.bytes, all_->unpopulated.load());
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
  bytes_ += more + ahead;
  all_->Add(uid_, more + ahead);
  return OkStatus();
}

Status DatasetMemory::Settle(uint64_t bytes) {
  uint64_t used = 0;
  {
    MutexLock lock(&all_->mutex_);
    used = used_;
  }
  if (bytes > used) PENSTOCK_RETURN_IF_ERROR(Grow(bytes - used));
  MutexLock lock(&all_->mutex_);
  all_->Subtract(uid_, bytes_ - bytes);
  bytes_ = used_ = bytes;
  return OkStatus();
}

}  // namespace penstock
