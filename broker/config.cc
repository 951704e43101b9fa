#include "broker/config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/declare/describe.h"
#include "broker/declare/yaml.h"
#include "broker/memory/placement.h"
#include "broker/workers/worker_pool.h"
#include "common/format.h"
#include "common/text_file.h"

namespace penstock {
namespace {

constexpr uint32_t kReadDepthMax = 1024;
constexpr uint32_t kJobsMax = 256;

using Json = nlohmann::ordered_json;
using Field = DeclarationBase::Field;

constexpr std::array kReloadable = {"workers",
                                    "memory_limit",
                                    "memory_limit_per_user",
                                    "jobs_per_user",
                                    "decode_timeout",
                                    "read_timeout",
                                    "python_path",
                                    "python",
                                    "python_timeout",
                                    "plugin_dir",
                                    "data"};

// What the installed file sets: the folders that its unit makes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3>
    kInstalled = {{{"socket", "/run/penstock/penstock.sock"},
                   {"state_dir", "/var/lib/penstock"},
                   {"cache_dir", "/var/cache/penstock"}}};

// What may be set, of keys whose default says little.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8>
    kExamples = {{{"cpus", "0-7,16-23"},
                  {"memory_limit", "8G"},
                  {"memory_limit_per_user", "4G"},
                  {"data",
                   "[{path: /data/public}, {path: /srv/v, as: /data/v, groups: "
                   "[vision]}]"},
                  {"python_path", "/etc/penstock/python"},
                  {"plugin_dir", "/usr/lib/penstock/plugins"},
                  {"snapshot_path", "/srv/penstock/snapshots"},
                  {"fetcher", "/run/penstock-fetch/fetch.sock"}}};

// ""; nothing is said of the key.
template <size_t kCount>
std::string_view ValueIn(
    const std::array<std::pair<std::string_view, std::string_view>, kCount>&
        values,
    std::string_view key) {
  const auto found =
      std::find_if(values.begin(), values.end(),
                   [key](const auto& each) { return each.first == key; });
  return found == values.end() ? "" : found->second;
}

// ---- types of values -------------------------------------------------------

// A scalar that parse(text) reads and write(value) writes; "": the key is left
// out.
template <typename V, typename Parse, typename Write>
ValueType<V> Parsed(std::string wanted, Parse parse, Write write) {
  return {std::move(wanted),
          [parse](const YamlValue& value, std::string_view wanted, V* out) {
            if (!value.IsScalar()) return value.Wanted(wanted);
            std::string text;
            PENSTOCK_RETURN_IF_ERROR(value.String(&text));
            StatusOr<V> parsed = parse(text);
            if (!parsed.ok()) return value.Error(parsed.status().message());
            *out = *std::move(parsed);
            return OkStatus();
          },
          [write](const V& value, Json* out) {
            const std::string text = write(value);
            if (!text.empty()) *out = text;
          }};
}

std::string Itself(const std::string& text) { return text; }

ValueType<std::string> AnyText(std::string wanted) {
  return Parsed<std::string>(
      std::move(wanted),
      [](const std::string& text) { return StatusOr<std::string>(text); },
      Itself);
}

ValueType<std::string> Cpus() {
  return Parsed<std::string>(
      "a list of processors",
      [](const std::string& text) -> StatusOr<std::string> {
        const auto cpus = ParseCpuList(text);
        if (!cpus.ok()) return cpus.status().Prepend(Format("'{}'", text));
        return text;
      },
      Itself);
}

ValueType<uint32_t> Count(uint32_t max) {
  return Parsed<uint32_t>(
      Format("a number from 0 to {}", max),
      [max](const std::string& text) { return ParseCount(text, max, 0); },
      [](uint32_t count) { return std::to_string(count); });
}

ValueType<uint32_t> CountOrAuto(uint32_t max) {
  return Parsed<uint32_t>(
      Format("a number from 1 to {}, or auto", max),
      [max](const std::string& text) { return ParseCountOrAuto(text, max); },
      [](uint32_t count) {
        return count == 0 ? std::string("auto") : std::to_string(count);
      });
}

ValueType<ReadBackend> Backend() {
  std::vector<std::pair<std::string_view, ReadBackend>> choices;
  for (size_t i = 0; i < kReadBackendNames.size(); ++i) {
    choices.emplace_back(kReadBackendNames[i], static_cast<ReadBackend>(i));
  }
  return Words(std::move(choices));
}

constexpr std::array<std::pair<std::string_view, SandboxMode>, 3>
    kSandboxModes = {{{"auto", SandboxMode::kAuto},
                      {"required", SandboxMode::kRequired},
                      {"off", SandboxMode::kOff}}};

ValueType<SandboxMode> OneSandboxMode() {
  return Words(std::vector<std::pair<std::string_view, SandboxMode>>(
      kSandboxModes.begin(), kSandboxModes.end()));
}

ValueType<std::optional<uint64_t>> Bytes() {
  return Maybe(Parsed<uint64_t>(
      "a size, in bytes or with K, M, G or T (powers of 1024)", ParseBytes,
      [](uint64_t bytes) { return std::to_string(bytes); }));
}

ValueType<uint64_t> Duration() {
  return Parsed<uint64_t>("a time from 100ms to 24h, in ms, s, m or h",
                          ParseDuration, [](uint64_t ns) {
                            const uint64_t ms = ns / 1'000'000;
                            return ms % 1000 == 0 ? Format("{}s", ms / 1000)
                                                  : Format("{}ms", ms);
                          });
}

ValueType<std::vector<std::string>> Folders() {
  return Parsed<std::vector<std::string>>(
      "folders, with a colon between them",
      [](const std::string& text) {
        return StatusOr<std::vector<std::string>>(ParseFolders(text));
      },
      [](const std::vector<std::string>& folders) {
        return JoinText(folders, ":");
      });
}

ValueType<std::string> OneFolder() {
  return Parsed<std::string>(
      "a folder",
      [](const std::string& text) -> StatusOr<std::string> {
        const std::vector<std::string> folders = ParseFolders(text);
        if (folders.size() == 1) return folders[0];
        return InvalidArgumentError("'{}' is not the path of one folder", text);
      },
      Itself);
}

// ---- declarations ----------------------------------------------------------

Declaration<FunctionOptions> DeclaredFunctions() {
  return Declaration<FunctionOptions>("functions", "What datasets may run.")
      .Optional("python_path", &FunctionOptions::python_path, Folders(),
                "Folders of Python modules that datasets may name a function "
                "of (`map: python`). The functions run as this service's user, "
                "in processes of their own. Nobody but root and that user may "
                "be able to write there. Without it there are no such "
                "functions.")
      .Optional("python", &FunctionOptions::python,
                AnyText("a program, or its path"),
                "The interpreter of these processes. It needs NumPy.")
      .Optional("python_timeout", &FunctionOptions::call_timeout_ns, Duration(),
                "How long one call may take before its sample is an error.")
      .Optional("plugin_dir", &FunctionOptions::plugin_dir, OneFolder(),
                "The folder of shared libraries that datasets may name a "
                "function of (`map: plugin`). They run in the daemon itself. "
                "As with python_path, nobody else may be able to write there. "
                "Without it there are none.");
}

Declaration<Config> DeclaredConfig() {
  auto declared =
      Declaration<Config>("configuration", "How penstockd serves this host.")
          .Optional("socket", &Config::socket, AnyText("a path"),
                    "Where clients connect. systemd makes this socket and "
                    "hands it over (penstockd.socket): change it there too. "
                    "Without it, PENSTOCK_SOCKET or "
                    "/run/penstock/penstock.sock.")
          .Optional("cpus", &Config::cpus, Cpus(),
                    "Processors that workers may be pinned to, as in taskset: "
                    "a list, with ranges. Without it, all that the service may "
                    "use (its cpuset and affinity).")
          .Optional("reserve_cores", &Config::reserve_cores, Count(kWorkersMax),
                    "Physical cores of these that are left to the trainers: "
                    "the last of every NUMA node in turn, with all their "
                    "threads.")
          .Optional("workers", &Config::workers, CountOrAuto(kWorkersMax),
                    "Worker threads. auto: one on each processor that is left, "
                    "but no more than the service's CPU quota (cpu.max); up to "
                    "16 there while that makes storage faster, where reads "
                    "block workers (pread). `penstock status` shows what was "
                    "chosen, and why; `penstock workers` changes it until the "
                    "next start.")
          .Optional("read_depth", &Config::read_depth,
                    CountOrAuto(kReadDepthMax),
                    "Reads that a worker has in flight for one job. auto: 16, "
                    "and up to 128 where that makes the storage faster (tried "
                    "again every 30 seconds).")
          .Optional("read_backend", &Config::read_backend, Backend(),
                    "How reads are made. auto: the best that this kernel and "
                    "container have. defer_taskrun, coop_taskrun and plain are "
                    "ways to set up an io_uring; pread does without one.")
          .Optional(
              "memory_limit", &Config::memory_limit, Bytes(),
              "Most memory of all batches and indexes together. A job that "
              "needs more is refused before it starts; a job that runs keeps "
              "its memory when the limit falls. Without it, no limit but "
              "the control group's and the memory that is free.")
          .Optional("memory_limit_per_user", &Config::memory_limit_per_user,
                    Bytes(),
                    "The same for the jobs of one user together, segments that "
                    "ranks still have of a broker that died included. Without "
                    "it, no limit of its own.")
          .Optional("jobs_per_user", &Config::jobs_per_user, Count(kJobsMax),
                    "Most jobs that one user may run at once, of the 256 that "
                    "there may be.")
          .Optional("decode_timeout", &Config::decode_timeout_ns, Duration(),
                    "How long a worker may be on one sample. A decoder that "
                    "hangs cannot be stopped, so the broker ends itself with "
                    "status 70 and is started again; a sample that did so "
                    "twice is treated as `on_error` says from then on.")
          .Optional("read_timeout", &Config::read_timeout_ns, Duration(),
                    "How long a read may be in flight before its job ends with "
                    "DEADLINE_EXCEEDED. Other jobs go on.");
  declared.Optional(
      "data", &Config::data, DataRules(),
      "Folders and addresses (s3://BUCKET/PREFIX) that datasets may read, each "
      "with the users and groups who may "
      "(by default all who may connect; root is a user like others), further "
      "paths by which datasets name it (`as`: where containers mount it), and "
      "whether datasets that read there may run functions (python_path, "
      "plugin_dir). Nothing outside of them is read, and no link leads out. "
      "This service's user must be able to read them: setfacl -R -m "
      "u:penstock:rX FOLDER. Without it, each user gets what she could read "
      "herself; a folder on a network file system, whose server alone knows "
      "who may read, must be named here.");
  declared.Optional(
      "observers", &Config::observers, UserNames(),
      "Users who see the jobs of all users in `penstock status` and "
      "`penstock metrics`, beside root and this service's own user. Everybody "
      "else sees her own. Nobody but root stops jobs of others.");
  declared.Optional(
      "links", &Config::links, UserNames(),
      "Users whose `penstock link use` brings rows that other hosts make for "
      "the jobs of all users, beside root and this service's own user; that of "
      "anybody else for her own jobs. They are trusted with what these rows "
      "are.");
  return declared.Include(&Config::functions, DeclaredFunctions())
      .Optional("state_dir", &Config::state_dir, AnyText("a folder"),
                "What outlives the daemon: registered datasets, jobs and their "
                "progress, and sample_quarantine, which says what it died of. "
                "Remove that file, with the daemon stopped, to have samples "
                "that ended it tried again. Without it, nothing outlives the "
                "daemon.")
      .Optional(
          "cache_dir", &Config::cache_dir, AnyText("a folder"),
          "Indexes of datasets, and rows of datasets that say `cache: {disk: "
          "...}`. They may be deleted at any time: they are made again. "
          "Without it, the CACHE_DIRECTORY of systemd, else ~/.cache/penstock.")
      .Optional(
          "snapshot_path", &Config::snapshot_path, Folders(),
          "Folders below which datasets may write snapshots (`snapshot`), "
          "for whoever may connect. This service's user must be able to "
          "write there (ReadWritePaths= of its unit). Without it, "
          "datasets only read snapshots that are complete.")
      .Optional("fetcher", &Config::fetcher, AnyText("a path"),
                "Where the process listens that fetches objects of stores "
                "(s3://...): penstock-fetch.socket. `data` says who may read "
                "which addresses, /etc/penstock/stores.ini with which "
                "credentials. Without it, no address is read.")
      .Optional("sandbox", &Config::sandbox, OneSandboxMode(),
                "Whether the process that decodes gives up the network, the "
                "start of programs, and writes outside of its own folders, "
                "for the case that a hostile file takes it over. auto: as far "
                "as the kernel has Landlock and seccomp. required: no start "
                "without both. off: for plugins that need what it forbids. "
                "Python functions run outside of it.");
}

std::string WhenTaken(std::string_view key) {
  return IsReloadable(key) ? "A reload applies a change."
                           : "A change needs a restart.";
}

}  // namespace

const Declaration<Config>& Config::Declared() {
  static const Declaration<Config> declared = DeclaredConfig();
  return declared;
}

StatusOr<SandboxMode> ParseSandboxMode(const std::string& text) {
  for (const auto& [name, mode] : kSandboxModes) {
    if (name == text) return mode;
  }
  return InvalidArgumentError("'{}' is none of auto, required, off", text);
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
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                            ReadTextFile("configuration", path, kSpecBytesMax));
  PENSTOCK_ASSIGN_OR_RETURN(const YamlNode root, ReadYaml(text, path));
  Config config;
  if (root.kind == YamlNode::Kind::kNull) return config;
  const YamlPlace place = {path, ""};
  const Declaration<Config>& declared = Config::Declared();
  PENSTOCK_RETURN_IF_ERROR(
      declared.Read(YamlValue(root, place), declared.Wanted(), &config));
  const auto position = [&path](const YamlNode& node) {
    return Format("{}:{}:{}", path, node.line, node.column);
  };
  for (size_t i = 0; i < root.keys.size(); ++i) {
    const YamlNode& value = root.items[i];
    config.position_of[root.keys[i].text] = position(root.keys[i]);
    if (value.kind != YamlNode::Kind::kSequence) continue;
    for (size_t j = 0; j < value.items.size(); ++j) {
      config.position_of[Format("{}[{}]", root.keys[i].text, j)] =
          position(value.items[j]);
    }
  }
  return config;
}

bool IsReloadable(std::string_view key) {
  return std::find(kReloadable.begin(), kReloadable.end(), key) !=
         kReloadable.end();
}

std::vector<std::string> ChangedKeys(const Config& before,
                                     const Config& after) {
  const Declaration<Config>& declared = Config::Declared();
  Json was;
  Json is;
  declared.Write(&before, &was);
  declared.Write(&after, &is);
  std::vector<std::string> changed;
  for (const Field& field : declared.fields()) {
    const auto old = was.find(field.key);
    const auto next = is.find(field.key);
    const bool same = old == was.end() || next == is.end()
                          ? (old == was.end()) == (next == is.end())
                          : *old == *next;
    if (!same) changed.push_back(field.key);
  }
  return changed;
}

std::string DescribeConfig() {
  const Declaration<Config>& declared = Config::Declared();
  std::string text =
      "penstockd's configuration is one YAML document. Every key is optional:\n"
      "\n";
  for (const Field& field : declared.fields()) {
    text += Wrapped(Format("{}: {}", field.key, ValueOf(declared, field)), "  ",
                    "      ");
    text += Wrapped(Format("{} {}", field.text, WhenTaken(field.key)), "      ",
                    "      ");
    for (const DeclarationBase* part : field.parts) {
      for (const Field& each : part->fields()) {
        text += Wrapped(
            Format("{}: {}; {}", each.key, ValueOf(*part, each), each.text),
            "      ", "          ");
      }
    }
  }
  return text;
}

std::string CommentedConfig() {
  const Declaration<Config>& declared = Config::Declared();
  std::string text =
      "# Configuration of penstockd, the service. Every key is optional; what "
      "is\n"
      "# commented out is the default, or an example of what may be set. Check "
      "a\n"
      "# change with\n"
      "#   penstockd --config /etc/penstock/penstockd.yaml --check\n"
      "# and apply it with\n"
      "#   systemctl reload penstockd\n"
      "# or, if it needs that, with `systemctl restart penstockd`.\n";
  for (const Field& field : declared.fields()) {
    text += "\n" + Wrapped(field.text, "# ", "# ");
    const std::string value = ValueOf(declared, field);
    text += Wrapped(Format("Value: {}. {}", value, WhenTaken(field.key)), "# ",
                    "# ");
    const std::string_view installed = ValueIn(kInstalled, field.key);
    const std::string_view example = ValueIn(kExamples, field.key);
    text += !installed.empty() ? Format("{}: {}\n", field.key, installed)
            : !example.empty()
                ? Format("# {}: {}\n", field.key, example)
                : Format("# {}: {}\n", field.key, declared.DefaultOf(field));
  }
  return text;
}

}  // namespace penstock
