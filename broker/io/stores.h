// Object stores, as whoever opens files sees them.
#ifndef BROKER_IO_STORES_H_
#define BROKER_IO_STORES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/io/remote_file.h"
#include "common/status.h"

namespace penstock {

// "s3://bucket/key", among paths of files, which are absolute.
inline bool IsAddress(std::string_view path) {
  return !path.starts_with('/') && path.find("://") != path.npos;
}

// All objects below an address, as one file that has them.
struct RemoteFolder {
  std::shared_ptr<RemoteFile> file;
  // By object, in byte order of their names below the address.
  std::vector<std::string> names;
  std::vector<uint64_t> bytes;
  std::vector<uint64_t> offsets;  // in the file

  // nullopt: there is no such object.
  std::optional<size_t> Find(std::string_view name) const;
};

// A range that was fetched. Times are of the monotonic clock.
struct FetchSpan {
  uint32_t lane = 0;  // of those that are fetched at once
  uint32_t retries = 0;
  uint64_t bytes = 0;
  uint64_t asked_ns = 0;
  uint64_t begin_ns = 0;  // of its first request
  uint64_t end_ns = 0;
};

// Thread-safe. Errors: NotFound, PermissionDenied, Unavailable (the store does
// not answer, or its client is not there), InvalidArgument (what the store
// cannot do), Cancelled.
class Stores {
 public:
  virtual ~Stores() = default;

  // Objects that match a pattern, in byte order. '*' matches no '/'.
  virtual StatusOr<std::vector<std::string>> List(
      const std::string& pattern, const std::atomic<bool>& cancel) = 0;
  // room: the most that the copies of files may take while this one is open; 0:
  // half of the disk; nullopt: as the other open ones say.
  virtual StatusOr<std::shared_ptr<RemoteFile>> Open(
      const std::string& url, std::optional<uint64_t> room,
      const std::atomic<bool>& cancel) = 0;
  // url: ends in '/'.
  virtual StatusOr<RemoteFolder> OpenFolder(
      const std::string& url, std::optional<uint64_t> room,
      const std::atomic<bool>& cancel) = 0;
  // RemoteFile::version of what is there now; a folder's address ends in '/'.
  virtual StatusOr<std::string> Version(const std::string& url) = 0;
  // Makes an object of a file, or replaces it.
  virtual Status Put(const std::string& file, const std::string& url) = 0;
  // `stores` of a status; empty: nothing was fetched yet.
  virtual nlohmann::json UseJson() const = 0;
  // Tells of each range that is fetched from now on, in a thread of its own,
  // with a lock held; nullptr: no more.
  virtual void Observe(std::function<void(const FetchSpan&)> observer) = 0;
};

// "s3://...: this broker reads no object stores ..."
Status NoStoresError(const std::string& url);

}  // namespace penstock
#endif  // BROKER_IO_STORES_H_
