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

// What is wrong; "": nothing is.
std::string StoreNumber(Element element, DType dtype, std::byte* to) {
  const auto wanted = [&](std::string_view what) {
    return Format("wanted {}, found {}", what, NameOf(element.type()));
  };
  if (dtype == DType::kBool) {
    bool truth = false;
    if (element.get(truth)) return wanted("true or false");
    *to = static_cast<std::byte>(truth);
    return "";
  }
  int64_t whole = 0;
  double real = 0;
  switch (element.type()) {
    case Type::INT64:
      if (!element.get(whole) && StoreWhole(whole, dtype, to)) return "";
      break;
    case Type::UINT64:  // more than an int64 holds
    case Type::DOUBLE:
      if (!element.get(real) && StoreReal(real, dtype, to)) return "";
      break;
    default:
      return wanted("a number");
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

// Without the empty lines at its end.
Status FindLines(ScannedFile* file, RecordSink* lines) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t begin, FindText(file));
  size_t blanks = 0;  // up to here
  PENSTOCK_RETURN_IF_ERROR(
      ScanLines(file, begin, FindNewline, [&](const ScannedLine& line) {
        blanks = line.is_blank ? blanks + 1 : 0;
        return lines->Add(line.offset, line.bytes);
      }));
  lines->Drop(blanks);
  return OkStatus();
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
    return Format("{}, line {}", line.file->path(), line.number + 1);
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
  const size_t room = rows.bytes() + line.size() + simdjson::SIMDJSON_PADDING;
  if (scratch->size() < room) scratch->resize(room);
  std::byte* const row = scratch->data();
  std::byte* const text = row + rows.bytes();
  std::memcpy(text, line.data(), line.size());
  std::fill_n(text + line.size(), simdjson::SIMDJSON_PADDING, std::byte{' '});
  Element document;
  if (const auto error =
          parser.parse(reinterpret_cast<const uint8_t*>(text), line.size())
              .get(document)) {
    return DataLossError("not JSON: {}", simdjson::error_message(error));
  }
  for (size_t i = 0; i < rows.count(); ++i) {
    const std::optional<Element> found = Find(document, pointers[i]);
    if (!found || found->is_null()) {
      PENSTOCK_RETURN_IF_ERROR(
          rows.StoreDefault(found ? "is null" : "is missing", i, row));
      continue;
    }
    const TextField& field = rows[i];
    if (field.max_bytes) {
      std::string_view value;
      if (found->get(value)) {
        return DataLossError("field '{}': wanted text, found {}", rows.name(i),
                             NameOf(found->type()));
      }
      PENSTOCK_RETURN_IF_ERROR(rows.StoreText(value, i, row));
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
          .Gives(kFieldsGive)
          .Example(
              "{files: a.jsonl, fields: {label: {dtype: int64}, text: "
              "{max_bytes: 512, pointer: /body/text, default: ''}}}")
          .Required("files", &JsonLinesSource::files, Files(),
                    std::string(kFilesText) +
                        "; in UTF-8, not unpacked. Empty lines at the end are "
                        "left out")
          .Required("fields", &JsonLinesSource::fields, JsonFields(),
                    kJsonFieldsText)
          .Optional("longer", &JsonLinesSource::longer, LongerTextType(),
                    kLongerTextText);
  return declared;
}

OpenedSource JsonLinesSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(
      Index lines,
      Index::Open(files, {.kind = "json_lines", .scan = FindLines}, progress));
  PENSTOCK_RETURN_IF_ERROR(lines.ChooseIo(Io::kBuffered));
  return std::unique_ptr<Source>(
      new JsonLines(*this, FieldRows(fields, longer), std::move(lines)));
}

}  // namespace penstock
