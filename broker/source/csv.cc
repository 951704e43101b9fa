
#include "broker/declare/declaration.h"
#include "broker/source/csv_rows.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"
#include "broker/source/text_scan.h"

namespace penstock {
namespace {

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

class Csv final : public IndexedSource {
 public:
  Csv(char delimiter, FieldRows fields, Index rows,
      std::vector<CsvColumns> columns)
      : IndexedSource(std::move(rows), fields.raw_spec()),
        delimiter_(delimiter),
        fields_(std::move(fields)),
        columns_(std::move(columns)) {}

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record row = index().At(record);
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
    const Index::Record row = index().At(record);
    return Format("{}, row {} (offset {})", row.file->path(), row.number + 1,
                  row.offsets[0]);
  }

 private:
  Status Parse(uint64_t record, std::string_view text,
               std::vector<std::byte>* scratch) const {
    const Index::Record place = index().At(record);
    if (const auto bad = FindNotUtf8(text)) {
      return DataLossError("not UTF-8 at offset {} of the file",
                           place.offsets[0] + *bad);
    }
    const CsvColumns& columns =
        columns_[static_cast<size_t>(place.file - &index().files()[0])];
    const size_t room = fields_.bytes() + text.size();
    if (scratch->size() < room) scratch->resize(room);
    std::byte* const row = scratch->data();
    return StoreCsvRow(text, delimiter_, columns, fields_,
                       row + fields_.bytes(), row);
  }

  const char delimiter_;
  const FieldRows fields_;
  const std::vector<CsvColumns> columns_;  // of each file
};

Status CheckColumns(const YamlValue& value, CsvSource* source) {
  return CheckCsvColumns(value, source->columns, source->header);
}

}  // namespace

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
          .Required(
              "files", &CsvSource::files, Files(),
              std::string(kFilesText) + "; in UTF-8. Empty lines are left out")
          .Required(
              "columns", &CsvSource::columns,
              TextFields({.from_key = "column", .from = CsvColumnType()}),
              "{NAME: {dtype, column, default}} of numbers (2.0 is whole, "
              "true is 1), or {NAME: {max_bytes, column, default}} of text. "
              "max_bytes: room for the "
              "text; column: its name in the header, by default NAME; without "
              "a header its number from 0, by default in this order; default: "
              "of an empty value; an empty number without one is an error of "
              "the sample")
          .Optional("delimiter", &CsvSource::delimiter, DelimiterType(),
                    "between values")
          .Optional("header", &CsvSource::header, Bool(),
                    "the first row of each file has the names of the columns")
          .Optional("longer", &CsvSource::longer, LongerType(), kLongerTextText)
          .Check(CheckColumns);
  return declared;
}

OpenedSource CsvSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles opened,
                            DataFiles::Open(files, *progress));
  std::vector<CsvColumns> of_files;
  for (const DataFile& file : opened) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> first,
                              ReadFirstCsvRow(file, delimiter, progress));
    if (first.empty()) {
      return DataLossError("{}: no row in it; leave it out", file.path());
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        of_files.emplace_back(),
        FindCsvColumns(columns, header, file.path(), first));
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
  return std::unique_ptr<Source>(new Csv(delimiter, FieldRows(columns, longer),
                                         std::move(rows), std::move(of_files)));
}

}  // namespace penstock
