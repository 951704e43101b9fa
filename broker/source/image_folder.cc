#include "broker/source/image_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include "broker/declare/declaration.h"
#include "broker/index/cache_file.h"
#include "broker/source/image_folder_index.h"

namespace penstock {
namespace {

class ImageFolder final : public Source {
 public:
  ImageFolder(std::string root, FolderIndex index, bool settled)
      : root_(std::move(root)),
        index_(std::move(index)),
        settled_(settled),
        raw_spec_({RawFeature{{"image", DType::kUint8, {}}, true},
                   RawFeature{{"label", DType::kInt64, {}}, false}}) {
    labels_.reserve(index_.classes.size());
    for (size_t i = 0; i < index_.classes.size(); ++i) {
      labels_.push_back(static_cast<int64_t>(i));
    }
  }

  // Checks the file system of the first file only. If links lead to other file
  // systems, their files are read more slowly, or not directly.
  Status AskFileSystem(Io io) {
    const std::string path = Describe(0);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return OkStatus();  // its read will report the error
    nowait_ = SupportsNowait(fd);
    if (io == Io::kDirect) align_ = DirectAlignment(fd);
    close(fd);
    return io == Io::kDirect && align_ == 0 ? NoDirectReadsError(path)
                                            : OkStatus();
  }

  uint64_t record_count() const override {
    return index_.file_path_ends.size();
  }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    return index_.MemoryBytes() + labels_.capacity() * sizeof(int64_t);
  }

  std::string io() const override { return IoText(align_); }

  bool Changed() const override {
    return !settled_ || !FoldersAreUnchanged(root_, index_);
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    request->kind = ReadRequest::Kind::kFile;
    request->nowait = nowait_;
    request->align = align_;
    SetPath(record, &request->path);
  }

  Status Unpack(uint64_t record, const ReadBytes& read, std::vector<std::byte>*,
                RawRecord* raw) const override {
    if (read.bytes.empty())
      return DataLossError("{}: is empty", Describe(record));
    raw->resize(2);
    (*raw)[0] = read.bytes;
    (*raw)[1] =
        std::as_bytes(std::span(labels_).subspan(index_.ClassOf(record), 1));
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    std::string path;
    SetPath(record, &path);
    return path;
  }

  std::vector<std::string> class_names() const override {
    std::vector<std::string> names;
    for (size_t i = 0; i < index_.classes.size(); ++i) {
      names.emplace_back(index_.ClassName(i));
    }
    return names;
  }

  std::string left_out() const override { return index_.left_out; }
  std::string fingerprint() const override { return index_.Fingerprint(); }

 private:
  void SetPath(uint64_t record, std::string* path) const {
    path->assign(root_);
    path->append("/").append(index_.ClassName(index_.ClassOf(record)));
    path->append("/").append(index_.FilePath(record));
  }

  const std::string root_;
  const FolderIndex index_;
  const bool settled_;
  const RawSpec raw_spec_;
  bool nowait_ = true;
  uint32_t align_ = 0;
  std::vector<int64_t> labels_;  // 0, 1, ...: the label spans point here
};

// *settled: later changes of a folder will change its modification time.
StatusOr<FolderIndex> IndexOf(const std::string& root, OpenProgress* progress,
                              bool* settled) {
  *settled = true;
  const std::string cache_file = FolderCacheFile(root);
  if (!cache_file.empty()) {
    std::optional<FolderIndex> cached = ReadFolderCache(cache_file, root);
    if (cached.has_value()) {
      progress->done.store(cached->file_path_ends.size(),
                           std::memory_order_relaxed);  // only displayed
      return *std::move(cached);
    }
  }
  const int64_t scan_start_ns = RealTimeNs();
  PENSTOCK_ASSIGN_OR_RETURN(FolderIndex index, ScanFolder(root, progress));
  *settled = CheckSettled(root, index, scan_start_ns).ok();
  if (!cache_file.empty()) {
    // Without a cache the next opening only scans again.
    (void)WriteFolderCache(cache_file, root, index, scan_start_ns);
  }
  return index;
}

}  // namespace

const Declaration<ImageFolderSource>& ImageFolderSource::Declared() {
  static const auto declared =
      Declaration<ImageFolderSource>(
          "image_folder",
          "Pictures (.jpg, .jpeg, .jpe, .png, .webp, .tif, .tiff, in capitals "
          "too) in one sub-folder per class, also nested.")
          .Gives(
              "image (encoded), label int64: the class folder's index in "
              "byte order")
          .Example("{path: /data/imagenet/train}")
          .Required("path", &ImageFolderSource::path, Path(),
                    "the folder of the class folders")
          .Optional("io", &ImageFolderSource::io, IoType(), kIoText);
  return declared;
}

StatusOr<std::unique_ptr<Source>> ImageFolderSource::Open(
    OpenProgress* progress) const {
  if (path.empty() || path[0] != '/') {
    return InvalidArgumentError("image_folder: path '{}' is not absolute",
                                path);
  }
  std::string root = path;
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  bool settled = false;
  PENSTOCK_ASSIGN_OR_RETURN(FolderIndex index,
                            IndexOf(root, progress, &settled));
  auto source =
      std::make_unique<ImageFolder>(std::move(root), std::move(index), settled);
  PENSTOCK_RETURN_IF_ERROR(source->AskFileSystem(io));
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace penstock
