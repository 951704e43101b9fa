#include "broker/config.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "broker/placement.h"

namespace penstock {
namespace {

constexpr uint32_t kReadDepthMax = 1024;

std::string PlaceOf(const std::string& path, const YAML::Mark& mark) {
  return fmt::format("{}:{}:{}", path, mark.line + 1, mark.column + 1);
}

Status At(const std::string& path, const YAML::Mark& mark,
          const std::string& text) {
  return InvalidArgumentError("{}: {}", PlaceOf(path, mark), text);
}

Status Set(const std::string& key, const std::string& value, Config* config) {
  if (key == "socket") {
    config->socket = value;
  } else if (key == "cpus") {
    const auto cpus = ParseCpuList(value);
    if (!cpus.ok()) return cpus.status().Prepend(fmt::format("'{}'", value));
    config->cpus = value;
  } else if (key == "reserve_cores") {
    PENSTOCK_ASSIGN_OR_RETURN(config->reserve_cores,
                              ParseCount(value, kWorkersMax, 0));
  } else if (key == "state_dir") {
    config->state_dir = value;
  } else if (key == "cache_dir") {
    config->cache_dir = value;
  } else if (key == "workers") {
    config->workers = 0;
    if (value != "auto") {
      PENSTOCK_ASSIGN_OR_RETURN(config->workers,
                                ParseCount(value, kWorkersMax));
    }
  } else if (key == "read_depth") {
    config->read_depth = 0;
    if (value != "auto") {
      PENSTOCK_ASSIGN_OR_RETURN(config->read_depth,
                                ParseCount(value, kReadDepthMax));
    }
  } else if (key == "read_backend") {
    const auto found =
        std::find(kReadBackendNames.begin(), kReadBackendNames.end(), value);
    if (found == kReadBackendNames.end()) {
      return InvalidArgumentError("'{}' is not one of {}", value,
                                  fmt::join(kReadBackendNames, ", "));
    }
    config->read_backend =
        static_cast<ReadBackend>(found - kReadBackendNames.begin());
  } else if (key == "memory_limit") {
    PENSTOCK_ASSIGN_OR_RETURN(config->memory_limit, ParseBytes(value));
  } else if (key == "memory_limit_per_user") {
    PENSTOCK_ASSIGN_OR_RETURN(config->memory_limit_per_user, ParseBytes(value));
  } else if (key == "decode_timeout") {
    PENSTOCK_ASSIGN_OR_RETURN(config->decode_timeout_ns, ParseDuration(value));
  } else if (key == "read_timeout") {
    PENSTOCK_ASSIGN_OR_RETURN(config->read_timeout_ns, ParseDuration(value));
  } else if (key == "python_path") {
    config->functions.python_path = ParseFolders(value);
  } else if (key == "python") {
    config->functions.python = value;
  } else if (key == "python_timeout") {
    PENSTOCK_ASSIGN_OR_RETURN(config->functions.call_timeout_ns,
                              ParseDuration(value));
  } else if (key == "plugin_dir") {
    const std::vector<std::string> folders = ParseFolders(value);
    if (folders.size() != 1) {
      return InvalidArgumentError("'{}' is not the path of one folder", value);
    }
    config->functions.plugin_dir = folders[0];
  } else {
    return InvalidArgumentError(
        "unknown key '{}'; known are socket, cpus, reserve_cores, workers, "
        "read_depth, read_backend, memory_limit, memory_limit_per_user, "
        "decode_timeout, read_timeout, state_dir, cache_dir, python_path, "
        "python, python_timeout, plugin_dir",
        key);
  }
  return OkStatus();
}

}  // namespace

StatusOr<uint32_t> ParseCount(const std::string& text, uint32_t max,
                              uint32_t min) {
  uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min ||
      value > max) {
    return InvalidArgumentError("'{}' is not a number from {} to {}", text, min,
                                max);
  }
  return value;
}

StatusOr<uint64_t> ParseBytes(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  int shift = -1;
  if (unit.empty()) shift = 0;
  if (unit == "K" || unit == "KiB") shift = 10;
  if (unit == "M" || unit == "MiB") shift = 20;
  if (unit == "G" || unit == "GiB") shift = 30;
  if (unit == "T" || unit == "TiB") shift = 40;
  if (error != std::errc() || shift < 0 || value == 0 ||
      value > (UINT64_MAX >> shift)) {
    return InvalidArgumentError(
        "'{}' is not a size such as 8G, 512M or 1073741824", text);
  }
  return value << shift;
}

StatusOr<uint64_t> ParseDuration(const std::string& text) {
  constexpr uint64_t kMsMin = 100;  // of the order of the clock's ticks
  constexpr uint64_t kMsMax = 24 * 60 * 60 * 1000;
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  uint64_t ms = 0;
  if (unit == "ms") ms = 1;
  if (unit.empty() || unit == "s") ms = 1000;
  if (unit == "m") ms = 60 * 1000;
  if (unit == "h") ms = 60 * 60 * 1000;
  if (error != std::errc() || ms == 0 || value > kMsMax / ms ||
      value * ms < kMsMin) {
    return InvalidArgumentError(
        "'{}' is not a time such as 500ms, 60s, 5m or 1h, from 100ms to 24h",
        text);
  }
  return value * ms * 1'000'000;
}

std::vector<std::string> ParseFolders(const std::string& text) {
  std::vector<std::string> folders;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ':');) {
    if (!word.empty()) folders.push_back(std::filesystem::absolute(word));
  }
  return folders;
}

StatusOr<Config> LoadConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoError(errno, "read configuration '" + path + "'");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Config config;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return config;
    if (!root.IsMap()) return At(path, root.Mark(), "wanted keys and values");
    for (const auto& item : root) {
      if (!item.first.IsScalar()) {
        return At(path, item.first.Mark(), "a key is not a word");
      }
      if (!item.second.IsScalar()) {
        return At(path, item.second.Mark(),
                  "'" + item.first.Scalar() + "' wants one value");
      }
      const std::string& key = item.first.Scalar();
      const Status status = Set(key, item.second.Scalar(), &config);
      if (!status.ok()) {
        return At(path, item.first.Mark(), key + ": " + status.message());
      }
      const auto [place, is_new] =
          config.place_of.emplace(key, PlaceOf(path, item.first.Mark()));
      if (!is_new) {
        return At(path, item.first.Mark(),
                  fmt::format("{}: given a second time, first at {}", key,
                              place->second));
      }
    }
  } catch (const YAML::Exception& error) {
    return At(path, error.mark, error.msg);
  }
  return config;
}

}  // namespace penstock
