// Where the lines of files begin: 8 bytes a line. The files are read once when
// they are opened.
#ifndef BROKER_SOURCE_LINE_INDEX_H_
#define BROKER_SOURCE_LINE_INDEX_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "broker/source/concatenation.h"
#include "broker/source/data_file.h"
#include "broker/source/source.h"
#include "common/status.h"

namespace penstock {

// Finds the "\n" that ends a line in [next, end), which follows what the last
// call was given; null: it is not there.
using FindLineEnd =
    std::function<const char*(const char* next, const char* end)>;
const char* FindNewline(const char* next, const char* end);

// A file of text in UTF-8.
struct TextFile {
  DataFile file;
  uint64_t begin;  // of its text, behind a byte order mark
};
// InvalidArgument, with the way out: compressed, or in UTF-16.
StatusOr<TextFile> OpenTextFile(const std::string& path,
                                OpenProgress* progress);

// Longer lines of JSON or CSV are not parsed.
inline constexpr uint64_t kParsedLineBytesMax = uint64_t{16} << 20;

class LineIndex {
 public:
  // A line of nothing but its end, "\n" or "\r\n".
  enum class Blank {
    kKept,
    kTrimmed,  // left out at the end of a file
    kLeftOut,
  };
  struct Line {
    const DataFile* file;
    uint64_t number;  // in the file, from 1, without those left out
    uint64_t offset;
    // Without its "\n". Lines left out after it count as its bytes.
    uint64_t bytes;
  };

  explicit LineIndex(Blank blank) : blank_(blank) {}

  // Adds the lines from offset begin on.
  Status AddFile(DataFile file, uint64_t begin, const FindLineEnd& find_end,
                 OpenProgress* progress);

  uint64_t count() const { return lines_.count(); }
  Line At(uint64_t line) const;
  size_t FileOf(uint64_t line) const { return lines_.Find(line).part; }
  bool Changed() const;
  uint64_t memory_bytes() const {
    return starts_.capacity() * sizeof(uint64_t);
  }

  // Reads a line, or the first bytes_max bytes of it; of an empty line a range
  // of no bytes, because workers ask one record whether all are read.
  void Locate(uint64_t line, uint64_t bytes_max, ReadRequest* request) const;

 private:
  const Blank blank_;
  std::vector<DataFile> files_;
  // Of each line; for each file one more: where one after its last would begin,
  // if that had a "\n".
  std::vector<uint64_t> starts_;
  Concatenation lines_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_LINE_INDEX_H_
