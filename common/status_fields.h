// The fields of the answer to `penstock status`: declared once here, filled by
// the broker. The command's tables and `penstock help status` are made from
// this list; tests compare it with the answer and with
// client/command/README.md.
#ifndef COMMON_STATUS_FIELDS_H_
#define COMMON_STATUS_FIELDS_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

enum class FieldType : uint8_t {
  kText,
  kCount,  // a whole number, 0 or more
  kId,     // a number that is shown as it is: a pid, a user
  kBytes,
  kSeconds,
  kFraction,  // 0 to 1
  kNumber,    // 0 or more
  kFlag,
  kNumbers,  // a list of whole numbers
  kObject,   // described by a list of its own
  kList,     // of anything else
};

// A field of an answer of the broker: of status here, of the others in
// broker/request/requests.h.
struct AnswerField {
  std::string_view key;
  FieldType type = FieldType::kText;
  std::string_view text;  // for people: one sentence without its period
  bool always = true;     // false: absent where it does not apply, or null
  // The heading in the command's tables; "": only in --json.
  std::string_view column = "";
  std::string_view table = "";  // which of the object's tables; "": the first
  // The key of the whole that the value is a part of: "3/90", or a percentage
  // if it is a table's `table`.
  std::string_view of = "";
};

struct StatusObject {
  std::string_view name;  // "job"
  std::string_view text;  // where it stands in the answer
  std::span<const AnswerField> fields;
};

std::span<const StatusObject> StatusObjects();
// name must be of one of StatusObjects().
const StatusObject& StatusObjectOf(std::string_view name);

}  // namespace penstock
#endif  // COMMON_STATUS_FIELDS_H_
