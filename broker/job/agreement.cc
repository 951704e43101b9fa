#include "broker/job/agreement.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "broker/index/fingerprint.h"
#include "common/layout.h"
#include "common/printable.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

// Keys of a spec that decide how fast rows are made, not which.
constexpr std::string_view kOfHost[] = {"prefetch", "hold", "cache",
                                        "snapshot"};

// Hosts may have the same files in other folders.
void LeaveOutPaths(ordered_json* json) {
  if (json->is_string()) {
    if (json->get_ref<const std::string&>().starts_with('/')) *json = "/";
  } else if (json->is_structured()) {
    for (ordered_json& each : *json) LeaveOutPaths(&each);
  }
}

// How a source's files are read, and what a pickle is, which differs from
// process to process.
void LeaveOutKeys(ordered_json* json) {
  if (json->is_object()) {
    json->erase("io");
    if (json->erase("object") > 0) json->erase("max_bytes");
  }
  if (json->is_structured()) {
    for (ordered_json& each : *json) LeaveOutKeys(&each);
  }
}

std::string Digest(std::string_view text) {
  Fingerprint fingerprint("part");
  fingerprint.Add(text);
  return "#" + fingerprint.Hex();
}

// What `map` and `select` read.
std::string SideFilesOf(const Dataset& dataset) {
  std::set<std::string> digests;
  for (const auto& [path, digest] : dataset.FilesOfSelection()) {
    digests.insert(digest);
  }
  for (const auto& file : dataset.files) digests.insert(file->digest());
  return JoinText(digests, " ");
}

// Its parts may have files where it says nothing of them.
std::string DataOf(const Source& source) {
  const std::string known = source.fingerprint();
  if (!known.empty() && source.parts() == 1) return known;
  Fingerprint data("data");
  data.Add(known);
  source.ListFiles([&data](std::string_view name, uint64_t bytes) {
    data.Add(name);
    data.Add(bytes);
  });
  return data.Hex();
}

std::string BeginOf(const std::optional<JobState>& start) {
  return ordered_json{{"epoch", start ? start->epoch : 0},
                      {"row", start ? start->row : 0}}
      .dump();
}

std::string OwedOf(const std::optional<JobState>& start) {
  const nlohmann::json state =
      start ? JobStateToJson(*start) : nlohmann::json::object();
  return state.value("owed", nlohmann::json::array()).dump();
}

std::string TextOf(const std::vector<WeightsChange>& weights) {
  nlohmann::json changes = nlohmann::json::array();
  for (const WeightsChange& each : weights) {
    changes.push_back(WeightsChangeToJson(each));
  }
  return changes.dump();
}

// Parses "files FIRST COUNT".
bool ParseFiles(std::string_view name, uint64_t* first, uint64_t* count) {
  constexpr std::string_view kFiles = "files ";
  if (!name.starts_with(kFiles)) return false;
  const char* at = name.data() + kFiles.size();
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(at, end, *first);
  if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ' ') {
    return false;
  }
  const auto rest = std::from_chars(parsed.ptr + 1, end, *count);
  return rest.ec == std::errc() && rest.ptr == end && *count > 0;
}

nlohmann::json FilesOf(const Dataset& dataset, uint64_t first, uint64_t count) {
  nlohmann::json names = nlohmann::json::array();
  nlohmann::json digests = nlohmann::json::array();
  const bool few = count <= Agreement::kFanOut;
  const uint64_t share = (count + Agreement::kFanOut - 1) / Agreement::kFanOut;
  std::optional<Fingerprint> of_share;
  uint64_t files = 0;
  dataset.source->ListFiles([&](std::string_view name, uint64_t bytes) {
    const uint64_t i = files++;
    if (i < first || i - first >= count) return;
    if (few) {
      const size_t cut = name.size() > Agreement::kNameBytesMax
                             ? name.size() - Agreement::kNameBytesMax
                             : 0;
      names.push_back({std::string(name.substr(cut)), bytes});
      return;
    }
    if ((i - first) % share == 0) {
      if (of_share) digests.push_back(of_share->Hex());
      of_share.emplace("files");
    }
    of_share->Add(name);
    of_share->Add(bytes);
  });
  if (of_share) digests.push_back(of_share->Hex());
  return {{"files", files},
          {few ? "names" : "digests", std::move(few ? names : digests)}};
}

}  // namespace

Agreement::Agreement(const JobOptions& options, const Dataset& dataset,
                     const std::vector<WeightsChange>& weights) {
  const auto add = [this](std::string name, std::string value) {
    parts_.emplace_back(std::move(name), std::move(value));
  };
  add("penstock", PENSTOCK_VERSION);
  add("layout", std::to_string(kLayoutVersion));
  add("world_size", std::to_string(options.world_size));
  add("replicas", std::to_string(options.replicas));
  add("delivery",
      std::string(
          kDeliveryModeNames[static_cast<size_t>(options.delivery.mode)]));
  add("on_rank_death", std::string(kOnRankDeathNames[static_cast<size_t>(
                           options.delivery.on_rank_death)]));
  ordered_json spec = DatasetSpecToJson(options.spec);
  for (const std::string_view key : kOfHost) spec.erase(std::string(key));
  LeaveOutKeys(&spec.at("source"));
  LeaveOutPaths(&spec);
  for (const auto& [key, value] : spec.items()) add(key, value.dump());
  add("data", DataOf(*dataset.source));
  add("records", std::to_string(dataset.source->record_count()));
  add("files of map and select", SideFilesOf(dataset));
  add("begin", BeginOf(options.start));
  add("owed", OwedOf(options.start));
  add("weights", TextOf(weights));
}

nlohmann::json Agreement::Parts() const {
  nlohmann::json parts = nlohmann::json::array();
  for (const auto& [name, value] : parts_) {
    parts.push_back(
        {name, value.size() > kValueBytesMax ? Digest(value) : value});
  }
  return parts;
}

StatusOr<nlohmann::json> Agreement::Part(const Dataset& dataset,
                                         const std::string& name) const {
  uint64_t first = 0;
  uint64_t count = 0;
  if (ParseFiles(name, &first, &count)) return FilesOf(dataset, first, count);
  for (const auto& [each, value] : parts_) {
    if (each == name) {
      return nlohmann::json{{"text", value.substr(0, kPartBytesMax)}};
    }
  }
  return InvalidArgumentError(
      "fingerprint: there is no part '{}'; wanted one that it names, or 'files "
      "FIRST COUNT'",
      Printable(name));
}

}  // namespace penstock
