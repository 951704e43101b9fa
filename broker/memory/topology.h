// The machine, through hwloc: its NUMA nodes and the workers' processors (those
// that the cpuset cgroup and this process's affinity allow, limited by the
// configuration).
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
    std::string cpus;  // a list such as "0-3,8"; "": all allowed ones
    // Whole cores among these that workers leave free: the last core of each
    // NUMA node in turn.
    uint32_t reserve_cores = 0;
  };
  // InvalidArgument, the message starts with the key ("cpus: "): a processor is
  // not allowed or does not exist, or no core is left.
  static StatusOr<std::unique_ptr<Topology>> Load(const Choice& choice);
  ~Topology();

  using Cpu = Processor;
  // The workers' processors, in the order of SpreadOverNodes.
  const std::vector<Cpu>& cpus() const { return cpus_; }
  // Number of processors this process may use, including those workers avoid.
  uint32_t allowed() const { return allowed_; }
  // "processors 0-3 of 0-7 (cpus: 0-5; reserve_cores: 2 leaves 4-5)": the
  // choice and its origin.
  const std::string& description() const { return description_; }
  // Number of processors that the cgroup's quota allows (cpu.max), from 1 to
  // cpus().size().
  uint32_t cpu_quota() const { return cpu_quota_; }

  // Pins the calling thread to one processor. Errors are not fatal: an unpinned
  // worker works.
  Status PinThread(const Cpu& cpu) const;

  // ---- NUMA ----------------------------------------------------------------

  struct Node {
    uint32_t os_index = 0;
    std::string cpus;  // nearest allowed processors, as a list
    uint64_t memory_bytes = 0;
  };
  // Nodes with memory that this process may use and with allowed processors, by
  // OS index. Empty: unknown.
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<uint32_t> node_numbers() const;
  // OS index of a processor -> OS index of its node; all allowed processors.
  const std::map<uint32_t, uint32_t>& node_of_cpus() const {
    return node_of_cpus_;
  }
  // With several nodes: why memory is not bound to them; "": it is bound.
  // Tested by binding a page on each node and checking where it is: a
  // successful binding call proves nothing (it does nothing on a topology that
  // is not this machine's).
  const std::string& unbound() const { return unbound_; }

  // Restricts the calling thread, and processes it starts, to cpus().
  Status KeepThreadToCpus() const;

  // Makes the pages of begin .. begin + bytes (whole pages of shared memory)
  // come from this node only; pages that exist are moved.
  Status BindMemory(const std::byte* begin, uint64_t bytes,
                    uint32_t node) const;
  // The node of the page that contains at; nullopt: unknown. Maps the page into
  // this process, without which the kernel does not tell (Linux 5.14).
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
