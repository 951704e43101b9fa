// What a process may ask of the broker (common/message.h): every request, its
// fields, its descriptors and the fields of its answer, declared once. The
// check of what arrives, the pages of common/requests/ and tests come from
// this list.
//
// Constant: any thread may use it.
#ifndef BROKER_REQUEST_REQUESTS_H_
#define BROKER_REQUEST_REQUESTS_H_

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "broker/request/request_fields.h"
#include "common/status.h"
#include "common/status_fields.h"

namespace penstock {

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

// Checks the op and all its fields. InvalidArgument as of CheckFields, also for
// an op that is not declared.
Status CheckRequest(const nlohmann::json& request);
// An error like that of CheckRequest if the field is missing. The request is
// checked; its op has the field.
Status RequireField(const nlohmann::json& request, std::string_view key);

}  // namespace penstock
#endif  // BROKER_REQUEST_REQUESTS_H_
