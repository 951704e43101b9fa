// A cache in the broker's own memory. It is gone with the last dataset that
// uses it.
//
// Room is taken from the beginning to the end, lock-free. Memory gets its pages
// in steps, and only while the machine has more: a worker that comes while
// another looks keeps nothing this time.
#ifndef BROKER_CACHE_MEMORY_CACHE_H_
#define BROKER_CACHE_MEMORY_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "broker/cache/row_cache.h"
#include "broker/memory/available_memory.h"
#include "common/status.h"

namespace penstock {

// Memory that was promised, and gets its pages little by little. Any thread.
class MemoryPromise {
 public:
  virtual ~MemoryPromise() = default;
  // So much more of it has them now.
  virtual void Populated(uint64_t bytes) = 0;
};

class MemoryCache : public RowCache {
 public:
  // Called before it grows.
  using Available = std::function<AvailableMemory()>;

  // What all records take, or the most that a cache can have.
  static uint64_t BytesFor(uint64_t records, const RawSpec& features);

  // bytes: of the entries. promise: of these and of the places.
  // ResourceExhausted: the kernel refuses so much.
  static StatusOr<std::unique_ptr<MemoryCache>> Open(
      uint64_t bytes, uint64_t records, const RawSpec& features,
      std::unique_ptr<MemoryPromise> promise,
      Available available = [] { return FindAvailableMemory(SystemFiles{}); });
  ~MemoryCache() override;

  bool is_read() const override { return false; }
  bool Get(uint64_t record, RawRecord* made) const override;
  std::string where() const override { return "in memory"; }
  std::string state() const override;
  uint64_t capacity_bytes() const override { return end_ * kGranule; }

 protected:
  std::optional<Place> Write(uint64_t record, const RawRecord& made,
                             CacheScratch* scratch) override;

 private:
  // What it grows by.
  static constexpr uint64_t kStepBytes = uint64_t{32} << 20;
  // Is left to everything else.
  static constexpr uint64_t kLeftBytes = uint64_t{128} << 20;

  MemoryCache(std::byte* base, uint64_t bytes, uint64_t records,
              const RawSpec& features, std::unique_ptr<MemoryPromise> promise,
              Available available);
  std::optional<uint64_t> Take(uint64_t granules);
  bool Grow(uint64_t end);

  std::byte* const base_;
  const uint64_t end_;  // in granules, as all below
  const std::unique_ptr<MemoryPromise> promise_;
  const Available available_;
  // Relaxed, all: they order nothing, the entry is published by its place.
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> grown_{0};
  std::atomic<bool> growing_{false};
  std::atomic<bool> full_{false};
  std::atomic<bool> stopped_{false};  // the machine has no more memory
};

}  // namespace penstock
#endif  // BROKER_CACHE_MEMORY_CACHE_H_
