// penstock analyze: statistics of a dataset's features, which normalize and
// lookup are told with `from`.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/command/all_records.h"
#include "client/command/analyze_spec.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/command/spec_file.h"
#include "client/command/statistics.h"
#include "client/command/statistics_plot.h"
#include "client/command/subcommand.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr char kVersionKey[] = "penstock_statistics";  // a file's first key
constexpr uint64_t kTokensMax = uint64_t{1} << 26;

struct AnalyzeOptions {
  std::string spec;
  std::string out = "stats.json";
  std::string plot;
  uint64_t tokens_max = 1'000'000;
  bool json = false;
  PrivateBrokerOptions broker;
};

uint32_t ProcessorCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

// Takes all rows, once each. In a process of its own.
StatusOr<std::string> Analyzed(const AllRecords& all,
                               const StatisticsOptions& options) {
  std::optional<Statistics> statistics;
  PENSTOCK_ASSIGN_OR_RETURN(
      const OrderedJson broken,
      TakeAllRecords(
          all,
          [&](const ElementSpec& features) {
            statistics.emplace(features, options);
          },
          [&](const penstock_batch* batch) { statistics->Add(batch); }));
  const OrderedJson result = {{"rows", statistics->rows()},
                              {"broken", broken},
                              {"features", statistics->ToJson()}};
  return result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// 3 significant digits are enough for a table.
std::string Shown(const OrderedJson& of, const char* key) {
  const auto overall = of.find("overall");
  if (overall == of.end()) return "";
  return Format("{:.4g}", (*overall)[key].get<double>());
}

// A count that is there or not.
std::string ShownCount(const OrderedJson& of, const char* key) {
  return of.contains(key) ? FormatCount(of[key].get<uint64_t>()) : "";
}

bool AnyHas(const OrderedJson& features, const char* key) {
  return std::any_of(features.begin(), features.end(),
                     [key](const OrderedJson& of) { return of.contains(key); });
}

void PrintTable(const OrderedJson& statistics) {
  constexpr size_t kColumns = 16;  // of 64 bins, 4 each
  const OrderedJson& features = statistics["features"];
  std::vector<std::string> heads = {"feature", "dtype", ">mean",
                                    ">std",    ">min",  ">max"};
  std::vector<std::pair<const char*, const char*>> counts;
  if (AnyHas(features, "nan")) counts.emplace_back("nan", ">NaN");
  if (AnyHas(features, "infinite"))
    counts.emplace_back("infinite", ">infinite");
  counts.emplace_back("distinct", ">distinct");
  for (const auto& [key, head] : counts) heads.push_back(head);
  heads.push_back("histogram");
  Table table(std::move(heads));
  for (const auto& [name, of] : features.items()) {
    std::string dtype = of["dtype"].get<std::string>();
    dtype += " " + of["shape"].dump();
    std::vector<std::string> row = {name,
                                    dtype,
                                    Shown(of, "mean"),
                                    Shown(of, "std"),
                                    Shown(of, "min"),
                                    Shown(of, "max")};
    for (const auto& [key, head] : counts) row.push_back(ShownCount(of, key));
    row.push_back(SmallHistogram(CountsToPlot(of), kColumns));
    table.AddRow(std::move(row));
  }
  Print(stdout, "{}", table.ToString());
}

// Warns of features, and of channels, whose values are all the same.
void WarnOfConstants(const OrderedJson& features) {
  constexpr size_t kShown = 8;
  std::vector<std::string> constant;
  for (const auto& [name, of] : features.items()) {
    const auto std = of.find("std");
    if (std == of.end()) continue;
    const auto zeros = std::count(std->begin(), std->end(), 0.0);
    if (zeros == 0) continue;
    constant.push_back(std->size() == 1
                           ? Format("'{}'", Printable(name))
                           : Format("{} of {} channels of '{}'", zeros,
                                    std->size(), Printable(name)));
  }
  if (constant.empty()) return;
  const size_t shown = std::min(constant.size(), kShown);
  PrintError(Format(
      "warning: all values are the same, so that the std is 0, "
      "of {}{}",
      JoinText(std::span(constant).first(shown), ", "),
      constant.size() > shown ? Format(" and {} more", constant.size() - shown)
                              : ""));
}

Status Plot(const std::string& name, const OrderedJson& statistics,
            bool quiet) {
  std::vector<std::vector<uint64_t>> panels;
  std::string names;
  for (const auto& [feature, of] : statistics["features"].items()) {
    panels.push_back(CountsToPlot(of));
    names += (names.empty() ? "" : ", ") + feature;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string path, OutputFile(name));
  PENSTOCK_RETURN_IF_ERROR(WritePng(DrawHistograms(panels), path,
                                    Format("{}.{}.tmp", path, getpid())));
  if (!quiet) Print(stdout, "{}: from the top {}\n", name, names);
  return OkStatus();
}

StatusOr<int> Analyze(const AnalyzeOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(SpecFile file, ReadSpecFile(options.spec));
  PENSTOCK_RETURN_IF_ERROR(CheckReplaces(options.out,
                                         Format("{{\"{}\"", kVersionKey),
                                         "file of `penstock analyze`"));
  if (!options.plot.empty()) {
    PENSTOCK_RETURN_IF_ERROR(
        CheckReplaces(options.plot, "\x89PNG", "PNG picture"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<PrivateBroker> broker,
      PrivateBroker::Start(options.broker.Without(kReported)));
  PENSTOCK_ASSIGN_OR_RETURN(const OrderedJson spec,
                            ParsedSpec(broker.get(), file));
  // The first spec has one row a batch: how large is a row?
  PENSTOCK_ASSIGN_OR_RETURN(const AnalyzedSpec of_one, SpecToAnalyze(spec, 1));
  SpecFile adapted = file;
  adapted.name = "";
  adapted.text = of_one.spec.dump();
  const StatusOr<DatasetIndex> indexed =
      IndexDataset(broker->AsCall(), adapted, 1);
  if (!indexed.ok()) return InFile(indexed.status(), file, of_one.steps);
  const DatasetIndex& index = *indexed;
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  PENSTOCK_ASSIGN_OR_RETURN(const AnalyzedSpec to_read,
                            SpecToAnalyze(spec, RowsAtOnce(index)));
  const AllRecords all = {broker->socket(), to_read.spec.dump(),
                          UniqueJobName("analyze"), index.records, "analyzing"};
  StatisticsOptions of;
  of.tokens_max = options.tokens_max;
  of.threads = ProcessorCount();
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::string result,
      InTakingProcess(broker.get(), [&] { return Analyzed(all, of); }));
  OrderedJson statistics = {
      {kVersionKey, kVersion},
      {"dataset", index.dataset},
      {"fingerprint", TextField(index.answer, "source_fingerprint")},
      {"source", spec["source"]},
      {"map", to_read.spec["map"]}};
  statistics.update(OrderedJson::parse(result));
  const std::string text =
      statistics.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  PENSTOCK_RETURN_IF_ERROR(WriteWhole(options.out, text + "\n"));
  if (!options.plot.empty()) {
    PENSTOCK_RETURN_IF_ERROR(Plot(options.plot, statistics, options.json));
  }
  ReportWarning(index);
  ReportBroken(statistics["broken"], "left out of the statistics",
               "be read or made");
  WarnOfConstants(statistics["features"]);
  if (options.json) {
    Print(stdout, "{}\n", text);
  } else {
    PrintTable(statistics);
    Print(stdout, "\n{}: {} of {}\n", options.out,
          Counted(FormatCount(statistics["rows"].get<uint64_t>()), "row"),
          Printable(index.dataset));
  }
  return 0;
}

}  // namespace

Subcommand AddAnalyze(Command parent) {
  Command analyze = parent.AddCommand(
      "analyze", "Find the statistics of a dataset's features");
  const auto options = std::make_shared<AnalyzeOptions>();
  analyze.AddOption("SPEC.yaml", &options->spec, "Spec of the dataset")
      .Required();
  analyze.AddOption("--out", &options->out, "The file to write")
      .Type("FILE.json")
      .ShowDefault();
  analyze.AddOption("--plot", &options->plot, "Draw histograms")
      .Type("FILE.png");
  analyze
      .AddOption("--tokens-max", &options->tokens_max,
                 "Different words or integers to count exactly, of a feature")
      .Type("N")
      .ShowDefault()
      .InRange(uint64_t{1}, kTokensMax);
  analyze.AddFlag("--json", &options->json, "Print the statistics as JSON");
  options->broker.AddTo(analyze);
  analyze.SetFooter(
      "Every record is read once. A feature is analyzed as its first step "
      "with\n"
      "`from` finds it, or as the spec delivers it. Records that cannot be "
      "read\n"
      "or decoded are left out, counted, and the first of them named. Specs "
      "use\n"
      "the file with `normalize: {from: FILE}` and\n"
      "`lookup: {vocabulary: {from: FILE}}`.\n"
      "\n"
      "Examples:\n"
      "  penstock analyze train.yaml\n"
      "  penstock analyze train.yaml --out stats.json --plot stats.png");
  return {analyze, [options] { return Analyze(*options); }};
}

}  // namespace penstock
