#include "broker/index/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "broker/io/file_error.h"
#include "common/format.h"

namespace penstock {
namespace {

// The first absolute path in an environment variable; systemd may set several,
// separated by colons.
std::string PathVariable(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr || value[0] != '/') return "";
  const std::string_view text(value);
  return std::string(text.substr(0, text.find(':')));
}

bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

std::string CacheFolder() {
  constexpr std::pair<const char*, const char*> kPlaces[] = {
      {"PENSTOCK_CACHE_DIR", ""},
      {"CACHE_DIRECTORY", ""},
      {"XDG_CACHE_HOME", "/penstock"},
      {"HOME", "/.cache/penstock"}};
  for (const auto& [variable, below] : kPlaces) {
    if (const std::string path = PathVariable(variable); !path.empty()) {
      return path + below;
    }
  }
  return "";
}

void MakeFolderOf(const std::string& file) {
  for (size_t slash = file.find('/', 1); slash != std::string::npos;
       slash = file.find('/', slash + 1)) {
    mkdir(file.substr(0, slash).c_str(), 0700);
  }
}

int64_t RealTimeNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

std::string CachePath(std::string_view kind, std::string_view key) {
  const std::string folder = CacheFolder();
  if (folder.empty()) return "";
  return Format("{}/{}-{:016x}.index", folder, kind,
                XXH3_64bits(key.data(), key.size()));
}

Status CheckCacheFolder() {
  const std::string folder = CacheFolder();
  if (folder.empty()) return NotFoundError("no folder is named for a cache");
  MakeFolderOf(folder);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError(errno, folder);
  }
  return access(folder.c_str(), W_OK | X_OK) == 0 ? OkStatus()
                                                  : ErrnoError(errno, folder);
}

std::optional<CacheReader> CacheReader::Open(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat st;
  if (!fd || fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) ||
      st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::nullopt;
  }
  return CacheReader(std::move(fd), static_cast<uint64_t>(st.st_size));
}

std::optional<CacheReader> CacheReader::Of(int fd, uint64_t bytes) {
  Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy || lseek(copy.get(), 0, SEEK_SET) != 0) return std::nullopt;
  return CacheReader(std::move(copy), bytes);
}

bool CacheReader::Read(std::span<std::byte> out) {
  if (out.size() > left_) return false;
  left_ -= out.size();
  while (!out.empty()) {
    const ssize_t n = read(fd_.get(), out.data(), out.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<size_t>(n));
  }
  return true;
}

Status WriteCacheFile(const std::string& path,
                      std::span<const std::span<const std::byte>> regions) {
  MakeFolderOf(path);
  std::string temporary = path + ".XXXXXX";
  const Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return OpenError(errno, temporary);
  // No fsync: a checksum detects what a crash tears.
  const bool written = std::all_of(regions.begin(), regions.end(),
                                   [&fd](std::span<const std::byte> region) {
                                     return WriteAll(fd.get(), region);
                                   }) &&
                       rename(temporary.c_str(), path.c_str()) == 0;
  if (written) return OkStatus();
  const Status status = OpenError(errno, temporary);
  unlink(temporary.c_str());
  return status;
}

}  // namespace penstock
