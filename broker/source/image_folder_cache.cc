// The cache file of an image folder's index: FolderIndex as it is in memory,
// with a checksum. It is for one machine and one user; anything unexpected in
// it means "scan again", never an error.
//
// Layout, native byte order: FileHeader, root path, folders, folder paths,
// classes, class names, file path ends, file paths, description of skipped
// files. checksum is zlib's crc32 of everything after the header. Each dataset
// folder has one file, which a later scan replaces.
#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include <array>
#include <span>

#include "broker/index/cache_file.h"
#include "broker/source/image_folder_index.h"

namespace penstock {
namespace {

constexpr uint64_t kImageCacheMagic = 0x5844494b54534e50;  // "PNSTKIDX"
constexpr uint32_t kVersion = 4;

struct FileHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t checksum;
  uint64_t root_bytes;
  uint64_t folders;
  uint64_t folder_path_bytes;
  uint64_t classes;
  uint64_t class_name_bytes;
  uint64_t files;
  uint64_t file_path_bytes;
  uint64_t left_out_bytes;
};
static_assert(sizeof(FileHeader) == 80);
static_assert(sizeof(FolderIndex::Folder) == 24);
static_assert(sizeof(FolderIndex::Class) == 16);

// The regions of the file after the header, in order. Index is FolderIndex or
// const FolderIndex.
template <typename Index, typename Byte>
std::array<std::span<Byte>, 7> Regions(Index& index) {
  const auto bytes = [](auto& items) {
    return std::span<Byte>(reinterpret_cast<Byte*>(items.data()),
                           items.size() * sizeof(items[0]));
  };
  return {bytes(index.folders),        bytes(index.folder_paths),
          bytes(index.classes),        bytes(index.class_names),
          bytes(index.file_path_ends), bytes(index.file_paths),
          bytes(index.left_out)};
}

uint32_t Checksum(uint32_t sum, std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Takes count * bytes_each from *left; false if there is less.
bool TakeBytes(uint64_t count, uint64_t bytes_each, uint64_t* left) {
  if (count > *left / bytes_each) return false;
  *left -= count * bytes_each;
  return true;
}

// No "", "." or ".." between slashes, no NUL: it cannot leave the root.
bool IsRelativePath(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return false;
  for (;;) {
    const size_t slash = path.find('/');
    const std::string_view component = path.substr(0, slash);
    if (component.empty() || component == "." || component == "..") {
      return false;
    }
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool IsValid(const FolderIndex& index) {
  uint64_t end = 0;
  for (const FolderIndex::Folder& folder : index.folders) {
    if (folder.path_end < end || folder.path_end > index.folder_paths.size()) {
      return false;
    }
    end = folder.path_end;
  }
  if (end != index.folder_paths.size()) return false;

  end = 0;
  uint64_t files_end = 0;
  for (const FolderIndex::Class& one : index.classes) {
    if (one.name_end < end || one.name_end > index.class_names.size() ||
        one.files_end < files_end ||
        one.files_end > index.file_path_ends.size()) {
      return false;
    }
    end = one.name_end;
    files_end = one.files_end;
  }
  if (end != index.class_names.size() ||
      (!index.classes.empty() && files_end != index.file_path_ends.size())) {
    return false;
  }

  end = 0;
  for (const uint64_t path_end : index.file_path_ends) {
    if (path_end < end || path_end > index.file_paths.size()) return false;
    end = path_end;
  }
  if (end != index.file_paths.size()) return false;

  // The views are within bounds from here on.
  if (index.folders.empty() || !index.FolderPath(0).empty()) return false;
  for (uint64_t i = 1; i < index.folders.size(); ++i) {
    if (!IsRelativePath(index.FolderPath(i))) return false;
  }
  for (uint64_t i = 0; i < index.classes.size(); ++i) {
    const std::string_view name = index.ClassName(i);
    if (!IsRelativePath(name) || name.find('/') != std::string_view::npos) {
      return false;
    }
  }
  for (uint64_t i = 0; i < index.file_path_ends.size(); ++i) {
    if (!IsRelativePath(index.FilePath(i))) return false;
  }
  return true;
}

}  // namespace

bool FoldersAreUnchanged(const std::string& root, const FolderIndex& index,
                         const FileAccess& access) {
  const StatusOr<Fd> root_dir = access.Open(root, O_DIRECTORY);
  if (!root_dir.ok()) return false;
  for (uint64_t i = 0; i < index.folders.size(); ++i) {
    const std::string path(index.FolderPath(i));
    struct stat st;
    if (fstatat(root_dir->get(), path.c_str(), &st, AT_EMPTY_PATH) != 0 ||
        !S_ISDIR(st.st_mode) || st.st_ino != index.folders[i].inode ||
        st.st_mtim.tv_sec * int64_t{1'000'000'000} + st.st_mtim.tv_nsec !=
            index.folders[i].mtime_ns) {
      return false;
    }
  }
  return true;
}

Status CheckSettled(const std::string& root, const FolderIndex& index,
                    int64_t scan_start_ns) {
  for (uint64_t i = 0; i < index.folders.size(); ++i) {
    if (index.folders[i].mtime_ns > scan_start_ns - kSettledNs) {
      return FailedPreconditionError("{}/{} changed just now", root,
                                     index.FolderPath(i));
    }
  }
  return OkStatus();
}

std::string FolderCacheFile(const std::string& root, bool of_classes,
                            const FolderFiles& files) {
  return CachePath(std::string(of_classes ? files.of_classes : files.all),
                   root);
}

std::optional<FolderIndex> ReadFolderCache(const std::string& cache_file,
                                           const std::string& root,
                                           bool of_classes,
                                           const FileAccess& access) {
  std::optional<CacheReader> file = CacheReader::Open(cache_file);
  FileHeader header;
  if (!file || !file->Read(std::as_writable_bytes(std::span(&header, 1))) ||
      header.magic != kImageCacheMagic || header.version != kVersion) {
    return std::nullopt;
  }
  // The sizes must add up to the file's, which bounds the memory.
  uint64_t left = file->left();
  if (!TakeBytes(header.root_bytes, 1, &left) ||
      !TakeBytes(header.folders, sizeof(FolderIndex::Folder), &left) ||
      !TakeBytes(header.folder_path_bytes, 1, &left) ||
      !TakeBytes(header.classes, sizeof(FolderIndex::Class), &left) ||
      !TakeBytes(header.class_name_bytes, 1, &left) ||
      !TakeBytes(header.files, sizeof(uint64_t), &left) ||
      !TakeBytes(header.file_path_bytes, 1, &left) ||
      !TakeBytes(header.left_out_bytes, 1, &left) || left != 0 ||
      header.files == 0 || header.files > kPicturesMax ||
      header.folders > kFoldersMax + 1) {
    return std::nullopt;
  }
  std::string cached_root(header.root_bytes, '\0');
  FolderIndex index;
  index.folders.resize(header.folders);
  index.folder_paths.resize(header.folder_path_bytes);
  index.classes.resize(header.classes);
  index.class_names.resize(header.class_name_bytes);
  index.file_path_ends.resize(header.files);
  index.file_paths.resize(header.file_path_bytes);
  index.left_out.resize(header.left_out_bytes);

  const auto root_bytes = std::as_writable_bytes(std::span(cached_root));
  if (!file->Read(root_bytes)) return std::nullopt;
  uint32_t sum = Checksum(0, root_bytes);
  for (const std::span<std::byte> region :
       Regions<FolderIndex, std::byte>(index)) {
    if (!file->Read(region)) return std::nullopt;
    sum = Checksum(sum, region);
  }
  if (sum != header.checksum || cached_root != root || !IsValid(index) ||
      index.classes.empty() == of_classes ||
      !FoldersAreUnchanged(root, index, access)) {
    return std::nullopt;
  }
  return index;
}

Status WriteFolderCache(const std::string& cache_file, const std::string& root,
                        const FolderIndex& index, int64_t scan_start_ns) {
  PENSTOCK_RETURN_IF_ERROR(CheckSettled(root, index, scan_start_ns));
  FileHeader header = {
      .magic = kImageCacheMagic,
      .version = kVersion,
      .checksum = 0,
      .root_bytes = root.size(),
      .folders = index.folders.size(),
      .folder_path_bytes = index.folder_paths.size(),
      .classes = index.classes.size(),
      .class_name_bytes = index.class_names.size(),
      .files = index.file_path_ends.size(),
      .file_path_bytes = index.file_paths.size(),
      .left_out_bytes = index.left_out.size(),
  };
  const auto regions = Regions<const FolderIndex, const std::byte>(index);
  header.checksum = Checksum(0, std::as_bytes(std::span(root)));
  for (const std::span<const std::byte> region : regions) {
    header.checksum = Checksum(header.checksum, region);
  }

  std::vector<std::span<const std::byte>> all = {
      std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(root))};
  all.insert(all.end(), regions.begin(), regions.end());
  return WriteCacheFile(cache_file, all);
}

}  // namespace penstock
