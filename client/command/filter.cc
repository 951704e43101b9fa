// penstock filter: asks a Python function of each record whether it is kept,
// and writes the answers for `select: [filter: {records: FILE}]`.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "client/command/all_records.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/kept_records.h"
#include "common/printable.h"
#include "common/quantity.h"
#include "common/text_file.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

struct FilterOptions {
  std::string spec;
  std::string function;
  std::string out = "kept.records";
  uint64_t steps = 0;
  bool force = false;
  bool json = false;
  PrivateBrokerOptions broker;
};

// The spec whose rows are the function's answers. Its selection ends before
// the filter that reads the file to be written.
StatusOr<OrderedJson> SpecToFilter(const OrderedJson& spec,
                                   const std::set<uint64_t>& random,
                                   const FilterOptions& options,
                                   uint64_t batch_rows) {
  if (spec.at("source").contains("stream")) {
    return FailedPreconditionError(
        "it is a stream, which has no rows but those that producers put");
  }
  const OrderedJson& steps = spec.at("map");
  if (options.steps > steps.size()) {
    return InvalidArgumentError("--steps {}: its `map` has {}", options.steps,
                                Counted(steps.size(), "step", "steps"));
  }
  if (spec.contains("map_by_part") || spec["batch"].contains("by_part")) {
    return FailedPreconditionError(
        "its parts have steps or batches of their own: filter each part by a "
        "spec of its own, and put `filter` into the part's `select`");
  }
  OrderedJson map = OrderedJson::array();
  for (uint64_t i = 0; i < options.steps; ++i) {
    const std::string& name = steps[i].begin().key();
    if (random.contains(i)) {
      return InvalidArgumentError(
          "map[{}].{}: is random, and each record is judged once, as the steps "
          "before it make it: --steps {} at most; in Python, put `filter` "
          "before it",
          i, name, i);
    }
    map.push_back(steps[i]);
  }
  map.push_back(
      {{"python",
        {{"function", options.function},
         {"features",
          {{"keep", {{"dtype", "bool"}, {"shape", OrderedJson::array()}}}}}}}});
  OrderedJson made = spec;
  made["map"] = std::move(map);
  OrderedJson select = OrderedJson::array();
  const std::string out = fs::absolute(options.out).lexically_normal();
  for (const OrderedJson& step : spec.value("select", OrderedJson::array())) {
    const auto filter = step.find("filter");
    if (filter != step.end() && filter->value("records", "") == out) break;
    select.push_back(step);
  }
  made["select"] = std::move(select);
  ReadAllOnce(&made, batch_rows);
  for (const char* const key : {"shard", "cache", "snapshot"}) made.erase(key);
  made["on_error"] = spec.value("on_error", "fail") == "fail" ? "fail" : "skip";
  return made;
}

// The text of the module that has the function; "": it is not found, which the
// broker explains.
std::string CodeOf(const std::string& function) {
  constexpr size_t kCodeBytesMax = size_t{16} << 20;
  const char* const path = std::getenv("PENSTOCK_PYTHON_PATH");
  std::string module = function.substr(0, function.find(':'));
  std::replace(module.begin(), module.end(), '.', '/');
  for (const std::string& folder :
       SplitText(path == nullptr ? "" : path, ':')) {
    for (const char* tail : {".py", "/__init__.py"}) {
      const auto text = ReadTextFile(
          "module", fs::path(folder) / (module + tail), kCodeBytesMax);
      if (text.ok()) return *text;
    }
  }
  return "";
}

// Whether a file has the answers of this function for these data already.
bool IsUpToDate(const std::string& out, const KeptRecordsHeader& wanted,
                KeptRecordsHeader* found) {
  const uint64_t bytes_max =
      KeptRecordsHeader::kLineBytesMax + wanted.BitBytes();
  const auto text = ReadTextFile("file", out, bytes_max);
  size_t bits_at = 0;
  if (!text.ok()) return false;
  const auto header = ParseKeptRecordsHeader(*text, &bits_at);
  if (!header.ok()) return false;
  *found = *header;
  return header->records == wanted.records && header->data == wanted.data &&
         header->selection == wanted.selection &&
         header->predicate == wanted.predicate &&
         CheckKeptRecords(*header,
                          std::as_bytes(std::span(*text)).subspan(bits_at))
             .ok();
}

// In a process of its own: the answers behind a line of JSON.
StatusOr<std::string> JudgeAll(const AllRecords& all, uint64_t records) {
  std::string bits(records / 8 + (records % 8 != 0), '\0');
  uint64_t rows = 0;
  PENSTOCK_ASSIGN_OR_RETURN(
      const OrderedJson broken,
      TakeAllRecords(
          all, [](const ElementSpec&) {},
          [&](const penstock_batch* batch) {
            const auto* const keep =
                static_cast<const uint8_t*>(penstock_batch_data(batch, 0));
            const int64_t* const ids = penstock_batch_ids(batch);
            const uint64_t count = penstock_batch_rows(batch);
            for (uint64_t i = 0; i < count; ++i) {
              if (keep[i] == 0) continue;
              const auto record = static_cast<uint64_t>(ids[i]);
              if (record >= records) continue;  // not ours to trust
              bits[record / 8] = static_cast<char>(
                  static_cast<unsigned char>(bits[record / 8]) |
                  (1U << (record % 8)));
            }
            rows += count;
            return OkStatus();
          }));
  const OrderedJson head = {{"rows", rows}, {"broken", broken}};
  return JsonLineInOrder(head) + "\n" + bits;
}

// broken: null if the file was there already.
void Tell(const FilterOptions& options, const KeptRecordsHeader& header,
          uint64_t judged, const OrderedJson& broken) {
  if (options.json) {
    PrintJsonInOrder({{"file", options.out},
                      {"records", header.records},
                      {"kept", header.kept},
                      {"judged", judged},
                      {"broken", broken}});
  } else if (broken.is_null()) {
    Print(stdout, "{}: is up to date: {} kept\n", options.out,
          Counted(FormatCount(header.kept), "record"));
  } else {
    const uint64_t all = judged + broken.value("count", uint64_t{0});
    Print(stdout,
          "{}: {} of {} kept; use it with\n"
          "  select: [filter: {{records: {}}}]\n",
          options.out, FormatCount(header.kept),
          Counted(FormatCount(all), "record"), options.out);
  }
}

// The step of the function, which is an argument of this command and of no
// file.
std::string StepOf(const FilterOptions& options) {
  return Format("map[{}]", options.steps);
}

// An error about the spec whose rows are the function's answers.
Status OfFilter(const Status& status, const SpecFile& file,
                const FilterOptions& options) {
  const std::string_view message = status.message();
  const size_t at = message.find(StepOf(options) + ".python");
  const size_t end = message.find(": ", at);
  if (at != message.npos && end != message.npos) {
    return Status(status.code(),
                  Format("FUNCTION: {}", message.substr(end + 2)));
  }
  std::vector<size_t> steps(options.steps);
  std::iota(steps.begin(), steps.end(), size_t{0});
  return InFile(status, file, steps);
}

// An error of one record, likewise.
std::string OfRecord(std::string message, const FilterOptions& options) {
  const std::string step = StepOf(options) + " python ";
  if (const size_t at = message.find(step); at != message.npos) {
    message.erase(at, step.size());
  }
  return message;
}

StatusOr<int> Filter(const FilterOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(SpecFile file, ReadSpecFile(options.spec));
  PENSTOCK_RETURN_IF_ERROR(CheckReplaces(
      options.out, Format("{{\"{}\"", KeptRecordsHeader::kVersionKey),
      "file of `penstock filter`"));
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<PrivateBroker> broker,
      PrivateBroker::Start(options.broker.Without(kReported)));
  std::set<uint64_t> random;
  PENSTOCK_ASSIGN_OR_RETURN(const OrderedJson spec,
                            ParsedSpec(broker.get(), file, &random));
  PENSTOCK_ASSIGN_OR_RETURN(const OrderedJson of_one,
                            SpecToFilter(spec, random, options, 1));
  SpecFile adapted = file;
  adapted.name = "";
  adapted.text = of_one.dump();
  const StatusOr<DatasetIndex> indexed =
      IndexDataset(broker->AsCall(), adapted, 1);
  if (!indexed.ok()) return OfFilter(indexed.status(), file, options);
  const DatasetIndex& index = *indexed;
  KeptRecordsHeader header;
  header.records = CountField(index.answer, "source_records").value_or(0);
  header.data = TextField(index.answer, "source_fingerprint");
  header.selection = TextField(index.answer, "selection");
  header.function = options.function;
  const std::string code = CodeOf(options.function);
  if (!code.empty()) {
    header.predicate = PredicateDigest(code + of_one["map"].dump());
  }
  KeptRecordsHeader there;
  if (!options.force && !code.empty() &&
      IsUpToDate(options.out, header, &there)) {
    Tell(options, there, 0, nullptr);
    return 0;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const OrderedJson to_read,
      SpecToFilter(spec, random, options, RowsAtOnce(index)));
  const AllRecords all = {broker->socket(), to_read.dump(),
                          UniqueJobName("filter"), index.records, "judging"};
  const StatusOr<std::string> result = InTakingProcess(
      broker.get(), [&] { return JudgeAll(all, header.records); });
  if (!result.ok()) {
    return Status(result.status().code(),
                  OfRecord(result.status().message(), options));
  }
  const size_t line = result->find('\n');
  OrderedJson head =
      OrderedJson::parse(result->substr(0, line), nullptr, false);
  OrderedJson& broken = head["broken"];
  if (broken.contains("first")) {
    for (OrderedJson& each : broken["first"]) {
      each = OfRecord(each.get<std::string>(), options);
    }
  }
  const std::string text =
      KeptRecordsText(&header, std::string_view(*result).substr(line + 1));
  if (!options.json) {
    ReportWarning(index);
    ReportBroken(broken, "left out", "be read or judged");
  }
  const uint64_t judged = head["rows"].get<uint64_t>();
  if (header.kept == 0) {
    return FailedPreconditionError("{} keeps none of {}: nothing is written",
                                   options.function,
                                   Counted(FormatCount(judged), "record"));
  }
  PENSTOCK_RETURN_IF_ERROR(WriteWhole(options.out, text));
  Tell(options, header, judged, broken);
  return 0;
}

}  // namespace

Subcommand AddFilter(Command parent) {
  Command filter = parent.AddCommand(
      "filter", "Choose a dataset's records by a Python function");
  const auto options = std::make_shared<FilterOptions>();
  filter.AddOption("SPEC.yaml", &options->spec, "Spec of the dataset")
      .Required();
  filter
      .AddOption("FUNCTION", &options->function,
                 "It gets a row as a dict of arrays, and returns True to "
                 "keep the record or False")
      .Type("MODULE:FUNCTION")
      .Required()
      .Check([](const std::string& function) {
        const size_t colon = function.find(':');
        const bool is_name =
            colon != function.npos && colon > 0 && colon + 1 < function.size();
        return is_name ? std::string()
                       : Format(
                             "'{}': wanted MODULE:FUNCTION, such as "
                             "quality:is_clean",
                             Printable(function));
      });
  filter.AddOption("--out", &options->out, "The file to write")
      .Type("FILE")
      .ShowDefault();
  filter
      .AddOption("--steps", &options->steps,
                 "The row is made by the first N steps of `map`, which must "
                 "not be random; 0: as the source has it, a picture as the "
                 "bytes of its file")
      .Type("N")
      .ShowDefault();
  filter.AddFlag("--force", &options->force,
                 "Judge all records even if the file is up to date");
  filter.AddFlag("--json", &options->json,
                 "Print the result, or the error, as JSON");
  options->broker.AddTo(filter);
  filter.SetFooter(R"(
The module is found in the folders of PENSTOCK_PYTHON_PATH. Each record
that the spec's `select` leaves is judged once, in parallel; specs use the
file with `select: [filter: {records: FILE}]`, as long as the data and
the steps of `select` before it are the same. A record that cannot be
read, or judged, ends the command, or with another `on_error` than `fail`
is left out, counted, and the first of them named.

Examples:
  PENSTOCK_PYTHON_PATH=$PWD penstock filter train.yaml quality:is_clean
  penstock filter train.yaml quality:is_sharp --steps 1 --out sharp.records)");
  return {filter,
          [options] { return WithJsonError(Filter(*options), options->json); }};
}

}  // namespace penstock
