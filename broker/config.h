// penstockd's configuration: a small YAML file, every key optional. Its
// declaration gives the parser, `penstock help config`, penstockd(8) and the
// commented file that is installed.
#ifndef BROKER_CONFIG_H_
#define BROKER_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/io/read.h"
#include "broker/registry/data_policy.h"
#include "broker/sandbox/sandbox.h"
#include "broker/user_code/trusted_code.h"
#include "common/status.h"

namespace penstock {

template <typename T>
class Declaration;

// The user of penstock-metrics.service; absent where that is not installed.
inline constexpr char kMetricsUser[] = "penstock-metrics";
// That of penstock-link.service, likewise.
inline constexpr char kLinkUser[] = "penstock-link";

struct Config {
  std::string socket;          // "": PENSTOCK_SOCKET, the default
  std::string cpus;            // "0-3,8"; "": all allowed ones
  uint32_t reserve_cores = 0;  // how many of these workers leave free
  uint32_t workers = 0;        // 0 (auto): one per processor
  uint32_t read_depth = 0;     // 0: auto
  ReadBackend read_backend = ReadBackend::kAuto;
  std::optional<uint64_t> memory_limit;  // bytes of all segments
  std::optional<uint64_t> memory_limit_per_user;
  uint32_t jobs_per_user = 64;
  std::vector<std::string> observers = {kMetricsUser};
  std::vector<std::string> links = {kLinkUser};
  std::string state_dir;  // "": nothing outlives the broker
  std::string cache_dir;  // for indexes, and rows that are kept on disk
  std::vector<std::string> snapshot_path;  // folders
  std::string fetcher;  // a socket; "": no object stores are read
  SandboxMode sandbox = SandboxMode::kAuto;
  // A worker that spends longer on one sample ends the broker on purpose. Both
  // timeouts are exact to half a second (WorkerPool's clock).
  uint64_t decode_timeout_ns = uint64_t{60} * 1'000'000'000;
  // A read that is in flight for longer fails its job.
  uint64_t read_timeout_ns = uint64_t{60} * 1'000'000'000;

  // What datasets may run. Folders are absolute; whether others can write them
  // is not checked here.
  FunctionOptions functions;
  // Who may read what; empty: each user what she could read herself.
  std::vector<DataRule> data;

  // "file:line:column" of each key that is set, and of the items of its list
  // ("data[0]"), for errors that only the machine reveals.
  std::map<std::string, std::string> position_of;

  static const Declaration<Config>& Declared();
};

// "auto", "required" or "off".
StatusOr<SandboxMode> ParseSandboxMode(const std::string& text);

// "a:b", as in PATH; returned as absolute folders.
std::vector<std::string> ParseFolders(const std::string& text);

// Errors name file, line and column.
StatusOr<Config> LoadConfig(const std::string& path);

// Whether a running penstockd takes a new value of this key at SIGHUP. All such
// keys can change without any effect on the batches of running jobs.
bool IsReloadable(std::string_view key);

// The keys whose values differ, in the order of the declaration.
std::vector<std::string> ChangedKeys(const Config& before, const Config& after);

// What `penstock help config` prints.
std::string DescribeConfig();

// A configuration file with every key, commented: systemd/penstockd.yaml.
std::string CommentedConfig();

}  // namespace penstock
#endif  // BROKER_CONFIG_H_
