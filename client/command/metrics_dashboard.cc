// The Grafana dashboard of the metrics. systemd/penstock-dashboard.json is its
// text (metrics_test).
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "client/command/metrics.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kColumns = 24;  // of Grafana's grid
constexpr int kPanelColumns = 12;
constexpr int kPanelRows = 8;

struct Series {
  std::string_view expression;
  std::string_view legend;
};

// unit: Grafana's name of it. stacked: parts of a whole.
struct Panel {
  std::string_view title;
  std::string_view unit;
  std::vector<Series> series;
  bool stacked = false;
};

// Rates are of the interval that Grafana chooses. $jobs: the names chosen
// above, $instance the hosts.
#define OF_JOB "{instance=~\"$instance\",job_name=~\"$jobs\"}"
#define OF_HOST "{instance=~\"$instance\"}"
#define RATE(metric) "rate(" metric OF_JOB "[$__rate_interval])"

const std::vector<Panel>& Panels() {
  static const std::vector<Panel>
      panels =
          {
              {"Rows made",
               "rowsps",
               {{"sum by (job_name) (" RATE("penstock_job_rows_total") ")",
                 "{{job_name}}"}}},
              {"Time in which ranks wait for batches",
               "percentunit",
               {{RATE("penstock_rank_wait_seconds_total"),
                 "{{job_name}} rank {{rank}}"}}},
              {"What limits the jobs",
               "short",
               {{"sum by (job_name, what) (penstock_job_bottleneck_info" OF_JOB
                 ")",
                 "{{job_name}}: {{what}}"}},
               true},
              {"What a batch takes each rank",
               "s",
               {{"penstock_rank_batch_seconds" OF_JOB,
                 "{{job_name}} rank {{rank}}"}}},
              {"Batches behind the furthest rank",
               "short",
               {{"penstock_rank_lag_batches" OF_JOB,
                 "{{job_name}} rank {{rank}}"}}},
              {"Batches in the rings",
               "short",
               {{"penstock_rank_batches_ready" OF_JOB,
                 "{{job_name}} rank {{rank}}"}}},
              {"What workers do",
               "short",
               {{"sum by (job_name) (" RATE(
                     "penstock_job_decode_seconds_total") ")",
                 "{{job_name}}: make rows"},
                {"sum by (job_name) (" RATE(
                     "penstock_job_read_wait_seconds_total") ")",
                 "{{job_name}}: wait for reads"},
                {"sum(penstock_workers" OF_HOST ")", "all workers"}}},
              {"Slots",
               "short",
               {{"sum by (state) (penstock_job_slots" OF_JOB ")", "{{state}}"}},
               true},
              {"Bytes read",
               "Bps",
               {{"sum by (job_name) (" RATE(
                     "penstock_job_read_bytes_total") ")",
                 "{{job_name}}"}}},
              {"Reads from the page cache, and late reads",
               "short",
               {{"sum by (job_name) (" RATE(
                     "penstock_job_reads_cached_total") ") / sum by (job_name) "
                                                        "(" RATE("penstock_job_"
                                                                 "reads_total") ")",
                 "{{job_name}}: cached share"},
                {"sum(penstock_late_reads" OF_HOST ")", "late reads"},
                {"sum by (job_name) (" RATE(
                     "penstock_job_cache_hits_total") ") / (sum by (job_name) "
                                                      "(" RATE("penstock_job_"
                                                               "cache_hits_"
                                                               "total") ") + sum by (job_name) (" RATE("penstock_job_cache_misses_total") "))",
                 "{{job_name}}: share of rows kept before"}}},
              {"Memory",
               "bytes",
               {{"sum by (instance) (penstock_memory_promised_bytes" OF_HOST
                 ")",
                 "promised"},
                {"sum by (instance) (penstock_job_memory_used_bytes" OF_JOB ")",
                 "batches, used"},
                {"sum by (instance) (penstock_memory_resident_bytes" OF_HOST
                 ")",
                 "resident"},
                {"sum by (instance) (penstock_memory_limit_bytes" OF_HOST ")",
                 "limit"}}},
              {"Rows made on another NUMA node",
               "percentunit",
               {{"sum by (job_name) (" RATE("penstock_job_rows_numa_remote_"
                                            "total") ") / (sum by (job_name) "
                                                     "(" RATE("penstock_job_"
                                                              "rows_numa_"
                                                              "remote_total") ") + sum by (job_name) (" RATE(
                                                         "penstock_job_rows_"
                                                         "numa_local_total") ")"
                                                                             ")",
                 "{{job_name}}"}}},
              {"Samples left out or replaced",
               "short",
               {{"sum by (job_name, kind) "
                 "(increase(penstock_job_rows_failed_total" OF_JOB
                 "[$__rate_interval]))",
                 "{{job_name}}: {{kind}}"}}},
              {"Batches redelivered, ranks missing",
               "short",
               {{"sum by (job_name) (increase("
                 "penstock_job_batches_redelivered_total" OF_JOB
                 "[$__rate_interval]))",
                 "{{job_name}}: redelivered"},
                {"sum by (job_name) (penstock_job_ranks_missing" OF_JOB ")",
                 "{{job_name}}: missing"}}},
              {"Epoch",
               "short",
               {{"max by (job_name) (penstock_job_epoch" OF_JOB ")",
                 "{{job_name}}"}}},
              {"The broker",
               "short",
               {{"sum by (instance) (penstock_up" OF_HOST ")",
                 "{{instance}}: answers"},
                {"sum by (instance) (rate(penstock_cpu_seconds_total" OF_HOST
                 "[$__rate_interval]))",
                 "{{instance}}: processors used"}}},
          };
  return panels;
}

#undef OF_JOB
#undef OF_HOST
#undef RATE

// The help of the metrics in an expression, each once.
std::string Description(const Panel& panel) {
  std::string text;
  for (const Metric& metric : Metrics()) {
    const bool named = std::any_of(
        panel.series.begin(), panel.series.end(), [&](const Series& series) {
          const size_t at = series.expression.find(metric.name);
          return at != std::string_view::npos;
        });
    if (named) text += (text.empty() ? "" : "\n\n") + HelpOf(metric);
  }
  return text;
}

OrderedJson Variable(const char* name, const char* label, const char* query) {
  return {{"name", name},
          {"label", label},
          {"type", "query"},
          {"datasource", {{"type", "prometheus"}, {"uid", "${datasource}"}}},
          {"query", {{"query", query}, {"refId", name}}},
          {"includeAll", true},
          {"allValue", ".*"},
          {"multi", true},
          {"refresh", 2},
          {"current", {{"text", "All"}, {"value", "$__all"}}}};
}

}  // namespace

std::span<const std::string_view> DashboardExpressions() {
  static const std::vector<std::string_view> expressions = [] {
    std::vector<std::string_view> all;
    for (const Panel& panel : Panels()) {
      for (const Series& series : panel.series) {
        all.push_back(series.expression);
      }
    }
    return all;
  }();
  return expressions;
}

std::string DashboardText() {
  OrderedJson panels = OrderedJson::array();
  int number = 0;
  for (const Panel& panel : Panels()) {
    OrderedJson targets = OrderedJson::array();
    for (const Series& series : panel.series) {
      targets.push_back(
          {{"refId", std::string(1, static_cast<char>('A' + targets.size()))},
           {"expr", series.expression},
           {"legendFormat", series.legend}});
    }
    const int across = kColumns / kPanelColumns;
    panels.push_back(
        {{"id", number + 1},
         {"title", panel.title},
         {"description", Description(panel)},
         {"type", "timeseries"},
         {"datasource", {{"type", "prometheus"}, {"uid", "${datasource}"}}},
         {"gridPos",
          {{"x", number % across * kPanelColumns},
           {"y", number / across * kPanelRows},
           {"w", kPanelColumns},
           {"h", kPanelRows}}},
         {"fieldConfig",
          {{"defaults",
            {{"unit", panel.unit},
             {"min", 0},
             {"custom",
              {{"fillOpacity", 10},
               {"stacking", {{"mode", panel.stacked ? "normal" : "none"}}}}}}},
           {"overrides", OrderedJson::array()}}},
         {"targets", targets}});
    ++number;
  }
  const OrderedJson dashboard = {
      {"title", "Penstock"},
      {"uid", "penstock"},
      {"tags", {"penstock"}},
      {"schemaVersion", 36},
      {"editable", true},
      {"refresh", "10s"},
      {"time", {{"from", "now-1h"}, {"to", "now"}}},
      {"templating",
       {{"list",
         {{{"name", "datasource"},
           {"label", "Prometheus"},
           {"type", "datasource"},
           {"query", "prometheus"}},
          Variable("instance", "Host", "label_values(penstock_up, instance)"),
          Variable("jobs", "Job",
                   "label_values(penstock_job_world_size, job_name)")}}}},
      {"panels", panels}};
  return dashboard.dump(1) + "\n";
}

}  // namespace penstock
