// Memory is promised before it is used: a job that does not fit is refused with
// the numbers before it starts, and its pages are populated by a child process
// whose death, should the limits have lied, is the error message.
#ifndef BROKER_MEMORY_PROMISE_H_
#define BROKER_MEMORY_PROMISE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

// Where the kernel tells its limits; tests point it at files of their own.
struct SystemFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string nodes = "/sys/devices/system/node";
};

// How much more memory this process can get, and what says so: the smallest of
// the free memory of the machine and what each ancestor cgroup leaves (page
// cache counts as free).
struct MemoryRoom {
  uint64_t bytes = UINT64_MAX;
  std::string limit;  // "MemAvailable", "memory.max of /a/b (4.0 GiB)"
};
MemoryRoom FindMemoryRoom(const SystemFiles& files);

// Free memory of one NUMA node (page cache counts as free); nullopt: not told.
std::optional<uint64_t> FindNodeRoom(const SystemFiles& files, uint32_t node);

// Processors' worth of time that cpu.max of the ancestor cgroups leaves;
// infinity without a quota.
double CgroupCpuQuota(const SystemFiles& files);

// A range of shared memory to populate, and the order of steps: ranges are
// populated in order, on_done(n) is called after the n-th.
struct PopulateRange {
  std::byte* begin = nullptr;
  uint64_t bytes = 0;
};

// Populates the ranges in a short-lived child that the kernel kills first when
// memory runs out. Blocks until all is done; on_done is called on this thread.
// ResourceExhausted: the child was killed. Cancelled: cancelled() became true,
// asked a few times a second.
Status Populate(
    std::span<const PopulateRange> ranges,
    const std::function<void(size_t done)>& on_done,
    const std::function<bool()>& cancelled = [] { return false; });

}  // namespace penstock
#endif  // BROKER_MEMORY_PROMISE_H_
