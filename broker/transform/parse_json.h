// map: parse_json. A text becomes the values of its JSON.
#ifndef BROKER_TRANSFORM_PARSE_JSON_H_
#define BROKER_TRANSFORM_PARSE_JSON_H_

#include <string>

#include "broker/source/text_field.h"
#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

struct ParseJsonOp {
  std::string feature = "text";
  FeatureValues<TextField> fields;  // from: a JSON Pointer
  LongerText longer = LongerText::kFail;
  bool operator==(const ParseJsonOp&) const = default;

  static const Declaration<ParseJsonOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PARSE_JSON_H_
