// What a field of a request may hold, and the check of a request, which is
// untrusted, against its declaration (requests.h).
//
// Free of state: any thread may use it.
#ifndef BROKER_REQUEST_REQUEST_FIELDS_H_
#define BROKER_REQUEST_REQUEST_FIELDS_H_

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

// Both: InvalidArgument names the field, what was found and what is wanted.
// Keys that are not declared are ignored: a newer client sends them.
Status CheckFields(const nlohmann::json& request,
                   std::span<const RequestField> fields);
Status CheckField(const nlohmann::json& request, const RequestField& field,
                  bool needed);

}  // namespace penstock
#endif  // BROKER_REQUEST_REQUEST_FIELDS_H_
