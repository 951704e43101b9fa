#include "broker/cache/memory_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "broker/base/log.h"
#include "broker/base/text.h"

namespace penstock {

uint64_t MemoryCache::BytesFor(uint64_t records, const RawSpec& features) {
  const std::optional<uint64_t> entry = EntryFormat(features).fixed_bytes();
  if (!entry || *entry > EntryFormat::kBytesMax) return kBytesMax;
  const uint64_t bytes = GranulesOf(*entry) * kGranule;
  return records > kBytesMax / bytes ? kBytesMax : records * bytes;
}

StatusOr<std::unique_ptr<MemoryCache>> MemoryCache::Open(
    uint64_t bytes, uint64_t records, const RawSpec& features,
    std::unique_ptr<MemoryPromise> promise, Available available) {
  bytes = std::min(GranulesOf(bytes) * kGranule, kBytesMax);
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhaustedError(
        "{} of memory cannot be mapped ({}): make it smaller", BytesText(bytes),
        std::strerror(errno));
  }
  // A child that populates the memory of a job needs none of it.
  madvise(base, bytes, MADV_DONTFORK);
  madvise(base, bytes, MADV_DONTDUMP);
  madvise(base, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<MemoryCache>(
      new MemoryCache(static_cast<std::byte*>(base), bytes, records, features,
                      std::move(promise), std::move(available)));
}

MemoryCache::MemoryCache(std::byte* base, uint64_t bytes, uint64_t records,
                         const RawSpec& features,
                         std::unique_ptr<MemoryPromise> promise,
                         Available available)
    : RowCache(records, features),
      base_(base),
      end_(bytes / kGranule),
      promise_(std::move(promise)),
      available_(std::move(available)) {
  if (promise_ != nullptr) promise_->Populated(PlacesBytes(records));
}

MemoryCache::~MemoryCache() { munmap(base_, end_ * kGranule); }

bool MemoryCache::Get(uint64_t record, RawRecord* made) const {
  const std::optional<Place> place = Find(record);
  return place &&
         format().Read(
             {base_ + place->first * kGranule, place->count * kGranule}, made);
}

std::string MemoryCache::state() const {
  if (stopped_.load(std::memory_order_relaxed)) {
    return "keeps no more: the machine has too little memory left";
  }
  return full_.load(std::memory_order_relaxed) ? "full" : "filling";
}

std::optional<RowCache::Place> MemoryCache::Write(uint64_t,
                                                  const RawRecord& made,
                                                  CacheScratch*) {
  const std::optional<uint64_t> bytes = format().Bytes(made);
  if (!bytes) return std::nullopt;
  const uint64_t granules = GranulesOf(*bytes);
  const std::optional<uint64_t> first = Take(granules);
  if (!first) return std::nullopt;
  format().Write(made, base_ + *first * kGranule);
  return Place{*first, granules};
}

std::optional<uint64_t> MemoryCache::Take(uint64_t granules) {
  uint64_t first = used_.load(std::memory_order_relaxed);
  for (;;) {
    if (granules > end_ - first) {
      full_.store(true, std::memory_order_relaxed);
      return std::nullopt;
    }
    if (first + granules > grown_.load(std::memory_order_relaxed)) {
      if (!Grow(first + granules)) return std::nullopt;
      continue;
    }
    if (used_.compare_exchange_weak(first, first + granules,
                                    std::memory_order_relaxed)) {
      return first;
    }
  }
}

// Past the limit of its control group the broker would be killed.
bool MemoryCache::Grow(uint64_t end) {
  if (stopped_.load(std::memory_order_relaxed) ||
      growing_.exchange(true, std::memory_order_relaxed)) {
    return false;
  }
  const uint64_t grown = grown_.load(std::memory_order_relaxed);
  const uint64_t next =
      std::min(std::max(end, grown + kStepBytes / kGranule), end_);
  bool grows = true;
  if (next > grown) {
    const uint64_t bytes = (next - grown) * kGranule;
    const AvailableMemory room = available_();
    grows = room.bytes >= bytes + kLeftBytes;
    if (grows) {
      if (promise_ != nullptr) promise_->Populated(bytes);
      grown_.store(next, std::memory_order_relaxed);
    } else {
      stopped_.store(true, std::memory_order_relaxed);
      Log<"cache-stopped">(where(), Format("only {} are left by {}",
                                           BytesText(room.bytes), room.limit));
    }
  }
  growing_.store(false, std::memory_order_relaxed);
  return grows;
}

}  // namespace penstock
