#include "broker/declare/declaration.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

void* MemberOf(void* object, const DeclarationBase::Field& field) {
  return static_cast<std::byte*>(object) + field.offset;
}
const void* MemberOf(const void* object, const DeclarationBase::Field& field) {
  return static_cast<const std::byte*>(object) + field.offset;
}

}  // namespace

std::string DeclarationBase::Wanted() const {
  std::vector<std::string_view> keys;
  for (const Field& field : fields_) keys.push_back(field.key);
  return (brief_.empty() ? "" : brief_ + ", or ") + "a mapping of " +
         JoinText(keys, ", ");
}

std::string DeclarationBase::DefaultOf(const Field& field) const {
  if (field.required || field.one_of) return "";
  Json json = Json::value_t::discarded;
  field.type.write(MemberOf(default_, field), &json);
  return json.is_discarded() ? ""
         : json.is_string()  ? json.get<std::string>()
                             : json.dump();
}

Status DeclarationBase::Read(const YamlValue& value, std::string_view wanted,
                             void* object) const {
  if (!brief_.empty() && value.IsScalar()) {
    return brief_field_.type.read(value, MemberOf(object, brief_field_));
  }
  std::vector<std::string_view> keys;
  std::vector<std::string_view> one_of;
  for (const Field& field : fields_) {
    keys.push_back(field.key);
    if (field.one_of) one_of.push_back(field.key);
  }
  const bool needs_none =
      !check_ &&
      std::none_of(fields_.begin(), fields_.end(),
                   [](const Field& f) { return f.required || f.one_of; });
  if (value.IsNull() && needs_none) {
    const Status status = value.Wanted(wanted);
    return Status(status.code(), Format("{}; write `{}: {{}}` for the defaults",
                                        status.message(), name_));
  }
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(keys, wanted));
  std::string_view chosen;
  for (const Field& field : fields_) {
    if (field.one_of && chosen.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(chosen, value.OneOf(one_of));
    }
    const YamlValue member =
        field.required ? value.Required(field.key) : value.Optional(field.key);
    if (!member.present()) {
      PENSTOCK_RETURN_IF_ERROR(member.Absent());
      continue;
    }
    PENSTOCK_RETURN_IF_ERROR(field.type.read(member, MemberOf(object, field)));
  }
  return check_ ? check_(value, object) : OkStatus();
}

void DeclarationBase::Write(const void* object, Json* out) const {
  *out = Json::object();
  for (const Field& field : fields_) {
    Json value = Json::value_t::discarded;
    field.type.write(MemberOf(object, field), &value);
    if (!value.is_discarded()) (*out)[field.key] = std::move(value);
  }
}

std::vector<std::string_view> NamesOf(const std::vector<Kind>& kinds) {
  std::vector<std::string_view> names;
  for (const Kind& kind : kinds) names.push_back(kind.declared->name());
  return names;
}

AnyValueType TypeOfKind(const Kind& kind) {
  return {[kind](const YamlValue& value, void* variant) {
            return kind.declared->Read(value, kind.declared->Wanted(),
                                       kind.choose(variant));
          },
          [kind](const void* variant, Json* out) {
            const void* const held = kind.get(variant);
            if (held != nullptr) kind.declared->Write(held, out);
          }};
}

Status ReadKind(const std::vector<Kind>& kinds, const YamlValue& value,
                std::string_view wanted, void* variant) {
  const std::vector<std::string_view> names = NamesOf(kinds);
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(names, wanted));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view name, value.OneOf(names));
  for (const Kind& kind : kinds) {
    if (kind.declared->name() != name) continue;
    return kind.declared->Read(value.Required(name), kind.declared->Wanted(),
                               kind.choose(variant));
  }
  return value.Wanted(wanted);
}

void WriteKind(const std::vector<Kind>& kinds, const void* variant, Json* out) {
  for (const Kind& kind : kinds) {
    const void* const held = kind.get(variant);
    if (held == nullptr) continue;
    *out = Json::object();
    kind.declared->Write(held, &(*out)[kind.declared->name()]);
  }
}

}  // namespace penstock
