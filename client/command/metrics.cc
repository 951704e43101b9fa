#include "client/command/metrics.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "client/private_broker/json_field.h"
#include "common/format.h"
#include "common/status_fields.h"

namespace penstock {
namespace {

using Json = nlohmann::json;
using enum MetricKind;

constexpr Metric kMetrics[] = {
    {"penstock_build_info", "broker", "version", kInfo},
    {"penstock_read_backend_info", "broker", "read_backend", kInfo},
    {"penstock_sandbox_info", "broker", "sandbox", kInfo},
    {"penstock_uptime_seconds", "broker", "uptime_s"},
    {"penstock_cpu_seconds_total", "broker", "cpu_s"},
    {"penstock_rows_total", "broker", "rows"},
    {"penstock_workers", "broker", "workers"},
    {"penstock_read_depth", "broker", "read_depth"},
    {"penstock_memory_promised_bytes", "broker", "memory_bytes"},
    {"penstock_memory_limit_bytes", "broker", "memory_limit_bytes"},
    {"penstock_memory_resident_bytes", "broker", "resident_bytes"},
    {"penstock_memory_pinned_bytes", "broker", "pinned_bytes"},
    {"penstock_connections", "broker", "connections"},
    {"penstock_state_directory_trouble", "broker", "journal", kValue,
     "1: something is wrong with the state directory (`penstock status`)"},
    {"penstock_suspect_samples", "broker", "suspect_samples"},
    {"penstock_condemned_samples", "broker", "condemned_samples"},
    {"penstock_node_memory_bytes", "node", "memory_bytes"},
    {"penstock_node_workers", "node", "workers"},
    {"penstock_store_bytes_total", "stores", "bytes"},
    {"penstock_store_requests_total", "stores", "requests"},
    {"penstock_store_requests_in_flight", "stores", "in_flight"},
    {"penstock_store_ranges_queued", "stores", "queued"},
    {"penstock_store_retries_total", "stores", "retries"},
    {"penstock_store_throttled_total", "stores", "throttled"},
    {"penstock_store_hedged_total", "stores", "hedged"},
    {"penstock_store_copies_bytes", "stores", "copies_bytes"},
    {"penstock_store_copies_room_bytes", "stores", "copies_room_bytes"},
    {"penstock_maker_info", "maker", "state", kInfo},
    {"penstock_maker_connections", "maker", "connections"},
    {"penstock_maker_rows_total", "maker", "rows"},
    {"penstock_maker_bytes_total", "maker", "bytes"},
    {"penstock_late_reads", "late read", "", kCount,
     "reads in flight for more than a second"},

    {"penstock_jobs", "job", "", kCount, "jobs of all users"},
    {"penstock_job_info", "job", "delivery", kInfo},
    {"penstock_job_world_size", "job", "world_size"},
    {"penstock_job_ranks_missing", "job", "missing"},
    {"penstock_job_incarnation", "job", "incarnation"},
    {"penstock_job_epoch", "job", "epoch"},
    {"penstock_job_step", "job", "step"},
    {"penstock_job_position_rows", "job", "position"},
    {"penstock_job_rows_total", "job", "rows"},
    {"penstock_job_rows_skipped_total", "job", "rows_skipped"},
    {"penstock_job_rows_substituted_total", "job", "rows_substituted"},
    {"penstock_job_rows_failed_total", "rows failed", "kind", kFields,
     "why rows were left out or replaced"},
    {"penstock_job_batches_redelivered_total", "job", "batches_redelivered"},
    {"penstock_job_reads_total", "job", "reads"},
    {"penstock_job_reads_cached_total", "job", "reads_cached"},
    {"penstock_job_read_bytes_total", "job", "bytes_read"},
    {"penstock_job_cache_hits_total", "job", "cache_hits"},
    {"penstock_job_cache_misses_total", "job", "cache_misses"},
    {"penstock_job_cache_entries", "job", "cache_entries"},
    {"penstock_job_cache_bytes", "job", "cache_bytes"},
    {"penstock_job_read_wait_seconds_total", "job", "read_wait_s"},
    {"penstock_job_decode_seconds_total", "job", "decode_s"},
    {"penstock_job_memory_promised_bytes", "job", "memory_bytes"},
    {"penstock_job_memory_used_bytes", "job", "memory_used_bytes"},
    {"penstock_job_rows_numa_local_total", "job", "rows_local"},
    {"penstock_job_rows_numa_remote_total", "job", "rows_remote"},
    {"penstock_job_pages_elsewhere", "job", "pages_elsewhere"},
    {"penstock_job_remote_bytes_total", "remote", "bytes"},
    {"penstock_job_remote_fetched_bytes_total", "remote", "fetched_bytes"},
    {"penstock_job_remote_wait_seconds_total", "remote", "wait_s"},
    {"penstock_job_rows_ahead", "remote", "rows_ahead"},
    {"penstock_job_ahead_seconds", "remote", "ahead_s"},
    {"penstock_job_remote_rows_wanted", "remote rows", "rows_wanted"},
    {"penstock_job_remote_rows_asked_total", "remote rows", "rows_asked"},
    {"penstock_job_remote_rows_used_total", "remote rows", "rows_used"},
    {"penstock_job_remote_rows_late_total", "remote rows", "rows_late"},
    {"penstock_job_remote_rows_lost_total", "remote rows", "rows_lost"},
    {"penstock_job_remote_rows_damaged_total", "remote rows", "rows_damaged"},
    {"penstock_job_remote_answer_seconds", "remote rows", "answer_s"},
    {"penstock_job_slots", "slots", "state", kFields, "its slots by state"},
    {"penstock_job_bottleneck_info", "bottleneck", "what", kInfo,
     "what limits it"},
    {"penstock_job_producers", "job", "producers_at_work"},
    {"penstock_job_rows_put_total", "job", "rows_put"},
    {"penstock_job_rows_kept", "job", "rows_kept"},
    {"penstock_job_retained_rows", "job", "retained_rows"},

    {"penstock_part_weight", "part", "weight"},
    {"penstock_part_share", "part", "share"},
    {"penstock_part_rows_total", "part", "rows"},
    {"penstock_part_epochs_total", "part", "epochs"},
    {"penstock_part_tokens_total", "part", "tokens"},

    {"penstock_rank_batches_ready", "rank", "ready"},
    {"penstock_rank_batches_held", "rank", "held"},
    {"penstock_rank_batches_taken_total", "rank", "taken"},
    {"penstock_rank_batches_missed_total", "rank", "skipped"},
    {"penstock_rank_waits_total", "rank", "waits"},
    {"penstock_rank_wait_seconds_total", "rank", "wait_s"},
    {"penstock_rank_batch_seconds", "rank", "batch_s"},
    {"penstock_rank_lag_batches", "rank", "lag"},
    {"penstock_rank_silent_seconds", "rank", "silent_s"},

    {"penstock_producer_rows_put_total", "producer", "rows_put"},
    {"penstock_producer_rows_kept", "producer", "rows_kept"},
    {"penstock_producer_room_rows", "producer", "room_rows"},
    {"penstock_producer_waits_for_room", "producer", "waits_for_room"},
    {"penstock_producer_memory_bytes", "producer", "memory_bytes"},
};

// The exporter's own metrics, whatever the broker answers.
constexpr Metric kUp = {"penstock_up", "", "", kValue,
                        "1: the broker answers, 0: it does not"};
constexpr Metric kLeftOut = {
    "penstock_ranks_left_out", "", "", kValue,
    "ranks without metrics, because there are too many"};

std::string Escaped(std::string_view text, bool quote) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || (quote && c == '"')) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string Label(std::string_view name, std::string_view value) {
  return Format("{}=\"{}\"", name, Escaped(value, true));
}

// Labels are joined with commas, without the braces.
std::string With(const std::string& labels, const std::string& more) {
  return labels.empty() || more.empty() ? labels + more : labels + "," + more;
}

// An object of the answer, and the labels of its series.
struct Labelled {
  std::string_view object;
  const Json* json;
  std::string labels;
};

class Answer {
 public:
  explicit Answer(const Json& status) {
    Add("broker", FieldOf(status, "broker"), "");
    if (const Json& stores = FieldOf(status, "stores"); !stores.empty()) {
      Add("stores", stores, "");
    }
    for (const Json& node : ArrayField(FieldOf(status, "broker"), "nodes")) {
      Add("node", node, NumberLabel("node", node, "node"));
    }
    for (const Json& maker : ArrayField(status, "makers")) {
      Add("maker", maker, Label("maker", TextField(maker, "maker")));
    }
    for (const Json& read : ArrayField(status, "late_reads")) {
      objects_.push_back({"late read", &read, ""});
    }
    // The newer job of a name comes later: the one that ends is left out.
    const Json& jobs = ArrayField(status, "jobs");
    for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) AddJob(*job);
  }

  const std::vector<Labelled>& objects() const { return objects_; }
  size_t ranks_left_out() const { return ranks_left_out_; }

 private:
  static std::string NumberLabel(std::string_view name, const Json& object,
                                 const char* key) {
    const std::optional<uint64_t> number = CountField(object, key);
    return number ? Label(name, std::to_string(*number)) : "";
  }

  // Prometheus refuses an answer that has a series twice.
  bool Add(std::string_view object, const Json& json, std::string labels) {
    if (!json.is_object()) return false;
    if (!seen_.insert({object, labels}).second) return false;
    objects_.push_back({object, &json, std::move(labels)});
    return true;
  }

  void AddJob(const Json& job) {
    std::string labels = Label("job_name", TextField(job, "job"));
    labels = With(labels, Label("dataset", TextField(job, "dataset")));
    labels = With(labels, NumberLabel("uid", job, "uid"));
    labels = With(labels, NumberLabel("consumer", job, "consumer"));
    if (!Add("job", job, labels)) return;
    Add("remote", FieldOf(job, "remote"), labels);
    Add("remote rows", FieldOf(job, "remote_rows"), labels);
    Add("slots", FieldOf(job, "slots"), labels);
    Add("rows failed", FieldOf(job, "rows_failed"), labels);
    Add("bottleneck", FieldOf(job, "bottleneck"), labels);
    for (const Json& rank : ArrayField(job, "ranks")) {
      if (ranks_ == kRanksExported) {
        ++ranks_left_out_;
        continue;
      }
      std::string of_rank = With(labels, NumberLabel("rank", rank, "rank"));
      of_rank = With(of_rank, NumberLabel("replica", rank, "replica"));
      if (Add("rank", rank, std::move(of_rank))) ++ranks_;
    }
    for (const Json& each : ArrayField(job, "parts")) {
      Add("part", each,
          With(With(labels, NumberLabel("part", each, "part")),
               Label("source", TextField(each, "source"))));
    }
    for (const Json& each : ArrayField(job, "producers")) {
      Add("producer", each,
          With(labels, NumberLabel("producer", each, "producer")));
    }
  }

  std::vector<Labelled> objects_;
  std::set<std::pair<std::string_view, std::string>> seen_;
  size_t ranks_ = 0;
  size_t ranks_left_out_ = 0;
};

// The value of a series; nullopt: the field does not apply.
std::optional<std::string> ValueOf(const Json& field) {
  if (field.is_boolean()) return field.get<bool>() ? "1" : "0";
  if (field.is_number_float()) return Format("{}", field.get<double>());
  if (field.is_number_unsigned()) return Format("{}", field.get<uint64_t>());
  if (field.is_number_integer()) return Format("{}", field.get<int64_t>());
  if (field.is_array()) return Format("{}", field.size());
  if (field.is_string()) return field.get<std::string>().empty() ? "0" : "1";
  return std::nullopt;
}

class Writer {
 public:
  explicit Writer(const Metric& metric) : metric_(metric) {}

  void Add(const std::string& labels, const std::string& value) {
    if (text_.empty()) {
      text_ = Format("# HELP {} {}\n# TYPE {} {}\n", metric_.name,
                     Escaped(HelpOf(metric_), false), metric_.name,
                     metric_.counter() ? "counter" : "gauge");
    }
    text_ += labels.empty()
                 ? Format("{} {}\n", metric_.name, value)
                 : Format("{}{{{}}} {}\n", metric_.name, labels, value);
  }
  void Add(const Labelled& object) {
    const std::string key(metric_.key);
    const auto field = [&](std::string_view name) -> const Json& {
      return FieldOf(*object.json, std::string(name).c_str());
    };
    if (metric_.kind == kInfo) {
      const Json& text = field(key);
      if (!text.is_string()) return;
      Add(With(object.labels, Label(key, text.get<std::string>())), "1");
    } else if (metric_.kind == kFields) {
      for (const AnswerField& each : StatusObjectOf(object.object).fields) {
        const std::optional<std::string> value = ValueOf(field(each.key));
        if (!value) continue;
        Add(With(object.labels, Label(key, each.key)), *value);
      }
    } else if (const std::optional<std::string> value = ValueOf(field(key))) {
      Add(object.labels, *value);
    }
  }
  const std::string& text() const { return text_; }

 private:
  const Metric& metric_;
  std::string text_;
};

}  // namespace

std::span<const Metric> Metrics() { return kMetrics; }

std::string HelpOf(const Metric& metric) {
  std::string_view text = metric.help;
  if (text.empty()) {
    for (const AnswerField& field : StatusObjectOf(metric.object).fields) {
      if (field.key == metric.key) text = field.text;
    }
  }
  const std::string_view object = metric.object;
  if (object.empty() || object == "broker" || object == "stores" ||
      metric.kind == kCount) {
    return Format("penstockd: {}", text);
  }
  const bool own = object == "rank" || object == "part" ||
                   object == "producer" || object == "node" ||
                   object == "maker";
  return Format("{}: {}", own ? object : "job", text);
}

std::string MetricsText(const Json& status) {
  const auto one = [](const Metric& metric, size_t value) {
    Writer writer(metric);
    writer.Add("", std::to_string(value));
    return writer.text();
  };
  if (!status.is_object()) return one(kUp, 0);
  std::string text = one(kUp, 1);
  const Answer answer(status);
  for (const Metric& metric : kMetrics) {
    const auto is_of = [&](const Labelled& each) {
      return each.object == metric.object;
    };
    if (metric.kind == kCount) {
      text += one(metric, std::count_if(answer.objects().begin(),
                                        answer.objects().end(), is_of));
      continue;
    }
    Writer writer(metric);
    for (const Labelled& each : answer.objects()) {
      if (is_of(each)) writer.Add(each);
    }
    text += writer.text();
  }
  return text + one(kLeftOut, answer.ranks_left_out());
}

}  // namespace penstock
