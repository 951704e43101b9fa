// A rank's output, forwarded line by line with the rank's name in front.
#ifndef CLIENT_COMMAND_TAGGED_OUTPUT_H_
#define CLIENT_COMMAND_TAGGED_OUTPUT_H_

#include <string>

#include "common/fd.h"

namespace penstock {

class TaggedOutput {
 public:
  // Lines longer than this are cut into several.
  static constexpr size_t kLineBytesMax = 64 * 1024;

  // Reads from `from` (made non-blocking here), writes to `to`.
  TaggedOutput(Fd from, std::string tag, int to);

  // -1 once the last writer has closed it.
  int fd() const { return from_.get(); }
  // The reader is gone: a write failed with EPIPE.
  bool reader_gone() const { return reader_gone_; }
  // Forwards the complete lines that can be read.
  void Forward();
  // Forwards the rest, including an incomplete line, and closes.
  void Finish();

 private:
  // Bytes that were read, as of read(2).
  ssize_t Read();
  void WriteLines(bool all);

  Fd from_;
  std::string tag_;
  int to_;
  std::string pending_;
  bool reader_gone_ = false;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_TAGGED_OUTPUT_H_
