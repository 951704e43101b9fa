// source: csv. One row per row of files of comma-separated values (RFC 4180):
// named columns of it.
#ifndef BROKER_SOURCE_CSV_H_
#define BROKER_SOURCE_CSV_H_

#include "broker/index/file_patterns.h"
#include "broker/source/source.h"
#include "broker/source/text_field.h"

namespace penstock {

struct CsvSource {
  FilePatterns files;
  FeatureValues<TextField> columns;  // from: a name of the header, or a number
  char delimiter = ',';
  bool header = true;
  LongerText longer = LongerText::kFail;
  bool operator==(const CsvSource&) const = default;

  static const Declaration<CsvSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

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
  // What is wrong; "": nothing is.
  std::string_view error() const { return error_; }
  // Behind the row and its end.
  std::string_view left() const { return left_; }

 private:
  bool TakeQuoted(std::string_view* value);

  std::string_view left_;
  const char delimiter_;
  std::byte* unquoted_;
  bool is_over_ = false;
  std::string_view error_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_CSV_H_
