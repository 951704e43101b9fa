#include "client/command/replay.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "client/command/interrupt.h"
#include "client/command/private_broker.h"
#include "client/command/process.h"
#include "client/command/progress_bar.h"
#include "common/fd.h"

namespace penstock {
namespace {

// Appends the bytes that can be read; false at the end of the stream.
StatusOr<bool> ReadSome(int fd, std::vector<char>* bytes) {
  constexpr size_t kChunk = 1 << 20;
  const size_t before = bytes->size();
  bytes->resize(before + kChunk);
  ssize_t n;
  while ((n = read(fd, bytes->data() + before, kChunk)) < 0 && errno == EINTR) {
  }
  bytes->resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0) return ErrnoError(errno, "read the output of the replay");
  return n > 0;
}

}  // namespace

StatusOr<std::vector<RowRecord>> ReplayRows(const ReplayTask& task) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string program, FindPenstockd());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe");
  const Fd from(ends[0]);
  Fd to(ends[1]);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessSpec spec;
  spec.argv = {program, "--replay", task.spec_path, "--world-size",
               std::to_string(task.world_size)};
  spec.argv.push_back(task.epochs > 0 ? "--epochs" : "--steps");
  spec.argv.push_back(
      std::to_string(task.epochs > 0 ? task.epochs : task.steps));
  spec.stdin_fd = null.get();
  spec.stdout_fd = to.get();
  PENSTOCK_ASSIGN_OR_RETURN(const Process process, Process::Start(spec));
  to.Reset();  // else the stream never ends

  std::vector<char> bytes;
  ProgressBar bar("verifying", "samples");
  for (;;) {
    pollfd entries[] = {{from.get(), POLLIN, 0}, {InterruptFd(), POLLIN, 0}};
    poll(entries, 2, -1);
    PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
    if (entries[0].revents == 0) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, ReadSome(from.get(), &bytes));
    if (!more) break;
    bar.Update(bytes.size() / sizeof(RowRecord), task.rows_estimate);
  }
  bar.Clear();
  constexpr double kEnd_s = 10;  // to end once its output is closed
  const std::optional<ProcessExit> ended = process.WaitFor(kEnd_s);
  if (!ended || !ended->ok()) {
    return InternalError("`penstockd --replay {}` {}; cannot verify",
                         task.spec_path,
                         ended ? ended->ToString() : "does not end");
  }
  if (bytes.size() % sizeof(RowRecord) != 0) {
    return InternalError(
        "`penstockd --replay {}` wrote {} bytes, not whole records of {}",
        task.spec_path, bytes.size(), sizeof(RowRecord));
  }
  std::vector<RowRecord> rows(bytes.size() / sizeof(RowRecord));
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

}  // namespace penstock
