// source: image_folder. One sub-folder per class; its pictures are the samples.
// Each record is a whole file.
#ifndef BROKER_SOURCE_IMAGE_FOLDER_H_
#define BROKER_SOURCE_IMAGE_FOLDER_H_

#include "broker/index/data_file.h"
#include "broker/source/source.h"

namespace penstock {

struct ImageFolderSource {
  std::string path;  // absolute after parsing
  Io io = Io::kAuto;
  bool operator==(const ImageFolderSource&) const = default;

  static const Declaration<ImageFolderSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_IMAGE_FOLDER_H_
