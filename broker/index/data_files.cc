#include "broker/index/data_files.h"

#include <algorithm>
#include <optional>

#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"

namespace penstock {
namespace {

size_t ThreadsFor(const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(), IsAddress) ? kNetworkThreads
                                                            : 0;
}

}  // namespace

StatusOr<DataFiles> DataFiles::Open(const FilePatterns& patterns,
                                    const OpenProgress& progress,
                                    InflateBy by) {
  DataFiles files(patterns, progress.access);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                            patterns.Expand(*progress.access));
  std::vector<std::optional<DataFile>> opened(paths.size());
  std::vector<std::optional<CompressedBytes>> compressed(paths.size());
  PENSTOCK_RETURN_IF_ERROR(InParallel(
      paths.size(),
      [&](size_t i) -> Status {
        PENSTOCK_RETURN_IF_ERROR(progress.CheckCancelled(paths[i]));
        PENSTOCK_ASSIGN_OR_RETURN(DataFile file,
                                  DataFile::Open(paths[i], progress));
        if (file.remote() != nullptr) progress.remote.Count(1, file.bytes());
        opened[i].emplace(std::move(file));
        PENSTOCK_ASSIGN_OR_RETURN(compressed[i],
                                  FindCompressed(*opened[i], by, progress));
        return OkStatus();
      },
      ThreadsFor(paths)));
  std::vector<CompressedBytes> wanted;
  std::vector<DataFile*> of;
  for (size_t i = 0; i < opened.size(); ++i) {
    if (!compressed[i]) continue;
    wanted.push_back(*std::move(compressed[i]));
    of.push_back(&*opened[i]);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<LocalCopy> copies,
                            CopiesOf(wanted, progress));
  for (size_t i = 0; i < of.size(); ++i) {
    of[i]->ReadCopy(std::move(copies[i]));
  }
  files.files_.reserve(opened.size());
  for (std::optional<DataFile>& file : opened) {
    files.total_bytes_ += file->bytes();
    files.files_.push_back(*std::move(file));
  }
  return files;
}

DataFiles::DataFiles(DataFile file)
    : patterns_{{file.path()}}, total_bytes_(file.bytes()) {
  files_.push_back(std::move(file));
}

size_t DataFiles::threads() const {
  return std::any_of(
             files_.begin(), files_.end(),
             [](const DataFile& file) { return file.remote() != nullptr; })
             ? kNetworkThreads
             : 0;
}

bool DataFiles::Changed() const {
  const StatusOr<std::vector<std::string>> paths = patterns_.Expand(*access_);
  if (!paths.ok() || paths->size() != files_.size()) return true;
  // Each object is asked for over a network.
  const Status same = InParallel(
      files_.size(),
      [&](size_t i) {
        return files_[i].path() != (*paths)[i] || files_[i].Changed()
                   ? DataLossError("changed")
                   : OkStatus();
      },
      threads());
  return !same.ok();
}

Status DataFiles::ChooseIo(Io io, uint64_t record_bytes) {
  for (DataFile& file : files_) {
    PENSTOCK_RETURN_IF_ERROR(file.ChooseIo(io, total_bytes_, record_bytes));
  }
  return OkStatus();
}

void DataFiles::List(const std::function<void(std::string_view name,
                                              uint64_t bytes)>& visit) const {
  const std::string& first = files_[0].path();
  size_t common = first.rfind('/') + 1;
  for (const DataFile& file : files_) {
    const auto limit = first.begin() + static_cast<ptrdiff_t>(std::min(
                                           common, file.path().size()));
    common = static_cast<size_t>(
        std::mismatch(first.begin(), limit, file.path().begin()).first -
        first.begin());
    common = first.substr(0, common).rfind('/') + 1;
  }
  for (const DataFile& file : files_) {
    visit(std::string_view(file.path()).substr(common), file.bytes());
  }
}

void DataFiles::AddTimes(Fingerprint* to) const {
  for (const DataFile& file : files_) {
    file.AddTime(to);
  }
}

}  // namespace penstock
