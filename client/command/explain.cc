#include "client/command/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "client/private_broker/json_field.h"
#include "client/private_broker/table.h"
#include "common/format.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Parts that take less of a worker's time are added up.
constexpr double kShown = 0.01;
// Stages that differ by less are equally narrow.
constexpr double kEqual = 1.05;
// The bar of a stage that is wider by more has an arrow at its end.
constexpr double kBarTimes = 8;
constexpr int kBarColumnsMin = 8;
constexpr int kBarColumnsMax = 40;

constexpr uint32_t kMoreProcessors = 2;

std::string NameOf(const PartTime& part) {
  if (part.part == "step") return part.name;
  if (part.part == "hand_over") return "to Python and back";
  return part.part;
}

// "0.71 ms", "3.40 µs".
std::string TimeText(double seconds) {
  return seconds >= 1      ? Format("{:.2f} s", seconds)
         : seconds >= 1e-3 ? Format("{:.2f} ms", seconds * 1e3)
         : seconds >= 1e-6 ? Format("{:.2f} µs", seconds * 1e6)
                           : Format("{:.0f} ns", seconds * 1e9);
}

std::string RateText(double per_s) {
  return per_s < 100 ? Format("{:.3g}", per_s)
                     : FormatCount(static_cast<uint64_t>(std::llround(per_s)));
}

std::string TimesText(double times) {
  return times < 10 ? Format("{:.2f} x", times) : Format("{:.0f} x", times);
}

long Percent(double share) { return std::lround(100 * share); }

std::string WorkersText(const Measurements& measured) {
  return Counted(measured.workers, measured.processes ? "process" : "worker",
                 measured.processes ? "processes" : "workers");
}

// What more processors add, by what those here have added: no more than their
// own part of it.
double MadeWith(const Measurements& measured, uint32_t more) {
  const double part = measured.made_per_s / std::max(1u, measured.workers);
  const double added =
      measured.workers > 1 && measured.one_per_s > 0
          ? (measured.made_per_s - measured.one_per_s) / (measured.workers - 1)
          : part;
  return measured.made_per_s + more * std::clamp(added, 0.0, part);
}

// What reads, if nothing is kept.
const char* ColdName(const Measurements& measured) {
  return measured.remote ? "the network" : "storage";
}

// ", then storage limits".
std::string ThenText(const Gain& gain) {
  return gain.limit == nullptr ? ""
                               : Format(", then {} limits", gain.limit->name);
}

Advice AdviceToMake(const Measurements& measured,
                    const std::vector<Stage>& stages, size_t narrowest) {
  Advice advice;
  const PartTime* const largest = LargestOf(measured.parts);
  const double sum = SumOf(measured.parts);
  if (largest == nullptr || sum <= 0) {
    advice.limit = "make";
    advice.text = "Making rows is the bottleneck.";
    return advice;
  }
  const double share = largest->sample_s / sum;
  advice.limit =
      largest->part == "step" ? "step " + largest->name : largest->part;
  const Gain without = GainOf(
      stages, narrowest,
      share < 1 ? 1 / (1 - share) : std::numeric_limits<double>::infinity());
  const Gain half = GainOf(stages, narrowest, 1 / (1 - share / 2));
  const Gain more = GainOf(stages, narrowest,
                           MadeWith(measured, kMoreProcessors) /
                               std::max(measured.made_per_s, 1e-9));
  advice.text = Format("Making rows is the bottleneck; {} takes {} % of it.",
                       NameOf(*largest), Percent(share));
  // Where the next stage ends the gain of the half, the whole gains no more.
  advice.text +=
      half.limit != nullptr
          ? Format(" Halving that, or removing it, gives {}{}.",
                   TimesText(half.times), ThenText(half))
          : Format(" Halving that gives {}; removing it gives {}{}.",
                   TimesText(half.times),
                   std::isfinite(without.times) ? TimesText(without.times)
                                                : "any rate",
                   ThenText(without));
  advice.gain = std::max(half.times, more.times);
  advice.text += Format(" {} more processors give {}{}.", kMoreProcessors,
                        TimesText(more.times), ThenText(more));
  if (const auto& smaller = measured.smaller) {
    const Gain gain =
        GainOf(stages, narrowest,
               smaller->made_per_s / std::max(measured.made_per_s, 1e-9));
    if (gain.times >= kEqual) {
      advice.text += Format(" map[{}] at a size of {} gives {}{} (measured).",
                            smaller->step, smaller->size, TimesText(gain.times),
                            ThenText(gain));
      advice.gain = std::max(advice.gain, gain.times);
    }
  }
  return advice;
}

Advice AdviceToStorage(const Measurements& measured,
                       const std::vector<Stage>& stages, size_t narrowest) {
  Advice advice;
  const std::string name = measured.remote ? "The network" : "Storage";
  advice.limit = measured.remote ? "network" : "storage";
  advice.text = name + " is the bottleneck";
  if (const auto& cold = measured.cold) {
    advice.text += Format(
        ": {}/s, {} a read",
        FormatBytes(static_cast<uint64_t>(cold->per_s * cold->sample_bytes)),
        TimeText(cold->read_s));
  }
  advice.text += ".";
  const Gain twice = GainOf(stages, narrowest, 2);
  advice.gain = twice.times;
  advice.text += Format(" {} twice as fast gives {}{}.", name,
                        TimesText(twice.times), ThenText(twice));
  if (measured.cold && measured.cached) {
    const Gain cached = GainOf(stages, narrowest,
                               measured.cached->per_s / measured.cold->per_s);
    advice.gain = std::max(advice.gain, cached.times);
    advice.text += Format(" From {} it is {}{}",
                          measured.remote ? "local copies" : "the page cache",
                          TimesText(cached.times), ThenText(cached));
    if (!measured.remote && measured.data_bytes > 0 &&
        measured.memory_bytes > 0) {
      advice.text += Format(
          ": all records have about {}, {} of memory are available, {}",
          FormatBytes(measured.data_bytes), FormatBytes(measured.memory_bytes),
          measured.data_bytes < measured.memory_bytes
              ? "so every epoch but the first is"
              : "so they do not fit");
    }
    advice.text += ".";
  }
  return advice;
}

struct Row {
  std::string name;
  std::string sample;
  std::string share;
  double per_s = 0;  // 0: none
  bool narrowest = false;
};

std::string BarOf(double per_s, double narrowest, int columns) {
  static constexpr const char* kEighths[] = {"",  "▏", "▎", "▍",
                                             "▌", "▋", "▊", "▉"};
  const double whole = kBarTimes * narrowest;
  const bool beyond = per_s > whole;
  const int eighths =
      std::max(1, static_cast<int>(8 * columns * std::min(per_s / whole, 1.0)));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  return beyond ? bar + "▶" : bar;
}

std::string Padded(const std::string& text, size_t width, bool right) {
  const size_t has = Columns(text);
  const std::string space(width > has ? width - has : 0, ' ');
  return right ? space + text : text + space;
}

OrderedJson ToJson(const std::optional<ReadRate>& rate) {
  if (!rate) return nullptr;
  return {{"samples_per_s", rate->per_s},
          {"bytes_per_sample", rate->sample_bytes},
          {"read_s", rate->read_s}};
}

}  // namespace

double SumOf(const std::vector<PartTime>& parts) {
  double sum = 0;
  for (const PartTime& each : parts) sum += each.sample_s;
  return sum;
}

const PartTime* LargestOf(const std::vector<PartTime>& parts) {
  const auto largest = std::max_element(
      parts.begin(), parts.end(), [](const PartTime& a, const PartTime& b) {
        return a.sample_s < b.sample_s;
      });
  return largest == parts.end() ? nullptr : &*largest;
}

std::vector<Stage> StagesOf(const Measurements& measured) {
  std::vector<Stage> stages;
  if (measured.cold) {
    stages.push_back(
        {Stage::Kind::kStorage, ColdName(measured), measured.cold->per_s});
  }
  // Some file systems keep nothing in the page cache: less is chance.
  constexpr double kFaster = 1.5;
  const bool caches = measured.cached &&
                      (!measured.cold ||
                       measured.cached->per_s > kFaster * measured.cold->per_s);
  if (caches) {
    stages.push_back(
        {Stage::Kind::kCached, "the page cache", measured.cached->per_s});
  }
  if (measured.made_per_s > 0) {
    stages.push_back({Stage::Kind::kMake, "making rows", measured.made_per_s});
  }
  if (measured.take_s > 0) {
    stages.push_back(
        {Stage::Kind::kTake, "a rank's take", 1 / measured.take_s});
  }
  if (measured.ranks_per_s > 0) {
    stages.push_back({Stage::Kind::kRanks, "training", measured.ranks_per_s});
  }
  return stages;
}

size_t NarrowestOf(const std::vector<Stage>& stages) {
  size_t narrowest = 0;
  for (size_t i = 1; i < stages.size(); ++i) {
    if (stages[i].per_s < stages[narrowest].per_s) narrowest = i;
  }
  return narrowest;
}

Gain GainOf(const std::vector<Stage>& stages, size_t narrowest, double times) {
  const double now = stages[narrowest].per_s;
  Gain gain = {times};
  for (size_t i = 0; i < stages.size(); ++i) {
    // What is read cold is not in the page cache then.
    const bool other_reads = stages[narrowest].kind == Stage::Kind::kStorage &&
                             stages[i].kind == Stage::Kind::kCached;
    if (i == narrowest || other_reads) continue;
    if (stages[i].per_s < now * gain.times) {
      gain = {std::max(1.0, stages[i].per_s / now), &stages[i]};
    }
  }
  return gain;
}

Advice AdviceOf(const Measurements& measured) {
  const std::vector<Stage> stages = StagesOf(measured);
  if (stages.empty()) return {"unknown", "Nothing could be measured.", 1};
  const size_t narrowest = NarrowestOf(stages);
  Advice advice;
  switch (stages[narrowest].kind) {
    case Stage::Kind::kMake:
      advice = AdviceToMake(measured, stages, narrowest);
      break;
    case Stage::Kind::kStorage:
    case Stage::Kind::kCached:
      advice = AdviceToStorage(measured, stages, narrowest);
      break;
    case Stage::Kind::kTake:
      advice = {"take",
                Format("A rank's take is the bottleneck: it reads {} a sample. "
                       "More ranks take more; a smaller dtype is less to read.",
                       FormatBytes(static_cast<uint64_t>(measured.row_bytes))),
                1};
      break;
    case Stage::Kind::kRanks: {
      const Gain gain =
          GainOf(stages, narrowest, std::numeric_limits<double>::infinity());
      advice = {"ranks",
                Format("The ranks are the bottleneck: {} gives {} of what they "
                       "take. Nothing in the loader makes training faster.",
                       gain.limit == nullptr ? "the loader" : gain.limit->name,
                       TimesText(gain.times)),
                1};
      break;
    }
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    if (i == narrowest || stages[i].per_s > kEqual * stages[narrowest].per_s) {
      continue;
    }
    advice.text += Format(" About as slow: {}.", stages[i].name);
  }
  return advice;
}

std::string ExplainTable(const Measurements& measured, int columns) {
  std::vector<Row> rows;
  const std::vector<Stage> stages = StagesOf(measured);
  const size_t narrowest = stages.empty() ? 0 : NarrowestOf(stages);
  const auto add = [&](Stage::Kind kind, Row row) {
    for (size_t i = 0; i < stages.size(); ++i) {
      if (stages[i].kind == kind) row.narrowest = i == narrowest;
    }
    rows.push_back(std::move(row));
  };
  if (measured.cold) {
    add(Stage::Kind::kStorage,
        {ColdName(measured), TimeText(1 / measured.cold->per_s), "",
         measured.cold->per_s});
  }
  if (measured.cached) {
    add(Stage::Kind::kCached,
        {measured.cold ? "page cache" : "storage, cached",
         TimeText(1 / measured.cached->per_s), "", measured.cached->per_s});
  }
  const double sum = SumOf(measured.parts);
  if (measured.made_per_s > 0) {
    add(Stage::Kind::kMake, {"making rows, " + WorkersText(measured),
                             TimeText(sum), "100 %", measured.made_per_s});
  }
  double rest = 0;
  const auto add_part = [&](const std::string& name, double sample_s) {
    const double share = sum > 0 ? sample_s / sum : 0;
    rows.push_back({"  " + name, TimeText(sample_s),
                    Format("{} %", Percent(share)),
                    share > 0 ? measured.made_per_s / share : 0});
  };
  for (const PartTime& each : measured.parts) {
    if (each.part == "step" && each.sample_s == 0) {
      rows.push_back({"  " + each.name, "in the pass of another step"});
    } else if (each.part == "step" || each.sample_s >= kShown * sum) {
      add_part(NameOf(each), each.sample_s);
    } else {
      rest += each.sample_s;
    }
  }
  if (rest > 0) {
    add_part("the rest", rest);
    rows.back().per_s = 0;
  }
  if (measured.take_s > 0) {
    add(Stage::Kind::kTake,
        {"a rank's take", TimeText(measured.take_s), "", 1 / measured.take_s});
  }
  if (measured.ranks_per_s > 0) {
    add(Stage::Kind::kRanks,
        {"training, all ranks", "", "", measured.ranks_per_s});
  }
  if (measured.whole_per_s > 0) {
    rows.push_back({"all together, now", "", "", measured.whole_per_s});
  }
  if (measured.one_per_s > 0) {  // not of a running job
    rows.push_back({"the same without storage", "", "", measured.made_per_s});
  }
  size_t name_width = Columns("stage");
  size_t sample_width = Columns("a sample");
  size_t rate_width = Columns("samples/s");
  for (const Row& row : rows) {
    name_width = std::max(name_width, Columns(row.name));
    if (row.per_s > 0) {
      sample_width = std::max(sample_width, Columns(row.sample));
      rate_width = std::max(rate_width, Columns(RateText(row.per_s)));
    }
  }
  constexpr size_t kShareWidth = 5;
  constexpr const char* kMark = " < bottleneck";
  const int bar_columns = std::clamp(
      columns - static_cast<int>(name_width + sample_width + rate_width +
                                 kShareWidth + 9 + Columns(kMark)),
      kBarColumnsMin, kBarColumnsMax);
  std::string text = Padded("stage", name_width, false) + "  " +
                     Padded("a sample", sample_width, true) + "  " +
                     Padded("share", kShareWidth, true) + "  " +
                     Padded("samples/s", rate_width, true) + "\n";
  for (const Row& row : rows) {
    std::string line = Padded(row.name, name_width, false) + "  ";
    if (row.per_s <= 0) {
      text +=
          line +
          (row.share.empty() ? row.sample
                             : Padded(row.sample, sample_width, true) + "  " +
                                   Padded(row.share, kShareWidth, true)) +
          "\n";
      continue;
    }
    line += Padded(row.sample, sample_width, true) + "  " +
            Padded(row.share, kShareWidth, true) + "  " +
            Padded(RateText(row.per_s), rate_width, true);
    line += "  " + BarOf(row.per_s, stages[narrowest].per_s, bar_columns);
    text += line + (row.narrowest ? kMark : "") + "\n";
  }
  return text;
}

OrderedJson ExplainJson(const Measurements& measured) {
  OrderedJson json;
  json["cold"] = ToJson(measured.cold);
  if (!measured.cold_why.empty()) json["cold_why"] = measured.cold_why;
  json["cached"] = ToJson(measured.cached);
  json["workers"] = measured.workers;
  json["one_worker_samples_per_s"] = measured.one_per_s;
  json["repeat_first_samples_per_s"] = measured.made_per_s;
  json["samples_per_s"] = measured.whole_per_s;
  json["take_s"] = measured.take_s;
  json["ranks_samples_per_s"] = measured.ranks_per_s;
  const double sum = SumOf(measured.parts);
  json["parts"] = OrderedJson::array();
  for (const PartTime& each : measured.parts) {
    OrderedJson part = {{"part", each.part}};
    if (each.step) {
      part["step"] = *each.step;
      part["name"] = each.name;
    }
    part["sample_s"] = each.sample_s;
    part["share"] = sum > 0 ? each.sample_s / sum : 0;
    json["parts"].push_back(std::move(part));
  }
  json["stages"] = OrderedJson::array();
  const std::vector<Stage> stages = StagesOf(measured);
  const size_t narrowest = stages.empty() ? 0 : NarrowestOf(stages);
  for (size_t i = 0; i < stages.size(); ++i) {
    json["stages"].push_back({{"stage", stages[i].name},
                              {"samples_per_s", stages[i].per_s},
                              {"narrowest", i == narrowest}});
  }
  if (const auto& smaller = measured.smaller) {
    json["smaller"] = {{"step", smaller->step},
                       {"size", smaller->size},
                       {"repeat_first_samples_per_s", smaller->made_per_s}};
  }
  const Advice advice = AdviceOf(measured);
  json["limit"] = advice.limit;
  json["gain"] = advice.gain;
  json["advice"] = advice.text;
  return json;
}

PartTimes PartsBetween(const nlohmann::json& before,
                       const nlohmann::json& after) {
  PartTimes between;
  const uint64_t rows_before = CountField(before, "rows").value_or(0);
  const uint64_t rows_after = CountField(after, "rows").value_or(0);
  between.rows = rows_after - std::min(rows_after, rows_before);
  if (between.rows == 0) return between;
  const nlohmann::json& first = ArrayField(before, "parts");
  const nlohmann::json& last = ArrayField(after, "parts");
  for (size_t i = 0; i < last.size(); ++i) {
    const double seconds =
        NumberField(last[i], "seconds").value_or(0) -
        (i < first.size() ? NumberField(first[i], "seconds").value_or(0) : 0);
    // Parts may have steps of the same names.
    const std::string path = TextField(last[i], "path");
    const std::string of_part =
        path.starts_with("map_by_part") ? path + "." : "";
    between.parts.push_back(
        {TextField(last[i], "part"), CountField(last[i], "step"),
         of_part + TextField(last[i], "name"),
         std::max(0.0, seconds) / static_cast<double>(between.rows)});
  }
  return between;
}

std::optional<ReadRate> ReadRateOf(const nlohmann::json& read) {
  const double rows = NumberField(read, "rows").value_or(0);
  const double seconds = NumberField(read, "seconds").value_or(0);
  if (rows <= 0 || seconds <= 0) return std::nullopt;
  return ReadRate{rows / seconds, NumberField(read, "bytes").value_or(0) / rows,
                  NumberField(read, "read_s").value_or(0)};
}

}  // namespace penstock
