// Opens caches: one for all datasets that keep the same, however many jobs and
// specs.
#ifndef BROKER_CACHE_SHARED_CACHES_H_
#define BROKER_CACHE_SHARED_CACHES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/cache/cache_spec.h"
#include "broker/cache/memory_cache.h"
#include "broker/cache/row_cache.h"
#include "broker/io/file_access.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// What is kept. Who has the same key and access gets the same entries.
struct KeptRows {
  // FileAccess::key: entries of files that one user may read are not for
  // others.
  std::string access;
  // What they depend on, as JSON: the source, its files with the times of their
  // last changes, and the steps.
  std::string key;
  // The name of the files on disk: without what changes when the data do, so
  // that these are made anew.
  std::string name;
  uint64_t records = 0;
  RawSpec features;
};

// What caches take from this host.
struct CacheHost {
  // Called before one takes memory, which counts until the promise goes, and
  // what has no pages yet as memory that others cannot have. nullptr: nobody
  // counts.
  std::function<StatusOr<std::unique_ptr<MemoryPromise>>(uint64_t bytes)>
      promise = [](uint64_t) {
        return StatusOr<std::unique_ptr<MemoryPromise>>(nullptr);
      };
  // Folders below which snapshots may be written; nullopt: anywhere.
  std::optional<std::vector<std::string>> snapshots;
};

// As long as any dataset has it. It is as large as the first of them said, or
// as all records need. ResourceExhausted: there is too little memory.
StatusOr<std::shared_ptr<RowCache>> OpenMemoryCache(const KeptRows& rows,
                                                    uint64_t bytes,
                                                    const CacheHost& host);
// In files of the cache folder. Unavailable: another broker has it.
StatusOr<std::shared_ptr<RowCache>> OpenDiskCache(const KeptRows& rows,
                                                  uint64_t bytes,
                                                  std::optional<int64_t> zstd,
                                                  const CacheHost& host);
// Errors: as of DiskCache::Open.
StatusOr<std::shared_ptr<RowCache>> OpenSnapshot(
    const KeptRows& rows, const SnapshotSpec& spec,
    const std::shared_ptr<const FileAccess>& access, const CacheHost& host);

}  // namespace penstock
#endif  // BROKER_CACHE_SHARED_CACHES_H_
