// source: webdataset. Samples of tar files: files with one base name, such as
// 0001.jpg and 0001.cls, are one sample.
#ifndef BROKER_SOURCE_WEBDATASET_H_
#define BROKER_SOURCE_WEBDATASET_H_

#include "broker/index/data_file.h"
#include "broker/index/file_patterns.h"
#include "broker/source/on_missing.h"
#include "broker/source/record_feature.h"
#include "broker/source/source.h"

namespace penstock {

struct WebdatasetSource {
  FilePatterns files;
  RecordFeatures features;
  OnMissing on_missing = OnMissing::kError;  // a member
  Io io = Io::kAuto;
  bool operator==(const WebdatasetSource&) const = default;

  static const Declaration<WebdatasetSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_WEBDATASET_H_
