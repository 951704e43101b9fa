// map: concatenate, reshape and pad_sequence. Shapes of numbers; their order in
// memory stays.
#ifndef BROKER_TRANSFORM_CONCATENATE_H_
#define BROKER_TRANSFORM_CONCATENATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

struct ConcatenateOp {
  FeatureNames features;
  std::string to;
  bool operator==(const ConcatenateOp&) const = default;

  static const Declaration<ConcatenateOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

struct ReshapeOp {
  FeatureNames feature = DefaultFeature();
  std::vector<int64_t> shape;  // -1: what is left
  bool operator==(const ReshapeOp&) const = default;

  static const Declaration<ReshapeOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

// A sequence of a fixed length: padded, or cut.
struct PadSequenceOp {
  enum class Side { kStart, kEnd };

  FeatureNames feature = DefaultFeature();
  int64_t length = 0;
  double value = 0;
  Side pad = Side::kEnd;
  Side cut = Side::kEnd;
  bool operator==(const PadSequenceOp&) const = default;

  static const Declaration<PadSequenceOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CONCATENATE_H_
