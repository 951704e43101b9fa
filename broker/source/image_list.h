// source: image_list. A file of comma-separated values names pictures and has
// their labels: one sample per row. A record is one whole file for each
// picture.
#ifndef BROKER_SOURCE_IMAGE_LIST_H_
#define BROKER_SOURCE_IMAGE_LIST_H_

#include <string>
#include <string_view>

#include "broker/index/data_file.h"
#include "broker/source/on_missing.h"
#include "broker/source/source.h"
#include "broker/source/text_field.h"

namespace penstock {

struct ImageListSource {
  std::string file;
  FeatureValues<TextField> columns;  // from: a name of the header, or a number
  std::string folder;  // "": that of file, and absolute paths may be in it
  char delimiter = ',';
  bool header = true;
  LongerText longer = LongerText::kFail;
  OnMissing on_missing = OnMissing::kError;
  Io io = Io::kAuto;
  bool operator==(const ImageListSource&) const = default;

  static const Declaration<ImageListSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

// A path of a list. InvalidArgument: empty, too long, or with a NUL byte;
// it leads out of its folder by `..`, or is absolute where that is not allowed.
Status CheckListedPath(std::string_view path, bool may_be_absolute);

}  // namespace penstock
#endif  // BROKER_SOURCE_IMAGE_LIST_H_
