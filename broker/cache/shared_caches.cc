#include "broker/cache/shared_caches.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/base/mutex.h"
#include "broker/cache/disk_cache.h"
#include "broker/index/cache_file.h"

namespace penstock {
namespace {

// Goes when the files of a cache are closed.
struct WhileOpen {
  std::shared_ptr<MemoryPromise> places;
  std::promise<void> closed;
};

// Only those who want the same cache wait for its opening.
struct OpenCache {
  Mutex mutex;
  std::weak_ptr<RowCache> cache ABSL_GUARDED_BY(mutex);
  // Ready when the files of the last one are closed, and their lock is gone.
  std::future<void> closed ABSL_GUARDED_BY(mutex);
};

struct OpenCaches {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<OpenCache>> by_key
      ABSL_GUARDED_BY(mutex);
};

// On disk, with the memory of its places.
StatusOr<std::shared_ptr<RowCache>> OpenFiles(
    DiskCache::Options options, const KeptRows& rows, const CacheHost& host,
    const std::shared_ptr<WhileOpen>& held) {
  const uint64_t bytes = RowCache::PlacesBytes(rows.records);
  PENSTOCK_ASSIGN_OR_RETURN(held->places, host.promise(bytes));
  if (held->places != nullptr) held->places->Populated(bytes);
  options.held = held;
  PENSTOCK_ASSIGN_OR_RETURN(
      std::shared_ptr<RowCache> cache,
      DiskCache::Open(options, rows.records, rows.features));
  return cache;
}

// JSON with the access.
std::string KeyOf(const std::string& access, const std::string& key) {
  return "{\"access\":" + nlohmann::json(access).dump() + "," + key.substr(1);
}

template <typename Open>
StatusOr<std::shared_ptr<RowCache>> Shared(const std::string& key,
                                           const Open& open) {
  static OpenCaches caches;
  std::shared_ptr<OpenCache> slot;
  {
    MutexLock lock(&caches.mutex);
    std::erase_if(caches.by_key, [](const auto& each) {
      if (each.second.use_count() > 1) return false;  // somebody opens it
      MutexLock lock(&each.second->mutex);
      return each.second->cache.expired() &&
             (!each.second->closed.valid() ||
              each.second->closed.wait_for(std::chrono::seconds(0)) ==
                  std::future_status::ready);
    });
    std::shared_ptr<OpenCache>& found = caches.by_key[key];
    if (found == nullptr) found = std::make_shared<OpenCache>();
    slot = found;
  }
  MutexLock lock(&slot->mutex);
  if (std::shared_ptr<RowCache> cache = slot->cache.lock()) return cache;
  if (slot->closed.valid()) slot->closed.wait();
  auto held = std::make_shared<WhileOpen>();
  slot->closed = held->closed.get_future();
  StatusOr<std::shared_ptr<RowCache>> cache = open(std::move(held));
  if (cache.ok()) slot->cache = *cache;
  return cache;
}

}  // namespace

StatusOr<std::shared_ptr<RowCache>> OpenMemoryCache(const KeptRows& rows,
                                                    uint64_t bytes,
                                                    const CacheHost& host) {
  return Shared("memory " + KeyOf(rows.access, rows.key),
                [&](auto&&) -> StatusOr<std::shared_ptr<RowCache>> {
                  const uint64_t needed =
                      MemoryCache::BytesFor(rows.records, rows.features);
                  const uint64_t most = std::min(bytes, needed);
                  StatusOr<std::unique_ptr<MemoryPromise>> promise =
                      host.promise(most + RowCache::PlacesBytes(rows.records));
                  if (!promise.ok()) {
                    return ResourceExhaustedError("{}: make it smaller",
                                                  promise.status().message());
                  }
                  PENSTOCK_ASSIGN_OR_RETURN(
                      std::unique_ptr<MemoryCache> cache,
                      MemoryCache::Open(most, rows.records, rows.features,
                                        *std::move(promise)));
                  return std::shared_ptr<RowCache>(std::move(cache));
                });
}

StatusOr<std::shared_ptr<RowCache>> OpenDiskCache(const KeptRows& rows,
                                                  uint64_t bytes,
                                                  std::optional<int64_t> zstd,
                                                  const CacheHost& host) {
  const std::string index = CachePath("rows", KeyOf(rows.access, rows.name));
  if (index.empty()) {
    return UnavailableError("no folder for caches: set PENSTOCK_CACHE_DIR");
  }
  const std::string key = KeyOf(rows.access, rows.key);
  return Shared(
      "disk " + key,
      [&](const auto& held) -> StatusOr<std::shared_ptr<RowCache>> {
        DiskCache::Options options;
        options.files = {index, index.substr(0, index.rfind('.')) + ".entries"};
        options.key = key;
        options.bytes = bytes;
        options.zstd = zstd;
        MakeFolderOf(index);
        auto cache = OpenFiles(options, rows, host, held);
        if (cache.ok()) return cache;
        // What is wrong with its files ends no job.
        return Status(StatusCode::kUnavailable, cache.status().message());
      });
}

StatusOr<std::shared_ptr<RowCache>> OpenSnapshot(
    const KeptRows& rows, const SnapshotSpec& spec,
    const std::shared_ptr<const FileAccess>& access, const CacheHost& host) {
  const std::filesystem::path folder =
      std::filesystem::path(spec.path).lexically_normal();
  const auto is_below = [&folder](const std::string& root) {
    const std::filesystem::path normal =
        std::filesystem::path(root + "/").lexically_normal().parent_path();
    return folder != normal && std::mismatch(normal.begin(), normal.end(),
                                             folder.begin(), folder.end())
                                       .first == normal.end();
  };
  DiskCache::Options options;
  options.files = {folder / "index", folder / "entries"};
  options.zstd = spec.zstd;
  options.snapshot = true;
  options.access = access;
  options.writes =
      !host.snapshots ||
      std::any_of(host.snapshots->begin(), host.snapshots->end(), is_below);
  // Who reads one with the user's own access needs no other check.
  options.key = KeyOf(options.writes ? rows.access : "", rows.key);
  StatusOr<std::shared_ptr<RowCache>> cache = Shared(
      Format("snapshot {} {} {}", folder.string(), rows.access, options.key),
      [&](const auto& held) { return OpenFiles(options, rows, host, held); });
  const StatusCode code = cache.status().code();
  if (code != StatusCode::kPermissionDenied &&
      (options.writes || code != StatusCode::kNotFound)) {
    return cache;
  }
  // What may not be written may be outdated, or not complete.
  options.writes = false;
  const Status read =
      DiskCache::Open(options, rows.records, rows.features).status();
  if (read.code() == StatusCode::kFailedPrecondition) return read;
  // Not with the way out of a file that is read: a private broker is kept from
  // writing elsewhere.
  return Status(
      code,
      Format("{}: found no snapshot that you may read, and this broker may not "
             "write one there: {}",
             folder.string(),
             host.snapshots
                 ? "choose a folder below one of `snapshot_path` in the "
                   "broker's configuration"
                 : Format("set PENSTOCK_SNAPSHOT_PATH={}, or another folder "
                          "above it",
                          folder.parent_path().string())));
}

}  // namespace penstock
