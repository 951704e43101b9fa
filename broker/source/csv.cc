#include "broker/source/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "broker/declare/declaration.h"
#include "broker/index/index.h"
#include "broker/source/number.h"
#include "broker/source/text_scan.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr uint64_t kHeaderBytesMax = uint64_t{1} << 20;

std::string Short(std::string_view value) {
  constexpr size_t kBytesTold = 32;
  return "'" + Printable(value.substr(0, kBytesTold)) +
         (value.size() > kBytesTold ? "...'" : "'");
}

template <typename T>
bool Parse(std::string_view text, T* number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc{} && rest == end;
}

// False: it is no number, or not of dtype.
bool StoreNumber(std::string_view text, DType dtype, std::byte* to) {
  if (dtype == DType::kBool) {
    const bool truth =
        text == "1" || text == "true" || text == "True" || text == "TRUE";
    *to = static_cast<std::byte>(truth);
    return truth || text == "0" || text == "false" || text == "False" ||
           text == "FALSE";
  }
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  if (IsFloat(dtype)) {
    double number = 0;
    return Parse(text, &number) && StoreReal(number, dtype, to);
  }
  int64_t number = 0;
  return Parse(text, &number) && StoreWhole(number, dtype, to);
}

// A column that a feature is made of.
struct Wanted {
  size_t column;
  size_t field;
};
struct Columns {
  size_t count = 0;            // in each row of the file
  std::vector<Wanted> wanted;  // in the order of the columns
};

// Without empty lines, and without the header.
Status FindRows(char delimiter, bool header, ScannedFile* file,
                RecordSink* rows) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t begin, FindText(file));
  bool is_header = header;  // the next row
  CsvRowEnds find_end(delimiter);
  return ScanLines(
      file, begin, find_end, [&](const ScannedLine& row) -> Status {
        if (row.is_blank) return OkStatus();
        // What follows a quote that is not closed is not known to be rows.
        const bool is_open = find_end.in_quotes();
        if (is_open || row.bytes > kParsedLineBytesMax) {
          return DataLossError(
              "{}: the row at offset {} {}; is a quote not closed?",
              file->path(), row.offset,
              is_open ? "ends with the file, within quotes"
                      : Format("has more than {} bytes", kParsedLineBytesMax));
        }
        if (std::exchange(is_header, false)) return OkStatus();
        return rows->Add(row.offset, row.bytes);
      });
}

// Without the blanks around it.
std::string_view Trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

class Csv final : public Source {
 public:
  Csv(const CsvSource& spec, Index rows, std::vector<Columns> columns)
      : delimiter_(spec.delimiter),
        fields_(spec.columns, spec.longer),
        rows_(std::move(rows)),
        columns_(std::move(columns)) {}

  uint64_t record_count() const override { return rows_.records(); }
  const RawSpec& raw_spec() const override { return fields_.raw_spec(); }
  uint64_t memory_bytes() const override { return rows_.memory_bytes(); }
  bool Changed() const override { return rows_.Changed(); }
  std::string io() const override { return IoText(0); }
  std::string fingerprint() const override { return rows_.fingerprint(); }

  void Expect(uint64_t record) const override { rows_.Expect(record); }
  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record row = rows_.At(record);
    row.file->Locate(row.offsets[0], row.bytes[0], request);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const std::string_view text(
        reinterpret_cast<const char*>(read.bytes.data()), read.bytes.size());
    const Status status = Parse(record, text, scratch);
    if (!status.ok()) return status.Prepend(Describe(record));
    fields_.Point(std::span(*scratch).first(fields_.bytes()), raw);
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    const Index::Record row = rows_.At(record);
    return Format("{}, row {} (offset {})", row.file->path(), row.number + 1,
                  row.offsets[0]);
  }

 private:
  Status Parse(uint64_t record, std::string_view text,
               std::vector<std::byte>* scratch) const {
    const Index::Record place = rows_.At(record);
    if (const auto bad = FindNotUtf8(text)) {
      return DataLossError("not UTF-8 at offset {} of the file",
                           place.offsets[0] + *bad);
    }
    const Columns& columns =
        columns_[static_cast<size_t>(place.file - &rows_.files()[0])];
    scratch->resize(fields_.bytes() + text.size());
    std::byte* const row = scratch->data();
    // All values first: where one is missing, those after it are of others.
    thread_local std::vector<std::string_view> found;
    found.assign(columns.wanted.size(), {});
    CsvValues values(text, delimiter_, row + fields_.bytes());
    size_t count = 0;
    auto next = columns.wanted.begin();
    for (std::string_view value; values.Next(&value); ++count) {
      for (; next != columns.wanted.end() && next->column == count; ++next) {
        found[static_cast<size_t>(next - columns.wanted.begin())] = value;
      }
    }
    if (!values.error().empty()) {
      return DataLossError("column {}: {}", count + 1, values.error());
    }
    if (!values.left().empty()) {
      return DataLossError("the file has changed since it was opened");
    }
    if (count != columns.count) {
      return DataLossError("{} columns, wanted {}", count, columns.count);
    }
    for (size_t i = 0; i < found.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(Store(found[i], columns.wanted[i].field, row));
    }
    return OkStatus();
  }

  Status Store(std::string_view value, size_t field, std::byte* row) const {
    const TextField& of = fields_[field];
    if (of.max_bytes) {
      return value.empty() && of.fallback
                 ? fields_.StoreDefault("is empty", field, row)
                 : fields_.StoreText(value, field, row);
    }
    const std::string_view text = Trimmed(value);
    if (text.empty()) return fields_.StoreDefault("is empty", field, row);
    if (!StoreNumber(text, *of.dtype, fields_.NumbersIn(row, field))) {
      return DataLossError("field '{}': wanted {}, found {}",
                           fields_.name(field), DTypeName(*of.dtype),
                           Short(value));
    }
    return OkStatus();
  }

  const char delimiter_;
  const FieldRows fields_;
  const Index rows_;
  const std::vector<Columns> columns_;  // of each file
};

// The values of its first row; none: it has no row.
StatusOr<std::vector<std::string>> ReadFirstRow(const DataFile& file,
                                                char delimiter,
                                                OpenProgress* progress) {
  std::vector<std::byte> head(
      std::min<uint64_t>(kHeaderBytesMax, file.bytes()));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found, file.Read(0, head, progress));
  head.resize(found);
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t begin, FindText(file.path(), head));
  std::string_view text(reinterpret_cast<const char*>(head.data()), found);
  text.remove_prefix(begin);
  while (text.starts_with('\n') || text.starts_with("\r\n")) {
    text.remove_prefix(text.find('\n') + 1);
  }
  std::vector<std::string> first;
  if (text.empty()) return first;
  CsvRowEnds find_end(delimiter);
  const char* const end = find_end(text.data(), text.data() + text.size());
  if (end == nullptr && found < file.bytes()) {
    return DataLossError(
        "{}: its first row has no end within {} bytes; is a quote not closed, "
        "or is it no CSV file?",
        file.path(), kHeaderBytesMax);
  }
  std::vector<std::byte> unquoted(text.size());
  CsvValues values(text, delimiter, unquoted.data());
  for (std::string_view value; values.Next(&value);) {
    first.emplace_back(value);
  }
  if (!values.error().empty()) {
    return DataLossError("{}: its first row: column {}: {}", file.path(),
                         first.size() + 1, values.error());
  }
  return first;
}

// Which columns of a file become which features.
StatusOr<Columns> FindColumns(const CsvSource& spec, const std::string& path,
                              const std::vector<std::string>& first) {
  Columns columns{first.size(), {}};
  for (size_t i = 0; i < spec.columns.size(); ++i) {
    const auto& [name, field] = spec.columns[i];
    const std::string& from = field.from.empty() ? name : field.from;
    size_t column = i;
    if (spec.header) {
      const auto found = std::find(first.begin(), first.end(), from);
      if (found == first.end()) {
        constexpr size_t kNamesTold = 16;
        std::vector<std::string> names;
        for (const std::string& each : first) {
          if (names.size() == kNamesTold) {
            names.push_back("...");
            break;
          }
          names.push_back(Short(each));
        }
        return InvalidArgumentError("{}: no column {}; its header has {}", path,
                                    Short(from), JoinText(names, ", "));
      }
      if (std::find(found + 1, first.end(), from) != first.end()) {
        return InvalidArgumentError("{}: two columns are named {}", path,
                                    Short(from));
      }
      column = static_cast<size_t>(found - first.begin());
    } else if (!field.from.empty()) {
      Parse(field.from, &column);  // a number, as CheckColumns found
    }
    if (column >= first.size()) {
      return InvalidArgumentError(
          "{}: its first row has {} columns, numbered from 0; '{}' is column "
          "{}",
          path, first.size(), name, column);
    }
    columns.wanted.push_back({column, i});
  }
  std::sort(
      columns.wanted.begin(), columns.wanted.end(),
      [](const Wanted& a, const Wanted& b) { return a.column < b.column; });
  return columns;
}

Status CheckColumns(const YamlValue& value, CsvSource* source) {
  for (const auto& [name, field] : source->columns) {
    size_t column = 0;
    if (!source->header && !field.from.empty() && !Parse(field.from, &column)) {
      return value.Error(
          Format("columns.{}.column: without a header it is a number from 0, "
                 "found {}",
                 name, Short(field.from)));
    }
  }
  return OkStatus();
}

ValueType<char> DelimiterType() {
  constexpr std::string_view kTab = "tab";
  return {"one character that is no quote, or tab",
          [kTab](const YamlValue& value, std::string_view wanted, char* out) {
            std::string text;
            PENSTOCK_RETURN_IF_ERROR(value.String(&text));
            if (text == kTab) text = "\t";
            if (text.size() != 1 || text == "\"" || (text[0] & 0x80) != 0) {
              return value.Wanted(wanted);
            }
            *out = text[0];
            return OkStatus();
          },
          [kTab](const char& delimiter, nlohmann::ordered_json* out) {
            WriteText(
                delimiter == '\t' ? kTab : std::string_view(&delimiter, 1),
                out);
          }};
}

}  // namespace

const char* CsvRowEnds::operator()(const char* next, const char* end) {
  for (; next < end; ++next) {
    switch (state_) {
      case State::kQuoted:
        next = static_cast<const char*>(
            std::memchr(next, '"', static_cast<size_t>(end - next)));
        if (next == nullptr) return nullptr;
        state_ = State::kQuoteInQuotes;
        continue;
      case State::kQuoteInQuotes:
        if (*next == '"') {
          state_ = State::kQuoted;
          continue;
        }
        break;
      case State::kValueBegins:
        if (*next == '"') {
          state_ = State::kQuoted;
          continue;
        }
        break;
      case State::kPlain:
        break;
    }
    if (*next == '\n') {
      state_ = State::kValueBegins;
      return next;
    }
    state_ = *next == delimiter_ ? State::kValueBegins : State::kPlain;
  }
  return nullptr;
}

bool CsvValues::TakeQuoted(std::string_view* value) {
  left_.remove_prefix(1);
  char* const begin = reinterpret_cast<char*>(unquoted_);
  char* to = begin;
  bool is_copied = false;  // a part of it is at begin
  while (true) {
    const size_t quote = left_.find('"');
    if (quote == left_.npos) {
      error_ = "a quote is not closed";
      return false;
    }
    const bool is_doubled = left_.substr(quote).starts_with("\"\"");
    const std::string_view part = left_.substr(0, quote + (is_doubled ? 1 : 0));
    left_.remove_prefix(part.size() + 1);
    if (!is_doubled && !is_copied) {
      *value = part;
      return true;
    }
    to = std::copy(part.begin(), part.end(), to);
    is_copied = true;
    if (is_doubled) continue;
    unquoted_ = reinterpret_cast<std::byte*>(to);
    *value = {begin, static_cast<size_t>(to - begin)};
    return true;
  }
}

bool CsvValues::Next(std::string_view* value) {
  if (is_over_) return false;
  is_over_ = true;
  if (left_.starts_with('"')) {
    if (!TakeQuoted(value)) return false;
  } else {
    // Values are short: a loop beats a search for a set of characters.
    size_t end = 0;
    while (end < left_.size() && left_[end] != delimiter_ &&
           left_[end] != '\n' && left_[end] != '\r') {
      ++end;
    }
    *value = left_.substr(0, end);
    left_.remove_prefix(end);
    if (left_.starts_with('\r') && left_.size() > 1 && left_[1] != '\n') {
      error_ =
          "a carriage return without a newline; quote it, or convert the line "
          "ends";
      return false;
    }
  }
  if (left_.starts_with(delimiter_)) {
    left_.remove_prefix(1);
    is_over_ = false;
    return true;
  }
  if (left_.starts_with('\r')) left_.remove_prefix(1);
  if (left_.empty()) return true;
  if (left_.front() != '\n') {
    error_ = "text behind a closing quote";
    return false;
  }
  left_.remove_prefix(1);
  return true;
}

const Declaration<CsvSource>& CsvSource::Declared() {
  static const auto declared =
      Declaration<CsvSource>(
          "csv",
          "Columns of files of comma-separated values (RFC 4180): a value in "
          "quotes may have delimiters, doubled quotes and line ends.")
          .Gives(kFieldsGive)
          .Example(
              "{files: a.csv, columns: {label: {dtype: int64}, text: "
              "{max_bytes: 512, column: Review Text}}}")
          .Required("files", &CsvSource::files, Files(),
                    std::string(kFilesText) +
                        "; in UTF-8, not unpacked. Empty lines are left out")
          .Required(
              "columns", &CsvSource::columns,
              TextFields(
                  "column",
                  Text("a name of the header, or a number",
                       [](std::string_view text) { return !text.empty(); }),
                  false),
              "{NAME: {dtype, column, default}} of numbers, or {NAME: "
              "{max_bytes, column, default}} of text. max_bytes: room for the "
              "text; column: its name in the header, by default NAME; without "
              "a header its number from 0, by default in this order; default: "
              "of an empty value; an empty number without one is an error of "
              "the sample")
          .Optional("delimiter", &CsvSource::delimiter, DelimiterType(),
                    "between values")
          .Optional("header", &CsvSource::header, Bool(),
                    "the first row of each file has the names of the columns")
          .Optional("longer", &CsvSource::longer, LongerTextType(),
                    kLongerTextText)
          .Check(CheckColumns);
  return declared;
}

StatusOr<std::unique_ptr<Source>> CsvSource::Open(
    OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles opened,
                            DataFiles::Open(files, *progress));
  std::vector<Columns> of_files;
  for (const DataFile& file : opened) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> first,
                              ReadFirstRow(file, delimiter, progress));
    if (first.empty()) {
      return DataLossError("{}: no row in it; leave it out", file.path());
    }
    PENSTOCK_ASSIGN_OR_RETURN(of_files.emplace_back(),
                              FindColumns(*this, file.path(), first));
    if (!header && of_files.back().count != of_files.front().count) {
      return InvalidArgumentError(
          "{} has {} columns, but {} has {}, and no header to name them",
          opened[0].path(), of_files.front().count, file.path(),
          of_files.back().count);
    }
  }
  const RecordScanner scanner = {
      .kind = "csv",
      .options = Format("{} {}", delimiter, header),
      .scan = [this](ScannedFile* file, RecordSink* rows) {
        return FindRows(delimiter, header, file, rows);
      }};
  PENSTOCK_ASSIGN_OR_RETURN(Index rows,
                            Index::Open(std::move(opened), scanner, progress));
  PENSTOCK_RETURN_IF_ERROR(rows.ChooseIo(Io::kBuffered));
  return std::unique_ptr<Source>(
      new Csv(*this, std::move(rows), std::move(of_files)));
}

}  // namespace penstock
