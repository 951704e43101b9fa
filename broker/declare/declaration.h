// What a mapping of a spec may hold, declared once: keys in order, their types,
// defaults and meaning. The parser, the canonical JSON, `penstock help spec`
// and the pages of common/spec/ come from it.
//
//   const Declaration<FlipOp>& FlipOp::Declared() {
//     static const auto declared =
//         Declaration<FlipOp>("flip", "Mirrors a picture left to right.")
//             .Optional("horizontal", &FlipOp::horizontal, Number(0, 1),
//                       "the probability");
//     return declared;
//   }
//
// The keys are read, checked and written in the order of the declaration. A
// default is the value of the member in a new object. Immutable once declared;
// any thread may use it.
#ifndef BROKER_DECLARE_DECLARATION_H_
#define BROKER_DECLARE_DECLARATION_H_

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/declare/yaml.h"
#include "common/status.h"

namespace penstock {

// All of it but the type. object: of the declared type.
class DeclarationBase {
 public:
  struct Field {
    std::string key;
    std::string text;    // for people
    std::string wanted;  // as in ValueType
    bool required = false;
    bool one_of = false;  // exactly one of those marked so has to be given
    // The member's; it lies `offset` bytes from the object's begin.
    AnyValueType type;
    size_t offset = 0;
    std::vector<const DeclarationBase*> parts = {};  // as in ValueType
  };

  const std::string& name() const { return name_; }
  // A sentence.
  const std::string& text() const { return text_; }
  // From what to what, for people.
  const std::string& gives() const { return gives_; }
  // The value of the key `name` in a spec.
  const std::string& example() const { return example_; }
  const std::vector<Field>& fields() const { return fields_; }
  // The notation without a mapping, in words; "": there is none.
  const std::string& brief() const { return brief_; }
  // Completes "wanted ...".
  std::string Wanted() const;
  // As JSON; "": it has none.
  std::string DefaultOf(const Field& field) const;

  Status Read(const YamlValue& value, std::string_view wanted,
              void* object) const;
  void Write(const void* object, nlohmann::ordered_json* out) const;

 protected:
  DeclarationBase(std::string name, std::string text)
      : name_(std::move(name)), text_(std::move(text)) {}

  std::string name_;
  std::string text_;
  std::string gives_;
  std::string example_;
  std::vector<Field> fields_;
  std::string brief_;
  Field brief_field_;
  std::function<Status(const YamlValue& value, void* object)> check_;
  const void* default_ = nullptr;  // a new object
};

// One alternative of a variant that the key of a mapping chooses.
struct Kind {
  const DeclarationBase* declared;
  void* (*choose)(void* variant);           // makes it hold a new one
  const void* (*get)(const void* variant);  // null: it holds another
};
template <typename... T>
std::vector<Kind> KindsOf(const std::variant<T...>*) {
  using V = std::variant<T...>;
  return {Kind{&T::Declared(),
               [](void* variant) -> void* {
                 return &static_cast<V*>(variant)->template emplace<T>();
               },
               [](const void* variant) -> const void* {
                 return std::get_if<T>(static_cast<const V*>(variant));
               }}...};
}
template <typename Variant>
const std::vector<Kind>& KindsOf() {
  static const std::vector<Kind> kinds =
      KindsOf(static_cast<const Variant*>(nullptr));
  return kinds;
}
std::vector<std::string_view> NamesOf(const std::vector<Kind>& kinds);
// A variant's; written if it holds this kind.
AnyValueType TypeOfKind(const Kind& kind);
// {NAME: {...}}
Status ReadKind(const std::vector<Kind>& kinds, const YamlValue& value,
                std::string_view wanted, void* variant);
void WriteKind(const std::vector<Kind>& kinds, const void* variant,
               nlohmann::ordered_json* out);

template <typename T>
class Declaration : public DeclarationBase {
 public:
  Declaration(std::string name, std::string text)
      : DeclarationBase(std::move(name), std::move(text)) {
    static const T object{};
    default_ = &object;
  }

  Declaration& Gives(std::string gives) {
    gives_ = std::move(gives);
    return *this;
  }
  Declaration& Example(std::string example) {
    example_ = std::move(example);
    return *this;
  }

  // C: T or a base of it.
  template <typename C, typename V>
  Declaration& Required(std::string key, V C::*member, ValueType<V> type,
                        std::string text) {
    return Add({std::move(key), std::move(text), type.wanted, true, false,
                Erased(type), OffsetOf(member), type.parts});
  }
  template <typename C, typename V>
  Declaration& Optional(std::string key, V C::*member, ValueType<V> type,
                        std::string text) {
    return Add({std::move(key), std::move(text), type.wanted, false, false,
                Erased(type), OffsetOf(member), type.parts});
  }
  // A key for each kind of the variant; exactly one has to be given.
  template <typename C, typename Variant>
  Declaration& OneOfKinds(Variant C::*member) {
    for (const Kind& kind : KindsOf<Variant>()) {
      const std::string& sentence = kind.declared->text();
      Add({kind.declared->name(),
           sentence.substr(0, sentence.size() - 1),
           kind.declared->Wanted(),
           false,
           true,
           TypeOfKind(kind),
           OffsetOf(member),
           {kind.declared}});
    }
    return *this;
  }
  // The keys of the member's own declaration.
  template <typename V>
  Declaration& Include(V T::*member, const Declaration<V>& declared) {
    for (Field field : declared.fields()) {
      field.offset += OffsetOf(member);
      Add(std::move(field));
    }
    return *this;
  }
  // A key that is read or written like no other.
  Declaration& Add(Field field) {
    fields_.push_back(std::move(field));
    return *this;
  }
  // A scalar instead of the mapping: the value of member. words: "a number of
  // records".
  template <typename C, typename V>
  Declaration& Brief(std::string words, V C::*member, ValueType<V> type) {
    brief_ = std::move(words);
    brief_field_.type = Erased(type);
    brief_field_.offset = OffsetOf(member);
    return *this;
  }
  // Called last, with the mapping: checks, and defaults that follow from other
  // keys.
  Declaration& Check(Status (*check)(const YamlValue& value, T* object)) {
    check_ = [check](const YamlValue& value, void* object) {
      return check(value, static_cast<T*>(object));
    };
    return *this;
  }

 private:
  template <typename C, typename V>
  size_t OffsetOf(V C::*member) const {
    const V& value = static_cast<const T*>(default_)->*member;
    return static_cast<size_t>(reinterpret_cast<const char*>(&value) -
                               static_cast<const char*>(default_));
  }
};

// ---- types of declared things ----------------------------------------------

template <typename V>
ValueType<V> MappingOf(const Declaration<V>& declared) {
  return {declared.Wanted(),
          [&declared](const YamlValue& value, std::string_view wanted, V* out) {
            return declared.Read(value, wanted, out);
          },
          [&declared](const V& value, nlohmann::ordered_json* out) {
            declared.Write(&value, out);
          },
          {&declared}};
}

// {NAME: {...}} of one alternative.
template <typename Variant>
ValueType<Variant> OneKind() {
  const std::vector<Kind>& kinds = KindsOf<Variant>();
  ValueType<Variant> type = {
      "a mapping with one of the keys " + JoinText(NamesOf(kinds), ", "),
      [&kinds](const YamlValue& value, std::string_view wanted, Variant* out) {
        return ReadKind(kinds, value, wanted, out);
      },
      [&kinds](const Variant& value, nlohmann::ordered_json* out) {
        WriteKind(kinds, &value, out);
      }};
  for (const Kind& kind : kinds) type.parts.push_back(kind.declared);
  return type;
}

// The same, or the NAME alone where the defaults will do.
template <typename Variant>
ValueType<Variant> KindOrItsName() {
  ValueType<Variant> type = OneKind<Variant>();
  const std::vector<std::string_view> names = NamesOf(KindsOf<Variant>());
  type.wanted = JoinText(names, ", ") + ", or " + type.wanted;
  type.read = [names, mapping = type.read](const YamlValue& value,
                                           std::string_view wanted,
                                           Variant* out) {
    if (!value.IsScalar()) return mapping(value, wanted, out);
    size_t i = 0;
    const Status status = value.Word(names, wanted, &i);
    if (status.ok()) KindsOf<Variant>()[i].choose(out);
    return status;
  };
  return type;
}

}  // namespace penstock
#endif  // BROKER_DECLARE_DECLARATION_H_
