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
  std::string expression;
  std::string_view legend;
};

// unit: Grafana's name of it. stacked: parts of a whole.
struct Panel {
  std::string_view title;
  std::string_view unit;
  std::vector<Series> series;
  bool stacked = false;
};

// The series of a metric, of the hosts and jobs that are chosen above.
std::string OfHost(const std::string& metric) {
  return metric + R"({instance=~"$instance"})";
}
std::string OfJob(const std::string& metric) {
  return metric + R"({instance=~"$instance",job_name=~"$jobs"})";
}
// Rates are of the interval that Grafana chooses. series: of OfHost or OfJob.
std::string Rate(const std::string& series) {
  return "rate(" + series + "[$__rate_interval])";
}
std::string Increase(const std::string& series) {
  return "increase(" + series + "[$__rate_interval])";
}
std::string SumBy(const std::string& labels, const std::string& of) {
  return "sum by (" + labels + ") (" + of + ")";
}
std::string JobRate(const std::string& metric) {
  return SumBy("job_name", Rate(OfJob(metric)));
}
// The part that one metric has of it and another, both of jobs.
std::string Share(const std::string& metric, const std::string& other) {
  return JobRate(metric) + " / (" + JobRate(metric) + " + " + JobRate(other) +
         ")";
}

const std::vector<Panel>& Panels() {
  static const std::vector<Panel> panels = {
      {"Rows made",
       "rowsps",
       {{JobRate("penstock_job_rows_total"), "{{job_name}}"}}},
      {"Time in which ranks wait for batches",
       "percentunit",
       {{Rate(OfJob("penstock_rank_wait_seconds_total")),
         "{{job_name}} rank {{rank}}"}}},
      {"What limits the jobs",
       "short",
       {{SumBy("job_name, what", OfJob("penstock_job_bottleneck_info")),
         "{{job_name}}: {{what}}"}},
       true},
      {"What a batch takes each rank",
       "s",
       {{OfJob("penstock_rank_batch_seconds"), "{{job_name}} rank {{rank}}"}}},
      {"Batches behind the furthest rank",
       "short",
       {{OfJob("penstock_rank_lag_batches"), "{{job_name}} rank {{rank}}"}}},
      {"Batches in the rings",
       "short",
       {{OfJob("penstock_rank_batches_ready"), "{{job_name}} rank {{rank}}"}}},
      {"What workers do",
       "short",
       {{JobRate("penstock_job_decode_seconds_total"),
         "{{job_name}}: make rows"},
        {JobRate("penstock_job_read_wait_seconds_total"),
         "{{job_name}}: wait for reads"},
        {"sum(" + OfHost("penstock_workers") + ")", "all workers"}}},
      {"Slots",
       "short",
       {{SumBy("state", OfJob("penstock_job_slots")), "{{state}}"}},
       true},
      {"Bytes read",
       "Bps",
       {{JobRate("penstock_job_read_bytes_total"), "{{job_name}}"}}},
      {"Reads from the page cache, and late reads",
       "short",
       {{JobRate("penstock_job_reads_cached_total") + " / " +
             JobRate("penstock_job_reads_total"),
         "{{job_name}}: cached share"},
        {"sum(" + OfHost("penstock_late_reads") + ")", "late reads"},
        {Share("penstock_job_cache_hits_total",
               "penstock_job_cache_misses_total"),
         "{{job_name}}: share of rows kept before"}}},
      {"Bytes fetched from object stores",
       "Bps",
       {{SumBy("instance", Rate(OfHost("penstock_store_bytes_total"))),
         "{{instance}}: fetched"},
        {JobRate("penstock_job_remote_bytes_total"), "{{job_name}}: needed"},
        {JobRate("penstock_job_remote_fetched_bytes_total"),
         "{{job_name}}: fetched"}}},
      {"Rows of object stores that are there ahead",
       "s",
       {{OfJob("penstock_job_ahead_seconds"), "{{job_name}}"}}},
      {"Requests to object stores",
       "short",
       {{SumBy("instance", Rate(OfHost("penstock_store_requests_total"))),
         "{{instance}}: a second"},
        {SumBy("instance", Rate(OfHost("penstock_store_retries_total"))),
         "{{instance}}: retries"},
        {SumBy("instance", OfHost("penstock_store_requests_in_flight")),
         "{{instance}}: in flight"}}},
      {"Workers that wait for object stores",
       "short",
       {{JobRate("penstock_job_remote_wait_seconds_total"), "{{job_name}}"}}},
      {"Memory",
       "bytes",
       {{SumBy("instance", OfHost("penstock_memory_promised_bytes")),
         "promised"},
        {SumBy("instance", OfJob("penstock_job_memory_used_bytes")),
         "batches, used"},
        {SumBy("instance", OfHost("penstock_memory_resident_bytes")),
         "resident"},
        {SumBy("instance", OfHost("penstock_memory_limit_bytes")), "limit"}}},
      {"Rows made on another NUMA node",
       "percentunit",
       {{Share("penstock_job_rows_numa_remote_total",
               "penstock_job_rows_numa_local_total"),
         "{{job_name}}"}}},
      {"Samples left out or replaced",
       "short",
       {{SumBy("job_name, kind",
               Increase(OfJob("penstock_job_rows_failed_total"))),
         "{{job_name}}: {{kind}}"}}},
      {"Batches redelivered, ranks missing",
       "short",
       {{SumBy("job_name",
               Increase(OfJob("penstock_job_batches_redelivered_total"))),
         "{{job_name}}: redelivered"},
        {SumBy("job_name", OfJob("penstock_job_ranks_missing")),
         "{{job_name}}: missing"}}},
      {"Epoch",
       "short",
       {{"max by (job_name) (" + OfJob("penstock_job_epoch") + ")",
         "{{job_name}}"}}},
      {"The broker",
       "short",
       {{SumBy("instance", OfHost("penstock_up")), "{{instance}}: answers"},
        {SumBy("instance", Rate(OfHost("penstock_cpu_seconds_total"))),
         "{{instance}}: processors used"}}},
  };
  return panels;
}

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
