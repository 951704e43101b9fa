// Files that a list names: their paths, and whether they are there.
#ifndef BROKER_SOURCE_LISTED_FILES_H_
#define BROKER_SOURCE_LISTED_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/index/data_file.h"
#include "broker/index/open_progress.h"
#include "broker/source/kinds.h"
#include "broker/source/object_places.h"
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
  void List(const FileVisit& visit) const {
    for (uint64_t i = 0; i < ends.size(); ++i) visit((*this)[i], 0);
  }
};

// A path of a list. key: that of its folder. InvalidArgument: empty, too long,
// or with a NUL byte; it leads out of its folder by `..`, is an address, or is
// absolute where that is not allowed.
Status CheckListedPath(std::string_view path, std::string_view key,
                       bool may_be_absolute);

// The folder, or the address, below which the files of a list lie. Constant
// once placed.
class ListedFolder {
 public:
  // Errors: those of Stores.
  static StatusOr<ListedFolder> Open(std::string folder,
                                     OpenProgress* progress);

  // A path of the list as one below the folder: an address may begin with it.
  std::string_view Relative(std::string_view path) const;
  // "/a" and "b/1.jpg": "/a/b/1.jpg"
  std::string FullPath(std::string_view path) const;

  // Whether the file is not there and its sample is to be left out for that. An
  // error of another file: NotFound, DataLoss (no regular file),
  // PermissionDenied.
  StatusOr<bool> IsMissing(std::string_view path, OnMissing on_missing) const;

  // Finds where those are that are not missing; no other is asked for then.
  void Place(const ListedPaths& paths);
  // WholeFiles::Ask, of a file of this machine.
  Status Ask(std::string_view path, Io io);
  void Locate(const ListedPaths& paths, uint64_t i, ReadPart* part) const;
  // Objects are others now; of files it is not known.
  bool Changed() const;
  void AddTime(Fingerprint* to) const;
  uint32_t align() const { return files_.align(); }
  uint64_t memory_bytes() const { return places_.memory_bytes(); }

 private:
  explicit ListedFolder(std::string folder,
                        std::shared_ptr<const FileAccess> access)
      : folder_(std::move(folder)), files_(std::move(access)) {}

  std::string folder_;  // without a slash at its end
  WholeFiles files_;
  RemoteFolder objects_;  // of an address: all of it until they are placed
  ObjectPlaces places_;
};

// What is_missing says of each row, asked on several threads. list: for
// messages.
StatusOr<std::vector<uint8_t>> FindMissing(
    uint64_t rows, const std::string& list,
    const std::function<StatusOr<bool>(uint64_t row)>& is_missing,
    OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_LISTED_FILES_H_
