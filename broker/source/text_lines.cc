// The offset of each line is in memory, 8 bytes a line: the files are read once
// when they are opened. A line ends at "\n" or "\r\n"; the last one may lack
// it.
#include "broker/source/text_lines.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "broker/declare/declaration.h"
#include "broker/index/data_files.h"
#include "broker/io/file_error.h"
#include "broker/io/read.h"

namespace penstock {
namespace {

constexpr size_t kScanBytes = size_t{1} << 20;
// Two bytes of a line's end are read with it.
constexpr uint64_t kMaxBytesMax = kRecordBytesMax - 2;

// Appends where each line of the file begins, and where one after the last
// would, if that had a "\n".
Status FindLines(const DataFile& file, OpenProgress* progress,
                 std::vector<uint64_t>* starts) {
  std::vector<char> bytes(kScanBytes);
  uint64_t at = 0;
  bool begins = true;  // the next byte is the first of a line
  while (at < file.bytes()) {
    if (progress->cancel.load(std::memory_order_relaxed)) {
      return CancelledError("{}: opening was cancelled", file.path());
    }
    const size_t want = std::min<uint64_t>(kScanBytes, file.bytes() - at);
    const ssize_t got =
        pread(file.fd(), bytes.data(), want, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(errno, file.path(), at);
    if (got == 0) {
      return DataLossError("{} became shorter while its lines were counted",
                           file.path());
    }
    const char* const end = bytes.data() + got;
    for (const char* next = bytes.data(); next < end;) {
      if (begins) {
        if (starts->size() == starts->capacity()) {
          const size_t more = std::max<size_t>(2 * starts->size(), 4096);
          PENSTOCK_RETURN_IF_ERROR(progress->reserve(more * sizeof(uint64_t)));
          starts->reserve(more);
        }
        starts->push_back(at + static_cast<uint64_t>(next - bytes.data()));
      }
      const void* const newline =
          std::memchr(next, '\n', static_cast<size_t>(end - next));
      begins = newline != nullptr;
      next = begins ? static_cast<const char*>(newline) + 1 : end;
    }
    at += static_cast<uint64_t>(got);
    progress->done.fetch_add(static_cast<uint64_t>(got),
                             std::memory_order_relaxed);  // only displayed
  }
  starts->push_back(begins ? at : at + 1);
  return OkStatus();
}

class TextLines final : public Source {
 public:
  TextLines(const TextLinesSource& spec, DataFiles files,
            std::vector<uint64_t> starts, std::vector<uint64_t> ends)
      : max_bytes_(spec.max_bytes),
        cuts_(spec.longer == TextLinesSource::Longer::kCut),
        files_(std::move(files)),
        starts_(std::move(starts)),
        ends_(std::move(ends)),
        raw_spec_(
            {{{"text", DType::kUint8, {static_cast<int64_t>(spec.max_bytes)}},
              false},
             {{"bytes", DType::kInt64, {}}, false}}) {}

  uint64_t record_count() const override { return ends_.back(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override {
    return starts_.capacity() * sizeof(uint64_t);
  }
  bool Changed() const override { return files_.Changed(); }
  std::string io() const override { return IoText(0); }

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Line line = LineOf(record);
    // With a "\r" that belongs to its end.
    line.file->Locate(line.offset, std::min(line.bytes, max_bytes_ + 1),
                      request);
  }

  Status Unpack(uint64_t record, std::span<const std::byte> read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    uint64_t bytes = LineOf(record).bytes;
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
    const Line line = LineOf(record);
    return Format("{}, line {}", line.file->path(), line.number);
  }

 private:
  struct Line {
    const DataFile* file;
    uint64_t number;  // from 1
    uint64_t offset;
    uint64_t bytes;  // without "\n"
  };

  Line LineOf(uint64_t record) const {
    const size_t file = static_cast<size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), record) - ends_.begin());
    // Each file before it has a start more than lines.
    const uint64_t* const start = &starts_[record + file];
    return {&files_[file], record + 1 - (file == 0 ? 0 : ends_[file - 1]),
            start[0], start[1] - start[0] - 1};
  }

  const uint64_t max_bytes_;
  const bool cuts_;
  const DataFiles files_;
  const std::vector<uint64_t> starts_;  // of FindLines, all files
  const std::vector<uint64_t> ends_;    // one past each file's last record
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
              std::string(kFilesText) +
                  "; not unpacked. A line ends with \\n or \\r\\n, the last "
                  "one may lack it; an empty line is a row")
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
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles opened,
                            DataFiles::Open(files, *progress));
  progress->total.store(opened.total_bytes(),
                        std::memory_order_relaxed);  // only displayed
  std::vector<uint64_t> starts;
  std::vector<uint64_t> ends;
  for (const DataFile& file : opened) {
    PENSTOCK_RETURN_IF_ERROR(FindLines(file, progress, &starts));
    ends.push_back(starts.size() - (ends.size() + 1));
  }
  if (ends.back() == 0) {
    return InvalidArgumentError("text_lines: no line in {}", opened[0].path());
  }
  return std::unique_ptr<Source>(new TextLines(
      *this, std::move(opened), std::move(starts), std::move(ends)));
}

}  // namespace penstock
