// Scans an image folder. It reads only directories: it opens no file and calls
// stat(2) only on symbolic links without such a file's name (they may be
// folders), so a million files cost their directory entries.
//
// Threads: InParallel over the folders in the root (of classes, or not); a
// ClassScan is written by one thread and read after all have ended.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "broker/index/fingerprint.h"
#include "broker/index/in_parallel.h"
#include "broker/io/file_error.h"
#include "broker/io/stores.h"
#include "broker/source/image_folder_index.h"

namespace penstock {
namespace {

// What decode_image and decode_audio decode. With another list the index cache
// has another version: an old index lacks files.
constexpr std::array<std::string_view, 10> kPictureExtensions = {
    "jpg", "jpeg", "jpe", "png", "webp", "tif", "tiff", "bmp", "pgm", "ppm"};
constexpr std::array<std::string_view, 12> kSoundExtensions = {
    "wav", "flac", "mp3", "ogg", "oga", "opus",
    "aif", "aiff", "au",  "caf", "w64", "sph"};
constexpr uint64_t kCountedAtOnce = 256;

enum class Entry { kFolder, kFile, kOther };

// A link (or an entry without a type) with a sample's name is one: some
// datasets consist of millions of such links.
Entry Classify(const FolderFiles& files, const std::string& folder,
               const FileAccess& access, const dirent& entry) {
  const bool is_file = files.Has(entry.d_name);
  switch (entry.d_type) {
    case DT_DIR:
      return Entry::kFolder;
    case DT_REG:
      return is_file ? Entry::kFile : Entry::kOther;
    case DT_LNK:
    case DT_UNKNOWN: {
      if (is_file) return Entry::kFile;
      struct stat st;
      const StatusOr<Fd> fd =
          access.Open(Format("{}/{}", folder, entry.d_name), O_PATH);
      return fd.ok() && fstat(fd->get(), &st) == 0 && S_ISDIR(st.st_mode)
                 ? Entry::kFolder
                 : Entry::kOther;
    }
    default:
      return Entry::kOther;
  }
}

struct DirCloser {
  void operator()(DIR* dir) const { closedir(dir); }
};
using Dir = std::unique_ptr<DIR, DirCloser>;

struct WalkedFolder {
  std::string path;  // relative to the root
  int64_t mtime_ns = 0;
  dev_t device = 0;
  ino_t inode = 0;
  int parent = -1;  // in the same ClassScan; -1: the root
  int depth = 1;
};

// Opens path below root; fills *folder except parent and depth.
StatusOr<Dir> OpenFolder(const FileAccess& access, const std::string& root,
                         const std::string& path, WalkedFolder* folder) {
  const std::string full = path.empty() ? root : root + "/" + path;
  PENSTOCK_ASSIGN_OR_RETURN(Fd opened, access.Open(full, O_DIRECTORY));
  Dir dir(fdopendir(opened.get()));
  if (dir == nullptr) return OpenError(errno, full);
  const int fd = opened.Release();
  // Before the entries are read: the next check sees later changes.
  struct stat st;
  if (fstat(fd, &st) != 0) return ReadError(errno, full, 0);
  folder->path = path;
  folder->mtime_ns =
      st.st_mtim.tv_sec * int64_t{1'000'000'000} + st.st_mtim.tv_nsec;
  folder->device = st.st_dev;
  folder->inode = st.st_ino;
  return dir;
}

// Calls visit(entry) for everything that is not hidden.
template <typename Visit>
Status ForEachEntry(DIR* dir, const std::string& path, Visit visit) {
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(dir);
    if (entry == nullptr) {
      return errno == 0 ? OkStatus() : ReadError(errno, path, 0);
    }
    if (entry->d_name[0] == '.') continue;  // ".", ".." and hidden
    PENSTOCK_RETURN_IF_ERROR(visit(*entry));
  }
}

// The contents of one folder in the root; paths are relative to it.
struct ClassScan {
  struct File {
    uint64_t begin;
    uint64_t size;
    uint64_t key = 0;  // set by Sort: a smaller key means a smaller path
  };
  std::string name;
  std::string text;  // the paths, in walk order
  std::vector<File> files;
  std::vector<WalkedFolder> folders;
  uint64_t others = 0;  // other files
  std::string an_other;

  std::string_view Path(const File& file) const {
    return std::string_view(text).substr(file.begin, file.size);
  }
  void AddFile(std::string_view folder, std::string_view file) {
    const uint64_t begin = text.size();
    text.append(folder).append(file);
    files.push_back({begin, text.size() - begin});
  }
  void AddOther(const std::string& path) {
    if (others++ == 0) an_other = path;
  }
  void Sort();
};

// The pictures of a class have names with a common prefix that differ soon
// after it: the eight bytes after the prefix decide nearly every comparison
// without reading the paths.
void ClassScan::Sort() {
  if (files.empty()) return;
  const std::string_view first = Path(files.front());
  size_t common = first.size();
  for (const File& file : files) {
    const std::string_view path = Path(file);
    common = static_cast<size_t>(
        std::mismatch(first.begin(),
                      first.begin() +
                          static_cast<ptrdiff_t>(std::min(common, path.size())),
                      path.begin())
            .first -
        first.begin());
  }
  for (File& file : files) {
    const std::string_view rest = Path(file).substr(common);
    // A path that ends within them sorts before longer ones.
    unsigned char bytes[sizeof(file.key)] = {};
    std::memcpy(bytes, rest.data(), std::min(rest.size(), sizeof(bytes)));
    file.key = 0;
    for (const unsigned char byte : bytes) file.key = file.key << 8 | byte;
  }
  std::sort(files.begin(), files.end(), [this](const File& a, const File& b) {
    return a.key != b.key ? a.key < b.key : Path(a) < Path(b);
  });
}

class FolderScan {
 public:
  FolderScan(const std::string& root, bool of_classes, OpenProgress* progress,
             const FolderFiles& kind)
      : root_(root),
        of_classes_(of_classes),
        progress_(progress),
        kind_(kind) {}
  FolderScan(const FolderScan&) = delete;
  FolderScan& operator=(const FolderScan&) = delete;

  StatusOr<FolderIndex> Run() {
    PENSTOCK_RETURN_IF_ERROR(ListRoot());
    PENSTOCK_RETURN_IF_ERROR(InParallel(
        classes_.size(), [this](size_t i) { return WalkClass(&classes_[i]); }));
    return JoinAll();
  }

  StatusOr<FolderIndex> Run(const RemoteFolder& objects) {
    PENSTOCK_RETURN_IF_ERROR(Take(objects));
    return JoinAll();
  }

 private:
  StatusOr<FolderIndex> JoinAll() {
    uint64_t files = in_root_.files.size();
    for (const ClassScan& scan : classes_) files += scan.files.size();
    const std::string others = Others();
    if (files == 0) {
      const std::string where =
          of_classes_ ? Format("{} class sub-folders, but no {} in them",
                               classes_.size(), kind_.one)
                      : Format("no {} in it", kind_.one);
      return InvalidArgumentError("{}: {} (.{}){}{}", root_, where,
                                  JoinText(kind_.extensions, ", ."),
                                  others.empty() ? "" : "; ", others);
    }
    FolderIndex index = Join(files);
    index.left_out = others;
    return index;
  }

  Status ListRoot();
  Status WalkClass(ClassScan* scan);
  Status Take(const RemoteFolder& objects);
  // "2 other files, like cat/1.gif"; "": none.
  std::string Others() const;
  FolderIndex Join(uint64_t files);
  static void AddFiles(const ClassScan& scan, FolderIndex* index);
  // Whether a link leads back to a folder above it.
  bool IsLoop(const ClassScan& scan, const WalkedFolder& folder) const;

  const std::string root_;
  const bool of_classes_;
  OpenProgress* const progress_;
  const FolderFiles& kind_;
  WalkedFolder root_folder_;
  std::vector<ClassScan> classes_;  // or folders that are none
  ClassScan in_root_;               // what is in no folder; unless of_classes_
  uint64_t loose_ = 0;              // objects in no folder; of_classes_
  std::atomic<uint64_t> folder_count_{0};
};

Status FolderScan::ListRoot() {
  const FileAccess& access = *progress_->access;
  StatusOr<Dir> opened = OpenFolder(access, root_, "", &root_folder_);
  if (!opened.ok()) {
    struct stat st;
    const StatusOr<Fd> file = access.Open(root_, O_PATH);
    if (file.ok() && fstat(file->get(), &st) == 0 && !S_ISDIR(st.st_mode)) {
      return InvalidArgumentError(
          "{} is a file; wanted a folder{}", root_,
          of_classes_ ? " with one sub-folder per class" : "");
    }
    return opened.status();
  }
  const Dir dir = *std::move(opened);
  uint64_t files = 0;
  uint64_t entries = 0;
  const auto visit = [&](const dirent& entry) -> Status {
    PENSTOCK_RETURN_IF_ERROR(progress_->CheckCancelled(root_));
    ++entries;
    const Entry kind = Classify(kind_, root_, access, entry);
    if (kind == Entry::kFile) ++files;
    if (!of_classes_) {
      if (kind == Entry::kFile) in_root_.AddFile("", entry.d_name);
      if (kind == Entry::kOther) in_root_.AddOther(entry.d_name);
    }
    // Every ext4 file system has one at its root; only root may enter it.
    if (kind == Entry::kFolder && strcmp(entry.d_name, "lost+found") != 0) {
      classes_.emplace_back().name = entry.d_name;
    }
    return OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachEntry(dir.get(), root_, visit));
  if (!of_classes_) {
    progress_->CountDone(files);
  } else if (classes_.empty() && files > 0) {
    return InvalidArgumentError(
        "{} has {} {}s but no class sub-folder; put them in one folder "
        "per class, or say `labels: none`",
        root_, files, kind_.one);
  } else if (classes_.empty()) {
    return InvalidArgumentError(
        "{}: {}; wanted one sub-folder per class with {}s in it", root_,
        entries == 0 ? "the folder is empty" : "no class sub-folder",
        kind_.one);
  }
  std::sort(
      classes_.begin(), classes_.end(),
      [](const ClassScan& a, const ClassScan& b) { return a.name < b.name; });
  return OkStatus();
}

Status FolderScan::WalkClass(ClassScan* scan) {
  struct Pending {
    std::string path;  // relative to the class folder, "" or ending in '/'
    int parent;
  };
  std::vector<Pending> pending = {{"", -1}};
  // The threads share the counter, so it is not updated per picture.
  uint64_t counted = 0;
  const auto count = [&]() -> Status {
    const uint64_t more = scan->files.size() - counted;
    counted += more;
    // Relaxed: for display and a bound.
    if (progress_->done.fetch_add(more, std::memory_order_relaxed) + more >
        kPicturesMax) {
      return InvalidArgumentError("{}: more than {} {}s", root_, kPicturesMax,
                                  kind_.one);
    }
    return OkStatus();
  };
  while (!pending.empty()) {
    const Pending next = std::move(pending.back());
    pending.pop_back();
    WalkedFolder folder;
    folder.parent = next.parent;
    folder.depth = next.parent < 0 ? 1 : scan->folders[next.parent].depth + 1;
    std::string path = scan->name + "/" + next.path;
    path.pop_back();
    if (folder.depth > kFolderDepthMax) {
      return InvalidArgumentError("{}/{}: more than {} folders deep", root_,
                                  path, kFolderDepthMax);
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const Dir dir, OpenFolder(*progress_->access, root_, path, &folder));
    if (IsLoop(*scan, folder)) continue;
    // Links can make a few folders look like very many.
    if (folder_count_.fetch_add(1, std::memory_order_relaxed) >= kFoldersMax) {
      return InvalidArgumentError("{}: more than {} folders", root_,
                                  kFoldersMax);
    }
    const int self = static_cast<int>(scan->folders.size());
    scan->folders.push_back(std::move(folder));

    const auto visit = [&](const dirent& entry) -> Status {
      PENSTOCK_RETURN_IF_ERROR(progress_->CheckCancelled(root_));
      switch (Classify(kind_, root_ + "/" + path, *progress_->access, entry)) {
        case Entry::kFolder:
          pending.push_back({next.path + entry.d_name + "/", self});
          break;
        case Entry::kFile: {
          scan->AddFile(next.path, entry.d_name);
          if (scan->files.size() - counted < kCountedAtOnce) break;
          return count();
        }
        case Entry::kOther:
          scan->AddOther(path + "/" + entry.d_name);
          break;
      }
      return OkStatus();
    };
    PENSTOCK_RETURN_IF_ERROR(
        ForEachEntry(dir.get(), root_ + "/" + path, visit));
  }
  PENSTOCK_RETURN_IF_ERROR(count());
  if (of_classes_) scan->Sort();
  return OkStatus();
}

// What a walk would find if each object were a file.
Status FolderScan::Take(const RemoteFolder& objects) {
  std::map<std::string_view, ClassScan> classes;
  for (const std::string& name : objects.names) {
    if (name.starts_with('.') || name.find("/.") != name.npos ||
        name.find("//") != name.npos || name.starts_with('/')) {
      continue;
    }
    if (std::count(name.begin(), name.end(), '/') > kFolderDepthMax) {
      return InvalidArgumentError("{}/{}: more than {} folders deep", root_,
                                  name, kFolderDepthMax);
    }
    const size_t slash = name.find('/');
    const bool is_one = kind_.Has(name);
    if (!of_classes_ || slash == name.npos) {
      if (of_classes_ && is_one) ++loose_;
      if (!is_one) in_root_.AddOther(name);
      if (!of_classes_ && is_one) in_root_.AddFile("", name);
      continue;
    }
    ClassScan& scan = classes[std::string_view(name).substr(0, slash)];
    if (is_one) {
      scan.AddFile("", std::string_view(name).substr(slash + 1));
    } else {
      scan.AddOther(name);
    }
  }
  for (auto& [name, scan] : classes) {
    scan.name = name;
    scan.Sort();
    classes_.push_back(std::move(scan));
  }
  progress_->CountDone(objects.names.size());
  if (of_classes_ && classes_.empty()) {
    return InvalidArgumentError(
        "{} has {} {}s but no class sub-folder; put them in one folder "
        "per class, or say `labels: none`",
        root_, loose_, kind_.one);
  }
  return OkStatus();
}

bool FolderScan::IsLoop(const ClassScan& scan,
                        const WalkedFolder& folder) const {
  const auto same = [&folder](const WalkedFolder& other) {
    return folder.device == other.device && folder.inode == other.inode;
  };
  for (int i = folder.parent; i >= 0; i = scan.folders[i].parent) {
    if (same(scan.folders[i])) return true;
  }
  return same(root_folder_);
}

std::string FolderScan::Others() const {
  uint64_t others = in_root_.others;
  std::string an_other = in_root_.an_other;
  for (const ClassScan& scan : classes_) {
    if (others == 0) an_other = scan.an_other;
    others += scan.others;
  }
  return others == 0 ? ""
                     : Format("{} other file{}, like {}", others,
                              others == 1 ? "" : "s", an_other);
}

void FolderScan::AddFiles(const ClassScan& scan, FolderIndex* index) {
  for (const ClassScan::File& file : scan.files) {
    index->file_paths += scan.Path(file);
    index->file_path_ends.push_back(index->file_paths.size());
  }
}

FolderIndex FolderScan::Join(uint64_t files) {
  FolderIndex index;
  uint64_t folders = 1;
  uint64_t folder_bytes = 0;
  uint64_t name_bytes = 0;
  uint64_t file_bytes = in_root_.text.size();
  for (const ClassScan& scan : classes_) {
    folders += scan.folders.size();
    for (const WalkedFolder& folder : scan.folders) {
      folder_bytes += folder.path.size();
    }
    name_bytes += scan.name.size();
    file_bytes += scan.text.size();
  }
  // Exact sizes, because this memory lives as long as the dataset.
  index.folders.reserve(folders);
  index.folder_paths.reserve(folder_bytes);
  if (of_classes_) {
    index.classes.reserve(classes_.size());
    index.class_names.reserve(name_bytes);
  } else {
    for (const ClassScan& scan : classes_) {
      file_bytes += (scan.name.size() + 1) * scan.files.size();
    }
  }
  index.file_path_ends.reserve(files);
  index.file_paths.reserve(file_bytes);

  index.folders.push_back({root_folder_.mtime_ns, root_folder_.inode, 0});
  for (ClassScan& scan : classes_) {
    for (const WalkedFolder& folder : scan.folders) {
      index.folder_paths += folder.path;
      index.folders.push_back(
          {folder.mtime_ns, folder.inode, index.folder_paths.size()});
    }
    if (of_classes_) {
      AddFiles(scan, &index);
      index.class_names += scan.name;
      index.classes.push_back(
          {index.class_names.size(), index.file_path_ends.size()});
    } else {
      const std::string folder = scan.name + "/";
      for (const ClassScan::File& file : scan.files) {
        in_root_.AddFile(folder, scan.Path(file));
      }
    }
    scan = ClassScan();  // at most one class is in memory twice
  }
  if (!of_classes_) {
    in_root_.Sort();
    AddFiles(in_root_, &index);
  }
  return index;
}

}  // namespace

constinit const FolderFiles kPictureFiles = {"picture", kPictureExtensions,
                                             "image-folder", "pictures"};
constinit const FolderFiles kSoundFiles = {"sound", kSoundExtensions,
                                           "audio-folder", "sounds"};

bool FolderFiles::Has(std::string_view name) const {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  const std::string_view extension = name.substr(dot + 1);
  return std::any_of(extensions.begin(), extensions.end(),
                     [extension](std::string_view known) {
                       return known.size() == extension.size() &&
                              strncasecmp(known.data(), extension.data(),
                                          known.size()) == 0;
                     });
}

uint64_t FolderIndex::ClassOf(uint64_t file) const {
  return std::upper_bound(classes.begin(), classes.end(), file,
                          [](uint64_t file, const Class& one) {
                            return file < one.files_end;
                          }) -
         classes.begin();
}

void FolderIndex::AppendPath(uint64_t file, std::string* path) const {
  if (!classes.empty()) path->append(ClassName(ClassOf(file))).append("/");
  path->append(FilePath(file));
}

uint64_t FolderIndex::MemoryBytes() const {
  return folders.capacity() * sizeof(Folder) + folder_paths.capacity() +
         classes.capacity() * sizeof(Class) + class_names.capacity() +
         file_path_ends.capacity() * sizeof(uint64_t) + file_paths.capacity() +
         left_out.capacity();
}

std::string FolderIndex::Fingerprint() const {
  penstock::Fingerprint fingerprint("image_folder");
  for (const Class& one : classes) {
    fingerprint.Add(one.name_end);
    fingerprint.Add(one.files_end);
  }
  fingerprint.Add(class_names);
  fingerprint.Add(std::as_bytes(std::span(file_path_ends)));
  fingerprint.Add(file_paths);
  return fingerprint.Hex();
}

StatusOr<FolderIndex> ScanFolder(const std::string& root, bool of_classes,
                                 OpenProgress* progress,
                                 const FolderFiles& files) {
  return FolderScan(root, of_classes, progress, files).Run();
}

StatusOr<FolderIndex> ScanObjects(const std::string& root, bool of_classes,
                                  const RemoteFolder& objects,
                                  OpenProgress* progress,
                                  const FolderFiles& files) {
  return FolderScan(root, of_classes, progress, files).Run(objects);
}

}  // namespace penstock
