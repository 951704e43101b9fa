// Files that a list names: their paths, and whether they are there.
#ifndef BROKER_SOURCE_LISTED_FILES_H_
#define BROKER_SOURCE_LISTED_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/source/kinds.h"
#include "common/status.h"

namespace penstock {

struct ListedPaths {
  std::string text;
  std::vector<uint64_t> ends;

  void Add(std::string_view path) {
    text += path;
    ends.push_back(text.size());
  }
  std::string_view operator[](uint64_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(text).substr(begin, ends[i] - begin);
  }
  uint64_t MemoryBytes() const {
    return text.capacity() + ends.capacity() * sizeof(uint64_t);
  }
  void AddTo(Fingerprint* fingerprint) const;
};

// "/a" and "b/1.jpg": "/a/b/1.jpg"
void SetFullPath(const std::string& folder, std::string_view path,
                 std::string* full);

// A path of a list. key: that of its folder. InvalidArgument: empty, too long,
// or with a NUL byte; it leads out of its folder by `..`, or is absolute where
// that is not allowed.
Status CheckListedPath(std::string_view path, std::string_view key,
                       bool may_be_absolute);

// Whether the file is not there and its sample is to be left out for that. An
// error of another file: NotFound, DataLoss (no regular file),
// PermissionDenied.
StatusOr<bool> IsMissing(const std::string& path, OnMissing on_missing,
                         const FileAccess& access);

// What is_missing says of each row, asked on several threads. list: for
// messages.
StatusOr<std::vector<uint8_t>> FindMissing(
    uint64_t rows, const std::string& list,
    const std::function<StatusOr<bool>(uint64_t row)>& is_missing,
    OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_LISTED_FILES_H_
