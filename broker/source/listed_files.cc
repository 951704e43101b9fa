#include "broker/source/listed_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <span>

#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/io/file_error.h"
#include "broker/source/csv_rows.h"

namespace penstock {
namespace {

constexpr size_t kPathBytesMax = 4095;  // PATH_MAX, without the NUL

// The object's, of a path that does not lead out of its folder.
std::string NameOf(std::string_view path) {
  return std::filesystem::path(path).lexically_normal().string();
}

}  // namespace

void ListedPaths::AddTo(Fingerprint* fingerprint) const {
  fingerprint->Add(std::as_bytes(std::span(ends)));
  fingerprint->Add(text);
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
  if (IsAddress(path)) {
    return InvalidArgumentError(
        "{} is an address; give the one that all pictures lie below as `{}`",
        ShortValue(path), key);
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

StatusOr<ListedFolder> ListedFolder::Open(std::string folder,
                                          OpenProgress* progress) {
  const bool is_remote = IsAddress(folder);
  while (is_remote && folder.ends_with('/')) folder.pop_back();
  ListedFolder opened(std::move(folder), progress->access);
  if (!is_remote) return opened;
  PENSTOCK_ASSIGN_OR_RETURN(Stores* const stores,
                            progress->access->StoresOf(opened.folder_));
  PENSTOCK_ASSIGN_OR_RETURN(
      opened.objects_,
      stores->OpenFolder(opened.folder_ + "/",
                         progress->copies.most.value_or(0), progress->cancel));
  progress->remote.Count(
      opened.objects_.names.size(),
      std::accumulate(opened.objects_.bytes.begin(),
                      opened.objects_.bytes.end(), uint64_t{0}));
  return opened;
}

std::string_view ListedFolder::Relative(std::string_view path) const {
  if (objects_.file == nullptr || !path.starts_with(folder_ + "/")) return path;
  return path.substr(folder_.size() + 1);
}

std::string ListedFolder::FullPath(std::string_view path) const {
  return path.starts_with('/') ? std::string(path)
                               : Format("{}/{}", folder_, path);
}

StatusOr<bool> ListedFolder::IsMissing(std::string_view path,
                                       OnMissing on_missing) const {
  const std::string full = FullPath(path);
  Status status;
  if (objects_.file != nullptr) {
    if (objects_.Find(NameOf(path))) return false;
    status = NotFoundError("{}: there is no such object", full);
  } else {
    struct stat st;
    const StatusOr<Fd> fd = files_.access().Open(full, O_PATH);
    if (fd.ok() && fstat(fd->get(), &st) == 0) {
      if (!S_ISREG(st.st_mode)) return NotRegularError(st.st_mode, full);
      return false;
    }
    status = fd.ok() ? OpenError(errno, full) : fd.status();
  }
  if (status.code() != StatusCode::kNotFound) return status;
  if (on_missing == OnMissing::kSkip) return true;
  return Status(
      status.code(),
      Format("{}; `on_missing: skip` leaves such rows out", status.message()));
}

void ListedFolder::Place(const ListedPaths& paths) {
  if (objects_.file == nullptr) return;
  places_ = ObjectPlaces(objects_.file, paths.ends.size());
  for (size_t i = 0; i < paths.ends.size(); ++i) {
    places_.Add(objects_, NameOf(paths[i]));
  }
  objects_ = {.file = objects_.file};
}

Status ListedFolder::Ask(std::string_view path, Io io) {
  return places_.remote() ? OkStatus() : files_.Ask(FullPath(path), io);
}

void ListedFolder::Locate(const ListedPaths& paths, uint64_t i,
                          ReadPart* part) const {
  if (places_.remote()) return places_.Locate(i, part);
  const std::string_view path = paths[i];
  part->path.clear();  // keeps its room
  if (!path.starts_with('/')) part->path.append(folder_).append("/");
  part->path.append(path);
  files_.Locate(part);
}

bool ListedFolder::Changed() const {
  if (objects_.file == nullptr) return false;
  const StatusOr<Stores*> stores = files_.access().StoresOf(folder_);
  if (!stores.ok()) return true;
  const StatusOr<std::string> now = (*stores)->Version(folder_ + "/");
  return !now.ok() || *now != objects_.file->version();
}

void ListedFolder::AddTime(Fingerprint* to) const {
  if (objects_.file != nullptr) to->Add(objects_.file->version());
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
