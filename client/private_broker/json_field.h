// Reads fields of a JSON object that another process wrote. A field of another
// type counts as absent; nothing throws.
#ifndef CLIENT_PRIVATE_BROKER_JSON_FIELD_H_
#define CLIENT_PRIVATE_BROKER_JSON_FIELD_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/format.h"

namespace penstock {

// The field, or null.
inline const nlohmann::json& FieldOf(const nlohmann::json& object,
                                     const char* key) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

inline std::string TextField(const nlohmann::json& object, const char* key,
                             const std::string& otherwise = "") {
  const nlohmann::json& field = FieldOf(object, key);
  return field.is_string() ? field.get<std::string>() : otherwise;
}

inline std::optional<double> NumberField(const nlohmann::json& object,
                                         const char* key) {
  const nlohmann::json& field = FieldOf(object, key);
  if (!field.is_number()) return std::nullopt;
  return field.get<double>();
}

// A non-negative integer.
inline std::optional<uint64_t> CountField(const nlohmann::json& object,
                                          const char* key) {
  const nlohmann::json& field = FieldOf(object, key);
  if (field.is_number_unsigned()) return field.get<uint64_t>();
  if (field.is_number_integer() && field.get<int64_t>() >= 0) {
    return static_cast<uint64_t>(field.get<int64_t>());
  }
  return std::nullopt;
}

// The elements of an array; none if it is not an array.
inline const nlohmann::json& ArrayField(const nlohmann::json& object,
                                        const char* key) {
  static const nlohmann::json kNone = nlohmann::json::array();
  const nlohmann::json& field = FieldOf(object, key);
  return field.is_array() ? field : kNone;
}

// One line; bytes that are not UTF-8 (file names) are replaced.
inline std::string JsonLine(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

inline std::string JsonLineInOrder(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
inline void PrintJson(const nlohmann::json& json) {
  Print(stdout, "{}\n", JsonLine(json));
}
inline void PrintJsonInOrder(const nlohmann::ordered_json& json) {
  Print(stdout, "{}\n", JsonLineInOrder(json));
}

// A job of a status as a sentence names it: "train", or where others have that
// name "train (dataset a, user 1000)".
inline std::string JobTitle(const nlohmann::json& status,
                            const nlohmann::json& job) {
  const nlohmann::json& name = FieldOf(job, "job");
  int named = 0;
  for (const nlohmann::json& each : ArrayField(status, "jobs")) {
    named += FieldOf(each, "job") == name;
  }
  const std::string text = TextField(job, "job", "-");
  if (named <= 1) return text;
  return Format("{} (dataset {}, user {})", text, TextField(job, "dataset"),
                CountField(job, "uid").value_or(0));
}

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_JSON_FIELD_H_
