// The input is a delimiter and a CSV file. The ends of its rows do not depend
// on the blocks that are scanned, and the parser finds the same; each record is
// text in UTF-8, or refused as documented.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/csv_rows.h"
#include "broker/source/kinds.h"
#include "tests/fuzz/file_of.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxBytes = 5;

// Offsets of the ends of rows, scanned in blocks of so many bytes.
std::vector<size_t> Ends(std::string_view text, char delimiter, size_t block) {
  std::vector<size_t> ends;
  CsvRowEnds find_end(delimiter);
  for (size_t begin = 0; begin < text.size(); begin += block) {
    const std::string_view part = text.substr(begin, block);
    const char* const end = part.data() + part.size();
    for (const char* next = part.data(); next < end;) {
      const char* const found = find_end(next, end);
      if (found == nullptr) break;
      ends.push_back(static_cast<size_t>(found - text.data()));
      next = found + 1;
    }
  }
  return ends;
}

void CheckRows(std::string_view text, char delimiter) {
  const std::vector<size_t> ends = Ends(text, delimiter, text.size() + 1);
  Require(ends == Ends(text, delimiter, 1), "blocks of a byte");
  Require(ends == Ends(text, delimiter, 3), "blocks of three");
  std::vector<std::byte> unquoted(text.size());
  const bool is_of_numbers = std::string_view("-.0123456789").find(delimiter) !=
                             std::string_view::npos;
  size_t begin = 0;
  for (const size_t end : ends) {
    const std::string_view row = text.substr(begin, end + 1 - begin);
    CsvValues values(row, delimiter, unquoted.data());
    size_t bytes = 0;
    while (true) {
      CsvValues before = values;
      std::string_view value;
      if (!values.Next(&value)) break;
      bytes += value.size();
      std::string_view decimal;
      double number;
      if (!is_of_numbers && before.NextDecimal(&decimal, &number)) {
        Require(decimal == value && before.left() == values.left(),
                "a decimal is the next value");
      }
    }
    Require(bytes <= row.size(), "values are of the row");
    Require(!values.error().empty() || values.left().empty(),
            "a row that is parsed ends where it was found to");
    begin = end + 1;
  }
}

void CheckSource(std::string_view text, char delimiter, bool header) {
  CsvSource spec;
  spec.files = {{FileOf(text)}};
  spec.columns = {{"a", {.from = header ? "" : "0", .max_bytes = kMaxBytes}}};
  spec.delimiter = delimiter;
  spec.header = header;
  spec.longer = Longer::kCut;
  OpenProgress progress;
  const auto source = spec.Open(&progress);
  if (!source.ok()) {
    Require(source.status().code() == StatusCode::kInvalidArgument ||
                source.status().code() == StatusCode::kDataLoss,
            "a file is refused as documented");
    return;
  }
  std::vector<std::byte> scratch;
  RawRecord raw;
  for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
    ReadRequest request;
    (*source)->Locate(i, &request);
    Require(request.offset + request.bytes <= text.size(),
            "a record is within the file");
    const auto read =
        std::as_bytes(std::span(text).subspan(request.offset, request.bytes));
    const Status status = (*source)->Unpack(i, {read}, &scratch, &raw);
    if (!status.ok()) {
      Require(status.code() == StatusCode::kDataLoss,
              "a record is refused as documented");
      continue;
    }
    int64_t bytes = 0;
    std::memcpy(&bytes, raw[1].data(), sizeof(bytes));
    Require(bytes >= 0 && static_cast<uint64_t>(bytes) <= kMaxBytes,
            "text has room");
    Require(!FindNotUtf8({reinterpret_cast<const char*>(raw[0].data()),
                          static_cast<size_t>(bytes)}),
            "text is UTF-8");
  }
}

void Check(const uint8_t* data, size_t size) {
  Input input(data, size);
  const char delimiter = ",;\t "[input.Byte() % 4];
  const std::string_view text = input.Rest();
  CheckRows(text, delimiter);
  CheckSource(text, delimiter, false);
  CheckSource(text, delimiter, true);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(data, size);
  return 0;
}
