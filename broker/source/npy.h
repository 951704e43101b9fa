// source: npy. Rows of NumPy's arrays, one or several files for each feature.
#ifndef BROKER_SOURCE_NPY_H_
#define BROKER_SOURCE_NPY_H_

#include "broker/declare/value_type.h"
#include "broker/index/data_files.h"
#include "broker/source/source.h"

namespace penstock {

struct NpySource {
  FeatureValues<FilePatterns> features;  // their files
  Io io = Io::kAuto;
  bool operator==(const NpySource&) const = default;

  static const Declaration<NpySource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_NPY_H_
