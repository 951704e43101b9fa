// Files that keep what was found out about data for the next opening. They are
// for one machine and one user, and untrusted: anything unexpected in one means
// "find it out again", never an error.
#ifndef BROKER_INDEX_CACHE_FILE_H_
#define BROKER_INDEX_CACHE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

// A file changed this shortly before it was read may change again without a new
// modification time (ext3 and NFS servers count seconds).
inline constexpr int64_t kSettledNs = 2'000'000'000;
// CLOCK_REALTIME, as modification times are.
int64_t RealTimeNs();

// The folder of all caches: $PENSTOCK_CACHE_DIR, else $CACHE_DIRECTORY
// (systemd), else $XDG_CACHE_HOME/penstock, else ~/.cache/penstock. Empty:
// there is none.
std::string CacheFolder();
// Like mkdir -p for the folder of this file; errors show at the open.
void MakeFolderOf(const std::string& file);

// The file for key, which it has to contain: keys may share a file. Empty: no
// cache.
std::string CachePath(std::string_view kind, std::string_view key);

// Why there is no cache: its folder cannot be made or written.
Status CheckCacheFolder();

class CacheReader {
 public:
  // nullopt: there is none, or somebody else may have written it. Such a file
  // could name files that only the broker may read.
  static std::optional<CacheReader> Open(const std::string& path);

  // Reads an open file from its beginning, whoever wrote it.
  static std::optional<CacheReader> Of(int fd, uint64_t bytes);

  // Bytes not read yet, by the file's size.
  uint64_t left() const { return left_; }
  // Fills out with the next bytes; false: there are fewer.
  bool Read(std::span<std::byte> out);

 private:
  CacheReader(Fd fd, uint64_t bytes) : fd_(std::move(fd)), left_(bytes) {}
  Fd fd_;
  uint64_t left_;
};

// Writes the file atomically, one region after the other. The cause of a
// failure is only for a log.
Status WriteCacheFile(const std::string& path,
                      std::span<const std::span<const std::byte>> regions);

}  // namespace penstock
#endif  // BROKER_INDEX_CACHE_FILE_H_
