#include "client/command/top.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "client/private_broker/table.h"
#include "common/format.h"
#include "common/printable.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

// The first of the columns that the text has, each one column wide.
std::string Clipped(const std::string& text, size_t columns) {
  size_t bytes = 0;
  for (size_t seen = 0; bytes < text.size(); ++bytes) {
    if ((text[bytes] & 0xC0) != 0x80 && seen++ == columns) break;
  }
  return text.substr(0, bytes);
}

// Lines of at most so many columns, broken at spaces.
std::vector<std::string> Wrapped(const std::string& text, size_t columns,
                                 const std::string& indent) {
  std::vector<std::string> lines;
  std::string line = indent;
  for (const std::string& word : SplitText(text, ' ')) {
    if (line != indent && Columns(line) + 1 + Columns(word) > columns) {
      lines.push_back(std::exchange(line, indent));
    }
    line += (line == indent ? "" : " ") + word;
  }
  if (line != indent) lines.push_back(line);
  return lines;
}

std::string Percent(double share) {
  return Format("{} %", std::lround(100 * std::clamp(share, 0.0, 1.0)));
}

std::string Rate(double per_second) {
  return per_second < 10 && per_second > 0
             ? Format("{:.1f}", per_second)
             : FormatCount(static_cast<uint64_t>(std::max(0.0, per_second)));
}

// The element of `list` with these fields of `now`, as it was; null: it is new.
// at: its place now, which is mostly that of before.
const Json& Before(const Json& list, const Json& now, size_t at,
                   std::initializer_list<const char*> keys) {
  const auto is = [&](const Json& each) {
    return std::all_of(keys.begin(), keys.end(), [&](const char* key) {
      return FieldOf(each, key) == FieldOf(now, key);
    });
  };
  if (at < list.size() && is(list[at])) return list[at];
  const auto found = std::find_if(list.begin(), list.end(), is);
  return found == list.end() ? FieldOf(Json(), "") : *found;
}
const Json& JobBefore(const TopSample& before, const Json& job, size_t at) {
  return Before(ArrayField(before.status, "jobs"), job, at,
                {"job", "dataset", "uid", "consumer", "incarnation"});
}

// What the counter grew by in a second; nullopt: not known.
class Growth {
 public:
  Growth(const TopSample& before, const TopSample& now)
      : seconds_(now.at_s - before.at_s) {}
  std::optional<double> Of(const Json& before, const Json& now,
                           const char* key) const {
    const std::optional<double> from = NumberField(before, key);
    const std::optional<double> to = NumberField(now, key);
    if (!from || !to || seconds_ <= 0) return std::nullopt;
    return std::max(0.0, *to - *from) / seconds_;
  }

 private:
  const double seconds_;
};

std::string RateCell(const std::optional<double>& rate) {
  return rate ? Rate(*rate) : "-";
}

// "3/90", or "3" where the end is not known.
std::string Of(const Json& job, const char* key, const char* all_key) {
  const std::optional<uint64_t> count = CountField(job, key);
  if (!count) return "-";
  const uint64_t all = CountField(job, all_key).value_or(0);
  return FormatCount(*count) + (all == 0 ? "" : "/" + FormatCount(all));
}

std::string BatchTime(const Json& rank) {
  const std::optional<double> seconds = NumberField(rank, "batch_s");
  if (!seconds) return "-";
  return *seconds < 1 ? Format("{:.1f} ms", 1000 * *seconds)
                      : FormatSeconds(*seconds);
}

// Sums over all jobs.
double SumOf(const TopSample& before, const TopSample& now, const char* key) {
  const Growth growth(before, now);
  double sum = 0;
  size_t at = 0;
  for (const Json& job : ArrayField(now.status, "jobs")) {
    sum += growth.Of(JobBefore(before, job, at++), job, key).value_or(0);
  }
  return sum;
}

std::vector<std::string> Header(const TopSample& before, const TopSample& now,
                                const TopSettings& settings) {
  const Json& broker = FieldOf(now.status, "broker");
  const uint64_t workers = CountField(broker, "workers").value_or(0);
  const double reads = SumOf(before, now, "reads");
  const double hits = SumOf(before, now, "cache_hits");
  const size_t late = ArrayField(now.status, "late_reads").size();
  const uint64_t limit = CountField(broker, "memory_limit_bytes").value_or(0);
  const Json& stores = FieldOf(now.status, "stores");
  std::string text =
      Format("penstockd {} (pid {}), up {}", TextField(broker, "version", "?"),
             CountField(broker, "pid").value_or(0),
             FormatSeconds(NumberField(broker, "uptime_s").value_or(-1)));
  if (settings.paused) text += ", PAUSED";
  const size_t used = Columns(text) + Columns(settings.clock);
  text +=
      std::string(settings.columns > used ? settings.columns - used : 1, ' ') +
      settings.clock;
  std::vector<std::string> lines = {
      Printable(text),
      Format("workers  {}: {:.1f} make rows, {:.1f} wait for reads; {:.1f} "
             "processors used",
             workers, SumOf(before, now, "decode_s"),
             SumOf(before, now, "read_wait_s"),
             Growth(before, now)
                 .Of(FieldOf(before.status, "broker"), broker, "cpu_s")
                 .value_or(0)),
      Format(
          "disk     {}/s, {} reads/s, {} from the page cache{}{}",
          FormatBytes(static_cast<uint64_t>(SumOf(before, now, "bytes_read"))),
          Rate(reads),
          reads > 0 ? Percent(SumOf(before, now, "reads_cached") / reads) : "-",
          hits > 0 ? Format("; {} rows/s kept before", Rate(hits)) : "",
          late == 0 ? "" : Format("; {} LATE", late)),
      Format("memory   {} promised{}, {} resident",
             FormatBytes(CountField(broker, "memory_bytes").value_or(0)),
             limit == 0 ? "" : Format(" of {}", FormatBytes(limit)),
             FormatBytes(CountField(broker, "resident_bytes").value_or(0))),
  };
  if (stores.is_object()) {
    const auto of = [&](const char* key) {
      return Growth(before, now)
          .Of(FieldOf(before.status, "stores"), stores, key)
          .value_or(0);
    };
    const auto count = [&](const char* key) {
      return FormatCount(CountField(stores, key).value_or(0));
    };
    lines.push_back(Format(
        "network  {}/s fetched, {} requests/s, {} in flight, {} queued; {} "
        "retries/s; copies {} of {}",
        FormatBytes(static_cast<uint64_t>(of("bytes"))), Rate(of("requests")),
        count("in_flight"), count("queued"), Rate(of("retries")),
        FormatBytes(CountField(stores, "copies_bytes").value_or(0)),
        FormatBytes(CountField(stores, "copies_room_bytes").value_or(0))));
  }
  return lines;
}

// "24 MiB/s needed of object stores, 52 % in copies (48 % of all), 3.2 s ahead"
std::string RemoteText(const Json& before, const Json& now,
                       const Growth& growth) {
  if (!now.is_object()) return "";
  const auto share = [&now](const char* key) {
    const std::optional<double> value = NumberField(now, key);
    return value ? Percent(*value) : "-";
  };
  const std::optional<double> ahead_s = NumberField(now, "ahead_s");
  return Format(
      "{}/s needed of object stores, {} of it in copies ({} since the job "
      "began), {} rows{} ahead",
      FormatBytes(
          static_cast<uint64_t>(growth.Of(before, now, "bytes").value_or(0))),
      share("hit_rate"), share("hit_rate_all"),
      FormatCount(CountField(now, "rows_ahead").value_or(0)),
      ahead_s ? " (" + FormatSeconds(*ahead_s) + ")" : "");
}

std::string RemoteRowsText(const Json& before, const Json& now,
                           const Growth& growth) {
  if (!now.is_object()) return "";
  const std::optional<double> answer_s = NumberField(now, "answer_s");
  return Format(
      "{} rows/s of other hosts; {} made and {} used since the job began; an "
      "answer takes {}",
      RateCell(growth.Of(before, now, "rows_used")),
      FormatCount(CountField(now, "rows_made").value_or(0)),
      FormatCount(CountField(now, "rows_used").value_or(0)),
      answer_s ? Format("{:.0f} ms", 1000 * *answer_s) : "-");
}

std::vector<std::string> Makers(const TopSample& before, const TopSample& now) {
  const Growth growth(before, now);
  Table makers({"MAKER", "STATE", ">ROWS/S", ">ROWS", ">A SECOND", "ERROR"});
  size_t at = 0;
  for (const Json& maker : ArrayField(now.status, "makers")) {
    const Json& maker_before =
        Before(ArrayField(before.status, "makers"), maker, at++, {"maker"});
    makers.AddRow({TextField(maker, "maker", "-"),
                   TextField(maker, "state", "-"),
                   RateCell(growth.Of(maker_before, maker, "rows")),
                   FormatCount(CountField(maker, "rows").value_or(0)),
                   FormatBytes(CountField(maker, "bytes_per_s").value_or(0)),
                   TextField(maker, "error")});
  }
  if (makers.empty()) return {};
  std::vector<std::string> lines = SplitText(makers.ToString(), '\n');
  lines.insert(lines.begin(), "");
  return lines;
}

std::vector<std::string> Jobs(const TopSample& before, const TopSample& now,
                              const TopSettings& settings) {
  const Growth growth(before, now);
  Table jobs({"JOB", "DATASET", ">UID", ">RANKS", ">SAMPLES/S", ">EPOCH",
              ">STEP", "STATE"});
  std::vector<std::vector<std::string>> below;
  for (const Json& job : ArrayField(now.status, "jobs")) {
    const Json& job_before = JobBefore(before, job, below.size());
    const std::optional<uint64_t> uid = CountField(job, "uid");
    jobs.AddRow({TextField(job, "job", "-"), TextField(job, "dataset", "-"),
                 uid ? std::to_string(*uid) : "-",
                 FormatCount(CountField(job, "world_size").value_or(0)),
                 RateCell(growth.Of(job_before, job, "rows")),
                 Of(job, "epoch", "epochs"), Of(job, "step", "steps_per_epoch"),
                 TextField(job, "state", "-")});
    std::vector<std::string>& more = below.emplace_back();
    for (const std::string& text :
         {TextField(FieldOf(job, "bottleneck"), "text"),
          RemoteText(FieldOf(job_before, "remote"), FieldOf(job, "remote"),
                     growth),
          RemoteRowsText(FieldOf(job_before, "remote_rows"),
                         FieldOf(job, "remote_rows"), growth),
          TextField(job, "last_error")}) {
      const std::vector<std::string> lines =
          Wrapped(Printable(text), settings.columns, "  ");
      more.insert(more.end(), lines.begin(), lines.end());
    }
    if (!settings.ranks) continue;
    Table ranks({">  RANK", ">PID", ">BATCHES/S", ">A BATCH", ">WAITS",
                 ">READY", ">HELD", ">LAG", "STATE"});
    size_t at = 0;
    for (const Json& rank : ArrayField(job, "ranks")) {
      const Json& rank_before = Before(ArrayField(job_before, "ranks"), rank,
                                       at++, {"rank", "replica"});
      const std::optional<double> waits =
          growth.Of(rank_before, rank, "wait_s");
      const auto count = [&rank](const char* key) {
        const std::optional<uint64_t> number = CountField(rank, key);
        return number ? FormatCount(*number) : "-";
      };
      const std::optional<uint64_t> pid = CountField(rank, "pid");
      const std::optional<uint64_t> replica = CountField(rank, "replica");
      ranks.AddRow({count("rank") + (replica ? Format(".{}", *replica) : ""),
                    pid ? std::to_string(*pid) : "-",
                    RateCell(growth.Of(rank_before, rank, "taken")),
                    BatchTime(rank), waits ? Percent(*waits) : "-",
                    count("ready"), count("held"), count("lag"),
                    TextField(rank, "state", "-")});
    }
    if (ranks.empty()) continue;
    const std::vector<std::string> lines = SplitText(ranks.ToString(), '\n');
    more.insert(more.end(), lines.begin(), lines.end());
    more.emplace_back();
  }
  if (jobs.empty()) return {"no jobs"};
  const std::vector<std::string> rows = SplitText(jobs.ToString(), '\n');
  std::vector<std::string> lines = {rows[0]};
  for (size_t i = 0; i < below.size(); ++i) {
    lines.push_back(rows[i + 1]);
    lines.insert(lines.end(), below[i].begin(), below[i].end());
  }
  return lines;
}

}  // namespace

std::vector<std::string> TopScreen(const TopSample& before,
                                   const TopSample& now,
                                   TopSettings* settings) {
  std::vector<std::string> lines = Header(before, now, *settings);
  if (!settings->trouble.empty()) {
    lines[1] = "no answer: " + Printable(settings->trouble);
  }
  lines.emplace_back();
  std::vector<std::string> jobs = Jobs(before, now, *settings);
  const std::vector<std::string> makers = Makers(before, now);
  jobs.insert(jobs.end(), makers.begin(), makers.end());
  const size_t fixed = lines.size() + 1;  // with the keys
  const size_t room = settings->rows > fixed ? settings->rows - fixed : 0;
  settings->first =
      std::min(settings->first, jobs.size() > room ? jobs.size() - room : 0);
  for (size_t i = 0; i < room; ++i) {
    const size_t at = settings->first + i;
    lines.push_back(at < jobs.size() ? jobs[at] : "");
  }
  const size_t below = jobs.size() > settings->first + room
                           ? jobs.size() - settings->first - room
                           : 0;
  // The keys are seen in any size but one of a single line.
  lines.resize(std::max<size_t>(settings->rows, 1));
  const std::string more = below == 0 ? "" : Format("  {} more lines", below);
  if (settings->rows > 1) {
    lines.back() =
        Format("q quit  j/k scroll  space pause  r ranks  +/- every {:.1f} s{}",
               settings->interval_s, more);
  }
  for (std::string& line : lines) line = Clipped(line, settings->columns);
  return lines;
}

std::vector<std::string> TopLines(const TopSample& before, const TopSample& now,
                                  const std::string& clock) {
  const Growth growth(before, now);
  std::vector<std::string> lines;
  for (const Json& job : ArrayField(now.status, "jobs")) {
    lines.push_back(Printable(Format(
        "{} {}: {} samples/s, epoch {}, step {}, {}; {}", clock,
        JobTitle(now.status, job),
        RateCell(growth.Of(JobBefore(before, job, lines.size()), job, "rows")),
        Of(job, "epoch", "epochs"), Of(job, "step", "steps_per_epoch"),
        TextField(job, "state", "-"),
        TextField(FieldOf(job, "bottleneck"), "text"))));
  }
  if (lines.empty()) lines.push_back(clock + " no jobs");
  return lines;
}

}  // namespace penstock
