#include "broker/cache/row_cache.h"

#include "broker/base/log.h"

namespace penstock {

RowCache::RowCache(uint64_t records, const RawSpec& features)
    : records_(records),
      format_(features),
      places_(new std::atomic<uint64_t>[records]()) {}

std::optional<RowCache::Place> RowCache::Find(uint64_t record) const {
  const uint64_t word = places_[record].load(std::memory_order_acquire);  // C1
  return word > kFailed ? std::optional(PlaceOf(word)) : std::nullopt;
}

void RowCache::Put(uint64_t record, const RawRecord& made,
                   CacheScratch* scratch) {
  if (!format_.Bytes(made)) return Fail(record);  // too large
  std::atomic<uint64_t>& word = places_[record];
  uint64_t expected = kNone;
  // Relaxed: nothing is read that another worker has written.
  if (word.load(std::memory_order_relaxed) != kNone ||
      !word.compare_exchange_strong(expected, kBusy,
                                    std::memory_order_relaxed)) {
    return;
  }
  const std::optional<Place> place = Write(record, made, scratch);
  if (!place) {
    word.store(kNone, std::memory_order_relaxed);
    return;
  }
  CountEntry(*place);
  word.store(WordOf(*place), std::memory_order_release);  // C1
  Placed(record, WordOf(*place));
}

void RowCache::NoteDamage(uint64_t record, const Status& status, bool forget) {
  // Relaxed: it publishes nothing.
  if (forget && places_[record].exchange(forgotten(),
                                         std::memory_order_relaxed) > kFailed) {
    entries_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (damage_told_.exchange(true, std::memory_order_relaxed)) return;
  Log<"cache-damaged">(where(), record, status.message());
}

}  // namespace penstock
