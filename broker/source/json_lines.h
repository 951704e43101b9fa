// Named values of a JSON document, as rows.
#ifndef BROKER_SOURCE_JSON_LINES_H_
#define BROKER_SOURCE_JSON_LINES_H_

#include "broker/source/text_field.h"

namespace penstock {

// For the fields of JSON documents.
ValueType<FeatureValues<TextField>> JsonFields();
inline constexpr char kJsonFieldsText[] =
    "{NAME: {dtype, shape, max_length, pointer, default}} of numbers (2.0 is "
    "whole, true is 1, NaN and Infinity are floats), or {NAME: {max_bytes, "
    "json, pointer, default}} of text. shape: [] if not given; max_length: a "
    "list of up to so many of that shape; max_bytes: room for the text; json: "
    "true: the JSON of a list or an object, as text; pointer: where it is (RFC "
    "6901), by default /NAME; default: where it is missing or null, else an "
    "error of the sample";

// Where each field is, as PointerTokens.
std::vector<std::vector<std::string>> PointersOf(
    const FeatureValues<TextField>& fields);

// The keys of a pointer, as the document has them: "/a~1b/0" is "a/b", "0".
// nullopt: it is none.
std::optional<std::vector<std::string>> PointerTokens(std::string_view pointer);

// Stores the fields of one document in a row of rows.bytes(), which begins
// *scratch; the rest of *scratch is used too. DataLoss: it is not JSON, a field
// is missing or is not what it should be.
Status ParseJsonLine(std::string_view line, const FieldRows& rows,
                     const std::vector<std::vector<std::string>>& pointers,
                     std::vector<std::byte>* scratch);

}  // namespace penstock
#endif  // BROKER_SOURCE_JSON_LINES_H_
