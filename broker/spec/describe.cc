#include "broker/spec/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "broker/declare/declaration.h"
#include "broker/declare/describe.h"
#include "broker/spec/dataset_spec.h"

namespace penstock {
namespace {

using Field = DeclarationBase::Field;

void AddPartsOf(const DeclarationBase& declared, std::vector<Described>* all) {
  const size_t begin = all->size();
  for (const Field& field : declared.fields()) {
    for (const DeclarationBase* part : field.parts) {
      if (std::any_of(all->begin(), all->end(), [&](const Described& each) {
            return each.declared == part;
          })) {
        continue;
      }
      all->push_back({part, field.key});
    }
  }
  for (size_t i = begin, end = all->size(); i < end; ++i) {
    AddPartsOf(*(*all)[i].declared, all);
  }
}

// What the value of a key may be; "": that is told with the key.
std::string PartsOf(const std::string& key) {
  std::string text;
  for (const Described& each : AllDescribed()) {
    if (each.key != key) continue;
    text +=
        Wrapped(Format("{}: {}", each.declared->name(), each.declared->text()),
                "  ", "      ");
  }
  return text.empty() ? "" : Format("\nOf {}:\n", key) + text;
}

std::string Overview() {
  const DeclarationBase& spec = DatasetSpec::Declared();
  std::string text = "A dataset spec is one YAML or JSON document:\n\n  " +
                     spec.example() + "\n\nIts keys:\n" + KeysOf(spec);
  std::vector<std::string> keys;
  for (const Described& each : AllDescribed()) {
    if (std::find(keys.begin(), keys.end(), each.key) != keys.end()) continue;
    keys.push_back(each.key);
    text += PartsOf(each.key);
  }
  return text + "\n`penstock help spec NAME` has the keys of each.\n";
}

std::string Page(const Described& described) {
  const DeclarationBase& declared = *described.declared;
  std::string text =
      Wrapped(Format("{}: {}", declared.name(), declared.text()), "", "    ");
  if (!declared.gives().empty()) {
    text += Wrapped(Format("Gives: {}", declared.gives()), "", "    ");
  }
  if (!declared.brief().empty()) {
    text +=
        Wrapped(Format("Its value is {}, or has these keys.", declared.brief()),
                "", "    ");
  }
  return text + "\nKeys:\n" + KeysOf(declared) + "\nExample:\n" +
         Wrapped(described.Example(), "  ", "      ");
}

}  // namespace

std::string Described::Example() const {
  const std::string& name = declared->name();
  const std::string& value = declared->example();
  if (key == name) return Format("{}: {}", key, value);
  if (key == "map" || key == "select") {
    return Format("{}: [{{{}: {}}}]", key, name, value);
  }
  // Lists of mappings of one kind.
  if (key == "parts" || key == "schedule") {
    return Format("{}: [{}]", key, value);
  }
  return Format("{}: {{{}: {}}}", key, name, value);
}

std::vector<Described> AllDescribed() {
  std::vector<Described> all;
  AddPartsOf(DatasetSpec::Declared(), &all);
  return all;
}

std::vector<std::string> SpecExamples() {
  // What is around the keys that are not a spec's.
  struct Around {
    std::string_view key;
    std::string_view before;
    std::string_view after;
  };
  constexpr Around kArounds[] = {
      {"crop", "map: [{decode_image: {size: 8, ", "}}]"},
      {"vocabulary", "map: [{lookup: {", "}}]"},
      {"chat", "map: [{tokenize: {file: t.json, max_length: 8, ", "}}]"},
      {"gpt_config", "source: {megatron: {prefix: a, sequence_length: 8, ",
       "}}"},
      {"masks", "source: {image_folder: {path: /data/pictures, ", "}}"},
      {"parts", "source: {mix: {", "}}"},
      {"schedule",
       "source: {mix: {parts: [{source: {range: 9}}, {source: {range: 9}}], ",
       "}}"},
      {"buckets", "batch: {size: 4, ", "}"},
      {"pack", "batch: {size: 4, ", "}"}};
  std::vector<std::string> texts = {DatasetSpec::Declared().example()};
  for (const Described& each : AllDescribed()) {
    std::string example = each.Example();
    for (const auto& [key, before, after] : kArounds) {
      if (each.key == key) example = Format("{}{}{}", before, example, after);
    }
    std::string text = "dataset: d\n" + example + "\n";
    if (!example.starts_with("source: ")) text += "source: {range: 9}\n";
    if (!example.starts_with("batch: ")) text += "batch: {size: 4}\n";
    texts.push_back(std::move(text));
  }
  return texts;
}

StatusOr<std::string> DescribeSpec(const std::string& name) {
  if (name.empty()) return Overview();
  const std::vector<Described> all = AllDescribed();
  std::vector<std::string_view> names;
  if (const size_t comma = name.find(','); comma != name.npos) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string first,
                              DescribeSpec(name.substr(0, comma)));
    PENSTOCK_ASSIGN_OR_RETURN(const std::string others,
                              DescribeSpec(name.substr(comma + 1)));
    return first + "\n" + others;
  }
  std::string pages;  // `python` is a source and an operation
  for (const Described& each : all) {
    names.push_back(each.declared->name());
    if (each.declared->name() != name) continue;
    if (!pages.empty()) pages += "\n";
    pages += Page(each);
  }
  if (!pages.empty()) return pages;
  for (const Field& field : DatasetSpec::Declared().fields()) {
    names.push_back(field.key);
    if (field.key != name) continue;
    return "A key of a spec:\n" + KeyOf(DatasetSpec::Declared(), field) +
           PartsOf(field.key);
  }
  // Where several have a key, once for all that say the same of it.
  std::vector<std::pair<std::string, std::string>> keys;
  for (const Described& each : all) {
    for (const Field& field : each.declared->fields()) {
      if (field.key != name) continue;
      const std::string text = KeyOf(*each.declared, field);
      const auto same =
          std::find_if(keys.begin(), keys.end(),
                       [&](const auto& key) { return key.second == text; });
      if (same == keys.end()) {
        keys.emplace_back(each.declared->name(), text);
      } else {
        same->first += ", " + each.declared->name();
      }
    }
  }
  for (const auto& [owners, text] : keys) {
    pages += (pages.empty() ? "" : "\n") +
             Wrapped(Format("A key of {}:", owners), "", "    ") + text;
  }
  if (!pages.empty()) return pages;
  return InvalidArgumentError("nothing of a spec is named {}; {}", Quoted(name),
                              Suggestion(name, names));
}

nlohmann::ordered_json SpecDeclarations() {
  nlohmann::ordered_json json;
  for (const Described& each : AllDescribed()) {
    nlohmann::ordered_json keys;
    for (const Field& field : each.declared->fields()) {
      keys[field.key] = {{"required", field.required},
                         {"default", each.declared->DefaultOf(field)}};
    }
    json[each.key][each.declared->name()] = {{"gives", each.declared->gives()},
                                             {"keys", std::move(keys)}};
  }
  return json;
}

std::string MarkdownOf(const Described& described) {
  const DeclarationBase& declared = *described.declared;
  std::string text = declared.text();
  if (!declared.brief().empty()) {
    text += Format(" Its value is {}, or has these keys.", declared.brief());
  }
  std::string section = Format("## {}\n\n", declared.name()) +
                        Wrapped(text, "", "", kPageColumns) + "\n" +
                        KeyListOf(declared) + "\n";
  if (!declared.gives().empty()) {
    section +=
        Wrapped(Format("Gives: {}", declared.gives()), "", "", kPageColumns) +
        "\n";
  }
  return section +
         Wrapped(Format("`{}`", described.Example()), "", "", kPageColumns);
}

}  // namespace penstock
