// Rows of comma-separated values (RFC 4180): where they end, their values, and
// the columns that a spec takes.
#ifndef BROKER_SOURCE_CSV_ROWS_H_
#define BROKER_SOURCE_CSV_ROWS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/index/data_file.h"
#include "broker/source/text_field.h"

namespace penstock {

// Finds the ends of rows: each "\n" that is not within quotes.
class CsvRowEnds {
 public:
  explicit CsvRowEnds(char delimiter) : delimiter_(delimiter) {}

  // As FindNewline.
  const char* operator()(const char* next, const char* end);
  bool in_quotes() const { return state_ == State::kQuoted; }

 private:
  enum class State {
    kValueBegins,
    kPlain,
    kQuoted,
    kQuoteInQuotes,  // doubled, or the last one
  };
  const char delimiter_;
  State state_ = State::kValueBegins;
};

// The values of the row that text begins with, one after the other.
class CsvValues {
 public:
  // unquoted: has text.size() bytes, for values with doubled quotes.
  CsvValues(std::string_view text, char delimiter, std::byte* unquoted)
      : left_(text), delimiter_(delimiter), unquoted_(unquoted) {}

  // False: there is no other, or an error.
  bool Next(std::string_view* value);
  // As Next, of a short decimal number without quotes or blanks. False: it is
  // something else, for Next. No number may have the delimiter in it.
  bool NextDecimal(std::string_view* value, double* number);
  // What is wrong; "": nothing is.
  std::string_view error() const { return error_; }
  // Behind the row and its end.
  std::string_view left() const { return left_; }

 private:
  bool TakeQuoted(std::string_view* value);
  // What is between a value and the next, or behind the row.
  bool TakeEnd();

  std::string_view left_;
  const char delimiter_;
  std::byte* unquoted_;
  bool is_over_ = false;
  std::string_view error_;
};

// The columns that fields are made of.
struct CsvColumns {
  struct Wanted {
    size_t column;
    size_t field;
    bool is_real;  // of a float dtype
  };
  size_t count = 0;            // in each row of the file
  std::vector<Wanted> wanted;  // in the order of the columns
};

// The values of the file's first row; none: it has no row.
StatusOr<std::vector<std::string>> ReadFirstCsvRow(const DataFile& file,
                                                   char delimiter,
                                                   OpenProgress* progress);
// Which columns of a file become which fields. first: its first row, which has
// their names if there is a header.
StatusOr<CsvColumns> FindCsvColumns(const FeatureValues<TextField>& fields,
                                    bool header, const std::string& path,
                                    const std::vector<std::string>& first);
// Points *found at the values of columns.wanted. unquoted: as in CsvValues.
// DataLoss: what is wrong with the row.
Status TakeCsvValues(std::string_view row, char delimiter,
                     const CsvColumns& columns, std::byte* unquoted,
                     std::vector<std::string_view>* found);
// Stores the values of columns.wanted in a row of fields. DataLoss: what is
// wrong with the row, or else with the first such value.
Status StoreCsvRow(std::string_view text, char delimiter,
                   const CsvColumns& columns, const FieldRows& fields,
                   std::byte* unquoted, std::byte* row);
// Stores a number or a text in a row of fields. DataLoss: it is none.
Status StoreCsvValue(std::string_view value, const FieldRows& fields,
                     size_t field, std::byte* row);

// ---- of a spec

ValueType<char> DelimiterType();
// TextField::from.
ValueType<std::string> CsvColumnType();
// Without a header it is a number.
Status CheckCsvColumns(const YamlValue& value,
                       const FeatureValues<TextField>& fields, bool header);

// A value as a message shows it.
std::string ShortValue(std::string_view value);

}  // namespace penstock
#endif  // BROKER_SOURCE_CSV_ROWS_H_
