// The pictures (or sounds) in a folder, of classes or not, in order. Made by a
// scan or read from a cache file, and immutable afterwards.
//
// Memory: the bytes of the paths below the class folders, and 8 bytes per file.
// The class of a file is found by binary search in classes and needs no memory.
#ifndef BROKER_SOURCE_IMAGE_FOLDER_INDEX_H_
#define BROKER_SOURCE_IMAGE_FOLDER_INDEX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/io/file_access.h"
#include "broker/io/stores.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// Nested folders, including the class folder.
inline constexpr int kFolderDepthMax = 32;
inline constexpr uint64_t kFoldersMax = uint64_t{1} << 22;
inline constexpr uint64_t kPicturesMax = uint64_t{1} << 30;

// Invariants (a cache file that violates them is refused):
//   1. ends never decrease; the last one is the size of its text;
//   2. a class's files_end is at most the number of files; the last is equal,
//      if there are classes;
//   3. a class name is one path component; the path of a file or folder is
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

  // All visited folders, relative to the root; the root is "".
  std::vector<Folder> folders;
  std::string folder_paths;
  // Sorted by name, bytewise; includes classes without pictures. Empty: the
  // folder is not one of classes.
  std::vector<Class> classes;
  std::string class_names;
  // Sorted by class, then bytewise by path relative to the class folder, or to
  // the root.
  std::vector<uint64_t> file_path_ends;
  std::string file_paths;
  // Describes skipped files for people; "": none.
  std::string left_out;

  std::string_view FolderPath(uint64_t i) const {
    return Cut(folder_paths, i == 0 ? 0 : folders[i - 1].path_end,
               folders[i].path_end);
  }
  std::string_view ClassName(uint64_t i) const {
    return Cut(class_names, i == 0 ? 0 : classes[i - 1].name_end,
               classes[i].name_end);
  }
  // Relative to the class folder, or to the root.
  std::string_view FilePath(uint64_t i) const {
    return Cut(file_paths, i == 0 ? 0 : file_path_ends[i - 1],
               file_path_ends[i]);
  }
  uint64_t ClassOf(uint64_t file) const;
  // Relative to the root: appends it.
  void AppendPath(uint64_t file, std::string* path) const;
  uint64_t MemoryBytes() const;
  // The fingerprint of the names of all pictures and classes.
  std::string Fingerprint() const;

 private:
  static std::string_view Cut(std::string_view text, uint64_t begin,
                              uint64_t end) {
    return text.substr(begin, end - begin);
  }
};

// The files of a folder that are samples.
struct FolderFiles {
  std::string_view one;  // what each is, for people
  std::span<const std::string_view> extensions;
  // Names in the cache, with classes and without.
  std::string_view of_classes;
  std::string_view all;

  // Whether it has the extension of one.
  bool Has(std::string_view name) const;
};
extern const FolderFiles kPictureFiles;
extern const FolderFiles kSoundFiles;

// Walks root with several threads (one per folder in it) and joins the results.
// Counts files in progress->done. Errors as for OpenSource.
StatusOr<FolderIndex> ScanFolder(const std::string& root, bool of_classes,
                                 OpenProgress* progress,
                                 const FolderFiles& files = kPictureFiles);

// The same of the objects below an address.
StatusOr<FolderIndex> ScanObjects(const std::string& root, bool of_classes,
                                  const RemoteFolder& objects,
                                  OpenProgress* progress,
                                  const FolderFiles& files = kPictureFiles);

// Whether every folder has the modification time in the index.
bool FoldersAreUnchanged(const std::string& root, const FolderIndex& index,
                         const FileAccess& access);
// Fails if a folder had changed shortly before scan_start_ns (CLOCK_REALTIME),
// the start of the scan. Otherwise later changes are detectable.
Status CheckSettled(const std::string& root, const FolderIndex& index,
                    int64_t scan_start_ns);

// The cache file for root's index. Empty: no cache.
std::string FolderCacheFile(const std::string& root, bool of_classes,
                            const FolderFiles& files = kPictureFiles);

// Returns the index in cache_file if the file is complete, is for root, was
// written by this user, and every folder still has its modification time. Never
// trusts a byte.
std::optional<FolderIndex> ReadFolderCache(const std::string& cache_file,
                                           const std::string& root,
                                           bool of_classes,
                                           const FileAccess& access);

// Writes cache_file atomically, if every folder had settled at scan_start_ns
// (CLOCK_REALTIME). The cause of a failure is only for a log.
Status WriteFolderCache(const std::string& cache_file, const std::string& root,
                        const FolderIndex& index, int64_t scan_start_ns);

}  // namespace penstock
#endif  // BROKER_SOURCE_IMAGE_FOLDER_INDEX_H_
