// Which NUMA node: of the workers in turn, of a rank, of the slots. Pure
// functions; what the machine has comes from topology.h. Nodes and processors
// are named by their numbers in the operating system.
#ifndef BROKER_MEMORY_PLACEMENT_H_
#define BROKER_MEMORY_PLACEMENT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

// Bounds of what a rank, or the configuration, says.
inline constexpr uint32_t kCpusMax = 8192;
inline constexpr uint32_t kNodesMax = 1024;
inline constexpr size_t kCpuListCharsMax = 4096;
inline constexpr size_t kGpuCharsMax = 64;

struct Processor {
  uint32_t os_index = 0;
  std::optional<uint32_t> node;  // nullopt: none of its own with memory
  uint32_t thread = 0;           // in its core: 0, 1
};
// As workers take them: one of each core before a core's second thread, and
// among these of every node in turn, so that fewer workers than processors are
// on all nodes.
std::vector<Processor> SpreadOverNodes(std::span<const Processor> processors);

// "0-7,16": the processors it names, ascending. InvalidArgument: anything else.
StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text);

// What a rank says when it attaches.
struct RankPlacement {
  std::vector<uint32_t> cpus;    // it may run on; empty: not said
  std::optional<uint32_t> cpu;   // it attached on
  std::optional<uint32_t> node;  // the option, PENSTOCK_NODE
  std::optional<uint32_t> gpu_node = {};
  std::string gpu = {};  // its PCI address
};
struct RankNode {
  std::optional<uint32_t> node;
  std::string from;  // what tells it, or why it is not known
};
// The only one; the option; the node that all of its processors are of; its
// GPU's.
// node_of: of the processors there are; nodes: that memory can be on.
RankNode NodeOfRank(const RankPlacement& rank,
                    const std::map<uint32_t, uint32_t>& node_of,
                    std::span<const uint32_t> nodes);

// The node of each of so many lanes, one for each local rank in turn: the
// rank's where it is known, else rank r of L is thought to be on node r*N/L.
// nodes: at least one.
struct KnownRank {
  uint32_t rank = 0;
  uint32_t node = 0;
};
std::vector<uint32_t> NodesOfLanes(uint32_t lanes,
                                   std::span<const uint32_t> nodes,
                                   std::span<const KnownRank> known);

}  // namespace penstock
#endif  // BROKER_MEMORY_PLACEMENT_H_
