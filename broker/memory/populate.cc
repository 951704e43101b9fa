#include "broker/memory/populate.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>


#include "broker/base/text.h"
#include "broker/sandbox/program_launcher.h"
#include "common/fd.h"

namespace penstock {

Status Populate(std::span<const PopulateRange> ranges,
                const std::function<void(size_t done)>& on_done,
                const std::function<bool()>& cancelled) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe");
  Fd progress(fds[0]);
  Fd report(fds[1]);
  // Kernels before 5.14 lack the advice; an empty range detects that.
  const bool populates = madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoError(errno, "fork");
  if (child == 0) {
    // Only async-signal-safe calls: the parent has other threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(5);  // it died before prctl took effect
    // The child must not keep the broker's sockets and segments open.
    constexpr int kReport = 3;
    if (fds[1] != kReport && dup2(fds[1], kReport) < 0) _exit(6);
    syscall(SYS_close_range, kReport + 1, ~0u, 0);
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) (void)!write(fd, "1000", 4);
    for (const PopulateRange& range : ranges) {
      if (populates) {
        if (madvise(range.begin, range.bytes, MADV_POPULATE_WRITE) != 0) {
          _exit(errno == ENOMEM ? 2 : 3);
        }
      } else {
        // Touch every page; all are still zero.
        for (uint64_t at = 0; at < range.bytes; at += 4096) {
          __atomic_fetch_or(reinterpret_cast<char*>(range.begin + at), 0,
                            __ATOMIC_RELAXED);
        }
      }
      const char byte = 1;
      if (write(kReport, &byte, 1) != 1) _exit(4);
    }
    _exit(0);
  }
  report.Reset();
  // The sandbox keeps the child from it.
  if (ProgramLauncher* const launcher = ProgramLauncher::Get()) {
    (void)launcher->KillFirst(child);
  }
  size_t done = 0;
  bool stopped = false;
  for (;;) {
    pollfd entry{progress.get(), POLLIN, 0};
    constexpr int kAskMs = 100;
    if (poll(&entry, 1, kAskMs) <= 0) {
      if (!stopped && cancelled()) {
        stopped = true;
        kill(child, SIGKILL);
      }
      continue;
    }
    char bytes[64];
    const ssize_t n = read(progress.get(), bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; ++i) on_done(++done);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OkStatus();
  if (stopped)
    return CancelledError("no process waits for the memory any longer");
  uint64_t bytes = 0;
  for (const PopulateRange& range : ranges) bytes += range.bytes;
  if (WIFSIGNALED(status) || WEXITSTATUS(status) == 2) {
    return ResourceExhaustedError(
        "the kernel did not provide {} for the batches: reduce batch.size or "
        "prefetch, or raise the memory limit",
        BytesText(bytes));
  }
  return InternalError("populating {} failed with status {}", BytesText(bytes),
                       WEXITSTATUS(status));
}

}  // namespace penstock
