// Which processors the workers run on, through hwloc: of those that the
// cgroup's cpuset and the affinity of this process allow, what the
// configuration leaves.
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
  struct Choice {
    std::string cpus;  // a list such as "0-3,8"; "": all that are allowed
    // Whole cores of these that are left to others: of every NUMA node in turn
    // its last.
    uint32_t reserve_cores = 0;
  };
  // InvalidArgument, the message begins with the key ("cpus: "): a processor
  // that is not allowed or not there, no core is left.
  static StatusOr<std::unique_ptr<Topology>> Load(const Choice& choice);
  ~Topology();

  struct Cpu {
    uint32_t os_index = 0;
    uint32_t node = 0;  // NUMA, OS index
  };
  // Of the workers, spread: one of each core before a core's second thread.
  const std::vector<Cpu>& cpus() const { return cpus_; }
  // How many this process may use, those it keeps off included.
  uint32_t allowed() const { return allowed_; }
  // "processors 0-3 of 0-7 (cpus: 0-5; reserve_cores: 2 leaves 4-5)": the
  // choice, and where it comes from.
  const std::string& description() const { return description_; }
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
  uint32_t allowed_ = 0;
  std::string description_;
  uint32_t cpu_quota_ = 1;
};

}  // namespace penstock
#endif  // BROKER_TOPOLOGY_H_
