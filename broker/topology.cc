#include "broker/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "broker/memory_promise.h"

namespace penstock {

namespace {

// A set of processors that frees itself.
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

uint32_t NodeOf(hwloc_obj_t object) {
  const int node = hwloc_bitmap_first(object->nodeset);
  return node < 0 ? 0 : static_cast<uint32_t>(node);
}

// Takes so many cores off set and puts their processors into reserved.
Status ReserveCores(hwloc_topology_t topology, uint32_t count, CpuSet* set,
                    CpuSet* reserved) {
  // Of each node, the first core last.
  std::map<uint32_t, std::vector<hwloc_obj_t>> cores_of;
  uint32_t cores = 0;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) !=
         nullptr) {
    if (!hwloc_bitmap_intersects(core->cpuset, set->get())) continue;
    cores_of[NodeOf(core)].push_back(core);
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
  if (hwloc_topology_init(&result->topology_) != 0 ||
      hwloc_topology_load(result->topology_) != 0) {
    return ErrnoError(errno, "hwloc: read this machine's topology");
  }
  hwloc_topology_t topology = result->topology_;
  CpuSet wanted(hwloc_topology_get_allowed_cpuset(topology));
  // The affinity we were started with (taskset, a container) counts too.
  CpuSet bound;
  if (hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_PROCESS) == 0 &&
      hwloc_bitmap_intersects(wanted.get(), bound.get())) {
    hwloc_bitmap_and(wanted.get(), wanted.get(), bound.get());
  }
  const std::string allowed = wanted.ToString();
  result->allowed_ = static_cast<uint32_t>(hwloc_bitmap_weight(wanted.get()));
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
    why += fmt::format("{}reserve_cores: {} leaves {} to others",
                       why.empty() ? "" : "; ", choice.reserve_cores,
                       reserved.ToString());
  }
  // First every core's first thread, then the second ones.
  std::vector<std::pair<unsigned, Cpu>>
      found;  // rank of the thread in its core
  for (int i = 0; i < hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU); ++i) {
    hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, i);
    if (!hwloc_bitmap_isset(wanted.get(), pu->os_index)) continue;
    found.emplace_back(pu->sibling_rank, Cpu{pu->os_index, NodeOf(pu)});
  }
  if (found.empty()) return InternalError("hwloc: no usable processor");
  std::stable_sort(
      found.begin(), found.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [sibling, cpu] : found) result->cpus_.push_back(cpu);
  result->description_ =
      fmt::format("processors {} of {}{}", wanted.ToString(), allowed,
                  why.empty() ? "" : " (" + why + ")");
  const double quota = CgroupCpuQuota(SystemFiles{});
  result->cpu_quota_ = static_cast<uint32_t>(std::clamp(
      std::ceil(quota), 1.0, static_cast<double>(result->cpus_.size())));
  return result;
}

Status Topology::PinThread(const Cpu& cpu) const {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  hwloc_bitmap_only(set, cpu.os_index);
  const int result = hwloc_set_cpubind(topology_, set, HWLOC_CPUBIND_THREAD);
  const int error = errno;
  hwloc_bitmap_free(set);
  if (result == 0) return OkStatus();
  return ErrnoError(error,
                    fmt::format("pin a worker to processor {}", cpu.os_index));
}

}  // namespace penstock
