// Compares an answer of the broker with the declaration of its fields.
#ifndef TESTS_SUPPORT_ANSWER_FIELDS_H_
#define TESTS_SUPPORT_ANSWER_FIELDS_H_

#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>

#include "common/status_fields.h"
#include "gtest/gtest.h"

namespace penstock {

inline bool IsOf(FieldType type, const nlohmann::json& value) {
  switch (type) {
    case FieldType::kText:
      return value.is_string();
    case FieldType::kCount:
    case FieldType::kBytes:
      return value.is_number_unsigned() ||
             (value.is_number_integer() && value.get<int64_t>() >= 0);
    case FieldType::kId:
      return value.is_number_integer();
    case FieldType::kSeconds:
    case FieldType::kNumber:
      return value.is_number() && value.get<double>() >= 0;
    case FieldType::kFraction:
      return value.is_number() && value.get<double>() >= 0 &&
             value.get<double>() <= 1;
    case FieldType::kFlag:
      return value.is_boolean();
    case FieldType::kNumbers:
    case FieldType::kList:
      return value.is_array();
    case FieldType::kObject:
      return value.is_object();
  }
  return false;
}

// Expects that the object has the declared fields and no others. Notes those
// that it has as "NAME.KEY".
inline void CheckAnswer(const std::string& name, const nlohmann::json& object,
                        std::span<const AnswerField> fields,
                        std::set<std::string>* seen) {
  std::set<std::string> undeclared;
  for (const auto& item : object.items()) undeclared.insert(item.key());
  for (const AnswerField& field : fields) {
    const std::string key(field.key);
    SCOPED_TRACE(name + "." + key);
    undeclared.erase(key);
    if (!object.contains(key) || object[key].is_null()) {
      EXPECT_FALSE(field.always);
      continue;
    }
    EXPECT_TRUE(IsOf(field.type, object[key])) << object[key];
    seen->insert(name + "." + key);
  }
  EXPECT_EQ(undeclared, std::set<std::string>()) << name;
}

}  // namespace penstock
#endif  // TESTS_SUPPORT_ANSWER_FIELDS_H_
