#include "broker/memory/topology.h"

#include <hwloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <map>

#include "broker/memory/populate.h"

namespace penstock {

namespace {

// An owning set of processors or nodes.
class CpuSet {
 public:
  explicit CpuSet(hwloc_const_bitmap_t from = nullptr)
      : set_(from == nullptr ? hwloc_bitmap_alloc() : hwloc_bitmap_dup(from)) {}
  ~CpuSet() { hwloc_bitmap_free(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  hwloc_bitmap_t get() const { return set_; }
  std::string ToString() const {
    char* text = nullptr;
    if (hwloc_bitmap_list_asprintf(&text, set_) < 0) return "?";
    const std::unique_ptr<char, decltype(&free)> owned(text, &free);
    return text;
  }

 private:
  const hwloc_bitmap_t set_;
};

// The object's nearest node: the one with the fewest processors; of two alike
// (high-bandwidth memory beside it) the first that is not empty. nullopt if it
// is empty: more distant memory (an expander) is nearest to no object.
std::optional<uint32_t> NodeOf(hwloc_topology_t topology, hwloc_obj_t object) {
  std::optional<uint32_t> nearest;
  int fewest = INT_MAX;
  int number = -1;
  while ((number = hwloc_bitmap_next(object->nodeset, number)) >= 0) {
    const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(
        topology, static_cast<unsigned>(number));
    if (node == nullptr) continue;
    const int processors = hwloc_bitmap_weight(node->complete_cpuset);
    if (processors > fewest || (processors == fewest && nearest)) continue;
    fewest = processors;
    nearest.reset();
    if (node->attr->numanode.local_memory > 0) {
      nearest = static_cast<uint32_t>(number);
    }
  }
  return nearest;
}

// Moves the processors of `count` cores from set to reserved.
Status ReserveCores(hwloc_topology_t topology, uint32_t count, CpuSet* set,
                    CpuSet* reserved) {
  // Per node; the first core is taken last.
  std::map<std::optional<uint32_t>, std::vector<hwloc_obj_t>> cores_of;
  uint32_t cores = 0;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) !=
         nullptr) {
    if (!hwloc_bitmap_intersects(core->cpuset, set->get())) continue;
    cores_of[NodeOf(topology, core)].push_back(core);
    ++cores;
  }
  if (count >= cores) {
    return InvalidArgumentError(
        "reserve_cores: {} leaves none of the {} cores with processors {} to "
        "the workers",
        count, cores, set->ToString());
  }
  while (count > 0) {
    for (auto& [node, of_node] : cores_of) {
      if (count == 0 || of_node.empty()) continue;
      hwloc_bitmap_or(reserved->get(), reserved->get(), of_node.back()->cpuset);
      of_node.pop_back();
      --count;
    }
  }
  hwloc_bitmap_and(reserved->get(), reserved->get(), set->get());
  hwloc_bitmap_andnot(set->get(), set->get(), reserved->get());
  return OkStatus();
}

}  // namespace

Topology::~Topology() {
  if (topology_ != nullptr) hwloc_topology_destroy(topology_);
}

StatusOr<std::unique_ptr<Topology>> Topology::Load(const Choice& choice) {
  std::unique_ptr<Topology> result(new Topology());
  // Its plugins know GPUs and displays, and load OpenCL, X11 and libxml2: 10 ms
  // and code that a daemon should not have in it.
  setenv("HWLOC_PLUGINS_PATH", "/nonexistent", /*replace=*/0);
  if (hwloc_topology_init(&result->topology_) != 0 ||
      hwloc_topology_load(result->topology_) != 0) {
    return ErrnoError(errno, "hwloc: read this machine's topology");
  }
  hwloc_topology_t topology = result->topology_;
  CpuSet wanted(hwloc_topology_get_allowed_cpuset(topology));
  // The affinity we were started with (taskset, a container) also counts.
  CpuSet bound;
  if (hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_PROCESS) == 0 &&
      hwloc_bitmap_intersects(wanted.get(), bound.get())) {
    hwloc_bitmap_and(wanted.get(), wanted.get(), bound.get());
  }
  const std::string allowed = wanted.ToString();
  result->allowed_ = static_cast<uint32_t>(hwloc_bitmap_weight(wanted.get()));
  std::vector<Processor> processors;
  for (int i = 0; i < hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU); ++i) {
    hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, i);
    if (!hwloc_bitmap_isset(wanted.get(), pu->os_index)) continue;
    processors.push_back(
        {pu->os_index, NodeOf(topology, pu), pu->sibling_rank});
  }
  result->FindNodes(processors);
  std::string why;
  if (!choice.cpus.empty()) {
    CpuSet listed;
    if (hwloc_bitmap_list_sscanf(listed.get(), choice.cpus.c_str()) != 0 ||
        hwloc_bitmap_iszero(listed.get())) {
      return InvalidArgumentError(
          "cpus: '{}' is not a list of processors such as 0-7,16", choice.cpus);
    }
    if (!hwloc_bitmap_isincluded(listed.get(), wanted.get())) {
      return InvalidArgumentError(
          "cpus: '{}' has processors this process may not use; it may use {}",
          choice.cpus, allowed);
    }
    hwloc_bitmap_and(wanted.get(), wanted.get(), listed.get());
    why += "cpus: " + choice.cpus;
  }
  if (choice.reserve_cores > 0) {
    CpuSet reserved;
    PENSTOCK_RETURN_IF_ERROR(
        ReserveCores(topology, choice.reserve_cores, &wanted, &reserved));
    why += Format("{}reserve_cores: {} leaves {} to others",
                  why.empty() ? "" : "; ", choice.reserve_cores,
                  reserved.ToString());
  }
  std::erase_if(processors, [&](const Processor& each) {
    return !hwloc_bitmap_isset(wanted.get(), each.os_index);
  });
  if (processors.empty()) return InternalError("hwloc: no usable processor");
  result->cpus_ = SpreadOverNodes(processors);
  result->description_ =
      Format("processors {}{}{}", wanted.ToString(),
             wanted.ToString() == allowed ? "" : " of " + allowed,
             why.empty() ? "" : " (" + why + ")");
  const double quota = CgroupCpuQuota(SystemFiles{});
  result->cpu_quota_ = static_cast<uint32_t>(std::clamp(
      std::ceil(quota), 1.0, static_cast<double>(result->cpus_.size())));
  return result;
}

void Topology::FindNodes(std::span<const Processor> allowed) {
  std::map<uint32_t, std::unique_ptr<CpuSet>> cpus_of;
  for (const Processor& each : allowed) {
    if (!each.node) continue;
    node_of_cpus_[each.os_index] = *each.node;
    std::unique_ptr<CpuSet>& cpus = cpus_of[*each.node];
    if (cpus == nullptr) cpus = std::make_unique<CpuSet>();
    hwloc_bitmap_set(cpus->get(), each.os_index);
  }
  for (const auto& [node, cpus] : cpus_of) {
    nodes_.push_back({node, cpus->ToString(),
                      hwloc_get_numanode_obj_by_os_index(topology_, node)
                          ->attr->numanode.local_memory});
  }
  if (nodes_.size() > 1) unbound_ = TryBinding();
}

std::vector<uint32_t> Topology::node_numbers() const {
  std::vector<uint32_t> numbers;
  for (const Node& node : nodes_) numbers.push_back(node.os_index);
  return numbers;
}

std::string Topology::TryBinding() const {
  if (!hwloc_topology_is_thissystem(topology_)) {
    return "the topology is not this machine's (HWLOC_SYNTHETIC, "
           "HWLOC_XMLFILE)";
  }
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const Node& node : nodes_) {
    // Shared, like the segments.
    void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return "no memory to try it";
    auto* const begin = static_cast<std::byte*>(page);
    const Status bound = BindMemory(begin, bytes, node.os_index);
    std::optional<uint32_t> found;
    if (bound.ok()) {
      *begin = std::byte{1};
      found = NodeOfPage(begin);
    }
    munmap(page, bytes);
    if (!bound.ok()) return bound.message();
    if (found != node.os_index) {
      return Format(
          "a page that was bound to node {} is {}", node.os_index,
          found ? Format("on node {}", *found) : "on none that is known");
    }
  }
  return "";
}

Status Topology::BindMemory(const std::byte* begin, uint64_t bytes,
                            uint32_t node) const {
  const CpuSet nodes;
  hwloc_bitmap_only(nodes.get(), node);
  if (hwloc_set_area_membind(topology_, begin, bytes, nodes.get(),
                             HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_STRICT | HWLOC_MEMBIND_BYNODESET |
                                 HWLOC_MEMBIND_MIGRATE) == 0) {
    return OkStatus();
  }
  return ErrnoError(errno, Format("bind memory to node {} (mbind; a "
                                  "container may forbid it)",
                                  node));
}

std::optional<uint32_t> Topology::NodeOfPage(const std::byte* at) const {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<uintptr_t>(at) / page_bytes * page_bytes;
  // Does not read the page: a worker may be writing there.
  (void)madvise(reinterpret_cast<void*>(page), page_bytes, MADV_POPULATE_READ);
  const CpuSet nodes;
  if (hwloc_get_area_memlocation(topology_, at, 1, nodes.get(),
                                 HWLOC_MEMBIND_BYNODESET) != 0 ||
      hwloc_bitmap_weight(nodes.get()) != 1) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(hwloc_bitmap_first(nodes.get()));
}

Status Topology::PinThread(const Cpu& cpu) const {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  hwloc_bitmap_only(set, cpu.os_index);
  const int result = hwloc_set_cpubind(topology_, set, HWLOC_CPUBIND_THREAD);
  const int error = errno;
  hwloc_bitmap_free(set);
  if (result == 0) return OkStatus();
  return ErrnoError(error,
                    Format("pin a worker to processor {}", cpu.os_index));
}

Status Topology::KeepThreadToCpus() const {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  for (const Cpu& cpu : cpus_) hwloc_bitmap_set(set, cpu.os_index);
  const int result = hwloc_set_cpubind(topology_, set, HWLOC_CPUBIND_THREAD);
  const int error = errno;
  hwloc_bitmap_free(set);
  if (result == 0) return OkStatus();
  return ErrnoError(error, "keep function workers to the broker's processors");
}

}  // namespace penstock
