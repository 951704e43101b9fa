// The metrics that `penstock metrics` exports: each names a field of the
// broker's status (common/status_fields.h), from which its value, its help and
// its labels come. metrics_dashboard.cc draws them.
//
// Names follow Prometheus: base units, `_total` for what only grows. Labels are
// job, dataset, uid, rank, producer, node and names of kinds: no path, no pid,
// no message, so that the number of series is bounded (kRanksExported).
#ifndef CLIENT_COMMAND_METRICS_H_
#define CLIENT_COMMAND_METRICS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

// Ranks of all jobs together that are exported; penstock_ranks_left_out counts
// the others. The broker bounds jobs and producers.
inline constexpr size_t kRanksExported = 1024;

// What becomes of the field.
enum class MetricKind : uint8_t {
  kValue,   // its number; of a list, how many it has; of a text, 1 or 0: empty
  kInfo,    // 1, with its text as the label of its name
  kFields,  // one series for each field of the object, `key` is their label
  kCount,   // how many of the object there are
};

struct Metric {
  std::string_view name;
  std::string_view object;  // of StatusObjects()
  std::string_view key;
  MetricKind kind = MetricKind::kValue;
  std::string_view help = "";  // "": that of the field

  bool counter() const { return name.ends_with("_total"); }
};

std::span<const Metric> Metrics();
// One line, for people.
std::string HelpOf(const Metric& metric);

// Prometheus' text format, version 0.0.4. status: the broker's answer; null: it
// does not answer, and only penstock_up is there.
std::string MetricsText(const nlohmann::json& status);

// A Grafana dashboard of these metrics, as JSON to import.
std::string DashboardText();

}  // namespace penstock
#endif  // CLIENT_COMMAND_METRICS_H_
