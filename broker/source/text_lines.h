// source: text_lines. One row per line of one or several text files: its bytes,
// without the end of the line, in a shape of max_bytes, and their number.
#ifndef BROKER_SOURCE_TEXT_LINES_H_
#define BROKER_SOURCE_TEXT_LINES_H_

#include "broker/index/file_patterns.h"
#include "broker/source/source.h"

namespace penstock {

struct TextLinesSource {
  enum class Longer { kFail, kCut };

  FilePatterns files;
  uint64_t max_bytes = 0;
  Longer longer = Longer::kFail;  // a line of more than max_bytes
  bool operator==(const TextLinesSource&) const = default;

  static const Declaration<TextLinesSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_TEXT_LINES_H_
