// Which pictures a folder of classes holds, in order. Made by a scan or read
// from a cache file; not changed afterwards.
//
// Memory: the bytes of the paths below the class folders, and 8 bytes a file.
// The class of a file is found in classes (binary search), so it costs nothing.
#ifndef BROKER_SOURCE_IMAGE_FOLDER_INDEX_H_
#define BROKER_SOURCE_IMAGE_FOLDER_INDEX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// Folders below each other, the class folder counted.
inline constexpr int kFolderDepthMax = 32;
inline constexpr uint64_t kFoldersMax = uint64_t{1} << 22;
inline constexpr uint64_t kPicturesMax = uint64_t{1} << 30;
// A folder that changed this shortly before it was read can change again
// without its modification time telling (ext3 and NFS servers count seconds).
inline constexpr int64_t kSettledNs = 2'000'000'000;

// Invariants (a cache file is refused if they do not hold):
//   1. ends never decrease, the last one is the size of its text;
//   2. a class's files_end is at most the number of files, the last one equal;
//   3. a class name is one path component, a file's and folder's path is
//      relative, without empty components, "." and "..".
struct FolderIndex {
  struct Folder {
    int64_t mtime_ns;  // read before the folder's entries
    uint64_t inode;
    uint64_t path_end;  // in folder_paths
  };
  struct Class {
    uint64_t name_end;   // in class_names
    uint64_t files_end;  // in file_path_ends
  };

  // Every folder that was walked, relative to the root; the root is "".
  std::vector<Folder> folders;
  std::string folder_paths;
  // Sorted by name, bytewise; classes without a picture are among them.
  std::vector<Class> classes;
  std::string class_names;
  // By class, then by path relative to the class folder, bytewise.
  std::vector<uint64_t> file_path_ends;
  std::string file_paths;
  // Files that were passed over, for people; "": none.
  std::string left_out;

  std::string_view FolderPath(uint64_t i) const {
    return Cut(folder_paths, i == 0 ? 0 : folders[i - 1].path_end,
               folders[i].path_end);
  }
  std::string_view ClassName(uint64_t i) const {
    return Cut(class_names, i == 0 ? 0 : classes[i - 1].name_end,
               classes[i].name_end);
  }
  // Relative to the class folder.
  std::string_view FilePath(uint64_t i) const {
    return Cut(file_paths, i == 0 ? 0 : file_path_ends[i - 1],
               file_path_ends[i]);
  }
  uint64_t ClassOf(uint64_t file) const;
  uint64_t MemoryBytes() const;

 private:
  static std::string_view Cut(std::string_view text, uint64_t begin,
                              uint64_t end) {
    return text.substr(begin, end - begin);
  }
};

// Walks root with several threads (a class folder is walked by one) and joins
// them. Counts pictures in progress->done. Errors as OpenSource states them.
StatusOr<FolderIndex> ScanFolder(const std::string& root,
                                 OpenProgress* progress);

// Every folder has the modification time that the index has of it.
bool FoldersAreUnchanged(const std::string& root, const FolderIndex& index);
// None had changed shortly before this time (CLOCK_REALTIME), when the scan
// began: what changed meanwhile would show.
Status CheckSettled(const std::string& root, const FolderIndex& index,
                    int64_t scan_start_ns);

// Where the index of root is kept: below $PENSTOCK_CACHE_DIR, else
// $CACHE_DIRECTORY (systemd), else $XDG_CACHE_HOME/penstock, else
// ~/.cache/penstock. Empty: nowhere.
std::string FolderCacheFile(const std::string& root);

// The index in cache_file, if it is whole, of root, written by this user, and
// every folder still has the modification time it had. Never trusts a byte.
std::optional<FolderIndex> ReadFolderCache(const std::string& cache_file,
                                           const std::string& root);

// Writes cache_file, whole or not at all, if every folder had settled at
// scan_start_ns (CLOCK_REALTIME). The cause of a failure is for a log only.
Status WriteFolderCache(const std::string& cache_file, const std::string& root,
                        const FolderIndex& index, int64_t scan_start_ns);

}  // namespace penstock
#endif  // BROKER_SOURCE_IMAGE_FOLDER_INDEX_H_
