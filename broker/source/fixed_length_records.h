// source: fixed_length_records. Records of one size, back to back in one or
// several files. A record holds its features back to back, little-endian,
// without gaps.
#ifndef BROKER_SOURCE_FIXED_LENGTH_RECORDS_H_
#define BROKER_SOURCE_FIXED_LENGTH_RECORDS_H_

#include "broker/index/data_files.h"
#include "broker/source/source.h"

namespace penstock {

struct FixedLengthRecordsSource {
  FilePatterns files;
  ElementSpec features;
  uint64_t header_bytes = 0;  // skipped at the start of each file
  uint64_t footer_bytes = 0;  // skipped at the end of each file
  Io io = Io::kAuto;
  bool operator==(const FixedLengthRecordsSource&) const = default;

  static const Declaration<FixedLengthRecordsSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_FIXED_LENGTH_RECORDS_H_
