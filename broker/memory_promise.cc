#include "broker/memory_promise.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "broker/text.h"
#include "common/message.h"

namespace penstock {
namespace {

std::optional<std::string> ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const auto line = ReadLine(path);
  uint64_t value = 0;
  if (!line ||
      std::from_chars(line->data(), line->data() + line->size(), value).ec !=
          std::errc()) {
    return std::nullopt;  // not there, or "max"
  }
  return value;
}

// The value after `key` in a file of "key value" lines.
std::optional<uint64_t> ReadKey(const std::string& path,
                                const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t value = 0;
    if (word == key && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// The cgroup (v2) of this process and its ancestors, innermost first, as paths
// below the mount: "/a/b", "/a", "". Nothing without a v2 hierarchy.
std::vector<std::string> CgroupPaths(const SystemFiles& files) {
  std::vector<std::string> paths;
  std::ifstream file(files.proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    while (path.size() > 1) {
      paths.push_back(path);
      path.resize(path.rfind('/'));
    }
    paths.push_back("");
  }
  return paths;
}

}  // namespace

MemoryRoom FindMemoryRoom(const SystemFiles& files) {
  MemoryRoom room;
  if (const auto kib = ReadKey(files.proc + "/meminfo", "MemAvailable:")) {
    room.bytes = *kib * 1024;
    room.limit = "MemAvailable of this machine";
  }
  for (const std::string& path : CgroupPaths(files)) {
    const std::string folder = files.cgroup + path;
    const auto max = ReadNumber(folder + "/memory.max");
    const auto current = ReadNumber(folder + "/memory.current");
    if (!max || !current) continue;
    const uint64_t cache =
        ReadKey(folder + "/memory.stat", "inactive_file").value_or(0) +
        ReadKey(folder + "/memory.stat", "active_file").value_or(0);
    const uint64_t used = *current - std::min(*current, cache);
    const uint64_t left = *max - std::min(*max, used);
    if (left < room.bytes) {
      room.bytes = left;
      room.limit = fmt::format("memory.max of cgroup {} ({}, {} used)",
                               path.empty() ? "/" : path, BytesText(*max),
                               BytesText(used));
    }
  }
  return room;
}

std::optional<uint64_t> FindNodeRoom(const SystemFiles& files, uint32_t node) {
  // Lines such as "Node 0 MemFree: 1234 kB".
  std::ifstream file(fmt::format("{}/node{}/meminfo", files.nodes, node));
  std::optional<uint64_t> kib;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    std::string key;
    uint64_t value = 0;
    if (!(words >> word >> word >> key >> value)) continue;
    if (key == "MemFree:" || key == "Active(file):" ||
        key == "Inactive(file):") {
      kib = kib.value_or(0) + value;
    }
  }
  if (!kib || *kib > (UINT64_MAX >> 10)) return std::nullopt;
  return *kib << 10;
}

double CgroupCpuQuota(const SystemFiles& files) {
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& path : CgroupPaths(files)) {
    const auto line = ReadLine(files.cgroup + path + "/cpu.max");
    if (!line) continue;
    std::istringstream words(*line);
    double quota_us = 0;
    double period_us = 0;
    if (words >> quota_us >> period_us && period_us > 0) {  // not "max ..."
      quota = std::min(quota, quota_us / period_us);
    }
  }
  return quota;
}

Status Populate(std::span<const PopulateRange> ranges,
                const std::function<void(size_t done)>& on_done,
                const std::function<bool()>& cancelled) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe");
  Fd progress(fds[0]);
  Fd report(fds[1]);
  // Kernels before 5.14 do not know the advice; an empty range tells.
  const bool populates = madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoError(errno, "fork");
  if (child == 0) {
    // Only async-signal-safe calls: the parent has other threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(5);  // it died before that took effect
    // The broker's sockets and segments must not live on in here.
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
        // Touch every page; they are all zero still.
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
  if (stopped) return CancelledError("nobody waits for the memory any more");
  uint64_t bytes = 0;
  for (const PopulateRange& range : ranges) bytes += range.bytes;
  if (WIFSIGNALED(status) || WEXITSTATUS(status) == 2) {
    return ResourceExhaustedError(
        "the kernel did not give {} for the batches: make batch.size or "
        "prefetch smaller, or raise the memory limit",
        BytesText(bytes));
  }
  return InternalError("populating {} failed with status {}", BytesText(bytes),
                       WEXITSTATUS(status));
}

}  // namespace penstock
