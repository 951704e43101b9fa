// A source whose records are made of one record of each of several sources.
#ifndef BROKER_SOURCE_ZIP_H_
#define BROKER_SOURCE_ZIP_H_

#include <memory>
#include <vector>

#include "broker/source/source.h"

namespace penstock {

struct PartSpec;  // kinds.h

// As tf.data.Dataset.zip: record i has the features of record i of each part,
// after its selection; it ends with the shortest.
struct ZipSource {
  std::vector<PartSpec> parts;
  bool operator==(const ZipSource&) const;

  static const Declaration<ZipSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(
      OpenProgress* progress, const FunctionOptions& functions) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_ZIP_H_
