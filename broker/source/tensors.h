// source: tensors. Values written in the spec, kept in memory; record r is row
// r modulo the number of rows.
#ifndef BROKER_SOURCE_TENSORS_H_
#define BROKER_SOURCE_TENSORS_H_

#include "broker/source/source.h"

namespace penstock {

struct TensorsSource {
  struct Tensor {
    Feature feature;
    std::vector<std::byte> data;  // rows * RowBytes
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;
  uint64_t rows = 0;    // of every tensor
  uint64_t repeat = 1;  // rows * repeat records
  bool operator==(const TensorsSource&) const = default;

  static const Declaration<TensorsSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress*) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_TENSORS_H_
