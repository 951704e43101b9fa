#include "client/command/tagged_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock {
namespace {

// Writes all of text; fd may be non-blocking (a rank may change its terminal).
// Returns 0 or errno.
int WriteAll(int fd, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(fd, text.data() + written, text.size() - written);
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

TaggedOutput::TaggedOutput(Fd from, std::string tag, int to)
    : from_(std::move(from)), tag_(std::move(tag)), to_(to) {
  fcntl(from_.get(), F_SETFL, O_NONBLOCK);
}

ssize_t TaggedOutput::Read() {
  char buffer[16 * 1024];
  const ssize_t bytes = read(from_.get(), buffer, sizeof(buffer));
  if (bytes > 0) pending_.append(buffer, static_cast<size_t>(bytes));
  return bytes;
}

void TaggedOutput::Forward() {
  if (!from_) return;
  ssize_t bytes;
  while ((bytes = Read()) > 0) WriteLines(false);
  if (bytes == 0) Finish();
}

void TaggedOutput::Finish() {
  if (!from_) return;
  while (Read() > 0) {
  }
  WriteLines(true);
  from_.Reset();
}

void TaggedOutput::WriteLines(bool all) {
  std::string text;
  size_t begin = 0;
  for (;;) {
    size_t end = pending_.find('\n', begin);
    if (end == std::string::npos) {
      const size_t left = pending_.size() - begin;
      if (left == 0 || (!all && left < kLineBytesMax)) break;
      end = pending_.size();
    }
    text += tag_ + pending_.substr(begin, end - begin) + "\n";
    begin = std::min(end + 1, pending_.size());
  }
  pending_.erase(0, begin);
  // One write of whole lines, so that the lines of the ranks do not mix. After
  // other errors (a full disk) the ranks go on.
  if (WriteAll(to_, text) == EPIPE) reader_gone_ = true;
}

}  // namespace penstock
