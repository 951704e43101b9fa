// Memory and processor time that the machine and its control groups leave.
#ifndef BROKER_MEMORY_AVAILABLE_MEMORY_H_
#define BROKER_MEMORY_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

// Where the kernel reports its limits; tests use files of their own.
struct SystemFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string nodes = "/sys/devices/system/node";
};

// How much more memory this process can get, and which limit decides: the
// smallest of the machine's free memory and what each ancestor cgroup leaves
// (page cache counts as free).
struct AvailableMemory {
  uint64_t bytes = UINT64_MAX;
  std::string limit;  // "MemAvailable", "memory.max of /a/b (4.0 GiB)"
};
AvailableMemory FindAvailableMemory(const SystemFiles& files);

// Free memory of one NUMA node (page cache counts as free); nullopt: unknown.
std::optional<uint64_t> FindAvailableNodeMemory(const SystemFiles& files,
                                                uint32_t node);

// The number of processors that cpu.max of the ancestor cgroups allows;
// infinity without a quota.
double CgroupCpuQuota(const SystemFiles& files);

}  // namespace penstock
#endif  // BROKER_MEMORY_AVAILABLE_MEMORY_H_
