// What the head of `map`, which draws no random numbers, has made of records:
// kept for the next time that they are wanted, whichever job wants them.
//
// Who runs it: all workers at once. Nobody waits for another: a record that is
// being kept is missing until it is whole.
//
// Invariants:
//   1. a record's place is written by the one worker that changed it from kNone
//      to kBusy; and by whoever finds its entry damaged;
//   2. what a place names is written before, and never changes afterwards;
//      nothing is given back before the cache goes.
//
// Edge C1: a worker stores a place (release) after it has written the entry;
// who loads it (acquire) sees the entry.
#ifndef BROKER_CACHE_ROW_CACHE_H_
#define BROKER_CACHE_ROW_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/cache/entry_format.h"
#include "broker/io/read_request.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// A worker's buffers.
struct CacheScratch {
  std::vector<std::byte> entry;
  std::vector<std::byte> packed;
  std::shared_ptr<void> packer;
  std::shared_ptr<void> unpacker;
};

class RowCache {
 public:
  // An entry has whole granules: 40 bits of the first one and 24 of their
  // number are a place, 8 bytes a record, for 16 TiB of entries.
  static constexpr uint64_t kGranule = 16;
  static constexpr uint64_t kBytesMax = uint64_t{1} << 44;
  static constexpr uint64_t PlacesBytes(uint64_t records) {
    return records * sizeof(uint64_t);
  }

  RowCache(uint64_t records, const RawSpec& features);
  virtual ~RowCache() = default;
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  // ---- workers

  bool Has(uint64_t record) const {
    return places_[record].load(std::memory_order_acquire) > kFailed;  // C1
  }
  // Entries are read (Locate, Unpack) before they are used; else Get has them.
  virtual bool is_read() const = 0;
  // Points *made into the entry, which stays; false: there is none.
  virtual bool Get(uint64_t /*record*/, RawRecord* /*made*/) const {
    return false;
  }
  // Fills *request; false: there is no entry.
  virtual bool Locate(uint64_t /*record*/, ReadRequest* /*request*/) const {
    return false;
  }
  // Points *made at what was read for the request. DataLoss: it is not what was
  // kept.
  virtual Status Unpack(uint64_t /*record*/,
                        std::span<const std::byte> /*bytes*/,
                        CacheScratch* /*scratch*/, RawRecord* /*made*/) const {
    return InternalError("nothing is read");
  }
  // Keeps it, if there is room.
  void Put(uint64_t record, const RawRecord& made, CacheScratch* scratch);
  // Its entry is damaged: tells it, once. forget: it is missing from now on,
  // and may be kept anew.
  void NoteDamage(uint64_t record, const Status& status, bool forget);
  // It could not be made. Errors are not kept: it is read again each time.
  virtual void Fail(uint64_t /*record*/) {}

  // ---- for people, any thread

  // "in memory", "on disk in /a/b".
  virtual std::string where() const = 0;
  // What it is doing, or why it keeps no more: "filling", "full".
  virtual std::string state() const = 0;
  // That it may take; UINT64_MAX: as much as all records need.
  virtual uint64_t capacity_bytes() const = 0;
  uint64_t records() const { return records_; }
  // Relaxed, both: shown.
  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }
  uint64_t bytes() const {
    return granules_.load(std::memory_order_relaxed) * kGranule;
  }

 protected:
  static constexpr uint64_t kNone = 0;
  static constexpr uint64_t kBusy = 1;
  static constexpr uint64_t kFailed = 2;  // of a snapshot
  static constexpr int kCountBits = 24;

  // In granules.
  struct Place {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  static uint64_t WordOf(const Place& place) {
    return (place.first + 1) << kCountBits | place.count;
  }
  static Place PlaceOf(uint64_t word) {
    return {(word >> kCountBits) - 1, word & ((uint64_t{1} << kCountBits) - 1)};
  }
  static constexpr uint64_t GranulesOf(uint64_t bytes) {
    return bytes <= kGranule ? 1 : (bytes + kGranule - 1) / kGranule;
  }

  // nullopt: it has none.
  std::optional<Place> Find(uint64_t record) const;
  // Writes the entry somewhere; nullopt: there is no room, or it failed.
  virtual std::optional<Place> Write(uint64_t record, const RawRecord& made,
                                     CacheScratch* scratch) = 0;
  // What the place of a damaged entry becomes.
  virtual uint64_t forgotten() const { return kNone; }
  // The record has its place, or has failed, and not before.
  virtual void Placed(uint64_t /*record*/, uint64_t /*word*/) {}

  const EntryFormat& format() const { return format_; }
  std::span<std::atomic<uint64_t>> places() {
    return {places_.get(), records_};
  }
  void CountEntry(const Place& place) {
    // Relaxed: shown.
    entries_.fetch_add(1, std::memory_order_relaxed);
    granules_.fetch_add(place.count, std::memory_order_relaxed);
  }

 private:
  const uint64_t records_;
  const EntryFormat format_;
  const std::unique_ptr<std::atomic<uint64_t>[]> places_;
  std::atomic<uint64_t> entries_{0};
  std::atomic<uint64_t> granules_{0};
  std::atomic<bool> damage_told_{false};
};

}  // namespace penstock
#endif  // BROKER_CACHE_ROW_CACHE_H_
