// A line ends at "\n" or "\r\n"; the last one may lack it.
#include "broker/source/text_lines.h"

#include <algorithm>
#include <cstring>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/source/data_file.h"
#include "broker/source/line_index.h"

namespace penstock {
namespace {

// Two bytes of a line's end are read with it.
constexpr uint64_t kMaxBytesMax = kRecordBytesMax - 2;

class TextLines final : public Source {
 public:
  TextLines(const TextLinesSource& spec, LineIndex lines)
      : max_bytes_(spec.max_bytes),
        cuts_(spec.longer == TextLinesSource::Longer::kCut),
        lines_(std::move(lines)),
        raw_spec_(
            {{{"text", DType::kUint8, {static_cast<int64_t>(spec.max_bytes)}},
              false},
             {{"bytes", DType::kInt64, {}}, false}}) {}

  uint64_t record_count() const override { return lines_.count(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override { return lines_.memory_bytes(); }
  bool Changed() const override { return lines_.Changed(); }
  std::string io() const override { return IoText(0); }

  void Locate(uint64_t record, ReadRequest* request) const override {
    // With a "\r" that belongs to its end.
    lines_.Locate(record, max_bytes_ + 1, request);
  }

  Status Unpack(uint64_t record, std::span<const std::byte> read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    uint64_t bytes = lines_.At(record).bytes;
    if (!read.empty() &&
        std::memchr(read.data(), '\n', read.size()) != nullptr) {
      return DataLossError("{}: the file has changed since it was opened",
                           Describe(record));
    }
    if (bytes > 0 && bytes == read.size() && read.back() == std::byte{'\r'}) {
      --bytes;
    }
    if (bytes > max_bytes_ && !cuts_) {
      return DataLossError(
          "{}: a line of {} bytes; at most {} fit (max_bytes, or `longer: "
          "cut`)",
          Describe(record), bytes, max_bytes_);
    }
    const int64_t kept = static_cast<int64_t>(std::min(bytes, max_bytes_));
    scratch->assign(max_bytes_ + sizeof(kept), std::byte{0});
    if (kept > 0) {
      std::memcpy(scratch->data(), read.data(), static_cast<size_t>(kept));
    }
    std::memcpy(scratch->data() + max_bytes_, &kept, sizeof(kept));
    const std::span<const std::byte> all = *scratch;
    raw->assign({all.first(max_bytes_), all.subspan(max_bytes_)});
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    const LineIndex::Line line = lines_.At(record);
    return Format("{}, line {}", line.file->path(), line.number);
  }

 private:
  const uint64_t max_bytes_;
  const bool cuts_;
  const LineIndex lines_;
  const RawSpec raw_spec_;
};

}  // namespace

const Declaration<TextLinesSource>& TextLinesSource::Declared() {
  static const auto declared =
      Declaration<TextLinesSource>("text_lines",
                                   "Lines of one or several text files.")
          .Gives(
              "text uint8 [max_bytes], filled with zeros; bytes int64: how "
              "many of them are the line's, without its end")
          .Example("{path: [a.txt, b.txt], max_bytes: 512, longer: cut}")
          .Required(
              "path", &TextLinesSource::files, Files(),
              "where they are; not unpacked. A line ends with \\n or \\r\\n, "
              "the last one may lack it; an empty line is a row")
          .Required("max_bytes", &TextLinesSource::max_bytes,
                    WholeNumber<uint64_t>(1, kMaxBytesMax),
                    "room for a line in each row")
          .Optional(
              "longer", &TextLinesSource::longer,
              Words<Longer>({{"fail", Longer::kFail}, {"cut", Longer::kCut}}),
              "a longer line is an error of its sample (on_error "
              "applies), or loses its end, perhaps within a character");
  return declared;
}

StatusOr<std::unique_ptr<Source>> TextLinesSource::Open(
    OpenProgress* progress) const {
  std::vector<DataFile> opened;
  for (const std::string& path : files) {
    PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path));
    progress->total.fetch_add(file.bytes(),
                              std::memory_order_relaxed);  // only displayed
    opened.push_back(std::move(file));
  }
  LineIndex lines(LineIndex::Blank::kKept);
  for (DataFile& file : opened) {
    PENSTOCK_RETURN_IF_ERROR(
        lines.AddFile(std::move(file), 0, FindNewline, progress));
  }
  if (lines.count() == 0) {
    return InvalidArgumentError("text_lines: no line in {}", files.front());
  }
  return std::unique_ptr<Source>(new TextLines(*this, std::move(lines)));
}

}  // namespace penstock
