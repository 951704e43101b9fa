// map: select, drop, rename, copy, keep_encoded. Which features a row has, in
// which order, under which names. A text goes with the number of its bytes,
// NAME_bytes.
#ifndef BROKER_TRANSFORM_FEATURE_NAMES_H_
#define BROKER_TRANSFORM_FEATURE_NAMES_H_

#include <string>
#include <utility>
#include <vector>

#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

struct SelectOp {
  FeatureNames features;
  bool operator==(const SelectOp&) const = default;

  static const Declaration<SelectOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

struct DropOp {
  FeatureNames features;
  bool operator==(const DropOp&) const = default;

  static const Declaration<DropOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

struct RenameOp {
  std::vector<std::pair<std::string, std::string>> features;  // from, to
  bool operator==(const RenameOp&) const = default;

  static const Declaration<RenameOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

struct CopyOp {
  // From, and the names of its copies.
  std::vector<std::pair<std::string, std::vector<std::string>>> features;
  bool operator==(const CopyOp&) const = default;

  static const Declaration<CopyOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// Pictures and sounds as the bytes of their files: lists of uint8.
struct KeepEncodedOp {
  int64_t max_bytes = 0;
  bool operator==(const KeepEncodedOp&) const = default;

  static const Declaration<KeepEncodedOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_FEATURE_NAMES_H_
