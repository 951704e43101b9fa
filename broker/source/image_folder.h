// source: image_folder. The pictures of a folder are the samples: one
// sub-folder per class, or without labels; with masks from a second folder. A
// record is one whole file, or two.
#ifndef BROKER_SOURCE_IMAGE_FOLDER_H_
#define BROKER_SOURCE_IMAGE_FOLDER_H_

#include <optional>
#include <string>

#include "broker/index/data_file.h"
#include "broker/source/on_missing.h"
#include "broker/source/source.h"

namespace penstock {

// The mask of a picture has its path, with suffix for the extension.
struct MaskFolder {
  std::string path;
  std::string suffix = ".png";
  OnMissing on_missing = OnMissing::kError;
  bool operator==(const MaskFolder&) const = default;

  static const Declaration<MaskFolder>& Declared();
};

struct ImageFolderSource {
  enum class Labels { kFolders, kNone };

  std::string path;              // absolute after parsing
  std::optional<Labels> labels;  // absent: kFolders
  std::optional<MaskFolder> masks;
  Io io = Io::kAuto;
  bool operator==(const ImageFolderSource&) const = default;

  static const Declaration<ImageFolderSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_IMAGE_FOLDER_H_
