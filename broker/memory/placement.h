// Chooses NUMA nodes for workers, ranks and slots. Pure functions; topology.h
// describes the machine. Nodes and processors are named by their OS indices.
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

// Bounds of values from a rank or the configuration.
inline constexpr uint32_t kCpusMax = 8192;
inline constexpr uint32_t kNodesMax = 1024;
inline constexpr size_t kCpuListCharsMax = 4096;
inline constexpr size_t kGpuCharsMax = 64;

struct Processor {
  uint32_t os_index = 0;
  std::optional<uint32_t> node;  // nullopt: belongs to no node with memory
  uint32_t thread = 0;           // within its core: 0, 1
};
// The order in which workers take processors: one of each core before any
// second thread of a core, and alternating between nodes, so that fewer workers
// than processors still cover all nodes.
std::vector<Processor> SpreadOverNodes(std::span<const Processor> processors);

// Parses "0-7,16" into processors, ascending. InvalidArgument: anything else.
StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text);

// What a rank reports when it attaches.
struct RankPlacement {
  std::vector<uint32_t> cpus;    // allowed by its affinity; empty: not reported
  std::optional<uint32_t> cpu;   // on which it attached
  std::optional<uint32_t> node;  // from the option or PENSTOCK_NODE
  std::optional<uint32_t> gpu_node = {};
  std::string gpu = {};  // the GPU's PCI address
};
struct RankNode {
  std::optional<uint32_t> node;
  std::string from;  // the source of node, or why it is unknown
};
// The first that applies: the machine's only node; the option; the node that
// holds all of the rank's processors; its GPU's node. node_of: node of each
// processor; nodes: nodes with memory.
RankNode NodeOfRank(const RankPlacement& rank,
                    const std::map<uint32_t, uint32_t>& node_of,
                    std::span<const uint32_t> nodes);

// The node of each of `lanes` lanes, one per local rank: the rank's node if
// known, else node r*N/L for rank r of L. nodes is not empty.
struct KnownRank {
  uint32_t rank = 0;
  uint32_t node = 0;
};
std::vector<uint32_t> NodesOfLanes(uint32_t lanes,
                                   std::span<const uint32_t> nodes,
                                   std::span<const KnownRank> known);

}  // namespace penstock
#endif  // BROKER_MEMORY_PLACEMENT_H_
