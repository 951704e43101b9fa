#include <fcntl.h>

#include <numeric>

#include "broker/declare/declaration.h"
#include "broker/index/cache_file.h"
#include "broker/index/fingerprint.h"
#include "broker/io/stores.h"
#include "broker/source/image_folder_index.h"
#include "broker/source/kinds.h"
#include "broker/source/object_places.h"

namespace penstock {
namespace {

// A folder and its pictures.
struct Folder {
  std::string root;
  FolderIndex index;
  // Later changes of a folder in it will change that folder's modification
  // time.
  bool settled = true;
  // An address has these: all of it until the places are known, then the file.
  RemoteFolder objects = {};

  bool Changed(const FileAccess& access) const {
    if (objects.file != nullptr) {
      const StatusOr<Stores*> stores = access.StoresOf(root);
      if (!stores.ok()) return true;
      const StatusOr<std::string> now = (*stores)->Version(root + "/");
      return !now.ok() || *now != objects.file->version();
    }
    return !settled || !FoldersAreUnchanged(root, index, access);
  }
};

// path_of: of a record, relative to the folder. Leaves names behind.
template <typename PathOf>
ObjectPlaces PlacesOf(Folder* folder, uint64_t records, const PathOf& path_of) {
  RemoteFolder& objects = folder->objects;
  if (objects.file == nullptr) return {};
  ObjectPlaces places(objects.file, records);
  std::string path;
  for (uint64_t record = 0; record < records; ++record) {
    path.clear();
    path_of(record, &path);
    places.Add(objects, path);  // the index was made of these names
  }
  objects = {.file = objects.file};
  return places;
}

// The path of a picture's mask, relative to the folder of masks. relative: the
// picture's, with its extension.
void ToMask(const MaskFolder& masks, std::string* relative) {
  relative->resize(relative->rfind('.'));
  relative->append(masks.suffix);
}

class ImageFolder final : public Source {
 public:
  // feature: what a file is. mask_folder: without pictures; empty unless there
  // are masks.
  ImageFolder(const char* feature, std::optional<MaskFolder> masks,
              Folder pictures, Folder mask_folder, std::string left_out,
              uint64_t path_room, std::shared_ptr<const FileAccess> access)
      : pictures_(std::move(pictures)),
        masks_(std::move(masks)),
        mask_folder_(std::move(mask_folder)),
        left_out_(std::move(left_out)),
        path_room_(path_room),
        raw_spec_({RawFeature{{feature, DType::kUint8, {}}, true}}),
        files_(std::move(access)) {
    picture_places_ = PlacesOf(&pictures_, record_count(),
                               [this](uint64_t record, std::string* path) {
                                 pictures_.index.AppendPath(record, path);
                               });
    mask_places_ = PlacesOf(&mask_folder_, record_count(),
                            [this](uint64_t record, std::string* path) {
                              pictures_.index.AppendPath(record, path);
                              ToMask(*masks_, path);
                            });
    const size_t classes = pictures_.index.classes.size();
    labels_.resize(classes);
    std::iota(labels_.begin(), labels_.end(), int64_t{0});
    if (masks_) raw_spec_.push_back({{"mask", DType::kUint8, {}}, true});
    if (classes > 0) raw_spec_.push_back({{kLabel, DType::kInt64, {}}, false});
    if (path_room_ > 0) {
      raw_spec_.push_back(
          {{"path", DType::kUint8, {static_cast<int64_t>(path_room_)}}, false});
      raw_spec_.push_back(
          {{std::string("path") + kBytesSuffix, DType::kInt64, {}}, false});
    }
  }

  Status AskFileSystem(Io io) {
    return picture_places_.remote() ? OkStatus() : files_.Ask(Describe(0), io);
  }

  uint64_t record_count() const override {
    return pictures_.index.file_path_ends.size();
  }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    return pictures_.index.MemoryBytes() + mask_folder_.index.MemoryBytes() +
           labels_.capacity() * sizeof(int64_t) +
           picture_places_.memory_bytes() + mask_places_.memory_bytes();
  }

  std::string io() const override { return IoText(files_.align()); }

  bool Changed() const override {
    return pictures_.Changed(files_.access()) ||
           (masks_ && mask_folder_.Changed(files_.access()));
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    if (picture_places_.remote()) {
      picture_places_.Locate(record, request);
    } else {
      SetPath(record, &request->path);
      files_.Locate(request);
    }
    if (!masks_) return;
    ReadPart& mask = request->more.emplace_back();
    if (mask_places_.remote()) return mask_places_.Locate(record, &mask);
    SetMaskPath(record, &mask.path);
    files_.Locate(&mask);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    raw->clear();
    raw->push_back(masks_ ? read.Part(0) : read.bytes);
    if (masks_) raw->push_back(read.Part(1));
    for (size_t i = 0; i < raw->size(); ++i) {
      if (!(*raw)[i].empty()) continue;
      std::string path;
      i == 0 ? SetPath(record, &path) : SetMaskPath(record, &path);
      return DataLossError("{}: is empty", path);
    }
    if (!labels_.empty()) {
      raw->push_back(std::as_bytes(
          std::span(labels_).subspan(pictures_.index.ClassOf(record), 1)));
    }
    return path_room_ > 0 ? AddPath(record, scratch, raw) : OkStatus();
  }

  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    if (raw_spec_[feature].feature.name != kLabel) return false;
    std::memcpy(number, &labels_[pictures_.index.ClassOf(record)],
                sizeof(int64_t));
    return true;
  }
  Columns columns(uint64_t first) const override {
    Columns columns = Source::columns(first);
    if (!labels_.empty()) {
      columns.push_back({"class", [this, first](uint64_t record) {
                           return std::string(pictures_.index.ClassName(
                               pictures_.index.ClassOf(record - first)));
                         }});
    }
    columns.push_back({"path", [this, first](uint64_t record) {
                         std::string path;
                         pictures_.index.AppendPath(record - first, &path);
                         return path;
                       }});
    return columns;
  }

  std::string Describe(uint64_t record) const override {
    std::string path;
    SetPath(record, &path);
    return path;
  }

  std::vector<std::string> class_names() const override {
    std::vector<std::string> names;
    for (size_t i = 0; i < labels_.size(); ++i) {
      names.emplace_back(pictures_.index.ClassName(i));
    }
    return names;
  }

  std::string left_out() const override { return left_out_; }
  std::string fingerprint() const override {
    if (!masks_) return pictures_.index.Fingerprint();
    Fingerprint fingerprint("image_folder with masks");
    fingerprint.Add(pictures_.index.Fingerprint());
    fingerprint.Add(masks_->suffix);
    return fingerprint.Hex();
  }
  void ListFiles(const FileVisit& visit) const override {
    std::string path;
    for (uint64_t record = 0; record < record_count(); ++record) {
      path.clear();
      pictures_.index.AppendPath(record, &path);
      visit(path, 0);
    }
  }
  // A picture that was written anew in its place does not show.
  void AddTimes(Fingerprint* to) const override {
    for (const auto* each : {&pictures_, &mask_folder_}) {
      for (const FolderIndex::Folder& folder : each->index.folders) {
        to->Add(static_cast<uint64_t>(folder.mtime_ns));
      }
    }
  }

 private:
  static constexpr char kLabel[] = "label";

  Status AddPath(uint64_t record, std::vector<std::byte>* scratch,
                 RawRecord* raw) const {
    std::string path;
    pictures_.index.AppendPath(record, &path);
    const auto bytes = static_cast<int64_t>(path.size());
    if (path.size() > path_room_) {
      return DataLossError(
          "{}: a path of {} bytes; max_path_bytes has room for {}",
          Describe(record), bytes, path_room_);
    }
    path.resize(path_room_);
    path.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    const auto text = std::as_bytes(std::span(path));
    scratch->assign(text.begin(), text.end());
    raw->push_back(std::span(*scratch).first(path_room_));
    raw->push_back(std::span(*scratch).subspan(path_room_));
    return OkStatus();
  }
  void SetPath(uint64_t record, std::string* path) const {
    path->assign(pictures_.root).append("/");
    pictures_.index.AppendPath(record, path);
  }
  void SetMaskPath(uint64_t record, std::string* path) const {
    path->assign(mask_folder_.root).append("/");
    pictures_.index.AppendPath(record, path);
    ToMask(*masks_, path);
  }

  Folder pictures_;
  const std::optional<MaskFolder> masks_;
  Folder mask_folder_;
  ObjectPlaces picture_places_;
  ObjectPlaces mask_places_;
  const std::string left_out_;
  const uint64_t path_room_;  // of the feature `path`; 0: there is none
  RawSpec raw_spec_;
  WholeFiles files_;
  std::vector<int64_t> labels_;  // 0, 1, ...: the label spans point here
};

// A cached index tells the names in all its folders.
Status CheckAccess(const std::string& root, const FolderIndex& index,
                   const FileAccess& access) {
  if (access.key().empty()) return OkStatus();
  for (uint64_t i = 0; i < index.folders.size(); ++i) {
    const std::string_view path = index.FolderPath(i);
    PENSTOCK_RETURN_IF_ERROR(
        access
            .Open(Format("{}{}{}", root, path.empty() ? "" : "/", path),
                  O_DIRECTORY)
            .status());
  }
  return OkStatus();
}

StatusOr<Folder> OpenFolder(std::string root, bool of_classes,
                            OpenProgress* progress,
                            const FolderFiles& files = kPictureFiles) {
  if (IsAddress(root)) {
    while (root.back() == '/') root.pop_back();
    PENSTOCK_ASSIGN_OR_RETURN(Stores* const stores,
                              progress->access->StoresOf(root));
    Folder folder{std::move(root), {}};
    PENSTOCK_ASSIGN_OR_RETURN(
        folder.objects,
        stores->OpenFolder(folder.root + "/", progress->copies.most.value_or(0),
                           progress->cancel));
    progress->remote.Count(
        folder.objects.names.size(),
        std::accumulate(folder.objects.bytes.begin(),
                        folder.objects.bytes.end(), uint64_t{0}));
    PENSTOCK_ASSIGN_OR_RETURN(
        folder.index,
        ScanObjects(folder.root, of_classes, folder.objects, progress, files));
    return folder;
  }
  if (root.empty() || root[0] != '/') {
    return InvalidArgumentError("the path '{}' is not absolute", root);
  }
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  Folder folder{std::move(root), {}};
  const std::string cache_file =
      FolderCacheFile(folder.root, of_classes, files);
  if (!cache_file.empty()) {
    std::optional<FolderIndex> cached =
        ReadFolderCache(cache_file, folder.root, of_classes, *progress->access);
    if (cached.has_value()) {
      PENSTOCK_RETURN_IF_ERROR(
          CheckAccess(folder.root, *cached, *progress->access));
      progress->CountDone(cached->file_path_ends.size());
      folder.index = *std::move(cached);
      return folder;
    }
  }
  const int64_t scan_start_ns = RealTimeNs();
  PENSTOCK_ASSIGN_OR_RETURN(
      folder.index, ScanFolder(folder.root, of_classes, progress, files));
  folder.settled = CheckSettled(folder.root, folder.index, scan_start_ns).ok();
  if (!cache_file.empty()) {
    // Without a cache the next opening only scans again.
    (void)WriteFolderCache(cache_file, folder.root, folder.index,
                           scan_start_ns);
  }
  return folder;
}

// Files without a partner: how many, and the first of them.
struct Single {
  uint64_t count = 0;
  std::string first;

  void Add(const std::string& path) {
    if (count++ == 0) first = path;
  }
  // "2 pictures without a mask, like /a/1.jpg"
  std::string Text(std::string_view what, std::string_view lacks) const {
    return Format("{} {}{} without a {}, like {}", count, what,
                  count == 1 ? "" : "s", lacks, first);
  }
};

// Pairs pictures with masks by their paths.
class Pairing {
 public:
  Pairing(const MaskFolder& spec, Folder* pictures, const Folder& masks)
      : spec_(spec),
        pictures_(*pictures),
        masks_(masks),
        is_taken_(masks.index.file_path_ends.size()) {}

  // Leaves in *pictures those that have masks; *left_out tells of the others.
  Status Run(std::string* left_out) {
    FolderIndex& index = pictures_.index;
    FolderIndex kept;
    size_t of_class = 0;
    const auto end_classes = [&](uint64_t file) {
      for (; of_class < index.classes.size() &&
             index.classes[of_class].files_end == file;
           ++of_class) {
        kept.classes.push_back(
            {index.classes[of_class].name_end, kept.file_path_ends.size()});
      }
    };
    const uint64_t count = index.file_path_ends.size();
    for (uint64_t file = 0; file < count; ++file) {
      end_classes(file);
      PENSTOCK_ASSIGN_OR_RETURN(const bool has_mask, Take(file));
      if (!has_mask) continue;
      kept.file_paths += index.FilePath(file);
      kept.file_path_ends.push_back(kept.file_paths.size());
    }
    end_classes(count);
    for (size_t i = 0; i < is_taken_.size(); ++i) {
      const std::string_view path = masks_.index.FilePath(i);
      if (is_taken_[i] || !path.ends_with(spec_.suffix)) continue;
      lonely_masks_.Add(Format("{}/{}", masks_.root, path));
    }
    PENSTOCK_RETURN_IF_ERROR(Judge(kept.file_path_ends.size(), left_out));
    kept.file_paths.shrink_to_fit();
    kept.file_path_ends.shrink_to_fit();
    index.classes = std::move(kept.classes);
    index.file_paths = std::move(kept.file_paths);
    index.file_path_ends = std::move(kept.file_path_ends);
    return OkStatus();
  }

 private:
  // Whether the picture has a mask, which is taken.
  StatusOr<bool> Take(uint64_t file) {
    path_.assign(pictures_.root).append("/");
    const size_t root_bytes = path_.size();
    pictures_.index.AppendPath(file, &path_);
    if (IsMask(path_)) return false;
    std::string relative = path_.substr(root_bytes);
    ToMask(spec_, &relative);
    const std::optional<size_t> mask = FindMask(relative);
    if (!mask) {
      lonely_pictures_.Add(
          Format("{}: no {}/{}", path_, masks_.root, relative));
      return false;
    }
    if (is_taken_[*mask]) {
      return InvalidArgumentError(
          "{}: another picture has the mask {}/{} already: their names differ "
          "in the extension only",
          path_, masks_.root, relative);
    }
    is_taken_[*mask] = true;
    return true;
  }

  // Masks may be among the pictures.
  bool IsMask(std::string_view path) const {
    return path.ends_with(spec_.suffix) && path.starts_with(masks_.root) &&
           path.substr(masks_.root.size()).starts_with('/') &&
           FindMask(path.substr(masks_.root.size() + 1));
  }

  // By binary search: they are sorted.
  std::optional<size_t> FindMask(std::string_view relative) const {
    size_t begin = 0;
    size_t end = is_taken_.size();
    while (begin < end) {
      const size_t middle = begin + (end - begin) / 2;
      if (masks_.index.FilePath(middle) < relative) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    if (begin == is_taken_.size() || masks_.index.FilePath(begin) != relative) {
      return std::nullopt;
    }
    return begin;
  }

  Status Judge(uint64_t kept, std::string* left_out) const {
    std::vector<std::string> texts;
    if (lonely_pictures_.count > 0) {
      texts.push_back(lonely_pictures_.Text("picture", "mask"));
    }
    if (lonely_masks_.count > 0) {
      texts.push_back(lonely_masks_.Text("mask", "picture"));
    }
    if (!pictures_.index.left_out.empty()) {
      texts.push_back(pictures_.index.left_out);
    }
    *left_out = JoinText(texts, "; ");
    if (kept == 0) {
      return InvalidArgumentError("{}: no picture has a mask in {}: {}",
                                  pictures_.root, masks_.root, *left_out);
    }
    if (spec_.on_missing == OnMissing::kSkip ||
        lonely_pictures_.count + lonely_masks_.count == 0) {
      return OkStatus();
    }
    return NotFoundError("{}; `on_missing: skip` leaves them out", *left_out);
  }

  const MaskFolder& spec_;
  Folder& pictures_;
  const Folder& masks_;
  std::vector<bool> is_taken_;  // by mask
  std::string path_;
  Single lonely_pictures_;
  Single lonely_masks_;
};

ValueType<std::optional<ImageFolderSource::Labels>> LabelsType() {
  using Labels = ImageFolderSource::Labels;
  return Maybe(
      Words<Labels>({{"folders", Labels::kFolders}, {"none", Labels::kNone}}));
}

ValueType<std::optional<uint64_t>> PathBytes() {
  constexpr uint64_t kPathBytesMax = 4096;  // PATH_MAX
  return Maybe(WholeNumber<uint64_t>(1, kPathBytesMax));
}
constexpr char kPathBytesText[] =
    "room for the path of each file below `path`, a text of the row by which "
    "outputs can be named";

bool IsMaskSuffix(std::string_view text) {
  return text.find('/') == text.npos && text.find('\0') == text.npos &&
         kPictureFiles.Has("x" + std::string(text));
}

}  // namespace

const Declaration<MaskFolder>& MaskFolder::Declared() {
  static const auto declared =
      Declaration<MaskFolder>(
          "masks",
          "Masks in a folder whose paths are those of the pictures, with "
          "suffix for the extension.")
          .Example("{path: /data/masks, suffix: _mask.png}")
          .Required("path", &MaskFolder::path, PathOrAddress(),
                    "the folder; it may be that of the pictures")
          .Optional("suffix", &MaskFolder::suffix,
                    Text("the end of a picture's name, such as _mask.png",
                         IsMaskSuffix),
                    "what a mask's name has for the picture's extension")
          .Optional("on_missing", &MaskFolder::on_missing, OnMissingType(),
                    "a picture without a mask, or a mask without a picture, is "
                    "an error, or is left out of the dataset");
  return declared;
}

const Declaration<ImageFolderSource>& ImageFolderSource::Declared() {
  static const auto declared =
      Declaration<ImageFolderSource>(
          "image_folder",
          "Pictures (.jpg, .jpeg, .jpe, .png, .webp, .tif, .tiff, .bmp, .pgm, "
          ".ppm, in capitals too) in one sub-folder per class, also nested; or "
          "without labels.")
          .Gives(
              "image (encoded); with masks, mask (encoded); unless labels: "
              "none, label int64: the class folder's index in byte order; with "
              "max_path_bytes, path uint8 [max_path_bytes] and path_bytes "
              "int64")
          .Example("{path: /data/imagenet/train}")
          .Required("path", &ImageFolderSource::path, PathOrAddress(),
                    "the folder of the class folders, or of the pictures")
          .Optional("labels", &ImageFolderSource::labels, LabelsType(),
                    "by default the class folders; none: all pictures in the "
                    "folder, at any depth, in byte order of their paths")
          .Optional("masks", &ImageFolderSource::masks,
                    Maybe(MappingOf(MaskFolder::Declared())), "of the pictures")
          .Optional("max_path_bytes", &ImageFolderSource::max_path_bytes,
                    PathBytes(), kPathBytesText)
          .Optional("io", &ImageFolderSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource ImageFolderSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(
      Folder pictures, OpenFolder(path, labels != Labels::kNone, progress));
  Folder mask_folder;
  std::string left_out = pictures.index.left_out;
  if (masks) {
    PENSTOCK_ASSIGN_OR_RETURN(mask_folder,
                              OpenFolder(masks->path, false, progress));
    PENSTOCK_RETURN_IF_ERROR(
        Pairing(*masks, &pictures, mask_folder).Run(&left_out));
    mask_folder.index.file_path_ends = {};
    mask_folder.index.file_paths = {};
  }
  auto source = std::make_unique<ImageFolder>(
      "image", masks, std::move(pictures), std::move(mask_folder),
      std::move(left_out), max_path_bytes.value_or(0), progress->access);
  PENSTOCK_RETURN_IF_ERROR(source->AskFileSystem(io));
  return std::unique_ptr<Source>(std::move(source));
}

const Declaration<AudioFolderSource>& AudioFolderSource::Declared() {
  static const auto declared =
      Declaration<AudioFolderSource>(
          "audio_folder",
          "Sounds (.wav, .flac, .mp3, .ogg, .oga, .opus, .aif, .aiff, .au, "
          ".caf, .w64, .sph, in capitals too) in one sub-folder per class, "
          "also "
          "nested; or without labels.")
          .Gives(
              "audio (encoded); unless labels: none, label int64: the class "
              "folder's index in byte order; with max_path_bytes, path "
              "uint8 [max_path_bytes] and path_bytes int64")
          .Example("{path: /data/commands}")
          .Required("path", &AudioFolderSource::path, PathOrAddress(),
                    "the folder of the class folders, or of the sounds")
          .Optional("labels", &AudioFolderSource::labels, LabelsType(),
                    "by default the class folders; none: all sounds in the "
                    "folder, at any depth, in byte order of their paths")
          .Optional("max_path_bytes", &AudioFolderSource::max_path_bytes,
                    PathBytes(), kPathBytesText)
          .Optional("io", &AudioFolderSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource AudioFolderSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(
      Folder sounds,
      OpenFolder(path, labels != ImageFolderSource::Labels::kNone, progress,
                 kSoundFiles));
  std::string left_out = sounds.index.left_out;
  auto source = std::make_unique<ImageFolder>(
      "audio", std::nullopt, std::move(sounds), Folder(), std::move(left_out),
      max_path_bytes.value_or(0), progress->access);
  PENSTOCK_RETURN_IF_ERROR(source->AskFileSystem(io));
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace penstock
