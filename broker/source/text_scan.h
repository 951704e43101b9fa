// The lines of a file of text, for the scans of sources whose records are
// lines.
#ifndef BROKER_SOURCE_TEXT_SCAN_H_
#define BROKER_SOURCE_TEXT_SCAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "broker/index/index.h"
#include "common/status.h"

namespace penstock {

// Longer lines of JSON or CSV are not parsed.
inline constexpr uint64_t kParsedLineBytesMax = uint64_t{16} << 20;

// head: the first bytes of a file, kTextMarkBytes or all of it. Where its text
// in UTF-8 begins: behind a byte order mark. InvalidArgument, with the way out:
// compressed, or in UTF-16.
inline constexpr size_t kTextMarkBytes = 3;
StatusOr<uint64_t> FindText(const std::string& path,
                            std::span<const std::byte> head);
StatusOr<uint64_t> FindText(ScannedFile* file);

// Finds the "\n" that ends a line in [next, end), which follows what the last
// call was given; null: it is not there.
const char* FindNewline(const char* next, const char* end);

struct ScannedLine {
  uint64_t offset;
  uint64_t bytes;  // without its "\n"
  bool is_blank;   // nothing but its end, "\n" or "\r\n"
};

// Calls line(ScannedLine) for each line from offset begin on, also for the last
// one if it has no end. find_end: as FindNewline.
template <typename FindEnd, typename Line>
Status ScanLines(ScannedFile* file, uint64_t begin, FindEnd&& find_end,
                 const Line& line) {
  constexpr uint64_t kBlockBytes = uint64_t{1} << 20;
  char last = 0;  // byte before the block
  const auto found = [&](uint64_t end, char before) {
    const uint64_t bytes = end - begin;
    return line(ScannedLine{begin, bytes,
                            bytes == 0 || (bytes == 1 && before == '\r')});
  };
  for (uint64_t at = begin; at < file->bytes();) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::span<const std::byte> block,
        file->At(at, std::min(kBlockBytes, file->bytes() - at)));
    const char* const first = reinterpret_cast<const char*>(block.data());
    const char* const last_end = first + block.size();
    for (const char* next = first; next < last_end;) {
      const char* const end = find_end(next, last_end);
      if (end == nullptr) break;
      PENSTOCK_RETURN_IF_ERROR(found(at + static_cast<uint64_t>(end - first),
                                     end == first ? last : end[-1]));
      next = end + 1;
      begin = at + static_cast<uint64_t>(next - first);
    }
    last = last_end[-1];
    at += block.size();
  }
  return begin < file->bytes() ? found(file->bytes(), last) : OkStatus();
}

}  // namespace penstock
#endif  // BROKER_SOURCE_TEXT_SCAN_H_
