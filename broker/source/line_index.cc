#include "broker/source/line_index.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

namespace penstock {

const char* FindNewline(const char* next, const char* end) {
  return static_cast<const char*>(
      std::memchr(next, '\n', static_cast<size_t>(end - next)));
}

StatusOr<TextFile> OpenTextFile(const std::string& path,
                                OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path));
  char first[3];
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t found,
      file.Read(0, std::as_writable_bytes(std::span(first)), progress));
  const std::string_view head(first, found);
  if (head.starts_with("\x1f\x8b") || head.starts_with("\x28\xb5\x2f")) {
    return InvalidArgumentError(
        "{} is compressed, so that its lines have no places in it; unpack it "
        "on disk (gunzip, unzstd)",
        path);
  }
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff")) {
    return InvalidArgumentError(
        "{} is in UTF-16; convert it (iconv -f UTF-16 -t UTF-8)", path);
  }
  const uint64_t begin = head == "\xef\xbb\xbf" ? head.size() : 0;
  progress->total.fetch_add(file.bytes() - begin,
                            std::memory_order_relaxed);  // only displayed
  return TextFile{std::move(file), begin};
}

Status LineIndex::AddFile(DataFile file, uint64_t begin,
                          const FindLineEnd& find_end, OpenProgress* progress) {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  std::vector<char> block(
      std::min<uint64_t>(kBlockBytes, file.bytes() - begin));
  const size_t first = starts_.size();
  size_t blanks = 0;  // lines without content, up to here
  uint64_t at = begin;
  bool begins = true;   // the next byte is the first of a line
  char first_byte = 0;  // of this line
  while (at < file.bytes()) {
    const uint64_t want = std::min<uint64_t>(block.size(), file.bytes() - at);
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t got,
        file.Read(at, std::as_writable_bytes(std::span(block).first(want)),
                  progress));
    if (got < want) {
      return DataLossError("{} became shorter while its lines were counted",
                           file.path());
    }
    const auto offset = [&](const char* byte) {
      return at + static_cast<uint64_t>(byte - block.data());
    };
    const char* const end = block.data() + got;
    for (const char* next = block.data(); next < end;) {
      if (begins) {
        if (starts_.size() == starts_.capacity()) {
          const size_t more = std::max<size_t>(2 * starts_.size(), 4096);
          PENSTOCK_RETURN_IF_ERROR(progress->reserve(more * sizeof(uint64_t)));
          starts_.reserve(more);
        }
        starts_.push_back(offset(next));
        first_byte = *next;
      }
      const char* const line_end = find_end(next, end);
      begins = line_end != nullptr;
      next = begins ? line_end + 1 : end;
      if (!begins) continue;
      const uint64_t bytes = offset(line_end) - starts_.back();
      const bool is_blank = bytes == 0 || (bytes == 1 && first_byte == '\r');
      blanks = is_blank ? blanks + 1 : 0;
      if (is_blank && blank_ == Blank::kLeftOut) starts_.pop_back();
    }
    at += got;
    progress->done.fetch_add(got, std::memory_order_relaxed);  // only displayed
  }
  if (blank_ == Blank::kTrimmed && begins)
    starts_.resize(starts_.size() - blanks);
  PENSTOCK_RETURN_IF_ERROR(lines_.Append(starts_.size() - first));
  starts_.push_back(begins ? at : at + 1);
  files_.push_back(std::move(file));
  return OkStatus();
}

LineIndex::Line LineIndex::At(uint64_t line) const {
  const auto [file, number] = lines_.Find(line);
  // Each file before it has a start more than lines.
  const uint64_t* const start = &starts_[line + file];
  return {&files_[file], number + 1, start[0], start[1] - start[0] - 1};
}

bool LineIndex::Changed() const {
  return std::any_of(files_.begin(), files_.end(),
                     [](const DataFile& file) { return file.Changed(); });
}

void LineIndex::Locate(uint64_t line, uint64_t bytes_max,
                       ReadRequest* request) const {
  const Line at = At(line);
  at.file->Locate(at.offset, std::min(at.bytes, bytes_max), request);
}

}  // namespace penstock
