#include "broker/request/request_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace penstock {

bool FieldValue::Allows(const nlohmann::json& value) const {
  switch (type) {
    case FieldType::kText: {
      if (!value.is_string()) return false;
      const auto& text = value.get_ref<const std::string&>();
      return words.empty()
                 ? text.size() <= max
                 : std::find(words.begin(), words.end(), text) != words.end();
    }
    case FieldType::kCount:
      // A number below 0 is signed.
      return value.is_number_integer() &&
             (value.is_number_unsigned() || value.get<int64_t>() >= 0) &&
             value.get<uint64_t>() >= min && value.get<uint64_t>() <= max;
    case FieldType::kSeconds:
      return value.is_number() && value.get<double>() > 0 &&
             value.get<double>() <= static_cast<double>(max);
    case FieldType::kFlag:
      return value.is_boolean();
    case FieldType::kNumbers:
      return value.is_array() && value.size() <= max &&
             std::all_of(value.begin(), value.end(), [](const auto& each) {
               return each.is_number_unsigned();
             });
    case FieldType::kObject:
      return value.is_object();
    case FieldType::kList:
      return value.is_array();
    default:
      return false;
  }
}

std::string FieldValue::Wanted() const {
  switch (type) {
    case FieldType::kText:
      return words.empty() ? Format("a string of up to {} bytes", max)
                           : "one of: " + JoinText(words, ", ");
    case FieldType::kCount:
      return Format("a number from {} to {}", min, max);
    case FieldType::kSeconds:
      return Format("a time in seconds, more than 0 and up to {}", max);
    case FieldType::kFlag:
      return "true or false";
    case FieldType::kNumbers:
      return Format("a list of up to {} numbers", max);
    case FieldType::kList:
      return "a list";
    default:
      return "an object";
  }
}

Status CheckField(const nlohmann::json& request, const RequestField& field,
                  bool needed) {
  constexpr size_t kCharsShown = 40;
  const auto found = request.find(field.key);
  if (found == request.end() ? !needed : field.value.Allows(*found)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "request: '{}' is {}; wanted {}", field.key,
      found == request.end() ? "missing" : found->dump().substr(0, kCharsShown),
      field.value.Wanted());
}

Status CheckFields(const nlohmann::json& request,
                   std::span<const RequestField> fields) {
  for (const RequestField& field : fields) {
    PENSTOCK_RETURN_IF_ERROR(CheckField(
        request, field,
        field.needed == kAlways ||
            (!field.needed.empty() && request.contains(field.needed))));
  }
  return OkStatus();
}

}  // namespace penstock
