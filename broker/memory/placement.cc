#include "broker/memory/placement.h"

#include <algorithm>
#include <bitset>
#include <charconv>
#include <utility>

namespace penstock {

std::vector<Processor> SpreadOverNodes(std::span<const Processor> processors) {
  struct Turn {
    uint32_t thread;
    uint32_t of_node;  // earlier processors of the same node and thread number
    Processor processor;
  };
  std::map<std::pair<uint32_t, std::optional<uint32_t>>, uint32_t> count;
  std::vector<Turn> turns;
  for (const Processor& each : processors) {
    turns.push_back({each.thread, count[{each.thread, each.node}]++, each});
  }
  std::stable_sort(
      turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
        return std::pair(a.thread, a.of_node) < std::pair(b.thread, b.of_node);
      });
  std::vector<Processor> spread;
  for (const Turn& turn : turns) spread.push_back(turn.processor);
  return spread;
}

StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text) {
  const auto wrong = [] {
    return InvalidArgumentError(
        "not a list of processors below {} such as 0-7,16", kCpusMax);
  };
  if (text.size() > kCpuListCharsMax) return wrong();
  std::bitset<kCpusMax> listed;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](uint32_t* cpu) {
    const auto [rest, error] = std::from_chars(at, end, *cpu);
    at = rest;
    return error == std::errc() && *cpu < kCpusMax;
  };
  for (;;) {
    uint32_t first = 0;
    if (!read(&first)) return wrong();
    uint32_t last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!read(&last) || last < first) return wrong();
    }
    for (uint32_t cpu = first; cpu <= last; ++cpu) listed.set(cpu);
    if (at == end) break;
    if (*at++ != ',') return wrong();
  }
  std::vector<uint32_t> cpus;
  for (uint32_t cpu = 0; cpu < kCpusMax; ++cpu) {
    if (listed[cpu]) cpus.push_back(cpu);
  }
  return cpus;
}

namespace {

RankNode NodeOfCpus(const RankPlacement& rank,
                    const std::map<uint32_t, uint32_t>& node_of) {
  std::optional<uint32_t> node;
  for (const uint32_t cpu : rank.cpus) {
    const auto found = node_of.find(cpu);
    if (found == node_of.end()) {
      return {std::nullopt,
              Format("processor {} is on none of the broker's nodes", cpu)};
    }
    if (node && *node != found->second) {
      return {std::nullopt,
              "its processors are on several nodes" +
                  (rank.cpu ? Format("; it attached on processor {}", *rank.cpu)
                            : "")};
    }
    node = found->second;
  }
  if (!node) return {std::nullopt, "it does not report its processors"};
  return {node, "its processors"};
}

}  // namespace

RankNode NodeOfRank(const RankPlacement& rank,
                    const std::map<uint32_t, uint32_t>& node_of,
                    std::span<const uint32_t> nodes) {
  if (nodes.size() == 1) return {nodes.front(), "one node"};
  if (rank.node) {
    if (std::find(nodes.begin(), nodes.end(), *rank.node) != nodes.end()) {
      return {rank.node, "option"};
    }
    return {std::nullopt,
            Format("option: node {} is not one of the broker's", *rank.node)};
  }
  RankNode by_cpus = NodeOfCpus(rank, node_of);
  if (!by_cpus.node && rank.gpu_node &&
      std::find(nodes.begin(), nodes.end(), *rank.gpu_node) != nodes.end()) {
    return {rank.gpu_node, "its GPU " + rank.gpu};
  }
  return by_cpus;
}

std::vector<uint32_t> NodesOfLanes(uint32_t lanes,
                                   std::span<const uint32_t> nodes,
                                   std::span<const KnownRank> known) {
  std::vector<uint32_t> of_lanes;
  for (uint64_t lane = 0; lane < lanes; ++lane) {
    of_lanes.push_back(nodes[lane * nodes.size() / lanes]);
  }
  for (const KnownRank& rank : known) of_lanes[rank.rank % lanes] = rank.node;
  return of_lanes;
}

}  // namespace penstock
