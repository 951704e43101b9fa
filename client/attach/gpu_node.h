// The NUMA node of the GPU that this process is going to use, as far as the
// system tells before anything was said to a driver.
#ifndef CLIENT_ATTACH_GPU_NODE_H_
#define CLIENT_ATTACH_GPU_NODE_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "client/attach/launcher.h"

namespace penstock {

struct GpuNode {
  std::string gpu;  // its PCI address: "0000:3b:00.0"
  uint32_t node = 0;
};

// The GPUs of the host in the order of their PCI addresses, as CUDA and ROCm
// count them where all are alike (CUDA's default order is by speed): of these
// the one that CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or
// ROCR_VISIBLE_DEVICES leaves to this rank, by its number among the host's
// ranks, which is how trainers choose theirs. nullopt: it cannot be told.
//
// devices: /sys/bus/pci/devices, sysfs(5) and the kernel's
// Documentation/ABI/testing/sysfs-bus-pci.
std::optional<GpuNode> FindGpuNode(
    const Environment& environment, const LaunchInfo& launch,
    const std::filesystem::path& devices = "/sys/bus/pci/devices");

}  // namespace penstock
#endif  // CLIENT_ATTACH_GPU_NODE_H_
