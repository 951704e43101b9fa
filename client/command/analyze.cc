// penstock analyze: statistics of a dataset's features, which normalize and
// lookup are told with `from`.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/command/all_records.h"
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

// ---- the spec that a dataset is read with: all records once, in their order,
// each feature as its first step with `from` finds it

struct AnalyzedSpec {
  OrderedJson spec;
  std::vector<size_t> steps;  // of each step of its `map`: the number it had
  std::map<std::string, WordRules>
      words;  // of texts that are split, by feature
};

std::vector<std::string> NamesIn(const OrderedJson& op, const char* key) {
  std::vector<std::string> names;
  const auto found = op.find(key);
  if (found == op.end()) return names;
  if (found->is_string()) names.push_back(found->get<std::string>());
  if (found->is_array()) {
    for (const OrderedJson& each : *found)
      names.push_back(each.get<std::string>());
  }
  return names;
}

bool NeedsStatistics(const std::string& name, const OrderedJson& op) {
  if (name == "normalize") return op.contains("from");
  const auto vocabulary = op.find("vocabulary");
  return (name == "lookup" || name == "vectorize_text") &&
         vocabulary != op.end() && vocabulary->is_object();
}

// How a canonical vectorize_text splits its texts.
WordRules RulesOf(const OrderedJson& op) {
  WordRules rules;
  for (const auto& [name, how] : kStandardizeNames) {
    if (op.at("standardize") == name) rules.standardize = how;
  }
  for (const auto& [name, how] : kSplitNames) {
    if (op.at("split") == name) rules.split = how;
  }
  rules.ngrams = op.value("ngrams", rules.ngrams);
  return rules;
}

// The steps, and the features that have reached one that needs statistics.
class Steps {
 public:
  // False: the map ends here.
  bool Add(const std::string& name, OrderedJson op, size_t number) {
    if (NeedsStatistics(name, op)) {
      for (std::string& each : NamesIn(op, "feature")) {
        if (name == "vectorize_text" && !ended_.contains(each)) {
          words_[each] = RulesOf(op);
        }
        ended_.insert(std::move(each));
      }
      return true;
    }
    if (ended_.empty()) {
      Keep(name, std::move(op), number);
      return true;
    }
    if (name == "python" || name == "plugin") return false;
    if (name == "rename") {
      for (const auto& [from, to] : op["features"].items()) {
        if (ended_.erase(from) > 0) ended_.insert(to.get<std::string>());
      }
    }
    if (name == "copy") {
      for (const auto& [from, copies] : op["features"].items()) {
        if (ended_.contains(from)) {
          for (const auto& each : copies) {
            ended_.insert(each.get<std::string>());
          }
        }
      }
    }
    if (name == "rename" || name == "copy" || name == "select") {
      Keep(name, std::move(op), number);
      return true;
    }
    if (name == "concatenate") {
      for (const std::string& each : NamesIn(op, "features")) {
        if (ended_.count(each) == 0) continue;
        ended_.insert(op["to"].get<std::string>());
        return true;
      }
    }
    for (const char* key : {"feature", "features", "mask"}) {
      const std::vector<std::string> names = NamesIn(op, key);
      OrderedJson left = OrderedJson::array();
      for (const std::string& each : names) {
        if (ended_.count(each) == 0) left.push_back(each);
      }
      if (left.size() == names.size()) continue;
      if (left.empty()) return true;
      op[key] = std::move(left);
    }
    Keep(name, std::move(op), number);
    return true;
  }

  OrderedJson Take() { return std::move(kept_); }
  std::vector<size_t> TakeNumbers() { return std::move(numbers_); }
  std::map<std::string, WordRules> TakeWords() { return std::move(words_); }

 private:
  void Keep(const std::string& name, OrderedJson op, size_t number) {
    kept_.push_back({{name, std::move(op)}});
    numbers_.push_back(number);
  }

  OrderedJson kept_ = OrderedJson::array();
  std::vector<size_t> numbers_;
  std::set<std::string> ended_;
  std::map<std::string, WordRules> words_;
};

// What is analyzed of a canonical spec. FailedPrecondition: its values are in
// the spec itself (tensors), or a function takes what statistics are to make.
StatusOr<AnalyzedSpec> SpecToAnalyze(const OrderedJson& spec,
                                     uint64_t batch_rows) {
  if (spec.at("source").contains("tensors")) {
    return FailedPreconditionError(
        "its values are in the spec (tensors): NumPy has their statistics at "
        "once");
  }
  if (spec.at("source").contains("stream")) {
    return FailedPreconditionError(
        "it is a stream, which has no rows but those that producers put");
  }
  if (spec.contains("map_by_part")) {
    return FailedPreconditionError(
        "its parts have steps of their own (map_by_part): analyze each part, "
        "by a spec of its own");
  }
  OrderedJson made = spec;
  Steps steps;
  size_t number = 0;
  for (const OrderedJson& each : spec.at("map")) {
    if (!steps.Add(each.begin().key(), each.begin().value(), number++)) break;
  }
  made["map"] = steps.Take();
  ReadAllOnce(&made, batch_rows);
  return AnalyzedSpec{std::move(made), steps.TakeNumbers(), steps.TakeWords()};
}

// ---- its records

uint32_t ProcessorCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

// Takes all rows, once each. In a process of its own.
StatusOr<std::string> Analyzed(const AllRecords& all,
                               const StatisticsOptions& options) {
  std::optional<Statistics> statistics;
  PENSTOCK_ASSIGN_OR_RETURN(const OrderedJson broken,
                            TakeAllRecords(
                                all,
                                [&](const ElementSpec& features) {
                                  statistics.emplace(features, options);
                                },
                                [&](const penstock_batch* batch) {
                                  statistics->Add(batch);
                                  return OkStatus();
                                }));
  const OrderedJson result = {{"rows", statistics->rows()},
                              {"broken", broken},
                              {"features", statistics->ToJson()}};
  return JsonLineInOrder(result);
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
  PrintError("warning: all values are the same, so that the std is 0, of " +
             JoinFirst(constant, kShown));
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
  of.words = to_read.words;
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
  const std::string text = JsonLineInOrder(statistics);
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
  analyze.SetFooter(R"(
Every record is read once. A feature is analyzed as its first step with
`from` finds it, or as the spec delivers it. Records that cannot be read
or decoded are left out, counted, and the first of them named. Specs use
the file with `normalize: {from: FILE}` and
`lookup: {vocabulary: {from: FILE}}`; of texts that `vectorize_text`
splits, their words are counted, and in how many texts each is.

Examples:
  penstock analyze train.yaml
  penstock analyze train.yaml --out stats.json --plot stats.png)");
  return {analyze, [options] { return Analyze(*options); }};
}

}  // namespace penstock
