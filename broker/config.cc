#include "broker/config.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "broker/declare/yaml.h"
#include "broker/memory/placement.h"
#include "broker/workers/worker_pool.h"
#include "common/format.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr uint32_t kReadDepthMax = 1024;

using Text = const std::string&;

// Parses the value into *out, which keeps its default if it is absent.
template <typename Parse, typename T>
Status Read(const YamlValue& value, Parse parse, T* out) {
  if (!value.present()) return OkStatus();
  std::string text;
  PENSTOCK_RETURN_IF_ERROR(value.String(&text));
  auto parsed = parse(text);
  if (!parsed.ok()) return value.Error(parsed.status().message());
  *out = *std::move(parsed);
  return OkStatus();
}

StatusOr<std::string> Cpus(Text text) {
  const auto cpus = ParseCpuList(text);
  if (!cpus.ok()) return cpus.status().Prepend(Format("'{}'", text));
  return text;
}

StatusOr<ReadBackend> ParseReadBackend(Text text) {
  const auto found =
      std::find(kReadBackendNames.begin(), kReadBackendNames.end(), text);
  if (found == kReadBackendNames.end()) {
    return InvalidArgumentError("'{}' is not one of {}", text,
                                JoinText(kReadBackendNames, ", "));
  }
  return static_cast<ReadBackend>(found - kReadBackendNames.begin());
}

StatusOr<std::string> OneFolder(Text text) {
  const std::vector<std::string> folders = ParseFolders(text);
  if (folders.size() == 1) return folders[0];
  return InvalidArgumentError("'{}' is not the path of one folder", text);
}

Status ReadConfig(const YamlValue& keys, Config* config) {
  const std::vector<std::string_view> known = {"socket",
                                               "cpus",
                                               "reserve_cores",
                                               "workers",
                                               "read_depth",
                                               "read_backend",
                                               "memory_limit",
                                               "memory_limit_per_user",
                                               "decode_timeout",
                                               "read_timeout",
                                               "state_dir",
                                               "cache_dir",
                                               "python_path",
                                               "python",
                                               "python_timeout",
                                               "plugin_dir",
                                               "data"};
  PENSTOCK_RETURN_IF_ERROR(
      keys.CheckMapping(known, "a mapping of " + JoinText(known, ", ")));
  const auto read = [&keys](std::string_view key, auto parse, auto* out) {
    return Read(keys.Optional(key), parse, out);
  };
  const auto text = [](Text value) { return StatusOr<std::string>(value); };
  const auto folders = [](Text value) {
    return StatusOr<std::vector<std::string>>(ParseFolders(value));
  };
  const auto reserved = [](Text value) {
    return ParseCount(value, kWorkersMax, 0);
  };
  const auto workers = [](Text value) {
    return ParseCountOrAuto(value, kWorkersMax);
  };
  const auto depth = [](Text value) {
    return ParseCountOrAuto(value, kReadDepthMax);
  };
  Config& c = *config;
  PENSTOCK_RETURN_IF_ERROR(read("socket", text, &c.socket));
  PENSTOCK_RETURN_IF_ERROR(read("cpus", Cpus, &c.cpus));
  PENSTOCK_RETURN_IF_ERROR(read("reserve_cores", reserved, &c.reserve_cores));
  PENSTOCK_RETURN_IF_ERROR(read("workers", workers, &c.workers));
  PENSTOCK_RETURN_IF_ERROR(read("read_depth", depth, &c.read_depth));
  PENSTOCK_RETURN_IF_ERROR(
      read("read_backend", ParseReadBackend, &c.read_backend));
  PENSTOCK_RETURN_IF_ERROR(read("memory_limit", ParseBytes, &c.memory_limit));
  PENSTOCK_RETURN_IF_ERROR(
      read("memory_limit_per_user", ParseBytes, &c.memory_limit_per_user));
  PENSTOCK_RETURN_IF_ERROR(
      read("decode_timeout", ParseDuration, &c.decode_timeout_ns));
  PENSTOCK_RETURN_IF_ERROR(
      read("read_timeout", ParseDuration, &c.read_timeout_ns));
  PENSTOCK_RETURN_IF_ERROR(read("state_dir", text, &c.state_dir));
  PENSTOCK_RETURN_IF_ERROR(read("cache_dir", text, &c.cache_dir));
  if (const YamlValue data = keys.Optional("data"); data.present()) {
    PENSTOCK_RETURN_IF_ERROR(DataRules().Read(data, &c.data));
  }
  FunctionOptions& f = c.functions;
  PENSTOCK_RETURN_IF_ERROR(read("python_path", folders, &f.python_path));
  PENSTOCK_RETURN_IF_ERROR(read("python", text, &f.python));
  PENSTOCK_RETURN_IF_ERROR(
      read("python_timeout", ParseDuration, &f.call_timeout_ns));
  return read("plugin_dir", OneFolder, &f.plugin_dir);
}

}  // namespace

std::vector<std::string> ParseFolders(const std::string& text) {
  std::vector<std::string> folders;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ':');) {
    if (!word.empty()) folders.push_back(std::filesystem::absolute(word));
  }
  return folders;
}

StatusOr<Config> LoadConfig(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                            ReadTextFile("configuration", path, kSpecBytesMax));
  PENSTOCK_ASSIGN_OR_RETURN(const YamlNode root, ReadYaml(text, path));
  Config config;
  if (root.kind == YamlNode::Kind::kNull) return config;
  const YamlPlace place = {path, ""};
  PENSTOCK_RETURN_IF_ERROR(ReadConfig(YamlValue(root, place), &config));
  for (const YamlNode& key : root.keys) {
    config.position_of[key.text] =
        Format("{}:{}:{}", path, key.line, key.column);
  }
  return config;
}

}  // namespace penstock
