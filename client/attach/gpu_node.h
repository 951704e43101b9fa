// The NUMA node of the GPU that this process will use, found without talking to
// a driver.
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

// Takes the host's GPUs in the order of their PCI addresses, as CUDA and ROCm
// number them where all are alike (CUDA's default order is by speed). Chooses
// as trainers do: by local rank, among those that CUDA_VISIBLE_DEVICES,
// HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES leaves. nullopt: unknown.
//
// devices: /sys/bus/pci/devices, sysfs(5) and the kernel's
// Documentation/ABI/testing/sysfs-bus-pci.
std::optional<GpuNode> FindGpuNode(
    const Environment& environment, const LaunchInfo& launch,
    const std::filesystem::path& devices = "/sys/bus/pci/devices");

}  // namespace penstock
#endif  // CLIENT_ATTACH_GPU_NODE_H_
