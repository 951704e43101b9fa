#include "broker/memory/available_memory.h"

#include <algorithm>
#include <charconv>
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

struct Cgroup {
  std::string path;  // below the mount: "/a/b", "/a", "/"
  std::string folder;
};

// The cgroups of this process, of v2 and of v1's hierarchy of the controller,
// each with its ancestors, innermost first. A container may see a path that is
// its runtime's, and at the mount its own cgroup.
std::vector<Cgroup> CgroupsOf(const SystemFiles& files,
                              const std::string& controller) {
  std::vector<Cgroup> cgroups;
  std::ifstream file(files.proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "0::/a/b", "4:cpu,cpuacct:/a/b"
    const size_t first = std::min(line.find(':'), line.size());
    const size_t second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string of =
        "," + line.substr(first + 1, second - first - 1) + ",";
    std::string mount = files.cgroup;
    if (of != ",,") {
      if (of.find("," + controller + ",") == of.npos) continue;
      mount += "/" + controller;
    }
    std::string path = line.substr(second + 1);
    while (path.size() > 1) {
      cgroups.push_back({path, mount + path});
      path.resize(path.rfind('/'));
    }
    cgroups.push_back({"/", mount});
  }
  return cgroups;
}

}  // namespace

AvailableMemory FindAvailableMemory(const SystemFiles& files) {
  AvailableMemory room;
  if (const auto kib = ReadKey(files.proc + "/meminfo", "MemAvailable:")) {
    room.bytes = *kib * 1024;
    room.limit = "MemAvailable of this machine";
  }
  struct Names {
    std::string limit;
    std::string usage;
    std::string with_children;  // before the keys of memory.stat
  };
  const Names v2 = {"memory.max", "memory.current", ""};
  const Names v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
  for (const auto& [path, folder] : CgroupsOf(files, "memory")) {
    const bool is_v1 = ReadLine(folder + "/" + v1.limit).has_value();
    const Names& names = is_v1 ? v1 : v2;
    const auto max = ReadNumber(folder + "/" + names.limit);
    const auto current = ReadNumber(folder + "/" + names.usage);
    if (!max || !current) continue;
    uint64_t cache = 0;
    for (const char* const key : {"inactive_file", "active_file"}) {
      cache += ReadKey(folder + "/memory.stat", names.with_children + key)
                   .value_or(0);
    }
    const uint64_t used = *current - std::min(*current, cache);
    const uint64_t left = *max - std::min(*max, used);
    if (left < room.bytes) {
      room.bytes = left;
      room.limit = Format("{} of cgroup {} ({}, {} used)", names.limit, path,
                          BytesText(*max), BytesText(used));
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
  for (const auto& [path, folder] : CgroupsOf(files, "cpu")) {
    auto line = ReadLine(folder + "/cpu.max");
    if (!line) {  // v1, whose quota of -1 is none
      const auto us = ReadNumber(folder + "/cpu.cfs_quota_us");
      const auto period = ReadNumber(folder + "/cpu.cfs_period_us");
      if (us && period) line = Format("{} {}", *us, *period);
    }
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
