#include "client/command/penstockd_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "client/private_broker/interrupt.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/process.h"
#include "common/fd.h"

namespace penstock {
namespace {

constexpr double kEnd_s = 10;  // to end once its output is closed

// Appends the bytes that can be read; false at the end of the stream.
StatusOr<bool> ReadSome(int fd, std::vector<char>* bytes) {
  constexpr size_t kChunk = 1 << 20;
  const size_t before = bytes->size();
  bytes->resize(before + kChunk);
  const ssize_t n =
      TEMP_FAILURE_RETRY(read(fd, bytes->data() + before, kChunk));
  bytes->resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0) return ErrnoError(errno, "read the output of penstockd");
  return n > 0;
}

}  // namespace

StatusOr<std::vector<char>> PenstockdOutput(
    const std::vector<std::string>& arguments,
    const std::function<void(size_t bytes)>& more) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string program, FindPenstockd());
  PENSTOCK_ASSIGN_OR_RETURN(PipeEnds output, MakePipe());
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd error(memfd_create("stderr", MFD_CLOEXEC));
  if (!error) return ErrnoError(errno, "memfd_create");
  ProcessSpec spec;
  spec.argv = {program};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  spec.stdin_fd = null.get();
  spec.stdout_fd = output.write.get();
  spec.stderr_fd = error.get();
  PENSTOCK_ASSIGN_OR_RETURN(const Process process, Process::Start(spec));
  output.write.Reset();  // else the stream never ends

  constexpr int kRound_ms = 100;
  std::vector<char> bytes;
  for (bool goes_on = true; goes_on; more(bytes.size())) {
    pollfd entries[] = {{output.read.get(), POLLIN, 0},
                        {InterruptFd(), POLLIN, 0}};
    poll(entries, 2, kRound_ms);
    PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
    if (entries[0].revents == 0) continue;
    PENSTOCK_ASSIGN_OR_RETURN(goes_on, ReadSome(output.read.get(), &bytes));
  }
  const std::optional<ProcessExit> ended = process.WaitFor(kEnd_s);
  lseek(error.get(), 0, SEEK_SET);
  std::vector<char> written = {'\n'};
  for (bool goes_on = true; goes_on;) {
    PENSTOCK_ASSIGN_OR_RETURN(goes_on, ReadSome(error.get(), &written));
  }
  const std::string said(written.begin(), written.end());
  const bool ok = ended && ended->ok();
  // The last message is why it has failed.
  constexpr std::string_view kMessage = "\npenstockd: ";
  const size_t why = ok || !ended ? said.npos : said.rfind(kMessage);
  Print(stderr, "{}", said.substr(1, why));
  if (ok) return bytes;
  if (why == said.npos) {
    return InternalError("`penstockd {} {}` {}", arguments.at(0),
                         arguments.at(1),
                         ended ? ended->ToString() : "does not end");
  }
  std::string text = said.substr(why + kMessage.size());
  while (text.ends_with('\n')) text.pop_back();
  return InternalError("{}", text);
}

}  // namespace penstock
