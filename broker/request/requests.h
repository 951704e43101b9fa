// What a process may ask of the broker (common/message.h): every request, its
// fields, its descriptors and the fields of its answer, declared once. The
// check of what arrives, the pages of common/requests/ and tests come from
// this list.
//
// Constant: any thread may use it.
#ifndef BROKER_REQUEST_REQUESTS_H_
#define BROKER_REQUEST_REQUESTS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/status_fields.h"

namespace penstock {

struct FieldValue {
  FieldType type = FieldType::kText;
  uint64_t min = 0;  // kCount
  // kCount: the largest; kText: bytes; kNumbers: items; kSeconds.
  uint64_t max = 0;
  std::span<const std::string_view> words = {};  // kText: one of these

  bool Allows(const nlohmann::json& value) const;
  // Completes "wanted ...".
  std::string Wanted() const;
};

// For RequestField::needed.
inline constexpr std::string_view kAlways = "always";

struct RequestField {
  std::string_view key;
  FieldValue value;
  std::string_view text;  // for people: a sentence without its period
  // When it must be there: kAlways, or beside this other key; "": never, but
  // the handler may ask for it (RequireField).
  std::string_view needed = "";
};

struct DeclaredRequest {
  std::string_view op;
  std::string_view text;  // for people: a sentence without its period
  // Its own fields, and those that it has in common with others.
  std::span<const RequestField> fields = {};
  std::span<const RequestField> shared = {};
  std::string_view descriptors = "";  // those that it brings
  std::span<const AnswerField> answer = {};
  std::string_view answer_descriptors = "";
  std::string_view events = "";  // that may follow the answer
};

std::span<const DeclaredRequest> DeclaredRequests();

// Checks the op and all its fields of a request, which is untrusted.
// InvalidArgument names the field, what was found and what is wanted, or the op
// that is not declared. Keys that are not declared are ignored: a newer client
// sends them.
Status CheckRequest(const nlohmann::json& request);
// An error like that of CheckRequest if the field is missing. The request is
// checked; its op has the field.
Status RequireField(const nlohmann::json& request, std::string_view key);

}  // namespace penstock
#endif  // BROKER_REQUEST_REQUESTS_H_
