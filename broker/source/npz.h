// source: npz. Rows of the arrays in a file of numpy.savez.
#ifndef BROKER_SOURCE_NPZ_H_
#define BROKER_SOURCE_NPZ_H_

#include "broker/declare/value_type.h"
#include "broker/index/data_file.h"
#include "broker/source/source.h"

namespace penstock {

struct NpzSource {
  std::string file;
  FeatureValues<std::string> features;  // their arrays
  Io io = Io::kAuto;
  bool operator==(const NpzSource&) const = default;

  static const Declaration<NpzSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_NPZ_H_
