// The machine, through hwloc: which processors the workers run on (of those
// that the cgroup's cpuset and the affinity of this process allow, what the
// configuration leaves), and its NUMA nodes.
#ifndef BROKER_MEMORY_TOPOLOGY_H_
#define BROKER_MEMORY_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/memory/placement.h"
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

  using Cpu = Processor;
  // Of the workers, spread (SpreadOverNodes).
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

  // ---- NUMA
  // -------------------------------------------------------------------

  struct Node {
    uint32_t os_index = 0;
    std::string cpus;  // allowed processors nearest to it, as a list
    uint64_t memory_bytes = 0;
  };
  // That have memory which this process may use, and allowed processors; by OS
  // index. Empty: the machine does not say.
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<uint32_t> node_numbers() const;
  // Node of each allowed processor, by OS indices.
  const std::map<uint32_t, uint32_t>& node_of_cpus() const {
    return node_of_cpus_;
  }
  // Where there are several nodes: why memory is not bound to them; "": it is.
  // A page of each was bound and looked at: a binding call that succeeds tells
  // nothing (it does nothing on a topology that is not this machine's).
  const std::string& unbound() const { return unbound_; }

  // The calling thread, and processes it starts, run on cpus() only.
  Status KeepThreadToCpus() const;

  // The pages that begin .. begin + bytes, whole ones of shared memory, come
  // from this node only; those that are there are moved.
  Status BindMemory(const std::byte* begin, uint64_t bytes,
                    uint32_t node) const;
  // Where the page is that at lies in; nullopt: not known. Maps it into this
  // process, without which the kernel does not tell (Linux 5.14).
  std::optional<uint32_t> NodeOfPage(const std::byte* at) const;

 private:
  Topology() = default;
  // allowed: every processor this process may use.
  void FindNodes(std::span<const Processor> allowed);
  std::string TryBinding() const;

  hwloc_topology* topology_ = nullptr;
  std::vector<Cpu> cpus_;
  uint32_t allowed_ = 0;
  std::string description_;
  uint32_t cpu_quota_ = 1;
  std::vector<Node> nodes_;
  std::map<uint32_t, uint32_t> node_of_cpus_;
  std::string unbound_;
};

}  // namespace penstock
#endif  // BROKER_MEMORY_TOPOLOGY_H_
