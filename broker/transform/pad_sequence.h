// map: pad_sequence. A sequence of a fixed length: padded, or cut.
#ifndef BROKER_TRANSFORM_PAD_SEQUENCE_H_
#define BROKER_TRANSFORM_PAD_SEQUENCE_H_

#include <cstdint>

#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

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
#endif  // BROKER_TRANSFORM_PAD_SEQUENCE_H_
