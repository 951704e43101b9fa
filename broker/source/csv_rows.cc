#include "broker/source/csv_rows.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "broker/index/values.h"
#include "broker/source/number.h"
#include "broker/source/text_scan.h"
#include "common/printable.h"

namespace penstock {
namespace {

// Without the blanks around it.
std::string_view Trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

constexpr uint64_t kHeaderBytesMax = uint64_t{1} << 20;

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// How many bytes of text are a decimal number, of so few digits that they and
// the power of ten are exact as doubles: the one division rounds correctly
// (Clinger, "How to read floating point numbers accurately", 1990). 0: text
// begins with none.
size_t ReadShortDecimal(std::string_view text, double* number) {
  constexpr size_t kDigitsMax = 15;  // 10^15 < 2^53
  static constexpr double kPowers[kDigitsMax + 1] = {
      1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
      1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  static constexpr double kSigns[] = {1, -1};  // no branch: signs are random
  if (text.empty()) return 0;
  const char* const end = text.data() + text.size();
  const auto is_negative = static_cast<size_t>(text.front() == '-');
  const char* at = text.data() + is_negative;
  uint64_t digits = 0;  // wraps beyond kDigitsMax, which is refused below
  const auto take_digits = [&] {
    const char* const first = at;
    for (; at < end && IsDigit(*at); ++at) {
      digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    }
    return static_cast<size_t>(at - first);
  };
  const size_t whole = take_digits();
  size_t fraction = 0;
  if (at < end && *at == '.') {
    ++at;
    fraction = take_digits();
  }
  if (whole + fraction == 0 || whole + fraction > kDigitsMax) return 0;
  *number =
      kSigns[is_negative] *
      (static_cast<double>(static_cast<int64_t>(digits)) / kPowers[fraction]);
  return static_cast<size_t>(at - text.data());
}

// count: how many values there were.
Status CheckEnd(const CsvValues& values, const CsvColumns& columns,
                size_t count) {
  if (!values.error().empty()) {
    return DataLossError("column {}: {}", count + 1, values.error());
  }
  if (!values.left().empty()) {
    return DataLossError("the file has changed since it was opened");
  }
  if (count != columns.count) {
    return DataLossError("{} columns, wanted {}", count, columns.count);
  }
  return OkStatus();
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
    const char delimiter = delimiter_;
    const auto ends = [delimiter](char c) {
      return c == delimiter || (c <= '\r' && (c == '\n' || c == '\r'));
    };
    const auto end = static_cast<size_t>(
        std::find_if(left_.begin(), left_.end(), ends) - left_.begin());
    *value = left_.substr(0, end);
    left_.remove_prefix(end);
    if (left_.starts_with('\r') && left_.size() > 1 && left_[1] != '\n') {
      error_ =
          "a carriage return without a newline; quote it, or convert the line "
          "ends";
      return false;
    }
  }
  return TakeEnd();
}

bool CsvValues::TakeEnd() {
  is_over_ = !left_.starts_with(delimiter_);
  if (!is_over_) {
    left_.remove_prefix(1);
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

bool CsvValues::NextDecimal(std::string_view* value, double* number) {
  if (is_over_) return false;
  const size_t bytes = ReadShortDecimal(left_, number);
  if (bytes == 0) return false;
  const std::string_view rest = left_.substr(bytes);
  if (!rest.empty() && rest[0] != delimiter_ && rest[0] != '\n') return false;
  *value = left_.substr(0, bytes);
  left_ = rest;
  return TakeEnd();
}

StatusOr<std::vector<std::string>> ReadFirstCsvRow(const DataFile& file,
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

StatusOr<CsvColumns> FindCsvColumns(const FeatureValues<TextField>& fields,
                                    bool header, const std::string& path,
                                    const std::vector<std::string>& first) {
  CsvColumns columns{first.size(), {}};
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [name, field] = fields[i];
    const std::string& from = field.from.empty() ? name : field.from;
    size_t column = i;
    if (header) {
      // A name has no blanks around it, unless it is asked for with them.
      const auto find = [&from](auto begin, auto end, bool exact) {
        return std::find_if(begin, end, [&](const std::string& each) {
          return exact ? each == from : Trimmed(each) == from;
        });
      };
      bool exact = true;
      auto found = find(first.begin(), first.end(), exact);
      if (found == first.end()) {
        exact = false;
        found = find(first.begin(), first.end(), exact);
      }
      if (found == first.end()) {
        constexpr size_t kNamesTold = 16;
        std::vector<std::string> names;
        for (const std::string& each : first) {
          if (names.size() == kNamesTold) {
            names.push_back("...");
            break;
          }
          names.push_back(ShortValue(each));
        }
        return InvalidArgumentError("{}: no column {}; its header has {}", path,
                                    ShortValue(from), JoinText(names, ", "));
      }
      if (find(found + 1, first.end(), exact) != first.end()) {
        return InvalidArgumentError("{}: two columns are named {}", path,
                                    ShortValue(from));
      }
      column = static_cast<size_t>(found - first.begin());
    } else if (!field.from.empty()) {
      ParseNumber(field.from, &column);  // a number, as CheckColumns found
    }
    if (column >= first.size()) {
      return InvalidArgumentError(
          "{}: its first row has {} columns, numbered from 0; '{}' is column "
          "{}",
          path, first.size(), name, column);
    }
    columns.wanted.push_back({column, i, field.dtype && IsFloat(*field.dtype)});
  }
  std::sort(columns.wanted.begin(), columns.wanted.end(),
            [](const CsvColumns::Wanted& a, const CsvColumns::Wanted& b) {
              return a.column < b.column;
            });
  return columns;
}

Status TakeCsvValues(std::string_view row, char delimiter,
                     const CsvColumns& columns, std::byte* unquoted,
                     std::vector<std::string_view>* found) {
  found->assign(columns.wanted.size(), {});
  CsvValues values(row, delimiter, unquoted);
  size_t count = 0;
  auto next = columns.wanted.begin();
  for (std::string_view value; values.Next(&value); ++count) {
    for (; next != columns.wanted.end() && next->column == count; ++next) {
      (*found)[static_cast<size_t>(next - columns.wanted.begin())] = value;
    }
  }
  return CheckEnd(values, columns, count);
}

Status StoreCsvRow(std::string_view text, char delimiter,
                   const CsvColumns& columns, const FieldRows& fields,
                   std::byte* unquoted, std::byte* row) {
  CsvValues values(text, delimiter, unquoted);
  const bool is_of_numbers =
      IsDigit(delimiter) || delimiter == '-' || delimiter == '.';
  Status status;  // of the first value that is not stored
  size_t count = 0;
  auto next = columns.wanted.begin();
  const auto end = columns.wanted.end();
  while (true) {
    const bool is_wanted = next != end && next->column == count;
    std::string_view value;
    double number = 0;
    const bool is_decimal = is_wanted && next->is_real && !is_of_numbers &&
                            values.NextDecimal(&value, &number);
    if (!is_decimal && !values.Next(&value)) break;
    for (; next != end && next->column == count; ++next) {
      const size_t field = next->field;
      if (is_decimal && next->is_real &&
          StoreReal(number, *fields[field].dtype,
                    fields.NumbersIn(row, field))) {
        continue;
      }
      // An error of the whole row goes first: a missing value shifts others.
      if (status.ok()) status = StoreCsvValue(value, fields, field, row);
    }
    ++count;
  }
  PENSTOCK_RETURN_IF_ERROR(CheckEnd(values, columns, count));
  return status;
}

Status StoreCsvValue(std::string_view value, const FieldRows& fields,
                     size_t field, std::byte* row) {
  const TextField& of = fields[field];
  if (of.max_bytes) {
    return value.empty() && of.fallback
               ? fields.StoreDefault("is empty", field, row)
               : fields.StoreText(value, field, row);
  }
  const std::string_view text = Trimmed(value);
  if (text.empty()) return fields.StoreDefault("is empty", field, row);
  if (!StoreNumberText(text, *of.dtype, fields.NumbersIn(row, field))) {
    return DataLossError("field '{}': wanted {}, found {}", fields.name(field),
                         DTypeName(*of.dtype), ShortValue(value));
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

ValueType<std::string> CsvColumnType() {
  return Text("a name of the header, or a number",
              [](std::string_view text) { return !text.empty(); });
}

Status CheckCsvColumns(const YamlValue& value,
                       const FeatureValues<TextField>& fields, bool header) {
  for (const auto& [name, field] : fields) {
    size_t column = 0;
    if (!header && !field.from.empty() && !ParseNumber(field.from, &column)) {
      return value.Error(
          Format("columns.{}.column: without a header it is a number from 0, "
                 "found {}",
                 name, ShortValue(field.from)));
    }
  }
  return OkStatus();
}

std::string ShortValue(std::string_view value) {
  constexpr size_t kBytesTold = 32;
  return "'" + Printable(value.substr(0, kBytesTold)) +
         (value.size() > kBytesTold ? "...'" : "'");
}

}  // namespace penstock
