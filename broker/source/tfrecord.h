// source: tfrecord. Records of TFRecord files, each a tf.train.Example.
//
// A record is: length u64, its masked CRC-32C u32, data, its masked CRC-32C u32
// (tensorflow/core/lib/io/record_writer.h). The scan reads lengths and checks
// their checksums; a read checks the data's.
#ifndef BROKER_SOURCE_TFRECORD_H_
#define BROKER_SOURCE_TFRECORD_H_

#include "broker/index/data_file.h"
#include "broker/index/file_patterns.h"
#include "broker/source/record_feature.h"
#include "broker/source/source.h"

namespace penstock {

struct TfrecordSource {
  FilePatterns files;
  RecordFeatures features;  // empty: asks which
  Io io = Io::kAuto;
  bool operator==(const TfrecordSource&) const = default;

  static const Declaration<TfrecordSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_TFRECORD_H_
