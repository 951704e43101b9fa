#include "broker/memory/available_memory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "broker/base/text.h"
#include "common/format.h"

namespace penstock {
namespace {

std::optional<std::string> ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const auto line = ReadLine(path);
  uint64_t value = 0;
  if (!line ||
      std::from_chars(line->data(), line->data() + line->size(), value).ec !=
          std::errc()) {
    return std::nullopt;  // absent, or "max"
  }
  return value;
}

// The value after `key` in a file of "key value" lines.
std::optional<uint64_t> ReadKey(const std::string& path,
                                const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t value = 0;
    if (word == key && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// The cgroup (v2) of this process and its ancestors, innermost first, as paths
// below the mount: "/a/b", "/a", "". Empty without a v2 hierarchy.
std::vector<std::string> CgroupPaths(const SystemFiles& files) {
  std::vector<std::string> paths;
  std::ifstream file(files.proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    while (path.size() > 1) {
      paths.push_back(path);
      path.resize(path.rfind('/'));
    }
    paths.push_back("");
  }
  return paths;
}

}  // namespace

AvailableMemory FindAvailableMemory(const SystemFiles& files) {
  AvailableMemory room;
  if (const auto kib = ReadKey(files.proc + "/meminfo", "MemAvailable:")) {
    room.bytes = *kib * 1024;
    room.limit = "MemAvailable of this machine";
  }
  for (const std::string& path : CgroupPaths(files)) {
    const std::string folder = files.cgroup + path;
    const auto max = ReadNumber(folder + "/memory.max");
    const auto current = ReadNumber(folder + "/memory.current");
    if (!max || !current) continue;
    const uint64_t cache =
        ReadKey(folder + "/memory.stat", "inactive_file").value_or(0) +
        ReadKey(folder + "/memory.stat", "active_file").value_or(0);
    const uint64_t used = *current - std::min(*current, cache);
    const uint64_t left = *max - std::min(*max, used);
    if (left < room.bytes) {
      room.bytes = left;
      room.limit =
          Format("memory.max of cgroup {} ({}, {} used)",
                 path.empty() ? "/" : path, BytesText(*max), BytesText(used));
    }
  }
  return room;
}

std::optional<uint64_t> FindAvailableNodeMemory(const SystemFiles& files,
                                                uint32_t node) {
  // Parses lines such as "Node 0 MemFree: 1234 kB".
  std::ifstream file(Format("{}/node{}/meminfo", files.nodes, node));
  std::optional<uint64_t> kib;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    std::string key;
    uint64_t value = 0;
    if (!(words >> word >> word >> key >> value)) continue;
    if (key == "MemFree:" || key == "Active(file):" ||
        key == "Inactive(file):") {
      kib = kib.value_or(0) + value;
    }
  }
  if (!kib || *kib > (UINT64_MAX >> 10)) return std::nullopt;
  return *kib << 10;
}

double CgroupCpuQuota(const SystemFiles& files) {
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& path : CgroupPaths(files)) {
    const auto line = ReadLine(files.cgroup + path + "/cpu.max");
    if (!line) continue;
    std::istringstream words(*line);
    double quota_us = 0;
    double period_us = 0;
    if (words >> quota_us >> period_us && period_us > 0) {  // not "max ..."
      quota = std::min(quota, quota_us / period_us);
    }
  }
  return quota;
}

}  // namespace penstock
