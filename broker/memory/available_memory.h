// What the machine and its control groups leave of memory and processors.
#ifndef BROKER_MEMORY_AVAILABLE_MEMORY_H_
#define BROKER_MEMORY_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

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
struct AvailableMemory {
  uint64_t bytes = UINT64_MAX;
  std::string limit;  // "MemAvailable", "memory.max of /a/b (4.0 GiB)"
};
AvailableMemory FindAvailableMemory(const SystemFiles& files);

// Free memory of one NUMA node (page cache counts as free); nullopt: not told.
std::optional<uint64_t> FindAvailableNodeMemory(const SystemFiles& files,
                                                uint32_t node);

// Processors' worth of time that cpu.max of the ancestor cgroups leaves;
// infinity without a quota.
double CgroupCpuQuota(const SystemFiles& files);

}  // namespace penstock
#endif  // BROKER_MEMORY_AVAILABLE_MEMORY_H_
