// What a value may be: the words that tell it to people, how it is read from
// YAML and how it is written as canonical JSON. Declarations are made of these.
//
// Immutable and free of state: any thread may use them.
#ifndef BROKER_DECLARE_VALUE_TYPE_H_
#define BROKER_DECLARE_VALUE_TYPE_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/declare/yaml.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

class DeclarationBase;

template <typename V>
struct ValueType {
  // Completes "wanted ...": "a whole number from 1 to 64".
  std::string wanted;
  // Reads a value that is present. wanted: the words for one of another kind,
  // which name further notations if this type is one of several.
  std::function<Status(const YamlValue& value, std::string_view wanted, V* out)>
      read;
  // *out is discarded before, and stays so if the key is to be left out.
  std::function<void(const V& value, nlohmann::ordered_json* out)> write;
  // The mappings in it, for people.
  std::vector<const DeclarationBase*> parts = {};

  // Leaves *out alone if the value is absent, which Required makes an error.
  Status Read(const YamlValue& value, V* out) const {
    return value.present() ? read(value, wanted, out) : value.Absent();
  }
};

// The same of a value whose type those who keep it do not know: what reads and
// writes members is compiled once a type, not once a member.
struct AnyValueType {
  std::function<Status(const YamlValue& value, void* out)> read;
  std::function<void(const void* value, nlohmann::ordered_json* out)> write;
};
template <typename V>
AnyValueType Erased(const ValueType<V>& type) {
  return {[type](const YamlValue& value, void* out) {
            return type.Read(value, static_cast<V*>(out));
          },
          [write = type.write](const void* value, nlohmann::ordered_json* out) {
            write(*static_cast<const V*>(value), out);
          }};
}

// ---- single values ---------------------------------------------------------

// V: int64_t, uint64_t or uint32_t.
template <typename V>
ValueType<V> WholeNumber(V min, V max);
ValueType<double> Number(double min, double max);
ValueType<bool> Bool();
// Made absolute against the document's folder, and lexically normal. Whether it
// exists is not checked.
ValueType<std::string> Path();
// The same, or an address of an object store ("s3://bucket/key").
ValueType<std::string> PathOrAddress();
ValueType<std::string> MaybePathOrAddress();
// A path, of a key that may be absent: "".
ValueType<std::string> MaybePath();
// Text that satisfies is; wanted: the words for other text.
ValueType<std::string> Text(std::string wanted, bool (*is)(std::string_view));

// Letters, digits, '.', '_' and '-', at most 64.
inline constexpr size_t kNameCharsMax = 64;
ValueType<std::string> Name();
ValueType<DType> DTypes(const std::vector<DType>& allowed);
ValueType<DType> AnyDType();
ValueType<DType> FloatDType();

// Sizes of at most kShapeDimensionsMax dimensions.
ValueType<std::vector<int64_t>> Shape();
// {NAME: {dtype, shape}, ...}
ValueType<ElementSpec> Features();
inline constexpr char kFeaturesText[] =
    "{NAME: {dtype, shape}, ...}, where a shape of [] is a single number";
// Checks for a mapping of feature names, as Features does, or of other names.
Status CheckFeatureNames(const YamlValue& features);
Status CheckNames(const YamlValue& mapping, std::string_view wanted);
inline constexpr size_t kShapeDimensionsMax = 8;
inline constexpr uint64_t kRowBytesMax = uint64_t{1} << 40;

// A mapping of anything, as the text of its JSON.
ValueType<std::string> AnyMapping();

// ---- values of values ------------------------------------------------------

// For the types below and those beside their structs.
void WriteText(std::string_view text, nlohmann::ordered_json* out);
void WriteList(
    size_t count,
    const std::function<void(size_t i, nlohmann::ordered_json* out)>& item,
    nlohmann::ordered_json* out);
// Adds a key to the mapping *out, or makes *out one; returns its value.
nlohmann::ordered_json* WriteMember(const std::string& key,
                                    nlohmann::ordered_json* out);

template <typename V>
ValueType<V> Words(std::vector<std::pair<std::string_view, V>> choices) {
  std::vector<std::string_view> words;
  for (const auto& [word, value] : choices) words.push_back(word);
  return {"one of " + JoinText(words, ", "),
          [choices, words](const YamlValue& value, std::string_view wanted,
                           V* out) {
            size_t i = 0;
            const Status status = value.Word(words, wanted, &i);
            if (status.ok()) *out = choices[i].second;
            return status;
          },
          [choices](const V& value, nlohmann::ordered_json* out) {
            for (const auto& [word, same] : choices) {
              if (same == value) WriteText(word, out);
            }
          }};
}

// min to max items.
template <typename V>
ValueType<std::vector<V>> List(ValueType<V> item, size_t min, size_t max,
                               std::string wanted) {
  return {std::move(wanted),
          [item, min, max](const YamlValue& value, std::string_view wanted,
                           std::vector<V>* out) {
            Status status = value.CheckSequence(min, max, wanted);
            out->clear();  // a default
            for (size_t i = 0; status.ok() && i < value.size(); ++i) {
              status = item.Read(value.Item(i), &out->emplace_back());
            }
            return status;
          },
          [item](const std::vector<V>& value, nlohmann::ordered_json* out) {
            WriteList(
                value.size(),
                [&](size_t i, auto* each) { item.write(value[i], each); }, out);
          },
          item.parts};
}

// A list, or its only item alone. one: what it is, "a number".
template <typename V>
ValueType<std::vector<V>> OneOrList(ValueType<V> item, std::string_view one,
                                    size_t max) {
  ValueType<std::vector<V>> type =
      List(item, 1, max, Format("{}, or a list of 1 to {}", one, max));
  type.read = [item, list = type.read](const YamlValue& value,
                                       std::string_view wanted,
                                       std::vector<V>* out) {
    return value.IsScalar() ? item.Read(value, &out->emplace_back())
                            : list(value, wanted, out);
  };
  return type;
}

// {KEY: a value, ...}, after a check of the mapping and its keys.
template <typename V>
using FeatureValues = std::vector<std::pair<std::string, V>>;
template <typename V>
ValueType<FeatureValues<V>> ValueOfEach(
    ValueType<V> type, std::string wanted,
    Status (*check)(const YamlValue& mapping, std::string_view wanted)) {
  return {std::move(wanted),
          [type, check](const YamlValue& mapping, std::string_view wanted,
                        FeatureValues<V>* out) {
            Status status = check(mapping, wanted);
            for (size_t i = 0; status.ok() && i < mapping.size(); ++i) {
              auto& [key, value] = out->emplace_back();
              key = mapping.Key(i);
              status = type.Read(mapping.Required(key), &value);
            }
            return status;
          },
          [type](const FeatureValues<V>& values, nlohmann::ordered_json* out) {
            for (const auto& [key, value] : values) {
              type.write(value, WriteMember(key, out));
            }
          },
          type.parts};
}

// As type, but the canonical form leaves this value out: that of a key which
// has joined a mapping later, so that journals' specs stay as they are.
template <typename V>
ValueType<V> LeftOutAt(V value, ValueType<V> type) {
  type.write = [value, write = std::move(type.write)](const V& of, auto* out) {
    if (!(of == value)) write(of, out);
  };
  return type;
}

// One for each of 1 to 64 features.
template <typename V>
ValueType<FeatureValues<V>> ValueOfEachFeature(ValueType<V> type) {
  return ValueOfEach(std::move(type), Features().wanted, CheckNames);
}

// nullopt: the key is absent.
template <typename V>
ValueType<std::optional<V>> Maybe(ValueType<V> type) {
  return {type.wanted,
          [type](const YamlValue& value, std::string_view wanted,
                 std::optional<V>* out) {
            return type.read(value, wanted, &out->emplace());
          },
          [type](const std::optional<V>& value, nlohmann::ordered_json* out) {
            if (value) type.write(*value, out);
          },
          type.parts};
}

// nullopt: the word.
template <typename V>
ValueType<std::optional<V>> WordOr(std::string word, ValueType<V> type) {
  ValueType<std::optional<V>> either = Maybe(type);
  either.wanted = word + ", or " + type.wanted;
  either.read = [word, read = either.read](const YamlValue& value,
                                           std::string_view wanted,
                                           std::optional<V>* out) {
    if (!value.IsWord(word)) return read(value, wanted, out);
    out->reset();
    return OkStatus();
  };
  either.write = [word, type](const std::optional<V>& value,
                              nlohmann::ordered_json* out) {
    value ? type.write(*value, out) : WriteText(word, out);
  };
  return either;
}

}  // namespace penstock
#endif  // BROKER_DECLARE_VALUE_TYPE_H_
