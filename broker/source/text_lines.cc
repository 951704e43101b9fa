// The files are read once when they are opened, to find their lines. A line
// ends at "\n" or "\r\n"; the last one may lack it.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"
#include "broker/source/text_scan.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Two bytes of a line's end are read with it.
constexpr uint64_t kMaxBytesMax = kRecordBytesMax - 2;

Status FindLines(ScannedFile* file, RecordSink* lines) {
  return ScanLines(file, 0, FindNewline, [lines](const ScannedLine& line) {
    return lines->Add(line.offset, line.bytes);
  });
}

// Lines of more than max_bytes, and the longest.
struct LongLines {
  uint64_t lines = 0;
  uint64_t bytes = 0;
  uint64_t longest = 0;  // its record
};

LongLines FindLongLines(const Index& index, uint64_t max_bytes) {
  LongLines found;
  for (uint64_t record = 0; record < index.records(); ++record) {
    const Index::Record line = index.At(record);
    uint64_t bytes = line.bytes[0];
    if (bytes <= max_bytes) continue;
    // A "\r" there belongs to its end; a byte that cannot be read is none.
    std::byte last{};
    OpenProgress unwatched;
    (void)line.file->Read(line.offsets[0] + bytes - 1, {&last, 1}, &unwatched);
    if (last == std::byte{'\r'}) --bytes;
    if (bytes <= max_bytes) continue;
    ++found.lines;
    if (bytes > found.bytes) found = {found.lines, bytes, record};
  }
  return found;
}

class TextLines final : public IndexedSource {
 public:
  TextLines(const TextLinesSource& spec, Index index)
      : IndexedSource(
            std::move(index),
            RawSpecOf(ElementSpec{
                {"text", DType::kUint8, {static_cast<int64_t>(spec.max_bytes)}},
                {"bytes", DType::kInt64, {}}})),
        max_bytes_(spec.max_bytes),
        cuts_(spec.longer == Longer::kCut),
        longer_(FindLongLines(this->index(), max_bytes_)) {}

  std::string warning() const override {
    if (longer_.lines == 0) return "";
    return Format(
        "{} longer than max_bytes ({}), the longest of {} bytes ({}): {}",
        Counted(longer_.lines, "line is", "lines are"), max_bytes_,
        longer_.bytes, Describe(longer_.longest),
        cuts_ ? "the rest of each is cut off"
              : "each is an error of its sample; make max_bytes larger, or cut "
                "them with `longer: cut`");
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record line = index().At(record);
    // With a "\r" that belongs to its end.
    line.file->Locate(line.offsets[0],
                      std::min<uint64_t>(line.bytes[0], max_bytes_ + 1),
                      request);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    uint64_t bytes = index().At(record).bytes[0];
    if (!read.bytes.empty() &&
        std::memchr(read.bytes.data(), '\n', read.bytes.size()) != nullptr) {
      return DataLossError("{}: the file has changed since it was opened",
                           Describe(record));
    }
    if (bytes > 0 && bytes == read.bytes.size() &&
        read.bytes.back() == std::byte{'\r'}) {
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
      std::memcpy(scratch->data(), read.bytes.data(),
                  static_cast<size_t>(kept));
    }
    std::memcpy(scratch->data() + max_bytes_, &kept, sizeof(kept));
    const std::span<const std::byte> all = *scratch;
    raw->assign({all.first(max_bytes_), all.subspan(max_bytes_)});
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    const Index::Record line = index().At(record);
    return Format("{}, line {}", line.file->path(), line.number + 1);
  }

 private:
  const uint64_t max_bytes_;
  const bool cuts_;
  const LongLines longer_;
};

}  // namespace

const Declaration<TextLinesSource>& TextLinesSource::Declared() {
  static const auto declared =
      Declaration<TextLinesSource>("text_lines",
                                   "Lines of one or several text files.")
          .Gives(
              "text uint8 [max_bytes], filled with zeros; bytes int64: how "
              "many of them are the line's, without its end")
          .Example("{files: [a.txt, b.txt], max_bytes: 512, longer: cut}")
          .Required("files", &TextLinesSource::files, Files(),
                    std::string(kFilesText) +
                        ". A line ends with \\n or \\r\\n, the last "
                        "one may lack it; an empty line is a row")
          .Required("max_bytes", &TextLinesSource::max_bytes,
                    WholeNumber<uint64_t>(1, kMaxBytesMax),
                    "room for a line in each row; `longer` says what becomes "
                    "of a longer line")
          .Optional("longer", &TextLinesSource::longer, LongerType(),
                    "a line of more than max_bytes is an error of its sample "
                    "(on_error applies), or loses its end, perhaps within a "
                    "character; `penstock check` counts them");
  return declared;
}

OpenedSource TextLinesSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(
      Index index,
      Index::Open(files, {.kind = "text_lines", .scan = FindLines}, progress));
  PENSTOCK_RETURN_IF_ERROR(index.ChooseIo(Io::kBuffered));
  return std::unique_ptr<Source>(new TextLines(*this, std::move(index)));
}

}  // namespace penstock
