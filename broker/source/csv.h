// source: csv. One row per row of files of comma-separated values (RFC 4180):
// named columns of it.
#ifndef BROKER_SOURCE_CSV_H_
#define BROKER_SOURCE_CSV_H_

#include "broker/index/file_patterns.h"
#include "broker/source/source.h"
#include "broker/source/text_field.h"

namespace penstock {

struct CsvSource {
  FilePatterns files;
  FeatureValues<TextField> columns;  // from: a name of the header, or a number
  char delimiter = ',';
  bool header = true;
  LongerText longer = LongerText::kFail;
  bool operator==(const CsvSource&) const = default;

  static const Declaration<CsvSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_CSV_H_
