#include "broker/source/json_lines.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "broker/declare/declaration.h"
#include "broker/index/values.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"
#include "broker/source/number.h"
#include "broker/source/text_scan.h"

namespace penstock {
namespace {

using Element = simdjson::dom::element;
using Type = simdjson::dom::element_type;

std::string_view NameOf(Type type) {
  switch (type) {
    case Type::ARRAY:
      return "a list";
    case Type::OBJECT:
      return "an object";
    case Type::STRING:
      return "text";
    case Type::BOOL:
      return "true or false";
    case Type::NULL_VALUE:
      return "null";
    default:  // later versions have more kinds of numbers
      return "a number";
  }
}

// The last value of a repeated key counts, as for most readers.
std::optional<Element> Find(Element element,
                            const std::vector<std::string>& pointer) {
  for (const std::string& token : pointer) {
    std::optional<Element> found;
    if (simdjson::dom::object object; !element.get(object)) {
      for (const auto& [key, value] : object) {
        if (key == token) found = value;
      }
    } else if (simdjson::dom::array array; !element.get(array)) {
      size_t i = 0;
      Element item;
      if (ParseNumber(token, &i) && !array.at(i).get(item)) found = item;
    }
    if (!found) return std::nullopt;
    element = *found;
  }
  return element;
}

// Floats that JSON has no numbers for, as Python writes them, in quotes.
constexpr std::string_view kWords[] = {"NaN", "-Infinity", "Infinity"};

bool StoreWord(Element element, DType dtype, std::byte* to) {
  std::string_view text;
  if (!IsFloat(dtype) || element.get(text) ||
      std::find(std::begin(kWords), std::end(kWords), text) ==
          std::end(kWords)) {
    return false;
  }
  return StoreNumberText(text, dtype, to);
}

// The document with quotes around those words.
std::string WithQuotedWords(std::string_view text) {
  std::string quoted;
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    size_t taken = 1;
    if (in_string) {
      if (text[at] == '\\') taken = std::min<size_t>(2, text.size() - at);
      in_string = text[at] != '"';
    } else {
      in_string = text[at] == '"';
      for (const std::string_view word : kWords) {
        if (!text.substr(at).starts_with(word)) continue;
        quoted += '"';
        quoted += word;
        quoted += '"';
        at += word.size();
        taken = 0;
        break;
      }
    }
    quoted += text.substr(at, taken);
    at += taken;
  }
  return quoted;
}

// What is wrong; "": nothing is.
std::string StoreNumber(Element element, DType dtype, std::byte* to) {
  const auto wanted = [&](std::string_view what) {
    return Format("wanted {}, found {}", what, NameOf(element.type()));
  };
  bool truth = false;
  int64_t whole = 0;
  double real = 0;
  switch (element.type()) {
    case Type::INT64:
      if (!element.get(whole) && StoreWhole(whole, dtype, to)) return "";
      break;
    case Type::UINT64:  // more than an int64 holds
    case Type::DOUBLE:
      if (!element.get(real) && StoreDouble(real, dtype, to)) return "";
      break;
    case Type::BOOL:
      if (!element.get(truth) && StoreWhole(truth, dtype, to)) return "";
      break;
    case Type::STRING:
      if (StoreWord(element, dtype, to)) return "";
      [[fallthrough]];
    default:
      return wanted(dtype == DType::kBool ? "true or false" : "a number");
  }
  return Format("{} does not fit into {}", simdjson::minify(element),
                DTypeName(dtype));
}

// The numbers of the dimensions from `shape` on.
std::string StoreNumbers(Element element, DType dtype,
                         std::span<const int64_t> shape, std::byte** to) {
  if (shape.empty()) {
    std::string wrong = StoreNumber(element, dtype, *to);
    *to += DTypeBytes(dtype);
    return wrong;
  }
  simdjson::dom::array array;
  if (element.get(array)) {
    return Format("wanted a list of {}, found {}", shape.front(),
                  NameOf(element.type()));
  }
  // size() of simdjson ends at 2^24.
  int64_t items = 0;
  for (const Element item : array) {
    if (++items > shape.front()) break;
    std::string wrong = StoreNumbers(item, dtype, shape.subspan(1), to);
    if (!wrong.empty()) return wrong;
  }
  if (items == shape.front()) return "";
  return Format("wanted a list of {}, found {}", shape.front(),
                items < shape.front() ? Format("one of {}", items) : "more");
}

// A list of any length, each item of `shape`.
Status StoreList(Element element, const FieldRows& rows, size_t field,
                 std::byte* row) {
  const TextField& of = rows[field];
  std::byte* to = rows.NumbersIn(row, field);
  std::string wrong;
  simdjson::dom::array array;
  uint64_t items = 0;  // size() of simdjson ends at 2^24
  if (element.get(array)) {
    wrong = Format("wanted a list, found {}", NameOf(element.type()));
  } else {
    for (const Element item : array) {
      if (++items > *of.max_length) continue;
      wrong = StoreNumbers(item, *of.dtype, of.shape, &to);
      if (!wrong.empty()) break;
    }
  }
  if (!wrong.empty()) {
    return DataLossError("field '{}': {}", rows.name(field), wrong);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t kept, rows.ItemsKept(items, field));
  rows.EndList(kept, field, row);
  return OkStatus();
}

// Without empty lines.
Status FindLines(ScannedFile* file, RecordSink* lines) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t begin, FindText(file));
  uint64_t blanks = 0;  // up to here
  return ScanLines(file, begin, FindNewline, [&](const ScannedLine& line) {
    if (line.is_blank) {
      ++blanks;
      return OkStatus();
    }
    for (; blanks > 0; --blanks) lines->LeaveOut();
    return lines->Add(line.offset, line.bytes);
  });
}

class JsonLines final : public IndexedSource {
 public:
  JsonLines(const JsonLinesSource& spec, FieldRows rows, Index lines)
      : IndexedSource(std::move(lines), rows.raw_spec()),
        rows_(std::move(rows)),
        pointers_(PointersOf(spec.fields)) {}

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record line = index().At(record);
    line.file->Locate(
        line.offsets[0],
        std::min<uint64_t>(line.bytes[0], kParsedLineBytesMax + 1), request);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const std::string_view line(
        reinterpret_cast<const char*>(read.bytes.data()), read.bytes.size());
    Status status;
    if (line.size() > kParsedLineBytesMax) {
      status = DataLossError("a line of {} bytes; at most {} are parsed",
                             index().At(record).bytes[0], kParsedLineBytesMax);
    } else if (line.find('\n') != line.npos) {
      status = DataLossError("the file has changed since it was opened");
    } else {
      status = ParseJsonLine(line, rows_, pointers_, scratch);
      // What is parsed is UTF-8.
      if (const auto bad = status.ok() ? std::nullopt : FindNotUtf8(line)) {
        status = DataLossError("not UTF-8 at offset {} of the file",
                               index().At(record).offsets[0] + *bad);
      }
    }
    if (!status.ok()) return status.Prepend(Describe(record));
    rows_.Point(std::span(*scratch).first(rows_.bytes()), raw);
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    const Index::Record line = index().At(record);
    // Empty lines before it are not counted.
    return index().left_out() == 0
               ? Format("{}, line {}", line.file->path(), line.number + 1)
               : Format("{}, row {} (offset {})", line.file->path(),
                        line.number + 1, line.offsets[0]);
  }

 private:
  const FieldRows rows_;
  const std::vector<std::vector<std::string>> pointers_;  // of the fields
};

}  // namespace

std::optional<std::vector<std::string>> PointerTokens(
    std::string_view pointer) {
  try {
    std::vector<std::string> tokens;
    for (nlohmann::json::json_pointer left{std::string(pointer)}; !left.empty();
         left.pop_back()) {
      tokens.insert(tokens.begin(), left.back());
    }
    return tokens;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::vector<std::vector<std::string>> PointersOf(
    const FeatureValues<TextField>& fields) {
  std::vector<std::vector<std::string>> pointers;
  for (const auto& [name, field] : fields) {
    pointers.push_back(field.from.empty() ? std::vector<std::string>{name}
                                          : *PointerTokens(field.from));
  }
  return pointers;
}

ValueType<FeatureValues<TextField>> JsonFields() {
  return TextFields({.from_key = "pointer",
                     .from = Text("a JSON Pointer, such as /meta/0/label",
                                  [](std::string_view text) {
                                    return !text.empty() && PointerTokens(text);
                                  }),
                     .with_shape = true});
}

Status ParseJsonLine(std::string_view line, const FieldRows& rows,
                     const std::vector<std::vector<std::string>>& pointers,
                     std::vector<std::byte>* scratch) {
  // It keeps its memory; one for each worker.
  thread_local simdjson::dom::parser parser(kParsedLineBytesMax +
                                            simdjson::SIMDJSON_PADDING);
  if (line.find_first_not_of(" \t\r") == line.npos) {
    return DataLossError("an empty line");
  }
  Element document;
  const auto parse = [&](std::string_view text) {
    const size_t room = rows.bytes() + text.size() + simdjson::SIMDJSON_PADDING;
    if (scratch->size() < room) scratch->resize(room);
    std::byte* const copy = scratch->data() + rows.bytes();
    std::memcpy(copy, text.data(), text.size());
    std::fill_n(copy + text.size(), simdjson::SIMDJSON_PADDING, std::byte{' '});
    return parser.parse(reinterpret_cast<const uint8_t*>(copy), text.size())
        .get(document);
  };
  auto error = parse(line);
  if (error) {
    const std::string quoted = WithQuotedWords(line);
    if (quoted.size() != line.size()) error = parse(quoted);
  }
  if (error) {
    return DataLossError("not JSON: {}", simdjson::error_message(error));
  }
  std::byte* const row = scratch->data();
  for (size_t i = 0; i < rows.count(); ++i) {
    const std::optional<Element> found = Find(document, pointers[i]);
    if (!found || found->is_null()) {
      PENSTOCK_RETURN_IF_ERROR(
          rows.StoreDefault(found ? "is null" : "is missing", i, row));
      continue;
    }
    const TextField& field = rows[i];
    if (field.max_bytes) {
      const bool is_nested = found->is_array() || found->is_object();
      std::string_view value;
      if (field.json ? !is_nested : found->get(value) != simdjson::SUCCESS) {
        return DataLossError(
            "field '{}': wanted {}, found {}{}", rows.name(i),
            field.json ? "a list or an object" : "text", NameOf(found->type()),
            is_nested ? "; `json: true` takes its JSON as text" : "");
      }
      const std::string json = field.json ? simdjson::minify(*found) : "";
      PENSTOCK_RETURN_IF_ERROR(
          rows.StoreText(field.json ? json : value, i, row));
    } else if (field.max_length) {
      PENSTOCK_RETURN_IF_ERROR(StoreList(*found, rows, i, row));
    } else {
      std::byte* to = rows.NumbersIn(row, i);
      const std::string wrong =
          StoreNumbers(*found, *field.dtype, field.shape, &to);
      if (!wrong.empty()) {
        return DataLossError("field '{}': {}", rows.name(i), wrong);
      }
    }
  }
  return OkStatus();
}

const Declaration<JsonLinesSource>& JsonLinesSource::Declared() {
  static const auto declared =
      Declaration<JsonLinesSource>(
          "json_lines", "Values of JSON documents, one a line (JSONL).")
          .Gives(kFieldsAndListsGive)
          .Example(
              "{files: a.jsonl, fields: {label: {dtype: int64}, text: "
              "{max_bytes: 512, pointer: /body/text, default: ''}, tokens: "
              "{dtype: int32, max_length: 512}}}")
          .Required(
              "files", &JsonLinesSource::files, Files(),
              std::string(kFilesText) + "; in UTF-8. Empty lines are left out")
          .Required("fields", &JsonLinesSource::fields, JsonFields(),
                    kJsonFieldsText)
          .Optional("longer", &JsonLinesSource::longer, LongerType(),
                    kLongerText);
  return declared;
}

OpenedSource JsonLinesSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(Index lines,
                            Index::Open(files,
                                        {.kind = "json_lines",
                                         .options = "without empty lines",
                                         .scan = FindLines},
                                        progress));
  PENSTOCK_RETURN_IF_ERROR(lines.ChooseIo(Io::kBuffered));
  return std::unique_ptr<Source>(
      new JsonLines(*this, FieldRows(fields, longer), std::move(lines)));
}

}  // namespace penstock
