#include "broker/source/listed_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/io/file_error.h"
#include "broker/source/csv_rows.h"

namespace penstock {
namespace {

constexpr size_t kPathBytesMax = 4095;  // PATH_MAX, without the NUL

}  // namespace

void ListedPaths::AddTo(Fingerprint* fingerprint) const {
  fingerprint->Add(std::as_bytes(std::span(ends)));
  fingerprint->Add(text);
}

void SetFullPath(const std::string& folder, std::string_view path,
                 std::string* full) {
  full->clear();
  if (!path.starts_with('/')) full->append(folder).append("/");
  full->append(path);
}

Status CheckListedPath(std::string_view path, std::string_view key,
                       bool may_be_absolute) {
  if (path.empty()) return InvalidArgumentError("no path");
  if (path.size() > kPathBytesMax) {
    return InvalidArgumentError("a path of {} bytes; at most {}", path.size(),
                                kPathBytesMax);
  }
  if (path.find('\0') != path.npos) {
    return InvalidArgumentError("a path with a NUL byte: {}", ShortValue(path));
  }
  if (path.starts_with('/')) {
    return may_be_absolute
               ? OkStatus()
               : InvalidArgumentError(
                     "{} is absolute; below `{}` all paths are relative",
                     ShortValue(path), key);
  }
  int64_t depth = 0;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view component = path.substr(at, end - at);
    if (component == "..") {
      --depth;
    } else if (!component.empty() && component != ".") {
      ++depth;
    }
    if (depth < 0) {
      return InvalidArgumentError(
          "{} leads out of its folder; give the folder that has all pictures "
          "as `{}`",
          ShortValue(path), key);
    }
    at = end + 1;
  }
  return OkStatus();
}

StatusOr<bool> IsMissing(const std::string& path, OnMissing on_missing,
                         const FileAccess& access) {
  struct stat st;
  const StatusOr<Fd> fd = access.Open(path, O_PATH);
  if (fd.ok() && fstat(fd->get(), &st) == 0) {
    if (!S_ISREG(st.st_mode)) return NotRegularError(st.st_mode, path);
    return false;
  }
  Status status = fd.ok() ? OpenError(errno, path) : fd.status();
  if (status.code() != StatusCode::kNotFound) return status;
  if (on_missing == OnMissing::kSkip) return true;
  return Status(
      status.code(),
      Format("{}; `on_missing: skip` leaves such rows out", status.message()));
}

StatusOr<std::vector<uint8_t>> FindMissing(
    uint64_t rows, const std::string& list,
    const std::function<StatusOr<bool>(uint64_t row)>& is_missing,
    OpenProgress* progress) {
  constexpr uint64_t kRowsAtOnce = 1024;
  std::vector<uint8_t> missing(rows);
  PENSTOCK_RETURN_IF_ERROR(
      InParallel((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t part) {
        const uint64_t begin = part * kRowsAtOnce;
        const uint64_t end = std::min(rows, begin + kRowsAtOnce);
        PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(list));
        for (uint64_t row = begin; row < end; ++row) {
          PENSTOCK_ASSIGN_OR_RETURN(const bool is, is_missing(row));
          missing[row] = is ? 1 : 0;
        }
        return OkStatus();
      }));
  return missing;
}

}  // namespace penstock
