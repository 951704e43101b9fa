#include "broker/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cmath>

#include "broker/memory_promise.h"

namespace penstock {

Topology::~Topology() {
  if (topology_ != nullptr) hwloc_topology_destroy(topology_);
}

StatusOr<std::unique_ptr<Topology>> Topology::Load(const std::string& cpus) {
  std::unique_ptr<Topology> result(new Topology());
  if (hwloc_topology_init(&result->topology_) != 0 ||
      hwloc_topology_load(result->topology_) != 0) {
    return ErrnoError(errno, "hwloc: read this machine's topology");
  }
  hwloc_topology_t topology = result->topology_;
  hwloc_bitmap_t wanted =
      hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology));
  // The affinity we were started with (taskset, a container) counts too.
  hwloc_bitmap_t bound = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0 &&
      hwloc_bitmap_intersects(wanted, bound)) {
    hwloc_bitmap_and(wanted, wanted, bound);
  }
  Status status;
  if (!cpus.empty()) {
    hwloc_bitmap_t listed = hwloc_bitmap_alloc();
    if (hwloc_bitmap_list_sscanf(listed, cpus.c_str()) != 0 ||
        hwloc_bitmap_iszero(listed)) {
      status = InvalidArgumentError(
          "cpus: '{}' is not a list of processors such as '0-3,8'", cpus);
    } else if (!hwloc_bitmap_isincluded(listed, wanted)) {
      char* allowed = nullptr;
      hwloc_bitmap_list_asprintf(&allowed, wanted);
      status = InvalidArgumentError(
          "cpus: '{}' has processors this process may not use; it may use {}",
          cpus, allowed);
      free(allowed);
    } else {
      hwloc_bitmap_and(wanted, wanted, listed);
    }
    hwloc_bitmap_free(listed);
  }
  // First every core's first thread, then the second ones.
  std::vector<std::pair<unsigned, Cpu>>
      found;  // rank of the thread in its core
  for (int i = 0; i < hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU); ++i) {
    hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, i);
    if (!hwloc_bitmap_isset(wanted, pu->os_index)) continue;
    Cpu cpu;
    cpu.os_index = pu->os_index;
    const int node = hwloc_bitmap_first(pu->nodeset);
    cpu.node = node < 0 ? 0 : static_cast<uint32_t>(node);
    found.emplace_back(pu->sibling_rank, cpu);
  }
  hwloc_bitmap_free(wanted);
  hwloc_bitmap_free(bound);
  PENSTOCK_RETURN_IF_ERROR(status);
  if (found.empty()) return InternalError("hwloc: no usable processor");
  std::stable_sort(
      found.begin(), found.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [sibling, cpu] : found) result->cpus_.push_back(cpu);
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
