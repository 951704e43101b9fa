#include "client/attach/gpu_node.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <vector>

namespace penstock {
namespace {

struct Gpu {
  std::string address;
  std::string model;  // vendor and device
  int64_t node = -1;
};

std::string LineOf(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

// Display controllers (class 03, compute-only GPUs included) and processing
// accelerators (12) of the vendors of training GPUs. A server's console has a
// display controller too, of another vendor.
bool IsGpu(const std::string& vendor, const std::string& pci_class) {
  return (vendor == "0x10de" || vendor == "0x1002") &&
         (pci_class.rfind("0x03", 0) == 0 || pci_class.rfind("0x12", 0) == 0);
}

std::vector<Gpu> GpusIn(const std::filesystem::path& devices) {
  std::vector<Gpu> gpus;
  std::error_code error;
  for (std::filesystem::directory_iterator at(devices, error), end;
       !error && at != end; at.increment(error)) {
    const std::string vendor = LineOf(at->path() / "vendor");
    if (!IsGpu(vendor, LineOf(at->path() / "class"))) continue;
    Gpu& gpu = gpus.emplace_back();
    gpu.address = at->path().filename();
    gpu.model = vendor + LineOf(at->path() / "device");
    const std::string node = LineOf(at->path() / "numa_node");
    std::from_chars(node.data(), node.data() + node.size(), gpu.node);
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.address < b.address; });
  return gpus;
}

// Parses "0,2"; nullopt: something else, such as a UUID.
std::optional<std::vector<size_t>> ListedIn(const std::string& text) {
  std::vector<size_t> listed;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    const auto [rest, error] = std::from_chars(at, end, listed.emplace_back());
    if (error != std::errc()) return std::nullopt;
    if (rest == end) return listed;
    if (*rest != ',') return std::nullopt;
    at = rest + 1;
  }
}

}  // namespace

std::optional<GpuNode> FindGpuNode(const Environment& environment,
                                   const LaunchInfo& launch,
                                   const std::filesystem::path& devices) {
  if (launch.local_rank < 0) return std::nullopt;
  const std::vector<Gpu> gpus = GpusIn(devices);
  if (gpus.empty()) return std::nullopt;
  const bool alike = std::all_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return gpu.model == gpus.front().model;
  });
  if (!alike && environment("CUDA_DEVICE_ORDER") != "PCI_BUS_ID") {
    return std::nullopt;
  }
  auto index = static_cast<size_t>(launch.local_rank);
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                           "ROCR_VISIBLE_DEVICES"}) {
    const auto text = environment(name);
    if (!text) continue;
    const auto listed = ListedIn(*text);
    if (!listed) return std::nullopt;
    if (listed->size() == 1) {
      index = listed->front();
    } else if (index < listed->size()) {
      index = (*listed)[index];
    } else {
      return std::nullopt;
    }
    break;
  }
  if (index >= gpus.size() || gpus[index].node < 0) return std::nullopt;
  return GpuNode{gpus[index].address, static_cast<uint32_t>(gpus[index].node)};
}

}  // namespace penstock
