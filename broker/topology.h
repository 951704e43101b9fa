// Which processors the workers may run on, through hwloc: what the affinity of
// this process, its cgroup's cpuset and its CPU quota leave.
#ifndef BROKER_TOPOLOGY_H_
#define BROKER_TOPOLOGY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

struct hwloc_topology;

namespace penstock {

class Topology {
 public:
  // cpus: a list such as "0-3,8"; "" for all that are allowed. InvalidArgument:
  // a processor that is not allowed or not there.
  static StatusOr<std::unique_ptr<Topology>> Load(const std::string& cpus);
  ~Topology();

  struct Cpu {
    uint32_t os_index = 0;
    uint32_t node = 0;  // NUMA, OS index
  };
  // Usable processors, spread: one of each core before a core's second thread.
  const std::vector<Cpu>& cpus() const { return cpus_; }
  // Processors' worth of time the cgroup allows (cpu.max), at least 1; at most
  // cpus().size().
  uint32_t cpu_quota() const { return cpu_quota_; }

  // Pins the calling thread to one processor. Errors are told, not fatal: an
  // unpinned worker works.
  Status PinThread(const Cpu& cpu) const;

 private:
  Topology() = default;
  hwloc_topology* topology_ = nullptr;
  std::vector<Cpu> cpus_;
  uint32_t cpu_quota_ = 1;
};

}  // namespace penstock
#endif  // BROKER_TOPOLOGY_H_
